"""FLAME's experiments, and the fair comparison: one command, one page, its pictures.

    TACIT_DATA=… python examples/shuffle/run.py docs/shuffle.md                    everything
    TACIT_DATA=… python examples/shuffle/run.py docs/shuffle.md --only privacy     one part; only training needs data

parts: ``privacy`` (figures 3, 8, 9: what is amplified, proved and published), ``protocols`` (figure 4 and its table),
``impact`` (figures 5 to 7), ``fair`` (all protocols at equal proved epsilon), ``costs`` (seconds). What was trained is
kept in results.json, and not trained again.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from contenders import (
    DELTA,
    LOCAL,
    NUMBERS,
    PEOPLE,
    RATE,
    Entrant,
    Found,
    calibrated,
    composed,
    local,
    open_,
    plan_of,
    shuffled,
    trained,
    trusted,
)

from research.plots import Curve, Panel, curves
from research.study import band, epsilons, simulated, spread, written_between
from tacit.crypto import SealingKey, seal_rows
from tacit.engine import load_federation
from tacit.exchange import Session
from tacit.families.randomizers import LaplaceReports
from tacit.families.shuffle import proofs as protocols
from tacit.families.shuffle.exchange import Shuffled
from tacit.families.shuffle.protocol import Collected, ShuffledTerms
from tacit.privacy import Randomness, account
from tacit.report.page import RUN_STYLES, Style

EPOCHS, SEEDS = 10, (0, 1, 2)
FAIR = (1.0, 4.0)
STYLES = [*RUN_STYLES, Style("#6b4fb3", "dashdot")]
EPOCH = range(1, EPOCHS + 1)


def proved(protocol: protocols.ShuffledProtocol) -> float:
    return account(protocol.released, DELTA).epsilon


# --- figures 3, 8, 9 -------------------------------------------------------------------------------------------------


def privacy(pictures: Path) -> list[str]:
    """Amplification: what FLAME prints, and what is proved about the repaired protocols."""
    totals = (10.0, 20.0, 39.25, 78.5, 157.0)
    sizes = (1000, 2500, NUMBERS, 25_000, 75_000)
    by_total = Panel(
        "Figure 8: epsilon of one epoch (d = 7,850)",
        "local epsilon",
        central([(NUMBERS, total) for total in totals], totals),
        log_x=True,
        log_y=True,
    )
    by_size = Panel(
        "Figure 9: epsilon of one epoch (local epsilon 78.5)",
        "number of parameters d",
        central([(d, 78.5) for d in sizes], sizes),
        log_x=True,
        log_y=True,
    )
    save(pictures, "figure-3", amplification(), "Local over central epsilon, by local epsilon of one number")
    save(pictures, "figure-8", by_total, "Epsilon of one epoch, published and proved, by local epsilon")
    save(pictures, "figure-9", by_size, "Epsilon of one epoch, published and proved, by number of parameters")
    return [
        "![Figure 3](shuffle/figure-3.svg)",
        "![Figure 8](shuffle/figure-8.svg)",
        "![Figure 9](shuffle/figure-9.svg)",
        "",
    ]


def amplification() -> Panel:
    """Figure 3: local over central epsilon for R_{gamma,b}, d = 75,755, n = 5,000, b = 2, by epsilon per number."""
    d, n, rate, padded = 75_755, 5000, 1 / 50, 1666
    each = (0.2, 0.4, 0.6, 0.8, 1.0)
    k = int(rate * d)
    levels = {"randomizer": "response", "levels": 3}
    values = {
        "SS-Simple, published": [d * e / protocols.as_published_flame_levels(d, n, 2, e) for e in each],
        "SS-Double, published": [
            rate * d * e / protocols.as_published_flame_levels(d, n, 2, e, rate=rate, padded=padded) for e in each
        ],
        "SS-Simple, proved": [d * e / proved(protocols.ss_fixed(d, n, e, **levels)) for e in each],
        "SS-Double fixed, proved": [k * e / proved(protocols.ss_fixed(k, padded, e, **levels)) for e in each],
        "SS-Double coins, proved": [
            k * e / proved(protocols.ss_double_bernoulli(d, n, padded, e, rate, **levels)) for e in each
        ],
    }
    title = "Figure 3: local over central epsilon (d = 75,755)"
    return Panel(title, "local epsilon of one number", styled(values, each), log_y=True)


def central(settings: list[tuple[int, float]], x: Sequence[float]) -> list[Curve]:
    """Epsilon of one epoch for every (d, local epsilon): n = 1,000, beta = .02, n_p = 333."""
    found: dict[str, list[float]] = {}
    for d, total in settings:
        k = int(0.02 * d)
        values = {
            "SS-Simple, published": protocols.as_published_flame_simple(d, PEOPLE, total, DELTA),
            "Double/Topk, published": protocols.as_published_flame_double(d, PEOPLE, total, 0.02, 333, DELTA),
            "SS-Simple, proved": proved(protocols.ss_fixed(d, PEOPLE, total / d)),
            "Double fixed, proved": proved(protocols.ss_fixed(k, 333, total / k)),
            "Double coins, proved": proved(protocols.ss_double_bernoulli(d, PEOPLE, 333, total / k, 0.02)),
            "Topk, proved": proved(protocols.ss_topk(k, PEOPLE, 333, total / k, once=True)),
            "Topk n_p = n, proved": proved(protocols.ss_topk(k, PEOPLE, PEOPLE, total / k, once=True)),
        }
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return styled(found, x)


def styled(values: dict[str, list[float]], x: Sequence[float]) -> list[Curve]:
    return [Curve(name, style, x, y) for style, (name, y) in zip(STYLES, values.items(), strict=False)]


# --- figure 4 and its table ------------------------------------------------------------------------------------------


def everybody() -> list[Entrant]:
    """FLAME's parameters: eps_l = 78.5 an epoch, beta = 1/50, n_p = 333."""
    sparse = {"local_epsilon": 78.5, "index_rate": 0.02, "padding": 333}
    return [
        open_(),
        calibrated(trusted("DP-FL 20.53"), 20.53, 1),
        calibrated(trusted("DP-FL .24"), 0.24, 1),
        shuffled("SS-Topk", "ss-topk", **sparse),
        shuffled("SS-Double fixed", "ss-double", index_sampling="fixed", **sparse),
        shuffled("SS-Double coins", "ss-double", index_sampling="bernoulli", **sparse),
        shuffled("SS-Simple", "ss-simple", local_epsilon=78.5),
        local("LDP-FL Laplace", "ldp-laplace", local_epsilon=78.5),
        local("LDP-FL Gaussian", "ldp-gaussian", local_epsilon=78.5),
    ]


