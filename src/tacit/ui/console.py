"""What all commands use to print: text and tables for people, JSON for programs, errors."""

from __future__ import annotations

import json
import math
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

from tacit.escape import escaped

# Names and values come from users: square brackets in them are text, never markup.
console = Console(markup=False)
errors = Console(stderr=True, soft_wrap=True, markup=False)


def show(content: RenderableType, style: str | None = None, **options: Any) -> None:
    """Print text or a table, wrapped at the width of the terminal."""
    console.print(content, style=style, **options)


def show_line(text: str, style: str | None = None) -> None:
    """Print one line as it is: never wrapped, numbers not coloured."""
    console.print(text, style=style, soft_wrap=True, highlight=False)


def show_untrusted(line: str, style: str | None = None) -> None:
    """Print a line with text of other parties; characters that do not print are escaped."""
    show_line(escaped(line), style)


def show_json(content: Any) -> None:
    print(json.dumps(content, indent=1))


def show_error(line: str) -> None:
    errors.print(f"error  {escaped(' '.join(line.split()))}", style="red", highlight=False)


def warn(line: str) -> None:
    """Print a warning to the error stream."""
    errors.print(line, style="yellow")


def table_of(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0)
    return table


def plain_table() -> Table:
    """A table without a header row."""
    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))


def cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)


def json_value(value: Any) -> Any:
    """Infinity as the string "inf", NaN as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf"
    return value
