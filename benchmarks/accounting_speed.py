"""How long the accounting takes: the first call in a new process, after import; dp-accounting on the same question.

``python -m benchmarks.accounting_speed [--repeats 3] [--out benchmarks/results]``

Every question is asked of a process of its own, ours and dp-accounting's in turns. Where dp-accounting has no function
for a question (calibration by PLD, shuffled reports, discrete Gaussian samples), only ours is timed. Exit 1 if a median
is above its limit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables import spread

NAME = "accounting_speed"

OURS = """
import time
from tacit.privacy import *
from tacit.privacy.mechanisms.discrete_gaussian import discrete_gaussian, discrete_gaussian_integers
from tacit.privacy.proofs.subject_events import summed_records
stream = Randomness().stream("speed")
"""
PEER = """
import time
import numpy as np
from scipy import stats
from dp_accounting import dp_event as e
from dp_accounting.pld import privacy_loss_distribution as pld
"""


@dataclass(frozen=True)
class Question:
    """What is computed: an expression of ours, one of dp-accounting (or none), and the seconds ours may take."""

    title: str
    limit: float
    ours: str
    peer: str | None = None


def poisson(rate: float, noise: float, rounds: int) -> tuple[str, str]:
    return (
        f"account(Repeated(PoissonSampled({rate}, Gaussian({noise})), {rounds}), 1e-5).epsilon",
        f"pld.from_gaussian_mechanism({noise}, sampling_prob={rate}, value_discretization_interval=1e-4)"
        f".self_compose({rounds}).get_epsilon_for_delta(1e-5)",
    )


def mixture(rate: float, group: int, noise: float, rounds: int) -> tuple[str, str]:
    """dp-accounting takes the distinct sums 0 … group with their binomial probabilities."""
    return (
        f"account(summed_records({rate}, {group}, {noise}, {rounds}), 1e-5).epsilon",
        f"pld.from_mixture_gaussian_mechanism({noise}, list(range({group} + 1)), "
        f"stats.binom.pmf(np.arange({group} + 1), {group}, {rate}).tolist(), value_discretization_interval=1e-4)"
        f".self_compose({rounds}).get_epsilon_for_delta(1e-5)",
    )


def calibrated(rate: float, rounds: int, epsilon: float) -> str:
    return f"calibrate_noise(lambda s: Repeated(PoissonSampled({rate}, Gaussian(s)), {rounds}), {epsilon}, 1e-5)"


QUESTIONS = (
    Question("Poisson-sampled Gaussian, rate .01, noise 1, 1,000 steps", 0.3, *poisson(0.01, 1.0, 1000)),
    Question("mixture of Gaussians, 10 records at rate .05, noise 2, 200 steps", 2.0, *mixture(0.05, 10, 2.0, 200)),
    Question("mixture of Gaussians, 32 records at rate .01, noise 5, 1e5 steps", 2.0, *mixture(0.01, 32, 5.0, 100_000)),
    Question("noise for epsilon 1, rate .01, 1,000 steps", 2.0, calibrated(0.01, 1000, 1.0)),
    Question("noise for epsilon .05, rate .001, 10 steps", 2.0, calibrated(0.001, 10, 0.05)),
    Question("noise for epsilon 1, rate .001, 1e5 steps", 2.0, calibrated(0.001, 100_000, 1.0)),
    Question("1e5 shuffled reports of epsilon 4", 2.0, "account(ShuffledReports(4.0, 100_000), 1e-6).epsilon"),
    Question("1e5 shuffled reports of epsilon 1", 2.0, "account(ShuffledReports(1.0, 100_000), 1e-6).epsilon"),
    Question("1e5 compositions, rate .01, noise 5", 1.0, *poisson(0.01, 5.0, 100_000)),
    Question("1e5 compositions, rate 1e-4, noise 1", 1.0, *poisson(1e-4, 1.0, 100_000)),
    Question("1e6 discrete Gaussians, sigma 2^20", 1.0, "len(discrete_gaussian(2.0**20, 10**6, stream))"),
    Question("4,000 discrete Gaussians, sigma 2^2900", 2.0, "len(discrete_gaussian_integers(2**2900, 4000, stream))"),
)


def asked(imports: str, expression: str) -> dict[str, float]:
    """Seconds of the first call in a new process, and the value."""
    code = (
        f"{imports}\nstart = time.perf_counter()\nvalue = {expression}\nseconds = time.perf_counter() - start\n"
        'print(f\'{{"seconds": {seconds!r}, "value": {float(value)!r}}}\')'
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{expression}\n{done.stderr}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measured(question: Question, repeats: int) -> dict[str, Any]:
    ours, peer = [], []
    for _ in range(repeats):
        ours.append(asked(OURS, question.ours))
        if question.peer:
            peer.append(asked(PEER, question.peer))
    return {
        "question": question.title,
        "limit": question.limit,
        "tacit": spread([answer["seconds"] for answer in ours]),
        "value": ours[0]["value"],
        "dp-accounting": spread([answer["seconds"] for answer in peer]),
        "its value": peer[0]["value"] if peer else None,
    }


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Accounting: seconds of the first call in a process",
        "",
        "dp-accounting with a grid of 1e-4; medians [min..max]. Values: epsilon, noise multiplier, or samples.",
        "",
        "| question | limit, s | Tacit, s | dp-accounting, s | Tacit's value | dp-accounting's |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        theirs = row["dp-accounting"]
        seconds = [
            f"{of['median']:.2f} [{of['min']:.2f}..{of['max']:.2f}]" if of else "–" for of in (row["tacit"], theirs)
        ]
        other = "–" if row["its value"] is None else f"{row['its value']:.4f}"
        lines.append(
            f"| {row['question']} | {row['limit']:g} | {seconds[0]} | {seconds[1]} | {row['value']:.4f} | {other} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of the first call of the accounting")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rows = [measured(question, options.repeats) for question in QUESTIONS]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{NAME}.json").write_text(json.dumps(rows, indent=1) + "\n")
    (options.out / f"{NAME}.md").write_text(page(rows))
    sys.stdout.write(page(rows))
    raise SystemExit(any(row["tacit"]["median"] > row["limit"] for row in rows))


if __name__ == "__main__":
    main()