def tenth() -> Entrant:
    """The setting of "only 1.48 % loss": beta = 1/10, eps_lk = .5, n_p = 666.

    C is chosen, too (a person's largest numbers are mostly between .012 and .03), and over three seeds:
    after two epochs one says little.
    """
    label = "SS-Topk, beta 1/10, n_p 666, **2 epochs**"
    entrant = shuffled(label, "ss-topk", local_epsilon=0.5 * 785, index_rate=0.1, padding=666)
    return replace(entrant, grid={"value_range": (0.015, 0.03), RATE: (2.0, 4.0)}, choosing_seeds=3)


def row(entrant: Entrant, epochs: int, found: Found) -> str:
    (one, paper), (whole, _) = epsilons(plan_of(entrant, epochs), (1, epochs))
    accuracy, rate = spread(last(found)), f"{found['settings'][RATE]:.3g}"
    cells = [entrant.label, entrant.trusts, accuracy, number(paper), number(one), number(whole), rate]
    return f"| {' | '.join(cells)} |"


def last(found: Found) -> list[float]:
    """The accuracy after all epochs, for every seed."""
    return [own[-1] for own in found["accuracy"]]


def line(name: str, style: Style, found: Found) -> Curve:
    """The mean over seeds, with a band of one deviation."""
    epochs = list(zip(*found["accuracy"], strict=True))
    return Curve(name, style, EPOCH, [statistics.mean(values) for values in epochs], *band(epochs))


def number(value: float | None) -> str:
    return "–" if value is None else "infinity" if math.isinf(value) else f"{value:.3g}"


def told(seeds: Sequence[int]) -> str:
    """How often everybody was trained."""
    several = f"{len(seeds)} seeds (mean ± deviation)" if len(seeds) > 1 else "1 seed"
    return f"{EPOCHS} epochs, {several}; accuracy on 10,000 test digits."


HEAD = [
    "| method | whom people must trust | accuracy | published, an epoch | proved, an epoch | proved, in all | rate |",
    "|---|---|---|---|---|---|---|",
]


