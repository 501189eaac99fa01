"""Which ledgers a silo's kit knows: a budget belongs to a data set, whatever its files are called.

A ledger has a random id, which is a line of its chain (:meth:`tacit.privacy.Ledger.identify`).
``KIT/tacit/ledgers.json`` has an entry for the id of every ledger that the silo was started with:

ledger  where it is
table   the table whose releases it counts; a warning is logged when it changes
lines   how many releases it had when it was last used, with the ``hash`` of the last one
before  the name that the server had for it before ledgers had an id

A silo whose kit knows a ledger starts with that ledger, or with another one if a person typed ``--new-budget``. The
server gets the id with the state of the ledger, and logs an id that is new to it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacit.engine.federation.kits import Kit
from tacit.engine.federation.policy import Head
from tacit.engine.federation.shard import SiloData
from tacit.engine.folder import PRIVATE, read_json, write_json
from tacit.errors import UserError
from tacit.privacy import Ledger, LedgerError
from tacit.privacy.ledger import plain_file
from tacit.transport.log import log_of

LEDGERS = "ledgers.json"

Entry = dict[str, Any]


def register(kit: Kit, options: SiloData, new_budget: bool = False) -> str:
    """The id of the ledger that a silo starts with. UserError where the kit knows others and not this one, unless a
    person asks for a ``new_budget``; and where it is older than the kit remembers."""
    log = log_of(kit.path)
    try:
        with _registry(kit) as known, _opened(options, known, new_budget) as ledger:
            before = None if ledger.id or not ledger.lines else _name_before(kit, options)
            mark = ledger.identify()
            entry = known.get(mark)
            if entry is not None:
                check_not_older(ledger.lines, Head(entry["lines"], entry["hash"]), ledger.path)
                before = entry["before"]
                _warn_of_another_table(kit, mark, entry, options)
            elif known:
                log.warning("new budget: ledger %s (%s) begins; %d others are known", mark, ledger.path, len(known))
            else:
                log.info("ledger  %s is %s", mark, ledger.path)
            state = {"lines": len(ledger.lines), "hash": ledger.head}
            known[mark] = {"ledger": options.ledger, "table": options.path, **state, "before": before}
            return mark
    except UserError as error:
        log.warning("refused to start: %s", error)
        raise


def registered(kit: Kit, options: SiloData) -> tuple[str, str | None]:
    """The id of the ledger that a run is about to use, and the name that the server had for it before; UserError where
    the silo was not started with this ledger."""
    known, mark = known_ledgers(kit), _id_of(Path(options.ledger or ""))
    if mark is None or mark not in known:
        raise _unknown(Path(options.ledger or ""), known)
    _warn_of_another_table(kit, mark, known[mark], options)
    return mark, known[mark]["before"]


def remember(kit: Kit, mark: str, head: Head) -> None:
    """Note how far a ledger has come."""
    with _registry(kit) as known:
        if mark in known and head.lines > known[mark]["lines"]:
            known[mark] |= {"lines": head.lines, "hash": head.hash}


def known_ledgers(kit: Kit) -> dict[str, Entry]:
    """The entries by id."""
    file = kit.ours / LEDGERS
    return dict(read_json(file, "KIT")) if file.is_file() else {}


def check_not_older(lines: list[dict[str, Any]], head: Head, path: Path) -> None:
    """UserError where ``lines`` do not continue what had that ``head``."""
    if head.lines and (len(lines) < head.lines or lines[head.lines - 1]["hash"] != head.hash):
        problem = f"'{path}' has {len(lines)} lines and does not continue the state of {head.lines} lines that is known"
        raise UserError("ledger", problem, "restore a newer backup")


def _opened(options: SiloData, known: Mapping[str, Entry], new_budget: bool) -> Ledger:
    file = Path(options.ledger or "")
    is_known = _id_of(file) in known
    if is_known and new_budget:
        raise UserError("--new-budget", f"the budget of '{file}' has begun", "leave the option out")
    if known and not is_known and not new_budget:
        raise _unknown(file, known)
    return _ledger(file)


def _unknown(file: Path, known: Mapping[str, Entry]) -> UserError:
    others = ", ".join(f"'{entry['ledger']}'" for entry in known.values())
    problem = f"the silo has not started with the ledger '{file}' before; it has with {others or 'none'}"
    fix = 'name the ledger of this data set in DATA.toml (ledger = "…"), or start once with --new-budget'
    return UserError("DATA.toml", problem, fix)


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
        raise UserError("ledger", str(error), "restore it from a backup: `tacit ledger restore`") from None
    except OSError as error:
        raise UserError("ledger", f"'{file}' cannot be opened ({error.strerror})", "correct ledger") from None


def _name_before(kit: Kit, options: SiloData) -> str:
    return hashlib.sha256(f"{kit.name}/{options.name}".encode()).hexdigest()[:16]


@contextmanager
def _registry(kit: Kit) -> Iterator[dict[str, Entry]]:
    """The entries, to be changed: runs at the same time take turns. Nothing is written where an error is raised."""
    lock = plain_file(kit.ours / f"{LEDGERS}.lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = known_ledgers(kit)
        yield known
        write_json(kit.ours / LEDGERS, known, PRIVATE)
    finally:
        os.close(lock)
