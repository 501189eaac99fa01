"""The log of a kit, ``tacit/log.txt``: one line for everything that concerns its holder."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import WatchedFileHandler
from pathlib import Path
from traceback import format_exception
from typing import Any

from tacit import escape
from tacit.escape import OneLine

OURS, LOG = "tacit", "log.txt"  # the folder of a kit that is Tacit's own; its log
_OWN = "tacit.kit."
_RECORD, _LINE, _LINES_OF_RECORD = 20_000, 2000, 200  # characters of a record and of a line of it; lines
_SHOWN = 80  # characters of a word that others wrote
_WINDOW, _LINES = 60.0, 20  # seconds, and lines that one party can cause within them
_PARTIES = 1000  # parties that are counted apart


def log_of(kit: Path) -> logging.Logger:
    """The log of the kit in a folder; it is opened again where the file was moved away or replaced (rotated)."""
    logger = logging.getLogger(f"{_OWN}{str(kit).replace('.', '_')}")
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


def escape_records() -> None:
    """Let every log record of this process be lines that no text within it can imitate: what does not print is
    escaped, and all lines but the first, which begins with a time, begin with spaces. What ends a thread, and what is
    printed as a traceback, becomes a record, too."""
    make = logging.getLogRecordFactory()

    def made(name: str, *args: Any, **more: Any) -> logging.LogRecord:
        record = make(name, *args, **more)
        if not name.startswith(_OWN):  # these are one line each, by their formatter
            with suppress(Exception):  # of a message that does not fit its arguments, which logging reports by itself
                record.msg, record.args = _indented(record.getMessage()), None
            if record.exc_info and record.exc_info[0] is not None:
                record.exc_text = "    " + _indented("".join(format_exception(*record.exc_info)))
        return record

    logging.setLogRecordFactory(made)
    ended = logging.getLogger("thread")
    threading.excepthook = lambda args: ended.error("ended: %s", "".join(format_exception(args.exc_value)))
    printed = logging.getLogger("traceback")
    traceback.print_exc = lambda *args, **more: printed.error("%s", traceback.format_exc())


def _indented(text: str) -> str:
    return "\n    ".join(escape.escaped(line, _LINE) for line in text[:_RECORD].splitlines()[:_LINES_OF_RECORD])


class Refusals:
    """Writes what was refused. One party can cause at most 20 lines in a minute; the rest is counted."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._windows: dict[str, tuple[float, int]] = {}  # by party: when its window began, refusals since

    def note(self, party: str, words: str) -> None:
        """Write one line: a refusal of a party's message, request or connection. ``words`` are escaped already."""
        self.write(party, f"refused {escaped(party)}: {words}")

    def write(self, party: str, line: str) -> None:
        """Write a line that a party has caused; what is of others in it is escaped already."""
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
            self._log.warning("%s", line)
        elif count == _LINES:
            self._log.warning("refused %s too often: what follows within a minute is counted only", party)
