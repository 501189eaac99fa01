"""The ledger: what was released, written down before it left.

A text file of JSON lines, append-only. Each line carries the SHA-256 of the line before it, so that a change or removal
in the middle is detected, and is on disk (fsync) before :meth:`Ledger.append` returns. A crash between the line and the
release over-counts by that one release; nothing under-counts.

One line is one release of one mechanism by one party in one round. ``events`` says, for each place (a unit, a view and
a relation: ``"subject/public/zero-out"``), what happened in the accountant's terms. Releases of one mechanism add up,
unless the line is ``joint``: then its events stand for the whole mechanism up to this step (noise that is correlated
over rounds, a gossip projection), and only the last such line of the mechanism and party counts.

A line with ``people`` is about people of a run who are in none of its releases but those of the same name (held-out
people, on whom a model is evaluated that was trained without them; batches of people who take turns). No person is then
in two of them, and of that run the largest counts for each person: ``Largest``. A silo has people in all of them: there
all lines add up. Under replacement, a subject that is trained on may be replaced by one that is held out: there
different mechanisms add up. (Of the batches of one mechanism the largest counts: a replaced subject keeps its
identifier and so its batch, and the events of a replaced record count the subjects of both.) Over runs everything adds
up: who is held out in one may be trained on in the next.

A ledger may have an id: a line of the chain that is not a release. Several runs may share one ledger (a budget file):
every append holds the file's lock and first reads what others wrote.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tacit.privacy.accounting.events import Event, Largest, Unprotected, composition, event_from_dict

_GENESIS = "0" * 64
_ID = "ledger"  # the key of the line with the id
# which accounting wrote a line; lines without the key are of the first. Lines of earlier ones may count too little:
# tacit.ledgers.recheck.ADVISORIES says which advisory is about which. Settings of a plan have the meaning that they had
# then: tacit.engine.folder.plan_content
ACCOUNTING = 4


def mark_of(noise: str) -> str:
    """The end of the name of a run whose noise can be drawn again, by which others with the same noise are found."""
    return "-" + hashlib.sha256(f"tacit ledger {noise}".encode()).hexdigest()[:16]


def has_seed(lines: Iterable[Mapping[str, Any]], seed_mark: str) -> bool:
    """Whether one of the lines is of a run with that mark."""
    return bool(seed_mark) and any(str(line["run"]).endswith(seed_mark) for line in lines)


class LedgerError(Exception):
    """The file is not what an append-only ledger can look like: ``altered``, or ``moved`` while it was in use."""

    def __init__(self, code: Literal["altered", "moved"], problem: str) -> None:
        super().__init__(problem)
        self.code = code


class Ledger:
    """An open ledger file. ``append`` returns only when the line is on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        is_new = not path.exists()
        opened = plain_file(path, os.O_RDWR | os.O_APPEND)
        self._file = os.fdopen(opened, "a+b", buffering=0)  # nothing of a line that failed may be written later
        if is_new:
            sync_folder(path.parent)
        self._lines: list[dict[str, Any]] = []
        self._end, self._last = 0, _GENESIS
        self.id: str | None = None
        try:
            self.refresh()
        except LedgerError:
            self.close()
            raise

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All releases known to this process, oldest first."""
        return list(self._lines)

    def refresh(self) -> None:
        """Read what other runs have appended since."""
        with self._locked():
            self._read_on()

    def append(
        self,
        *,
        run: str,
        party: str,
        round: int,
        mechanism: str,
        step: int,
        events: Mapping[str, Event],
        joint: bool = False,
        people: str | None = None,
        unless: Callable[[Sequence[Mapping[str, Any]]], Exception | None] = lambda lines: None,
    ) -> None:
        """Write down one release of ``run`` by ``party``; ``events`` by place. ``people`` names those that it is about
        where they are in no other release of the run.

        ``unless`` is asked first, with all lines and while the file is locked: an exception that it returns is
        raised, and nothing is written. So runs that share a budget cannot both take its last part.
        """
        body = {
            "run": run,
            "party": party,
            "round": round,
            "mechanism": mechanism,
            "step": step,
            "joint": joint,
            "accounting": ACCOUNTING,
            "events": {place: event.as_dict() for place, event in events.items()},
            **({} if people is None else {"people": people}),
        }
        with self._locked():
            self._read_on()
            refusal = unless(self._lines)
            if refusal is not None:
                raise refusal
            self._append(body)

    def identify(self) -> str:
        """The id of the ledger; a new one where it has none."""
        with self._locked():
            self._read_on()
            if self.id is None:
                self._append({_ID: secrets.token_hex(8)})
            assert self.id is not None
            return self.id

    def _append(self, body: Mapping[str, Any]) -> None:
        """Write all of a line to the disk, or nothing."""
        line = _sealed(body, self._last)
        text = json.dumps(line, sort_keys=True).encode() + b"\n"
        try:
            left = memoryview(text)
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(text)
        self._take_in(line)

    def _take_in(self, line: dict[str, Any]) -> None:
        if _ID in line:
            self.id = str(line[_ID])
        else:
            self._lines.append(line)
        self._last = line["hash"]

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def head(self) -> str:
        """The hash of the last release: it stands for all lines up to it."""
        return str(self._lines[-1]["hash"]) if self._lines else _GENESIS

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold an exclusive lock on the file, among processes."""
        fcntl.flock(self._file.fileno(), fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)

    def _read_on(self) -> None:
        """Verify and take in everything after what is known; cut off a last line that a crash left unfinished, and end
        one that lacks nothing but its end."""
        self._check_place()
        self._file.seek(self._end)
        raw = self._file.read()
        last = raw[raw.rfind(b"\n") + 1 :]
        if last and _verified(last) is not None:
            self._file.write(b"\n")
            os.fsync(self._file.fileno())
            raw += b"\n"
        whole = raw[: raw.rfind(b"\n") + 1]
        for text in whole.splitlines():
            line = _verified(text, self._last)
            if line is None or (_ID in line and self.id is not None):
                where = f"{self.path.name}: line {len(self._lines) + (self.id is not None) + 1}"
                raise LedgerError("altered", f"{where} does not continue the chain: the ledger was altered")
            self._take_in(line)
        self._end += len(whole)
        if len(whole) != len(raw):
            self._file.truncate(self._end)
        self._file.seek(self._end)

    def _check_place(self) -> None:
        """What is appended to a file that was moved, replaced or cut meanwhile is lost for all other readers."""
        here = os.fstat(self._file.fileno())
        try:
            in_place = os.path.samestat(here, os.lstat(self.path))
        except OSError:
            in_place = False
        if not in_place or here.st_size < self._end:
            raise LedgerError("moved", f"{self.path.name}: the file was moved, replaced or cut while it was in use")


