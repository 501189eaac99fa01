"""Escapes text of other parties for logs and terminals."""

from __future__ import annotations

import logging
import time

MOST_CHARACTERS = 1000


def escaped(text: object, most: int = MOST_CHARACTERS) -> str:
    """``text`` on one line, at most ``most`` characters long, with every character that does not print (line breaks,
    terminal escapes, marks that reverse the direction of text) written as a Python escape such as ``\\x1b``."""
    found = str(text)
    cut = found[:most]
    shown = cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
    return shown if len(shown) <= most and len(found) <= most else f"{shown[: most - 1]}…"


class OneLine(logging.Formatter):
    """A log line with its time (UTC). A message is always one line; lines of a traceback follow it, indented, so that
    none looks like a message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)sZ %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802
        lines = super().formatException(ei).splitlines()  # type: ignore[arg-type]
        return "\n".join(f"    {escaped(line)}" for line in lines)
