"""Race 5: modules of other frameworks. Against Tacit's own models, and the same PyTorch module against Opacus.

``python -m benchmarks.race_frameworks [--peers-python PYTHON] [--repeats 5] [--out FOLDER]``
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import median

from benchmarks import tables
from benchmarks.contest import Attempt, Contestant, Results, Stage, compete
from benchmarks.private_step import RACES, StepRace
from benchmarks.race_private_step import OPACUS_MODES, THREADS, machine_of, range_of, seconds

NAME = "race_frameworks"
NATIVE, ADAPTED = "native", "pytorch through tacit"
FRAMEWORKS = ("pytorch", "linen", "nnx", "eqx", "keras3")
MOST = {"cnn": 3.0, "mlp": 1.1}  # times the native step
AGAINST_OPACUS = ("cnn", "mlp", "transformer")


def of_people(race: StepRace) -> tuple[Contestant, ...]:
    return tuple(
        Contestant(name, "step_people", ({"model": race.model, "framework": name},), is_peer=False)
        for name in (NATIVE, *FRAMEWORKS)
    )


def of_records(race: StepRace) -> tuple[Contestant, ...]:
    ours = Contestant(ADAPTED, "step_tacit", ({"model": race.model, "framework": "pytorch"},), is_peer=False)
    theirs = [
        Contestant(
            f"opacus {mode}",
            "step_opacus",
            tuple({"model": race.model, "mode": mode, "threads": threads} for threads in THREADS),
        )
        for mode in OPACUS_MODES
    ]
    return (ours, *theirs)


def processor_seconds(race: StepRace, attempt: Attempt) -> float:
    if attempt.record is None:
        return math.nan
    return median(attempt.record["round_processor_seconds"][race.warm_up_rounds :])


def over(results: Results, base: str, measure=seconds) -> dict[str, dict[str, float] | None]:
    """Each contestant's step over that of ``base``, paired within a repeat."""
    times = [{name: measure(results.race, attempt) for name, attempt in r.items()} for r in results.repeats]
    return {name: tables.spread([t[name] / t[base] for t in times]) for name in times[0]}


def best_of_opacus(results: Results) -> dict[str, float] | None:
    """The step of Opacus' best mode of each repeat over ours."""
    found = []
    for repeat in results.repeats:
        times = {name: seconds(results.race, attempt) for name, attempt in repeat.items()}
        theirs = [times[f"opacus {mode}"] for mode in OPACUS_MODES if math.isfinite(times[f"opacus {mode}"])]
        found.append(min(theirs, default=math.nan) / times[ADAPTED])
    return tables.spread(found)


def section_of_people(results: Results) -> list[str]:
    race = results.race
    wall, processor = over(results, NATIVE), over(results, NATIVE, processor_seconds)
    head = "| model | step, ms: median [min..max] | over native | processor, ms | over native | parameters |"
    lines = [f"## {race.model}: a step of 64 people with 8 images each", "", _conditions(results), "", head]
    lines.append("|---|---|---|---|---|---|")
    for name, attempts in _attempts(results).items():
        record = next((attempt.record for attempt in attempts if attempt.record), None)
        if record is None:
            lines.append(f"| {name} | did not run: {_failure(attempts)} | | | | |")
            continue
        times = [1000 * seconds(race, attempt) for attempt in attempts]
        used = [1000 * processor_seconds(race, attempt) for attempt in attempts]
        cells = [range_of(tables.spread(times)), range_of(wall[name]), range_of(tables.spread(used))]
        cells += [range_of(processor[name]), f"{record['parameters']:,}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    worst = max(of["median"] for name, of in wall.items() if of and name != NATIVE)
    return [*lines, "", f"- The slowest over native: {worst:.3g}; target at most {MOST[race.model]}.", ""]


def section_of_records(results: Results) -> list[str]:
    race, ratio = results.race, over(results, ADAPTED)
    lines = [f"## {race.question}: a step of DP-SGD, the same PyTorch module", "", _conditions(results), ""]
    lines += [
        "| contestant | step, ms: median [min..max] | over ours | parameters | threads |",
        "|---|---|---|---|---|",
    ]
    for name, attempts in _attempts(results).items():
        record = next((attempt.record for attempt in attempts if attempt.record), None)
        if record is None:
            lines.append(f"| {name} | did not run: {_failure(attempts)} | | | |")
            continue
        times = range_of(tables.spread([1000 * seconds(race, attempt) for attempt in attempts]))
        threads = record["settings"]["threads"]
        lines.append(f"| {name} | {times} | {range_of(ratio[name])} | {record['parameters']:,} | {threads} |")
    return [*lines, "", f"- Opacus' best mode over ours: {range_of(best_of_opacus(results))}; target above 1.", ""]


def _attempts(results: Results) -> dict[str, list[Attempt]]:
    return {name: [repeat[name] for repeat in results.repeats] for name in results.repeats[0]}


def _failure(attempts: list[Attempt]) -> str:
    return str(attempts[0].failure).replace("|", "/")


def _conditions(results: Results) -> str:
    busy = " Busy machine: other work ran meanwhile." if float(str(results.machine["load_before"])) > 1 else ""
    return f"{machine_of(results)}; {len(results.repeats)} repeats in turns.{busy}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter of the peers' environment")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tuning-runs", type=int, default=1, help="runs per setting before the race; 0: first setting")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that one process may take")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    stage = Stage(Path(), peers_python=options.peers_python, timeout=options.timeout)
    content, page = {}, ["# Modules of other frameworks", ""]
    for model in MOST:
        results = compete(RACES[model], of_people(RACES[model]), stage, options.repeats, options.tuning_runs)
        page += section_of_people(results)
        content[f"people_{model}"] = {**results.as_json(), "over_native": over(results, NATIVE)}
    for model in AGAINST_OPACUS:
        results = compete(RACES[model], of_records(RACES[model]), stage, options.repeats, options.tuning_runs)
        page += section_of_records(results)
        content[f"records_{model}"] = {**results.as_json(), "opacus_best_over_ours": best_of_opacus(results)}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{NAME}.json").write_text(json.dumps(tables.plain(content), indent=1) + "\n")
    text = "\n".join(page).rstrip() + "\n"
    (options.out / f"{NAME}.md").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