def protocols_(pictures: Path, seeds: tuple[int, ...]) -> list[str]:
    lines, rows = [], []
    for style, entrant in zip(STYLES, everybody(), strict=True):
        found = trained(entrant, EPOCHS, seeds)
        rows.append(row(entrant, EPOCHS, found))
        lines.append(line(entrant.label, style, found))
    spoken = "Accuracy of all protocols over ten epochs; final values are in the table"
    save(pictures, "figure-4", Panel("Figure 4: accuracy at FLAME's parameters", "epochs", lines), spoken)
    few = trained(tenth(), 2, seeds)
    loss = 100 * (statistics.mean(last(trained(open_(), 2, seeds))) - statistics.mean(last(few)))
    words = f"{loss:.1f} points below" if loss >= 0 else f"{-loss:.1f} points above"
    return [
        "![Figure 4](shuffle/figure-4.svg)",
        "",
        told(seeds),
        "",
        *HEAD,
        *rows,
        row(tenth(), 2, few),
        "",
        f"SS-Topk with beta = 1/10 is **{words}** what is not private after two epochs (the paper prints a loss of "
        "1.48, with another training).",
        "",
    ]


# --- figures 5 to 7 --------------------------------------------------------------------------------------------------


def impact(pictures: Path, seeds: tuple[int, ...]) -> list[str]:
    """SS-Topk by eps_lk, n / n_p and beta, each with its own server rate."""
    base = {"local_epsilon": 78.5, "index_rate": 0.02, "padding": 333}
    sets: dict[str, tuple[str, list[tuple[str, dict[str, float]]]]] = {
        "figure-5": (
            "Figure 5: impact of eps_lk",
            [(f"eps_lk {e:g}", base | {"local_epsilon": e * 157}) for e in (0.1, 0.5, 1.0)],
        ),
        "figure-6": (
            "Figure 6: impact of n / n_p",
            [(f"n / n_p = {1000 / p:.2g}", base | {"padding": p}) for p in (1000, 333, 100)],
        ),
        "figure-7": (
            "Figure 7: impact of beta = k / d",
            [
                (f"beta 1/{round(1 / b)}", base | {"local_epsilon": 0.5 * int(b * NUMBERS), "index_rate": b})
                for b in (0.01, 0.02, 0.1)
            ],
        ),
    }
    text = []
    for name, (title, settings) in sets.items():
        lines = []
        for style, (label, numbers) in zip(STYLES, settings, strict=False):
            entrant = shuffled(label, "ss-topk", **numbers)
            ((epsilon, _),) = epsilons(plan_of(entrant, EPOCHS), (1,))
            lines.append(line(f"{label}, epsilon {number(epsilon)}", style, trained(entrant, EPOCHS, seeds)))
        save(pictures, name, Panel(f"{title}: accuracy", "epochs", lines), f"{title} on accuracy over ten epochs")
        text.append(f"![{title}](shuffle/{name}.svg)")
    return [*text, "", "The legends show the *proved* epsilon of one epoch.", ""]


# --- the fair comparison ---------------------------------------------------------------------------------------------


def fair(pictures: Path, seeds: tuple[int, ...]) -> list[str]:
    """Every protocol at the same proved epsilon for all epochs together."""
    sparse = {"index_rate": 0.02}
    contest = [
        (trusted("DP-FL"), calibrated),
        (shuffled("SS-Topk, n_p = n", "ss-topk", padding=PEOPLE, **sparse), calibrated),
        (
            shuffled("SS-Double fixed, n_p = 333", "ss-double", index_sampling="fixed", padding=333, **sparse),
            calibrated,
        ),
        (
            shuffled("SS-Double coins, n_p = 333", "ss-double", index_sampling="bernoulli", padding=333, **sparse),
            calibrated,
        ),
        (shuffled("SS-Simple", "ss-simple"), calibrated),
        (local("LDP-FL Gaussian", "ldp-gaussian"), calibrated),
        (local("LDP-FL Laplace, composed at delta", "ldp-laplace"), composed),
        (local("LDP-FL Laplace, pure", "ldp-laplace"), calibrated),
    ]
    rows = []
    for entrant, fitted in contest:
        cells = [entrant.label, entrant.trusts]
        for epsilon in FAIR:
            solved = fitted(entrant, epsilon, EPOCHS)
            cells.append(spread(last(trained(solved, EPOCHS, seeds))))
            cells.append(number(solved.method.get("local_epsilon")))
        rows.append(f"| {' | '.join(cells)} |")
    heads = [f"accuracy at {epsilon:g} | local epsilon" for epsilon in FAIR]
    return [
        told(seeds),
        "",
        f"| method | whom people must trust | {' | '.join(heads)} |",
        "|---|---|" + "---|---|" * len(FAIR),
        *rows,
        "",
    ]