def plain_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open the file ``path``, or create it with that mode (less the umask), by default for its owner alone; a symbolic
    link is not followed. OSError where it is not a plain file."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return descriptor


def place(unit: object, view: object, relation: object) -> str:
    """The name under which lines keep what happened to one unit, for one view, against one kind of change."""
    return f"{unit}/{view}/{relation}"


class Tally:
    """Everything that lines released at ``place``, as one event, taken in as they come.

    A line that says nothing about that place promised nothing there: it counts as unprotected.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.count = 0
        self._joint: dict[_Group, dict[tuple[str, str], Event]] = {}
        self._single: dict[_Group, Counter[Event]] = {}

    def add(self, lines: Iterable[Mapping[str, Any]]) -> None:
        for line in lines:
            values = line["events"].get(self.place)
            missing = Unprotected(f"{line['mechanism']} of run {line['run']} promised nothing here")
            event = missing if values is None else event_from_dict(values)
            group = (line["run"], line.get("people"), line["mechanism"])
            if line["joint"]:
                self._joint.setdefault(group, {})[line["party"], line["mechanism"]] = event
            else:
                self._single.setdefault(group, Counter())[event] += 1
            self.count += 1

    @property
    def event(self) -> Event:
        groups = list(dict.fromkeys((*self._joint, *self._single)))
        unit, relation = self.place.partition("/")[0], self.place.rpartition("/")[2]
        separated = {run for run, people, _ in groups if people is not None and unit != "silo"}
        # runs in which every person is in every release simply add up
        parts = self._parts([group for group in groups if group[0] not in separated])
        for run in sorted(separated):
            own = [group for group in groups if group[0] == run]
            mechanisms = dict.fromkeys(group[2] for group in own) if relation == "replace" else [None]
            for mechanism in mechanisms:
                found: dict[str | None, list[_Group]] = {}
                for group in own:
                    if mechanism in (None, group[2]):
                        found.setdefault(group[1], []).append(group)
                apart = dict.fromkeys(composition(self._parts(same)) for same in found.values())
                parts.append((Largest(tuple(apart)), 1))
        return composition(parts)

    def _parts(self, groups: Sequence[_Group]) -> list[tuple[Event, int]]:
        joint = [(event, 1) for group in groups for event in self._joint.get(group, {}).values()]
        single: Counter[Event] = sum((self._single.get(group, Counter()) for group in groups), Counter())
        return [*joint, *single.items()]


# a run, the people of a release where they are in no other release of that run, and the mechanism
_Group = tuple[str, str | None, str]


def spent(lines: Iterable[Mapping[str, Any]], place: str) -> Event:
    """Everything that the lines released at ``place``, as one event."""
    tally = Tally(place)
    tally.add(lines)
    return tally.event


def sync_folder(folder: Path) -> None:
    """Make a new file's entry survive a power failure, not only its content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sealed(body: Mapping[str, Any], previous: str) -> dict[str, Any]:
    """The line with the hash of everything in it and of the line before."""
    line = {**body, "previous": previous}
    line["hash"] = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
    return line


def _verified(text: bytes, head: str | None = None) -> dict[str, Any] | None:
    """The line, if it is a whole one and continues the chain; None for ``head``: whatever came before it."""
    try:
        line = json.loads(text)
        body = {key: value for key, value in line.items() if key not in ("previous", "hash")}
        previous = line["previous"] if head is None else head
    except (ValueError, AttributeError, KeyError):
        return None
    return line if line == _sealed(body, previous) else None
