"""From the results of a race to JSON and a Markdown table. No row is ever left out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.contest import Attempt, Results, rounds_per_second

AGREEMENT = 0.015  # the contestants' accuracies may differ by so much before the table says that they do
Measure = Callable[[Attempt], float]


def spread(values: list[float]) -> dict[str, float] | None:
    """Median, quartiles and extremes of the finite values; None where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, lower, middle, upper, high = (float(q) for q in np.quantile(finite, [0, 0.25, 0.5, 0.75, 1]))
    return {"median": middle, "quartile_1": lower, "quartile_3": upper, "min": low, "max": high, "count": len(finite)}


def measures(results: Results) -> dict[str, Measure]:
    """What is reported of every attempt; NaN for one that failed."""
    return {
        "rounds_per_second": lambda attempt: rounds_per_second(results.race, attempt),
        "train_seconds": lambda attempt: _seconds(attempt, "train"),
        "seconds_with_imports": lambda attempt: _seconds(attempt, "imports", "load", "train", "evaluate"),
        "process_seconds": lambda attempt: attempt.process_seconds if attempt.record else math.nan,
        "accuracy": lambda attempt: attempt.record["accuracy"] if attempt.record else math.nan,
    }


def summary(results: Results) -> dict[str, dict[str, dict[str, float] | None]]:
    """Spread over the repeats of every measure of every contestant."""
    names = results.repeats[0] if results.repeats else {}
    return {
        name: {
            measure: spread([value(repeat[name]) for repeat in results.repeats])
            for measure, value in measures(results).items()
        }
        for name in names
    }


def ratios(results: Results, ours: str = "tacit") -> dict[str, dict[str, dict[str, float] | None]]:
    """How many times faster ours is than each peer, paired within a repeat: above 1, ours is ahead."""
    names = [name for name in results.repeats[0] if name != ours] if results.repeats else []
    of = measures(results)

    def faster(peer: str, measure: str, more_is_better: bool) -> dict[str, float] | None:
        pairs = [(of[measure](repeat[ours]), of[measure](repeat[peer])) for repeat in results.repeats]
        return spread([mine / theirs if more_is_better else theirs / mine for mine, theirs in pairs])

    return {
        peer: {
            "rounds_per_second": faster(peer, "rounds_per_second", True),
            "train_seconds": faster(peer, "train_seconds", False),
            "seconds_with_imports": faster(peer, "seconds_with_imports", False),
            "process_seconds": faster(peer, "process_seconds", False),
        }
        for peer in names
    }


def round_spread(results: Results, name: str) -> dict[str, float] | None:
    """Spread of single rounds after the warm-up, in rounds per second, over all repeats."""
    records = [repeat[name].record for repeat in results.repeats]
    return spread(
        [1.0 / s for record in records if record for s in record["round_seconds"][results.race.warm_up_rounds :]]
    )


def write(results: Results, folder: Path) -> Path:
    """Write ``NAME.json`` (everything) and ``NAME.md`` (the table); return the table's path."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {**results.as_json(), "summary": summary(results), "ratios": ratios(results)}
    (folder / f"{results.race.name}.json").write_text(json.dumps(plain(content), indent=1) + "\n")
    path = folder / f"{results.race.name}.md"
    path.write_text(markdown(results))
    return path


def markdown(results: Results) -> str:
    """The page that people read."""
    race, machine = results.race, results.machine
    lines = [
        f"# {race.question}",
        "",
        f"{race.silos:,} silos with {race.records_per_silo:,} records, {race.silos_per_round} per round, batch "
        f"{race.batch_size}, {race.local_epochs} local epoch, learning rate {race.local_learning_rate}, "
        f"{race.rounds} rounds; {len(results.repeats)} repeats in turns. Median over repeats [min..max].",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}, Python "
        f"{machine['python']}, load {machine['load_before']} before the start, {machine['date']}.",
        "",
        "| contestant | steady rounds/s | single rounds, quartiles | train, s | with imports and data, s | process, s "
        "| test accuracy | settings | versions |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(results, name) for name in (results.repeats[0] if results.repeats else {})),
        "",
        "How many times faster Tacit is (above 1: ahead), paired within a repeat: median (quartiles) [min..max].",
        "",
        "| against | steady rounds/s | train | with imports and data | process |",
        "|---|---|---|---|---|",
        *(_ratio_row(peer, of) for peer, of in ratios(results).items()),
        "",
        *_remarks(results),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _row(results: Results, name: str) -> str:
    attempts = [repeat[name] for repeat in results.repeats]
    record = next((attempt.record for attempt in attempts if attempt.record), None)
    if record is None:
        return f"| {name} | did not run: {_cell(attempts[0].failure)} | | | | | | | |"
    of = summary(results)[name]
    rounds = round_spread(results, name)
    cells = [
        name,
        _range(of["rounds_per_second"]),
        f"{_number(rounds['quartile_1'])}..{_number(rounds['quartile_3'])}" if rounds else "-",
        _range(of["train_seconds"]),
        _range(of["seconds_with_imports"]),
        _range(of["process_seconds"]),
        f"{of['accuracy']['median']:.4f}" if of["accuracy"] else "-",
        ", ".join(f"{key} {value}" for key, value in record["settings"].items()),
        ", ".join(f"{key} {value}" for key, value in record["versions"].items()),
    ]
    return f"| {' | '.join(cells)} |"


def _ratio_row(peer: str, of: dict[str, dict[str, float] | None]) -> str:
    cells = [
        f"{_number(s['median'])} ({_number(s['quartile_1'])}..{_number(s['quartile_3'])}) "
        f"[{_number(s['min'])}..{_number(s['max'])}]"
        if s
        else "not known"
        for s in of.values()
    ]
    return f"| {peer} | {' | '.join(cells)} |"


def _remarks(results: Results) -> list[str]:
    """Failures, differences in the work, disagreement."""
    lines = []
    notes: dict[str, None] = {}
    for repeat in results.repeats:
        for name, attempt in repeat.items():
            notes.update({f"- {name}: {note}": None for note in (attempt.record or {}).get("notes", [])})
            if attempt.failure:
                notes[f"- {name} failed at least once: {_cell(attempt.failure)}"] = None
    lines += list(notes)
    accuracies = [of["accuracy"]["median"] for of in summary(results).values() if of["accuracy"]]
    if accuracies and max(accuracies) - min(accuracies) > AGREEMENT:
        lines.append(f"- the accuracies differ by more than {AGREEMENT}: this is not the same work")
    return lines


def _seconds(attempt: Attempt, *phases: str) -> float:
    return sum(attempt.record["seconds"][phase] for phase in phases) if attempt.record else math.nan


def _range(s: dict[str, float] | None) -> str:
    return f"{_number(s['median'])} [{_number(s['min'])}..{_number(s['max'])}]" if s else "-"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "/")


def plain(value: object) -> object:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
