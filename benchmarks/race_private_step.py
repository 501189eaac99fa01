"""Race 3: one step of DP-SGD. Tacit, with and without weights and without privacy, and Opacus in each of its modes.

``python -m benchmarks.race_private_step [--peers-python PYTHON] [--repeats 5] [--models cnn lstm …] [--out FOLDER]``

Also how much memory a step takes for a batch of 512 and of 8,192 records.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from benchmarks import tables
from benchmarks.contest import Attempt, Contestant, Results, Stage, compete
from benchmarks.private_step import BUILT_IN, RACES, RECORDS, StepRace

NAME = "race_private_step"
OURS, WEIGHTED, PLAIN = "tacit private", "tacit weighted", "tacit plain"
OPACUS_MODES = ("hooks", "functorch", "ew", "ghost")
THREADS = (2, 1)
TARGETS = {"cnn": 1.5, "lstm": 2.5, "mlp": 1.5, "logistic": 1.5}  # times Opacus' best
BEST = "opacus' best"
OWN_TARGETS = {"cnn": 1.3, "lstm": 1.3, "mlp": 1.7, "logistic": 1.7}  # at most so many times our own plain step
SMALL, LARGE = 512, RECORDS


def contestants(race: StepRace) -> tuple[Contestant, ...]:
    def ours(mode: str) -> Contestant:
        return Contestant(f"tacit {mode}", "step_tacit", ({"model": race.model, "mode": mode},), is_peer=False)

    def theirs(name: str, mode: str) -> Contestant:
        settings = tuple({"model": race.model, "mode": mode, "threads": threads} for threads in THREADS)
        return Contestant(name, "step_opacus", settings)

    peers = [theirs(f"opacus {mode}", mode) for mode in OPACUS_MODES]
    return (ours("private"), ours("weighted"), ours("plain"), *peers, theirs("torch plain", "plain"))


def seconds(race: StepRace, attempt: Attempt) -> float:
    """Median step after the warm-up; NaN for a contestant that failed."""
    of = tables.spread(attempt.record["round_seconds"][race.warm_up_rounds :]) if attempt.record else None
    return of["median"] if of else math.nan


def step_ratios(race: StepRace, results: Results) -> dict[str, dict[str, float] | None]:
    """Each contestant's step over our private one, paired within a repeat; and of Opacus' best mode of each repeat."""
    times = [{name: seconds(race, attempt) for name, attempt in repeat.items()} for repeat in results.repeats]
    of = {name: tables.spread([t[name] / t[OURS] for t in times]) for name in times[0] if name != OURS}
    best = [min((t[f"opacus {m}"] for m in OPACUS_MODES if t[f"opacus {m}"] > 0), default=math.nan) for t in times]
    of[BEST] = tables.spread([b / t[OURS] for b, t in zip(best, times, strict=True)])
    return of


def own_ratios(race: StepRace, results: Results) -> dict[str, dict[str, float] | None]:
    """Our private steps over our own step without privacy."""
    times = [{name: seconds(race, attempt) for name, attempt in repeat.items()} for repeat in results.repeats]
    return {name: tables.spread([t[name] / t[PLAIN] for t in times]) for name in (OURS, WEIGHTED)}


def memory(stage: Stage) -> dict[str, float]:
    """Peak of a process, GB, by batch size; the records in memory are the same."""
    peaks = {}
    for batch in (SMALL, LARGE):
        settings = {"model": "cnn", "mode": "private", "batch": batch}
        attempt = stage.attempt(Contestant(OURS, "step_tacit", is_peer=False), settings)
        peaks[f"{batch:,}"] = attempt.record["settings"]["peak_gb"] if attempt.record else math.nan
    return peaks


def section(race: StepRace, results: Results) -> list[str]:
    lines = [f"## {race.question}", "", f"{machine_of(results)}; {len(results.repeats)} repeats in turns.", ""]
    lines += ["| contestant | step, ms: median [min..max] | over our private step | parameters | threads | versions |"]
    lines += ["|---|---|---|---|---|---|"]
    ratio = step_ratios(race, results)
    for name in results.repeats[0]:
        attempts = [repeat[name] for repeat in results.repeats]
        record = next((attempt.record for attempt in attempts if attempt.record), None)
        if record is None:
            lines.append(f"| {name} | did not run: {str(attempts[0].failure).replace('|', '/')} | | | | |")
            continue
        of = tables.spread([1000 * seconds(race, attempt) for attempt in attempts])
        versions = ", ".join(f"{key} {value}" for key, value in record["versions"].items())
        threads = record["settings"]["threads"]
        cells = [name, range_of(of), range_of(ratio.get(name)), f"{record['parameters']:,}", str(threads), versions]
        lines.append(f"| {' | '.join(cells)} |")
    target = f"; target at least {TARGETS[race.model]}" if race.model in TARGETS else ""
    lines += ["", f"- Opacus' best mode over ours: {range_of(ratio[BEST])}{target}."]
    for name, of in own_ratios(race, results).items():
        target = f"; target at most {OWN_TARGETS[race.model]}" if race.model in OWN_TARGETS else ""
        lines.append(f"- {name} over our own step without privacy: {range_of(of)}{target}.")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description="One step of DP-SGD")
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter of the peers' environment")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tuning-runs", type=int, default=1, help="runs per setting before the race; 0: first setting")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that one process may take")
    parser.add_argument("--models", nargs="+", choices=BUILT_IN, default=BUILT_IN)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    stage = Stage(Path(), peers_python=options.peers_python, timeout=options.timeout)
    raced = [
        (RACES[model], compete(RACES[model], contestants(RACES[model]), stage, options.repeats, options.tuning_runs))
        for model in options.models
    ]
    peaks = memory(stage)
    content = {race.name: _numbers(race, results) for race, results in raced} | {"peak_gb_by_batch": peaks}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{NAME}.json").write_text(json.dumps(tables.plain(content), indent=1) + "\n")
    page = ["# One step of DP-SGD: clipped record gradients, noise, update", ""]
    for race, results in raced:
        page += section(race, results)
    page += ["## Memory", "", "Peak of the process of a private CNN step, by batch size, with the same records:", ""]
    page += ["| batch | peak, GB |", "|---|---|", *(f"| {batch} | {peak:.3f} |" for batch, peak in peaks.items())]
    text = "\n".join(page) + "\n"
    (options.out / f"{NAME}.md").write_text(text)
    sys.stdout.write(text)


def _numbers(race: StepRace, results: Results) -> dict[str, object]:
    return {
        **results.as_json(),
        "step_over_ours": step_ratios(race, results),
        "ours_over_plain": own_ratios(race, results),
    }


def machine_of(results: Results) -> str:
    m = results.machine
    return (
        f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}, Python {m['python']}, load "
        f"{m['load_before']} before the start, {m['date']}"
    )


def range_of(of: dict[str, float] | None) -> str:
    return f"{of['median']:.3g} [{of['min']:.3g}..{of['max']:.3g}]" if of else "-"


if __name__ == "__main__":
    main()
