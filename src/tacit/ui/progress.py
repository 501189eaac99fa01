"""Progress bars of runs: the round, the metrics and the seconds left."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tacit.engine.evaluate import Numbers, shown
from tacit.engine.run import Progress as RunProgress

# letters next to the bar, its name and the round: two metrics and the times; the bar gets the rest of the line
BESIDE = len("accuracy 0.712  auc 0.723") + len("0:00:00 left 0:00:00") + 4


class Bars(RunProgress):
    """One bar per training, kept on screen when it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None

    def begin(self, what: str, rounds: int, done: int) -> None:
        beside = max(12, len(what)) + len(f"{rounds}/{rounds}") + BESIDE
        self._progress = Progress(
            TextColumn("{task.description:12}"),
            BarColumn(bar_width=max(1, min(28, self._console.width - beside))),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task(what, total=rounds, completed=done, metrics="compiling")
        self._progress.start()

    def advance(self, number: int, metrics: Numbers) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=number, metrics=shown(metrics))

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
