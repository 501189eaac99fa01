"""Which ledgers a silo's kit knows: a budget belongs to a data set, under any file name.

A ledger has a random id, which is a line of its chain (:meth:`tacit.privacy.Ledger.identify`).
``KIT/tacit/ledgers.json`` has an entry for the id of every ledger that the silo was started with:

ledger      where it is
table       the table whose releases it counts; a warning is logged when it changes
tables      all tables whose releases it has counted (missing in entries of earlier versions)
lines       how many releases it had when it was last used, with the ``hash`` of the last one
before      the name that the server had for it before ledgers had an id
counted_in  ids of the ledgers that had counted the same table when this one began (missing in earlier entries)

A silo whose kit knows a ledger starts with that ledger, or with another one if a person typed ``--new-budget``. A new
budget for a table that a known ledger counts needs ``--same-table``, too: the subjects of that table then have two
budgets. The server gets the id with the state of the ledger, and logs an id that is new to it.

Tables are compared by path (links are followed). A copy of a table under another name is another table.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tacit.engine.folder import PRIVATE, read_json, write_json
from tacit.errors import UserError
from tacit.federation.kits import Kit
from tacit.federation.site.policy import Head, continues
from tacit.federation.site.shard import SiloData
from tacit.privacy import Ledger, LedgerError
from tacit.privacy.ledger import plain_file
from tacit.transport.log import log_of

LEDGERS = "ledgers.json"

Entry = dict[str, Any]


class Registered(NamedTuple):
    """A ledger that the kit knows: parts of its entry."""

    id: str
    before: str | None
    counted_in: tuple[str, ...]


def register(kit: Kit, options: SiloData, new_budget: bool = False, same_table: bool = False) -> str:
    """The id of the ledger that a silo starts with. UserError where it is older than the kit remembers, or where the
    kit knows others and not this one. A person can then ask for a ``new_budget``, and must confirm ``same_table`` where
    a known ledger counts this table."""
    log = log_of(kit.path)
    try:
        with _registry(kit) as known, _opened(kit, options, known, new_budget, same_table) as ledger:
            is_older = not ledger.id and bool(ledger.lines)  # than ids of ledgers: the server has another name for it
            before = hashlib.sha256(f"{kit.name}/{options.name}".encode()).hexdigest()[:16] if is_older else None
            mark = ledger.identify()
            entry = known.get(mark, {})
            earlier = _counting(known, options.path)
            counted_in = entry.get("counted_in", [])
            if entry:
                check_not_older(ledger.lines, Head(entry["lines"], entry["hash"]), ledger.path)
                before = entry["before"]
                _warn_of_another_table(kit, mark, entry, options)
            elif known:
                log.warning("new budget: ledger %s (%s) begins; %d others are known", mark, ledger.path, len(known))
                for other, one in earlier.items():
                    words = "new budget: table %s was counted in ledger %s (%s), %d lines"
                    log.warning(words, options.path, other, one["ledger"], one["lines"])
                counted_in = list(earlier)
            else:
                log.info("ledger  %s is %s", mark, ledger.path)
            known[mark] = {
                "ledger": options.ledger,
                "table": options.path,
                "tables": list(dict.fromkeys([*(_tables(entry) if entry else ()), options.path])),
                "lines": len(ledger.lines),
                "hash": ledger.head,
                "before": before,
                "counted_in": counted_in,
            }
            return mark
    except UserError as error:
        log.warning("refused to start: %s", error)
        raise


def registered(kit: Kit, options: SiloData) -> Registered:
    """The ledger that a run is about to use; UserError where the silo was not started with it."""
    known, mark = known_ledgers(kit), _id_of(Path(options.ledger or ""))
    if mark is None or mark not in known:
        raise _unknown(kit, options, known)
    entry = known[mark]
    _warn_of_another_table(kit, mark, entry, options)
    return Registered(mark, entry["before"], tuple(entry.get("counted_in", ())))


def remember(kit: Kit, mark: str, head: Head) -> None:
    """Keep the state of a ledger."""
    with _registry(kit) as known:
        if mark in known and head.lines > known[mark]["lines"]:
            known[mark] |= {"lines": head.lines, "hash": head.hash}


def known_ledgers(kit: Kit) -> dict[str, Entry]:
    """The entries by id."""
    file = kit.ours / LEDGERS
    return dict(read_json(file, "KIT")) if file.is_file() else {}


def check_not_older(lines: list[dict[str, Any]], head: Head, path: Path) -> None:
    """UserError where a ledger with these ``lines`` never had the state ``head``."""
    if not continues(lines, head):
        problem = f"'{path}' has {len(lines)} lines and does not continue the state of {head.lines} lines that is known"
        raise UserError("ledger-mismatch", "ledger", problem, "restore a newer backup")


def _opened(kit: Kit, options: SiloData, known: Mapping[str, Entry], new_budget: bool, same_table: bool) -> Ledger:
    file = Path(options.ledger or "")
    is_known = _id_of(file) in known
    if is_known and new_budget:
        raise UserError("no-effect", "--new-budget", f"the budget of '{file}' has begun", "leave the option out")
    if same_table and not new_budget:
        raise UserError("no-effect", "--same-table", "confirms --new-budget, which is missing", "leave the option out")
    if known and not is_known:
        if not new_budget:
            raise _unknown(kit, options, known)
        if (earlier := _counting(known, options.path)) and not same_table:
            raise _counted(kit, options, earlier)
    return _ledger(file)


def _unknown(kit: Kit, options: SiloData, known: Mapping[str, Entry]) -> UserError:
    """Why a silo does not start with a ledger: the file is missing, or is not one that the kit knows."""
    file = Path(options.ledger or "")
    here = [entry for entry in known.values() if _is_same(entry["ledger"], file)]
    if here:
        state = "is missing" if not file.exists() else "is not the ledger that was there"
        problem = f"'{file}' {state} (the kit knows it with {max(entry['lines'] for entry in here)} lines)"
        return UserError("ledger-mismatch", "ledger", problem, _restore(kit))
    if earlier := _counting(known, options.path):
        return _counted(kit, options, earlier, new_budget=False)
    others = ", ".join(f"'{entry['ledger']}'" for entry in known.values())
    problem = f"'{file}' is not a ledger that this silo has started with (known: {others or 'none'})"
    fix = 'name the ledger of this data set in the data file (ledger = "…"); for another data set, use --new-budget'
    return UserError("ledger-unknown", "ledger", problem, fix)


def _counted(kit: Kit, options: SiloData, earlier: Mapping[str, Entry], new_budget: bool = True) -> UserError:
    """A table whose releases a known ledger counts, with another ledger."""
    mark, entry = next(iter(earlier.items()))
    field = "--new-budget" if new_budget else "ledger"
    problem = f"the table '{options.path}' is counted in ledger {mark} ('{entry['ledger']}', {entry['lines']} lines)"
    if not Path(entry["ledger"]).exists():
        return UserError("ledger-mismatch", field, f"{problem}, which is missing", _restore(kit))
    fix = f'continue it (ledger = "{entry["ledger"]}" in the data file)'
    fix = f"{fix}; --same-table confirms a second budget for the same subjects"
    return UserError("counted-already", field, problem, fix)


def _restore(kit: Kit) -> str:
    command = f"restore it with `tacit ledger restore BACKUP {kit.path}`"
    return f"{command}; without a backup, treat the budget of this table as spent"


def _tables(entry: Entry) -> list[str]:
    return list(entry.get("tables", [entry["table"]]))


def _counting(known: Mapping[str, Entry], table: str) -> dict[str, Entry]:
    """The ledgers that count releases of ``table``, or did."""
    return {mark: entry for mark, entry in known.items() if any(_is_same(one, table) for one in _tables(entry))}


def _is_same(one: str | Path, other: str | Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _warn_of_another_table(kit: Kit, mark: str, entry: Entry, options: SiloData) -> None:
    if entry["table"] != options.path:
        log_of(kit.path).warning("ledger %s counts the table %s; before: %s", mark, options.path, entry["table"])


def _id_of(file: Path) -> str | None:
    if not file.is_file():
        return None
    with _ledger(file) as ledger:
        return ledger.id


def _ledger(file: Path) -> Ledger:
    try:
        return Ledger(file)
    except LedgerError as error:
        fix = "restore it from a backup: `tacit ledger restore`"
        raise UserError("ledger-damaged", "ledger", str(error), fix) from None
    except OSError as error:
        problem = f"'{file}' cannot be opened ({error.strerror})"
        raise UserError("file-access", "ledger", problem, "correct ledger") from None


@contextmanager
def _registry(kit: Kit) -> Iterator[dict[str, Entry]]:
    """The entries, to be changed by one process at a time. An error leaves the file as it is."""
    lock = plain_file(kit.ours / f"{LEDGERS}.lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = known_ledgers(kit)
        yield known
        write_json(kit.ours / LEDGERS, known, PRIVATE)
    finally:
        os.close(lock)
