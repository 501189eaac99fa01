"""The model card of a run: what others need to know before they use the model, as Markdown.

It has the parts that Mitchell et al. 2019 propose, as far as a run knows them, and only what may be shared. Intended
use is left to those who publish the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.engine.learner import write_bytes
from tacit.report import words
from tacit.report.run_files import RunFiles, read_run

CARD = "model-card.md"
TO_DO = "*To be written by the publisher of the model.*"


def write_card(run: Path) -> Path:
    """Write ``model-card.md`` into the run folder."""
    write_bytes(run / CARD, card(run).encode())
    return run / CARD


def card(folder: Path) -> str:
    """The model card of the run in ``folder``."""
    run = read_run(folder)
    sections = {
        "Model": _table(_model(run)),
        "Intended use": f"{TO_DO} For which decisions, by whom, and for which it must not be used.",
        "Training data": _table(_data(run)),
        "Privacy": _privacy(run),
        "Metrics": _metrics(run),
        "Limits": _bullets(_limits(run)),
    }
    parts = (f"## {title}\n\n{text}\n" for title, text in sections.items())
    return f"# {_plain(run.title)}\n\n" + "\n".join(parts)


def _model(run: RunFiles) -> Iterable[tuple[str, str]]:
    yield "Kind", f"{run.model.get('name')} ({run.task}), {words.count(run.model.get('parameters'))} parameters"
    yield "Trained by", f"{run.label}: {run.method.get('about')}"
    yield "Rounds", f"{words.count(run.rounds)} of {words.count(run.rounds_planned)} ({run.status})"
    yield "Software", f"tacit {run.environment.get('tacit')}"
    yield "File", "model.safetensors; encoder.json says how columns become features"


def _data(run: RunFiles) -> Iterable[tuple[str, str]]:
    """What is declared about the data, and so public."""
    data = run.settings.get("data", {})
    yield "Source", run.source
    yield "Silos", words.count(run.silo_count)
    if count := data.get("subjects", {}).get("count"):
        yield "Subjects", f"at most {words.count(count)} (declared)"
    if (label := data.get("label")) is not None:
        yield "Label", ", ".join(label.values()) if isinstance(label, Mapping) else str(label)
    columns = [*data.get("numeric", ()), *data.get("categorical", ())]
    if columns:
        yield "Features", ", ".join(columns)


def _privacy(run: RunFiles) -> str:
    if not run.private:
        return words.no_promise(run)
    rows = [words.promise(line) for line in run.guarantees]
    notes = [words.unconfirmed(run), words.not_to_publish(run)]
    assumptions = dict.fromkeys(text for line in run.guarantees if line.finite for text in line.assumptions)
    return "\n\n".join(
        [_bullets(rows), *map(_plain, filter(None, notes)), f"This rests on:\n\n{_bullets(assumptions)}"]
    )


def _metrics(run: RunFiles) -> str:
    rows = [(words.metric(name), words.number(run.metrics.get(name))) for name in run.metric_names]
    if not rows:
        return words.no_metrics(run.evaluation)
    return f"{_table(rows)}\n\n{words.evaluation(run)}"


def _limits(run: RunFiles) -> Iterable[str]:
    yield "Metrics are those of the data above. Other people may be served worse: measure before use."
    if run.private:
        yield "Weights have noise. Small differences between features or people may be due to it alone."
        yield "The guarantee is about single units. What holds for a whole group can be learned from the model."
    if run.correction:
        yield run.correction


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells: Sequence[str] = [f"| {_plain(name)} | {_plain(value)} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *cells])


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_plain(text)}" for text in texts)


def _plain(text: Any) -> str:
    """Text of users on one line, which Markdown shows as it is."""
    return "".join(f"\\{c}" if c in "\\`[]<>|*#" else c for c in " ".join(str(text).split()))
