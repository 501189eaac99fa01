"""What notebooks show: small pieces of HTML, and progress bars.

HTML is self-contained and takes its colours from the page, light or dark. All text is escaped. IPython is imported only
where it runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_LINE = "1px solid rgba(128, 128, 128, 0.4)"
_CELL = f"text-align: left; vertical-align: top; padding: 0.2em 0.8em 0.2em 0; border-bottom: {_LINE}"
_WARNING = "border-left: 4px solid #d1495b; padding-left: 0.6em"
REFRESH = 0.2  # seconds between two updates of a bar


def box(title: str, *parts: str) -> str:
    """A titled piece of HTML."""
    head = f'<div style="font-weight: 600; margin-bottom: 0.3em">{escape(title)}</div>'
    style = f"border: {_LINE}; border-radius: 6px; padding: 0.7em 1em; max-width: 60em; overflow-x: auto"
    return f'<div style="{style}">{head}{"".join(parts)}</div>'


def line(text: str, *, warning: bool = False) -> str:
    return f'<p style="margin: 0.3em 0; {_WARNING if warning else ""}">{escape(text)}</p>'


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows by the title of their columns; nothing where there are none."""
    if not rows:
        return ""
    head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in rows[0])
    body = ("".join(f'<td style="{_CELL}">{escape(str(cell))}</td>' for cell in row.values()) for row in rows)
    lines = "".join(f'<tr style="background: transparent">{cells}</tr>' for cells in body)
    return f'<table style="border-collapse: collapse; margin: 0.5em 0"><tr>{head}</tr>{lines}</table>'


def folded(title: str, texts: Iterable[str]) -> str:
    """A list that opens on a click; nothing where it is empty."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<details><summary>{escape(title)}</summary><ul>{items}</ul></details>" if items else ""


class NotebookBars:
    """A progress bar per training, in the output of a cell: the round, the metrics and the seconds so far."""

    def begin(self, what: str, rounds: int, done: int) -> None:
        from IPython.display import HTML, display

        self._what, self._rounds, self._html = what, rounds, HTML
        self._done, self._metrics, self._start, self._shown = done, "", time.monotonic(), 0.0
        self._handle: Any = display(HTML(self._now()), display_id=True)

    def advance(self, number: int, metrics: Mapping[str, float | None]) -> None:
        known = [f"{name} {value:.3f}" for name, value in metrics.items() if value is not None]
        self._done, self._metrics = number, "  ".join(known[:2])
        if time.monotonic() - self._shown > REFRESH:
            self._show()

    def end(self) -> None:
        self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self._html(self._now()))

    def _now(self) -> str:
        seconds = time.monotonic() - self._start
        label = escape(f"{self._what}  {self._done}/{self._rounds}  {self._metrics}  {seconds:.0f} s")
        bar = f'<progress max="{self._rounds}" value="{self._done}" style="width: 14em"></progress>'
        return f'<div style="white-space: pre-wrap">{bar} {label}</div>'


def bars() -> NotebookBars | None:
    """Progress bars where this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return NotebookBars() if getattr(shell, "kernel", None) is not None else None
