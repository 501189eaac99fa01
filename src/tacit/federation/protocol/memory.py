"""Files from which a party resumes: the coordinator's checkpoint, and what a silo keeps of its rounds.

They are replaced in one step and checked when they are read: their plan, their arrays, and a hash of the whole.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tacit.crypto import Refused
from tacit.engine.folder import PRIVATE
from tacit.engine.learner import WrongTree, packed, unpacked, write_bytes
from tacit.errors import UserError
from tacit.exchange.post import join, parted

FIELD = "--resume"
_FIX = "restore it from a backup, or start a new run"
_VERSION = b"tacit-memory-1"


def keep(path: Path, plan: str, number: int, tree: Any) -> None:
    """Write a ``tree`` of arrays after round ``number`` of the plan with that hash."""
    body = join([_VERSION, plan.encode(), str(number).encode(), packed(tree)])
    write_bytes(path, hashlib.sha256(body).digest() + body, PRIVATE)


def recall(path: Path, plan: str, template: Any) -> tuple[int, Any]:
    """The round and the tree that :func:`keep` wrote; a UserError where the file is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError("file-access", FIELD, f"'{path.name}' cannot be read ({error.strerror})", _FIX) from None
    digest, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != digest:
        raise UserError("file-damaged", FIELD, f"'{path.name}' is damaged, or was not written to its end", _FIX)
    try:
        version, of, number, tree = parted(body, path.name, 4)
        if version != _VERSION:
            raise WrongTree("is of another version")
        if of != plan.encode():
            raise WrongTree("belongs to another plan")
        return int(number), unpacked(tree, template)
    except (Refused, WrongTree) as problem:
        raise UserError("file-damaged", FIELD, f"'{path.name}' {problem}", _FIX) from None


class SiloMemory:
    """What a silo keeps of its last two rounds in a folder of its own: the coordinator may resume from either, because
    its checkpoint is written after the silos' work."""

    def __init__(self, folder: Path | None, plan: str) -> None:
        self._folder, self._plan = folder, plan

    def keep(self, number: int, tree: Any) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = self._known()
        keep(self._path(number), self._plan, number, tree)
        for old in [other for other in known if other < number][:-1]:
            self._path(old).unlink()

    def forget(self) -> None:
        """Delete the files of an earlier run."""
        for number in self._known():
            self._path(number).unlink()

    def recall(self, done: int, template: Any) -> Any:
        """What was kept last, when ``done`` rounds were done; a UserError where there is nothing."""
        known = [number for number in self._known() if number <= done]
        if self._folder is None or not known:
            problem = f"no state of a run of {done} rounds is kept here, and the method needs it"
            raise UserError("file-not-found", FIELD, problem, _FIX)
        return recall(self._path(known[-1]), self._plan, template)[1]

    def _known(self) -> list[int]:
        if self._folder is None:
            return []
        names = (path.stem.removeprefix("round-") for path in self._folder.glob("round-*.kept"))
        return sorted(int(name) for name in names if name.isdigit())

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"round-{number}.kept"
