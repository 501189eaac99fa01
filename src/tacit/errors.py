"""The errors that Tacit raises on purpose, each with a stable code.

A :class:`UserError` is a mistake that the user can correct; the command ends with exit code 2. A :class:`Forbidden` is
work that a privacy budget or a policy does not allow; exit code 3. Both print one line: ``field: problem; fix [code]``.

The code and the field together identify what happened. They stay the same between versions; the sentences may change.
``docs/reference/errors.md`` is the catalogue of all codes, written from :data:`CODES`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from tacit.escape import escaped


class Code(NamedTuple):
    """What an error code means, how to recover in general, and the exit code of the command."""

    meaning: str
    recovery: str
    exit_code: int = 2


CODES: Mapping[str, Code] = {
    # values
    "missing": Code("A required value is not given.", "Add the field or option that the message names."),
    "unknown-name": Code("A name is not one of the known names.", "Use a name that the message lists."),
    "unknown-key": Code("A key does not exist in this section.", "Correct the spelling, or remove the key."),
    "wrong-type": Code(
        "A value has the wrong type.", "Write the value as the message says, such as a number or a list."
    ),
    "malformed": Code("A text does not have the expected form.", "Follow the example in the message."),
    "invalid-value": Code("A value is not accepted for this field.", "Use one of the accepted values."),
    "out-of-range": Code("A number is below or above the accepted range.", "Use a number within the stated range."),
    "too-few": Code("There are fewer items than the operation needs.", "Provide at least the stated number."),
    "too-many": Code("A number or size exceeds a limit.", "Reduce it to the stated limit."),
    "duplicate": Code("A name occurs more than once.", "Name each item once."),
    "conflict": Code("Two given values exclude each other.", "Keep one of them, or change one to fit the other."),
    "no-effect": Code("A value has no effect in this combination.", "Remove it, or choose what the message names."),
    "not-supported": Code(
        "The combination of method, exchange, model and data is not supported.",
        "Use the alternative that the message names.",
    ),
    "simulator-only": Code(
        "A setting works in the simulator, but not in a federation.", "Change or remove it before `tacit submit`."
    ),
    # data
    "mismatch": Code("A declared value differs from the data or from another party.", "Correct the declared value."),
    "changed": Code("Data or settings differ from those that the run began with.", "Restore them, or start a new run."),
    "missing-values": Code("A column has rows without a value.", "Fill the gaps, or drop these rows."),
    "undeclared-value": Code("A column has a value that is not declared.", "Declare the value, or correct the table."),
    "several": Code("A table has several problems.", "Correct all that the message lists, each with its own code."),
    "not-finite": Code("A number is infinite or not a number.", "Replace the value, or drop the row."),
    "empty": Code("Nothing is left to work on: no rows, no columns or no records.", "Provide at least one."),
    # guarantees
    "not-private": Code("The method has no noise, so it has no guarantee.", "Choose a private method, or set noise."),
    "unreachable": Code("No amount of noise reaches the target.", "Raise the target, or lower rounds and rates."),
    "seed-reused": Code("The seed would draw noise that was drawn before.", "Use another seed, or none."),
    "no-guarantee": Code("A budget is set, but the epsilon is infinite.", "Choose a private method or other views.", 3),
    "budget-exhausted": Code(
        "The privacy budget does not allow the work.",
        "Plan fewer rounds or more noise. A larger budget is a decision of the data protection officer.",
        3,
    ),
    "policy-forbids": Code(
        "The policy of a silo does not allow the run.", "Plan within the policy, or ask the silo.", 3
    ),
    # files and runs
    "file-not-found": Code("A file or folder does not exist.", "Correct the path."),
    "file-damaged": Code("A file cannot be parsed or is incomplete.", "Correct it, or restore it from a backup."),
    "file-access": Code("The system does not let Tacit read or write a file.", "Correct the path or its permissions."),
    "wrong-file": Code("A file or folder is of another kind.", "Name a file or folder of the kind in the message."),
    "exists-already": Code("The output exists already.", "Name a new file or folder."),
    "in-use": Code("Another process uses the folder or port.", "Wait for that process, or stop it."),
    "unfinished": Code("The run has no result or checkpoint yet.", "Resume the run, or start it again."),
    "cannot-resume": Code("The run cannot be resumed without breaking its guarantee.", "Start a new run."),
    "diverged": Code("The model is no longer finite.", "Lower the learning rate."),
    "process-ended": Code(
        "A process of a run in several processes ended before the others.",
        "Check memory and connections, then continue with `--resume`.",
    ),
    "invalid-model": Code(
        "A user's own model cannot be loaded or used.", "Correct the factory that the message names."
    ),
    "invalid-plugin": Code(
        "An installed package cannot provide what its entry point names.", "Correct, update or uninstall the package."
    ),
    "out-of-memory": Code("The experiment needs more memory than there is.", "Reduce counts, batches or the model."),
    "ledger-damaged": Code("A ledger was altered, cut or replaced.", "Restore the ledger from a backup."),
    "ledger-mismatch": Code("A ledger lacks releases that were made.", "Restore the newest backup of the ledger."),
    "ledger-unknown": Code("The kit of the silo does not know this ledger.", "Name the ledger of this data set."),
    "counted-already": Code("Another ledger already counts this table.", "Use that ledger, or confirm a new budget."),
    "cannot-sign": Code("The sheet of this run must not be signed as it is.", "Follow the fix in the message."),
    "not-verified": Code(
        "A file is not as it was signed, or the signature is of another key.", "Ask the signer for the original files."
    ),
    # federation
    "wrong-passphrase": Code("The passphrase does not open the file.", "Give the passphrase that was set first."),
    "bad-certificate": Code("A certificate is not valid.", "Check the clock, or make new kits."),
    "not-installed": Code("An optional package is not installed.", "Install the extra that the message names."),
    "start-failed": Code("A process did not start.", "Read the log file that the message names."),
    "no-answer": Code("The server does not answer.", "Check the address and that the server runs, then retry."),
    "rejected": Code("The other party refused the message, kit or result.", "Follow the fix in the message."),
    "not-signed": Code("The request is not signed by one requester.", "Submit it with `tacit submit`."),
    "expired": Code("The request is not valid at this time.", "Check the clock, then submit again."),
    "timeout": Code("The work takes longer than its limit.", "Reduce the work, or raise the limit."),
    "run-failed": Code("The run ended without a model.", "Read the logs of server and silos, then submit again."),
}


class TacitError(Exception):
    """Base of everything that Tacit raises on purpose; ``exit_code`` is what the command line returns."""

    exit_code = 2

    def __init__(self, code: str, field: str, problem: str, fix: str, file: str = "") -> None:
        assert CODES[code].exit_code == self.exit_code, f"{code} is not a code of {type(self).__name__}"
        super().__init__(code, field, problem, fix, file)
        self.code = code
        self.field = field
        self.problem = problem
        self.fix = fix
        self.file = file  # that has the field, where a command reads several

    def __str__(self) -> str:
        where = f"{self.file}: {self.field}" if self.file else self.field
        return escaped(" ".join(f"{where}: {self.problem}; {self.fix} [{self.code}]".split()))


class Deprecated(FutureWarning):
    """A name that still works and will be removed in the next release."""


class UserError(TacitError):
    """A mistake in an experiment, a table or a command."""

    exit_code = 2


class Forbidden(TacitError):
    """A budget or a policy forbids the work."""

    exit_code = 3


class Problems:
    """Errors about one thing, such as the columns of a table, to be raised together."""

    def __init__(self) -> None:
        self.found: list[UserError] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """An error within is noted, and the work after it goes on."""
        try:
            yield
        except UserError as error:
            self.found.append(error)

    def check(self) -> None:
        """Raise what was noted: one error as it is, several as one that lists them all."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            listed = "; ".join(f"({k}) {e.field}: {e.problem} [{e.code}]" for k, e in enumerate(self.found, start=1))
            fixes = dict.fromkeys(error.fix for error in self.found)
            raise UserError("several", "data", f"{len(self.found)} problems: {listed}", "; ".join(fixes))


class Note(UserWarning):
    """What a user should know and need not change; commands print one line."""


class NotLoggedWarning(UserWarning):
    """A run is done, and a tracking server did not accept it."""


class DivergedWarning(UserWarning):
    """The model of a run is no longer finite; the last finite one is kept."""


class InvalidSetting(ValueError):
    """What a validator of a section raises: the error about the section has this code."""

    def __init__(self, code: str, problem: str) -> None:
        assert code in CODES, f"{code} is not in the table of codes"
        super().__init__(problem)
        self.code = code


@contextmanager
def in_file(file: str) -> Iterator[None]:
    """Errors within name the file, unless they name one already."""
    try:
        yield
    except TacitError as error:
        if error.file:
            raise
        raise type(error)(error.code, error.field, error.problem, error.fix, file) from None


def nearest(word: str, known: Iterable[str]) -> str:
    """What to suggest for an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(names)}" if names else "nothing is accepted here"
