"""What all commands use to print: text, tables and progress for people, JSON for programs, errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.table import Table

from tacit.escape import escaped

if TYPE_CHECKING:
    from rich.progress import Progress

# Names and values come from users: square brackets in them are text, never markup.
console = Console(markup=False)
errors = Console(stderr=True, soft_wrap=True, markup=False)
# letters of the line of a progress bar that are not the bar, its name and the round: two metrics and the times
REST = len("accuracy 0.712  auc 0.723") + len("0:00:00 left 0:00:00") + 4


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


def show_rows(rows: Sequence[tuple[Mapping[str, str], object]]) -> None:
    """Rows as (cells by the title of their column, whether the row is red); nothing if there are none."""
    if rows:
        table = table_of(*rows[0][0])
        table.columns[0].no_wrap = False
        for cells, is_red in rows:
            table.add_row(*cells.values(), style="red" if is_red else None)
        show(table)


def show_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values in two columns."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    for pair in pairs:
        table.add_row(*pair)
    show(table)


class Bars:
    """A progress bar per training: the round, the metrics and the seconds left. It stays on screen when it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None

    def begin(self, what: str, rounds: int, done: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import TextColumn as Text

        rest = max(12, len(what)) + len(f"{rounds}/{rounds}") + REST
        self._progress = Progress(
            Text("{task.description:12}"),
            BarColumn(bar_width=max(1, min(28, self._console.width - rest))),
            MofNCompleteColumn(),
            Text("{task.fields[metrics]}"),
            TimeElapsedColumn(),
            Text("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task(what, total=rounds, completed=done, metrics="compiling")
        self._progress.start()

    def advance(self, number: int, metrics: Mapping[str, float | None]) -> None:
        from tacit.engine.evaluate import shown

        if self._progress is not None:
            self._progress.update(self._task, completed=number, metrics=shown(metrics))

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
