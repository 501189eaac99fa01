"""The ledger: what was released, written down before it left.

A text file of JSON lines, append-only. Each line carries the SHA-256 of the line before it, so that a line can be
neither changed nor removed from the middle unnoticed, and each is on disk (fsync) before :meth:`Ledger.append` returns.
A crash between the line and the release over-counts by that one release; nothing under-counts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_GENESIS = "0" * 64


class LedgerError(Exception):
    """The file is not what an append-only ledger can look like."""


class Ledger:
    """An open ledger file. ``append`` returns only when the line is on disk."""

    def __init__(self, path: Path) -> None:
        lines = read(path) if path.exists() else []
        self._head = lines[-1]["hash"] if lines else _GENESIS
        self._lines = lines
        self._file = path.open("ab")

    @property
    def lines(self) -> list[dict[str, Any]]:
        return list(self._lines)

    def append(self, *, party: str, round: int, mechanism: str, step: int, event: Mapping[str, Any]) -> None:
        """Record one release by ``party`` in ``round``; ``event`` says what happened, in the accountant's terms."""
        body = {"party": party, "round": round, "mechanism": mechanism, "step": step, "event": dict(event)}
        line = _sealed(body, self._head)
        self._file.write(json.dumps(line, sort_keys=True).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._head = line["hash"]
        self._lines.append(line)

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Every line of a ledger, the chain verified; an unfinished last line (a crash while writing) is cut off."""
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) != len(raw):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    lines, head = [], _GENESIS
    for number, text in enumerate(whole.splitlines(), start=1):
        try:
            line = json.loads(text)
            sound = line == _sealed({key: line[key] for key in line if key not in ("previous", "hash")}, head)
        except (ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise LedgerError(f"{path.name}: line {number} does not continue the chain: the ledger was altered")
        lines.append(line)
        head = line["hash"]
    return lines


def _sealed(body: Mapping[str, Any], previous: str) -> dict[str, Any]:
    """The line with the hash of everything in it and of the line before."""
    line = {**body, "previous": previous}
    line["hash"] = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
    return line
