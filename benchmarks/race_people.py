"""Race 3: per-person local training. Tacit, a PyTorch loop with a model copy and an optimiser per person, torch.func.

``python -m benchmarks.race_people [--case NAME …] [--peers-python PYTHON] [--repeats 5] [--out FOLDER]``

Tacit also races against itself: the same number of records dealt by Zipf's law, and twice as many records.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import median

from benchmarks import tables
from benchmarks.contest import Contestant, Results, Stage, compete
from benchmarks.people_work import CASES, Case

AGREEMENT = 1e-3  # relative difference between the contestants' answers before the page says so


def contestants(case: Case) -> tuple[Contestant, ...]:
    chunks = sorted({min(case.people, chunk) for chunk in (20, 100, 1000)})
    base = {"case": case.name}
    return (
        Contestant("tacit", "people_tacit", (base,), is_peer=False),
        Contestant("loop", "people_torch", tuple({**base, "way": "loop", "threads": n} for n in (1, 2))),
        Contestant(
            "vmap",
            "people_torch",
            tuple({**base, "way": "vmap", "threads": n, "chunk": chunk} for n in (1, 2) for chunk in chunks),
        ),
    )


def against_itself(results: Results) -> dict[str, dict[str, float] | None]:
    """Seconds of Tacit's variants over those of its uniform rounds, paired by repeat."""
    found: dict[str, list[float]] = {}
    for repeat in results.repeats:
        variants = (repeat["tacit"].record or {}).get("variants", {})
        for name, seconds in variants.items():
            if name != "uniform":
                found.setdefault(name, []).append(median(seconds[1:]) / median(variants["uniform"][1:]))
    return {name: tables.spread(values) for name, values in found.items()}


def page(results: Results) -> str:
    """The Markdown page of one case."""
    case, machine = results.race, results.machine
    lines = [
        f"# {case.question}",
        "",
        f"Target: {case.target}. Local rate {case.rate}, full batches, {len(results.repeats)} repeats in turns. Median "
        "over repeats [min..max]; a process times its rounds after a warm-up. Processor seconds are those of all "
        "threads.",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}, Python "
        f"{machine['python']}, load {machine['load_before']} before the start, {machine['date']}.",
        "",
        "| contestant | seconds per round | how many times faster Tacit is | processor seconds per round | how many "
        "times less Tacit uses | whole process, s | settings | versions |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(results, name) for name in results.repeats[0]),
        "",
        "Tacit against its own uniform rounds, in turns within a process:",
        "",
        "| people | times the seconds |",
        "|---|---|",
        *(f"| {_VARIANTS[name]} | {_range(of)} |" for name, of in against_itself(results).items()),
        "",
        *_remarks(results),
    ]
    return "\n".join(lines).rstrip() + "\n"


_VARIANTS = {"zipf": "as many records, dealt by Zipf's law (exponent 0.5)", "double": "twice the records each"}


def _seconds(results: Results, name: str) -> list[float]:
    records = [repeat[name].record for repeat in results.repeats]
    return [median(r["round_seconds"][results.race.warm_up_rounds :]) for r in records if r]


def _processor_seconds(results: Results, name: str) -> list[float]:
    """By repeat; NaN where it failed."""
    records = [repeat[name].record for repeat in results.repeats]
    warm_up = results.race.warm_up_rounds
    return [median(record["round_processor_seconds"][warm_up:]) if record else math.nan for record in records]


def _processor_ratio(results: Results, name: str) -> dict[str, float] | None:
    pairs = zip(_processor_seconds(results, name), _processor_seconds(results, "tacit"), strict=True)
    return tables.spread([theirs / mine for theirs, mine in pairs])


def _row(results: Results, name: str) -> str:
    attempts = [repeat[name] for repeat in results.repeats]
    record = next((attempt.record for attempt in attempts if attempt.record), None)
    if record is None:
        return f"| {name} | did not run: {attempts[0].failure} | | | | | | |"
    ratio = tables.ratios(results).get(name, {}).get("rounds_per_second")
    cells = [
        name,
        _range(tables.spread(_seconds(results, name))),
        _range(ratio) if ratio else "",
        _range(tables.spread(_processor_seconds(results, name))),
        _range(_processor_ratio(results, name)) if ratio else "",
        _range(tables.summary(results)[name]["process_seconds"]),
        ", ".join(f"{key} {value}" for key, value in record["settings"].items()),
        ", ".join(f"{key} {value}" for key, value in record["versions"].items()),
    ]
    return f"| {' | '.join(cells)} |"


def _range(s: dict[str, float] | None) -> str:
    return f"{s['median']:.3g} [{s['min']:.3g}..{s['max']:.3g}]" if s else "-"


def _remarks(results: Results) -> list[str]:
    answers = [a.record["answer"] for repeat in results.repeats for a in repeat.values() if a.record]
    lines = [
        f"- {a.contestant} failed: {a.failure}" for repeat in results.repeats for a in repeat.values() if a.failure
    ]
    if not results.tuning:
        lines.append("- the peers were not tuned: they ran with one thread, vmap with the setting shown")
    if float(str(results.machine["load_before"])) > 1:
        lines.append("- other work was running on this machine: wall times, and contestants with two threads, suffer")
    if answers and max(answers) - min(answers) > AGREEMENT * max(answers):
        lines.append(f"- the answers differ ({min(answers):.6g}..{max(answers):.6g}): this is not the same work")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter of the peers' environment")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tuning-runs", type=int, default=1, help="runs per setting before the race; 0: first setting")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that one process may take")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    stage = Stage(Path(), peers_python=options.peers_python, timeout=options.timeout)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.case:
        case = CASES[name]
        results = compete(case, contestants(case), stage, options.repeats, options.tuning_runs)
        content = {
            **results.as_json(),
            "ratios": tables.ratios(results),
            "processor_ratios": {peer: _processor_ratio(results, peer) for peer in ("loop", "vmap")},
            "against_itself": against_itself(results),
        }
        (options.out / f"{name}.json").write_text(json.dumps(tables.plain(content), indent=1) + "\n")
        (options.out / f"{name}.md").write_text(page(results))
        sys.stdout.write(page(results))


if __name__ == "__main__":
    main()