# --- costs -----------------------------------------------------------------------------------------------------------


class Watch:
    """Seconds that passed, and those that all cores worked for this program and its processes."""

    def __init__(self) -> None:
        self._begun = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        used = os.times()
        return time.perf_counter(), used.user + used.system + used.children_user + used.children_system

    def stop(self) -> tuple[float, float]:
        passed, worked = self._now()
        return passed - self._begun[0], worked - self._begun[1]


def costs(pictures: Path) -> list[str]:
    """Seconds on this machine: sealing, a sealed round, an epoch in the simulator."""
    each, law = 400, LaplaceReports(0.5)
    messages, workers, key = 500 * each, 2, SealingKey()
    terms, stream = ShuffledTerms("costs", PEOPLE, 500, each, law, silos=("all",)), Randomness().stream("costs")
    place, contents = (
        terms.sealing(1),
        terms.contents(np.repeat(np.arange(500), each), law.blanket(messages, stream))[1],
    )
    watch = Watch()
    key.open_rows(seal_rows(contents, key.public, place, workers)[stream.permutation(messages)], place, workers)
    sealed = watch.stop()
    session, heap = Session(Shuffled(), terms, [range(PEOPLE)]), Collected()
    for person in range(PEOPLE):
        heap.add(np.full(10, person), np.arange(10) * 50 + person % 50, np.full(10, 0.5))
    watch = Watch()
    session.sum(1, [[heap]], [stream], stream=stream)
    rows = [
        (f"{messages:,} messages sealed, permuted and opened", sealed),
        (f"a sealed round: 1,000 encoders, 10,000 reports, {messages:,} messages", watch.stop()),
        (f"a sealed epoch, n_p d = {333 * NUMBERS:,} messages: estimated from the first row",
         tuple(seconds * 333 * NUMBERS / messages for seconds in sealed)),
        (f"a simulated epoch: SS-Topk 2 %, n_p = 333, {LOCAL['local_epochs']} local epochs, best of three", epoch()),
    ]  # fmt: skip
    load = os.getloadavg()[0]
    return [
        f"Two processes on two cores under a load of {load:.0f}: on idle ones, expect half the seconds of work.",
        "",
        "| what | seconds passed | seconds of work |",
        "|---|---|---|",
        *(f"| {what} | {passed:.1f} | {worked:.1f} |" for what, (passed, worked) in rows),
        "",
    ]


def epoch() -> tuple[float, float]:
    """The quickest of three rounds, after one in which things are compiled."""
    plan = plan_of(shuffled("", "ss-topk", local_epsilon=78.5, index_rate=0.02, padding=333), 4)
    simulation, found = simulated(plan, load_federation(plan)), []
    for step in range(1, 5):
        watch = Watch()
        simulation.round(step)
        jax.block_until_ready(simulation.server)
        found.append(watch.stop())
    return min(found[1:])


# --- the page --------------------------------------------------------------------------------------------------------


def save(pictures: Path, name: str, panel: Panel, spoken: str) -> None:
    pictures.mkdir(exist_ok=True)
    (pictures / f"{name}.svg").write_text(curves([panel], spoken), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--only", choices=("privacy", "protocols", "impact", "fair", "costs"), action="append")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    options = parser.parse_args()
    seeds = SEEDS[: options.seeds]
    parts: dict[str, Callable[[Path], list[str]]] = {
        "privacy": privacy,
        "protocols": lambda pictures: protocols_(pictures, seeds),
        "impact": lambda pictures: impact(pictures, seeds),
        "fair": lambda pictures: fair(pictures, seeds),
        "costs": costs,
    }
    for name in options.only or parts:
        lines = parts[name](options.page.with_suffix(""))
        print("\n".join(lines))
        written_between(options.page, f"{name}: written by examples/shuffle/run.py", lines)


if __name__ == "__main__":
    main()
