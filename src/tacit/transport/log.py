"""The log of a kit, ``tacit/log.txt``: one line for everything that concerns its holder."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from logging.handlers import WatchedFileHandler
from pathlib import Path

from tacit.escape import OneLine

OURS, LOG = "tacit", "log.txt"  # the folder of a kit that is Tacit's own; its log
_SHOWN = 80  # characters of a word that others wrote
_WINDOW, _LINES = 60.0, 20  # seconds, and lines that one party can cause within them
_PARTIES = 1000  # parties that are counted apart


def log_of(kit: Path) -> logging.Logger:
    """The log of the kit in a folder; it is opened again where the file was moved away or replaced (rotated)."""
    logger = logging.getLogger(f"tacit.kit.{str(kit).replace('.', '_')}")
    if not logger.handlers:
        handler = WatchedFileHandler(kit / OURS / LOG, encoding="utf-8")
        handler.setFormatter(OneLine())
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger


def escaped(word: object) -> str:
    """A word that others wrote, on one line: printable ASCII without spaces, and not long."""
    text = word if isinstance(word, str) else f"<{type(word).__name__}>"
    shown = "".join(c if "!" <= c <= "~" else f"\\x{ord(c):02x}" for c in text[:_SHOWN])
    return shown + ("..." if len(text) > _SHOWN else "")


class Refusals:
    """Writes what was refused. One party can cause at most 20 lines in a minute; the rest is counted."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._windows: dict[str, tuple[float, int]] = {}  # by party: when its window began, refusals since

    def note(self, party: str, words: str) -> None:
        """Write one line: a refusal of a party's message, request or connection. ``words`` are escaped already."""
        party = escaped(party)
        if party not in self._windows and len(self._windows) >= _PARTIES:
            party = "others"
        began, count = self._windows.get(party, (self._clock(), 0))
        if self._clock() - began > _WINDOW:
            if count > _LINES:
                self._log.warning("refused %d more of %s that have no line here", count - _LINES, party)
            began, count = self._clock(), 0
        self._windows[party] = (began, count + 1)
        if count < _LINES:
            self._log.warning("refused %s: %s", party, words)
        elif count == _LINES:
            self._log.warning("refused %s too often: what follows within a minute is counted only", party)
