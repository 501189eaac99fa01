"""The two ways in which Tacit says no, and the one line that each prints.

A :class:`UserError` is a mistake that the person at the keyboard can correct: it names the field, the offending value
and the fix, and ends the command with exit code 2. A :class:`Forbidden` is work that a privacy budget or a policy does
not allow, however it is written: exit code 3.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tacit.escape import escaped


class TacitError(Exception):
    """Base of everything that Tacit raises on purpose; ``exit_code`` is what the command line returns."""

    exit_code = 2

    def __init__(self, field: str, problem: str, fix: str, file: str = "") -> None:
        self.field = field
        self.problem = problem
        self.fix = fix
        self.file = file  # that has the field, where a command reads several
        where = f"{file}: {field}" if file else field
        super().__init__(escaped(" ".join(f"{where}: {problem}; {fix}".split())))


class UserError(TacitError):
    """A mistake in an experiment, a table or a command: ``field: problem; fix``, after the file if it is named."""

    exit_code = 2


class Forbidden(TacitError):
    """A budget or a policy forbids the work."""

    exit_code = 3


@contextmanager
def in_file(file: str) -> Iterator[None]:
    """Errors within name the file, unless they name one already."""
    try:
        yield
    except TacitError as error:
        if error.file:
            raise
        raise type(error)(error.field, error.problem, error.fix, file) from None


def nearest(word: str, known: Iterable[str]) -> str:
    """What to suggest for an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(names)}" if names else "nothing is accepted here"
