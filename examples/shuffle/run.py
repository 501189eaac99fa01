"""FLAME's experiments (paper 003), and the fair comparison: one command, one page, its pictures.

    TACIT_DATA=… python examples/shuffle/run.py docs/shuffle.md                    everything
    TACIT_DATA=… python examples/shuffle/run.py docs/shuffle.md --only privacy     one part; only training needs data

parts: ``privacy`` (figures 3, 8, 9: what is amplified, proved and published), ``protocols`` (figure 4 and its table),
``impact`` (figures 5 to 7), ``fair`` (all protocols at equal proved epsilon), ``costs`` (seconds).
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from charts import Axis, Line, chart
from study import (
    DELTA,
    LOCAL,
    NUMBERS,
    PEOPLE,
    Contender,
    calibrated,
    chosen_rate,
    curve,
    epsilons,
    loaded,
    local,
    open_,
    planned,
    shuffled,
    trusted,
)

from tacit.crypto import SealingKey, seal_rows
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.exchange.shuffled import Collected, SealedSession, ShuffledTerms
from tacit.privacy import Randomness, account
from tacit.privacy import shuffle as protocols
from tacit.privacy.randomizers import LaplaceReports

EPOCHS, SEEDS = 10, (0, 1, 2)
FAIR = (1.0, 4.0)
MEAN = "accuracy on 10,000 test digits"


def proved(protocol: protocols.ShuffledProtocol) -> float:
    return account(protocol.released, DELTA).epsilon


# --- figures 3, 8, 9 -------------------------------------------------------------------------------------------------


def privacy(pictures: Path) -> list[str]:
    """Amplification: what FLAME prints, and what is proved about the repaired protocols."""
    save(pictures, "figure-3", amplification())
    totals = (10.0, 20.0, 39.25, 78.5, 157.0)
    lines = central([(NUMBERS, total) for total in totals], totals)
    title = "Figure 8: epsilon of one epoch by local epsilon (n = 1,000, d = 7,850)"
    save(pictures, "figure-8", chart(title, Axis("local epsilon", log=True), Axis("epsilon", log=True), lines))
    sizes = (1000, 2500, NUMBERS, 25_000, 75_000)
    lines = central([(d, 78.5) for d in sizes], sizes)
    title = "Figure 9: epsilon of one epoch by number of parameters (local epsilon 78.5)"
    save(pictures, "figure-9", chart(title, Axis("d", log=True), Axis("epsilon", log=True), lines))
    return [
        "![Figure 3](shuffle/figure-3.svg)",
        "![Figure 8](shuffle/figure-8.svg)",
        "![Figure 9](shuffle/figure-9.svg)",
        "",
    ]


def amplification() -> str:
    """Figure 3: local over central epsilon for R_{gamma,b}, d = 75,755, n = 5,000, b = 2, by epsilon per number."""
    d, n, rate, padded = 75_755, 5000, 1 / 50, 1666
    each = (0.2, 0.4, 0.6, 0.8, 1.0)
    k = int(rate * d)
    levels = {"randomizer": "response", "levels": 3}
    simple = [d * e / proved(protocols.ss_simple(d, n, e, **levels)) for e in each]
    fixed = [k * e / proved(protocols.ss_double_fixed(k, padded, e, **levels)) for e in each]
    coins = [k * e / proved(protocols.ss_double_bernoulli(d, n, padded, e, rate, **levels)) for e in each]
    printed = [protocols.as_published_flame_ratio(d, n, 2, e) for e in each]
    double = [protocols.as_published_flame_ratio(d, n, 2, e, rate=rate, padded=padded) for e in each]
    lines = [
        Line("SS-Simple, published", each, printed),
        Line("SS-Double, published", each, double),
        Line("SS-Simple, proved", each, simple),
        Line("SS-Double fixed, proved", each, fixed),
        Line("SS-Double coins, proved", each, coins),
    ]
    title = "Figure 3: local epsilon over central epsilon (d = 75,755, n = 5,000)"
    return chart(title, Axis("local epsilon of one number"), Axis("times smaller", log=True), lines)


def central(settings: list[tuple[int, float]], x: tuple[float, ...]) -> list[Line]:
    """Epsilon of one epoch for every (d, local epsilon): n = 1,000, beta = .02, n_p = 333."""
    found: dict[str, list[float]] = {}
    for d, total in settings:
        k = int(0.02 * d)
        values = {
            "SS-Simple, published": protocols.as_published_flame_simple(d, PEOPLE, total, DELTA),
            "Double/Topk, published": protocols.as_published_flame_double(d, PEOPLE, total, 0.02, 333, DELTA),
            "SS-Simple, proved": proved(protocols.ss_simple(d, PEOPLE, total / d)),
            "Double fixed, proved": proved(protocols.ss_double_fixed(k, 333, total / k)),
            "Double coins, proved": proved(protocols.ss_double_bernoulli(d, PEOPLE, 333, total / k, 0.02)),
            "Topk, proved": proved(protocols.ss_topk(k, PEOPLE, 333, total / k)),
            "Topk n_p = n, proved": proved(protocols.ss_topk(k, PEOPLE, PEOPLE, total / k)),
        }
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return [Line(name, x, values) for name, values in found.items()]


# --- figure 4 and its table ------------------------------------------------------------------------------------------


def contenders() -> list[Contender]:
    """FLAME's parameters: eps_l = 78.5 an epoch, beta = 1/50, n_p = 333."""
    sparse = {"local_epsilon": 78.5, "index_rate": 0.02, "padding": 333}
    return [
        open_(),
        trusted("DP-FL 20.53", target_epsilon=20.53),
        trusted("DP-FL .24", target_epsilon=0.24),
        shuffled("SS-Topk", "ss-topk", **sparse),
        shuffled("SS-Double fixed", "ss-double", index_sampling="fixed", **sparse),
        shuffled("SS-Double coins", "ss-double", index_sampling="bernoulli", **sparse),
        shuffled("SS-Simple", "ss-simple", local_epsilon=78.5),
        local("LDP-FL Laplace", "ldp-laplace", local_epsilon=78.5),
        local("LDP-FL Gaussian", "ldp-gaussian", local_epsilon=78.5),
    ]


def tenth() -> Contender:
    """The setting of "only 1.48 % loss": beta = 1/10, eps_lk = .5, n_p = 666."""
    return shuffled("SS-Topk 1/10", "ss-topk", local_epsilon=0.5 * 785, index_rate=0.1, padding=666)


def trained(contender: Contender, epochs: int, seeds: tuple[int, ...]) -> tuple[list[list[float]], float]:
    """Curves for every seed, and the server rate that was chosen; what was trained already is not trained again."""
    key = repr((sorted(contender.method.items()), contender.view, epochs, seeds))
    if key not in _trained:
        _trained[key] = _train(contender, epochs, seeds)
    return _trained[key]


_trained: dict[str, tuple[list[list[float]], float]] = {}


def _train(contender: Contender, epochs: int, seeds: tuple[int, ...]) -> tuple[list[list[float]], float]:
    begun = time.monotonic()
    if "target_epsilon" in contender.method:  # the epsilon of one epoch
        contender = calibrated(contender, float(contender.method["target_epsilon"]), 1)
    rate = chosen_rate(contender, epochs)
    curves = [curve(planned(contender, rate, epochs, seed), loaded(contender.people, seed)) for seed in seeds]
    last = ", ".join(f"{own[-1]:.3f}" for own in curves)
    print(f"{contender.label}: rate {rate:.3g}: {last} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)
    return curves, rate


def row(contender: Contender, epochs: int, curves: list[list[float]], rate: float) -> str:
    last = [own[-1] for own in curves]
    spread = f" ± {statistics.stdev(last):.3f}" if len(last) > 1 else ""
    target = contender.method.get("target_epsilon")
    one, paper = (target, None) if target else epsilons(contender, 1)
    whole = epsilons(calibrated(contender, float(target), 1) if target else contender, epochs)[0]
    cells = [
        contender.label,
        contender.trusts,
        f"{statistics.mean(last):.3f}{spread}",
        number(paper),
        number(one),
        number(whole),
        f"{rate:.3g}",
    ]
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    return "–" if value is None else "infinity" if math.isinf(value) else f"{value:.3g}"


HEAD = [
    "| method | whom people must trust | accuracy | published, an epoch | proved, an epoch | proved, in all | rate |",
    "|---|---|---|---|---|---|---|",
]


def protocols_(pictures: Path, seeds: tuple[int, ...]) -> list[str]:
    lines, rows = [], []
    for contender in contenders():
        curves, rate = trained(contender, EPOCHS, seeds)
        rows.append(row(contender, EPOCHS, curves, rate))
        lines.append(Line(contender.label, range(1, EPOCHS + 1), np.mean(curves, axis=0).tolist()))
    save(
        pictures, "figure-4", chart("Figure 4: accuracy at FLAME's parameters", Axis("epochs"), Axis("accuracy"), lines)
    )
    best = [own[:2] for own in trained(open_(), 2, seeds)[0]]
    curves, rate = trained(tenth(), 2, seeds)
    rows.append(row(tenth(), 2, curves, rate).replace("SS-Topk 1/10", "SS-Topk, beta 1/10, n_p 666, **2 epochs**"))
    loss = 100 * (statistics.mean(own[-1] for own in best) - statistics.mean(own[-1] for own in curves))
    words = f"{loss:.1f} points below" if loss >= 0 else f"{-loss:.1f} points above"
    return [
        "![Figure 4](shuffle/figure-4.svg)",
        "",
        f"{EPOCHS} epochs, {len(seeds)} seed{'s' * (len(seeds) > 1)}; {MEAN}.",
        "",
        *HEAD,
        *rows,
        "",
        f"SS-Topk with beta = 1/10 is **{words}** what is not private after two epochs (the paper prints a loss of "
        "1.48, with another training).",
        "",
    ]


# --- figures 5 to 7 --------------------------------------------------------------------------------------------------


def impact(pictures: Path, seeds: tuple[int, ...]) -> list[str]:
    """SS-Topk by eps_lk, n / n_p and beta, each with its own server rate."""
    base = {"index_rate": 0.02, "padding": 333}
    sets: dict[str, tuple[str, list[tuple[str, dict[str, float]]]]] = {
        "figure-5": (
            "Figure 5: impact of eps_lk",
            [(f"eps_lk {e:g}", base | {"local_epsilon": e * 157}) for e in (0.1, 0.5, 1.0)],
        ),
        "figure-6": (
            "Figure 6: impact of n / n_p",
            [(f"n / n_p = {1000 / p:.2g}", base | {"local_epsilon": 78.5, "padding": p}) for p in (1000, 333, 100)],
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
        for label, numbers in settings:
            contender = shuffled(label, "ss-topk", **numbers)
            curves, _ = trained(contender, EPOCHS, seeds)
            label = f"{label}, eps {number(epsilons(contender, 1)[0])}"
            lines.append(Line(label, range(1, EPOCHS + 1), np.mean(curves, axis=0).tolist()))
        save(pictures, name, chart(title, Axis("epochs"), Axis("accuracy"), lines))
        text.append(f"![{title}](shuffle/{name}.svg)")
    return [*text, "", "The legends show the *proved* epsilon of one epoch.", ""]


# --- the fair comparison ---------------------------------------------------------------------------------------------


def fair(pictures: Path, seeds: tuple[int, ...]) -> list[str]:
    """Every protocol at the same proved epsilon for all epochs together."""
    sparse = {"index_rate": 0.02, "local_epsilon": 1.0}
    everybody = [
        trusted("DP-FL", noise_multiplier=1.0),
        shuffled("SS-Topk, n_p = n", "ss-topk", padding=PEOPLE, **sparse),
        shuffled("SS-Double fixed, n_p = 333", "ss-double", index_sampling="fixed", padding=333, **sparse),
        shuffled("SS-Double coins, n_p = 333", "ss-double", index_sampling="bernoulli", padding=333, **sparse),
        shuffled("SS-Simple", "ss-simple", local_epsilon=1.0),
        local("LDP-FL Laplace", "ldp-laplace", local_epsilon=1.0),
        local("LDP-FL Gaussian", "ldp-gaussian", local_epsilon=1.0),
    ]
    rows = []
    for contender in everybody:
        cells = [contender.label, contender.trusts]
        for epsilon in FAIR:
            solved = calibrated(contender, epsilon, EPOCHS)
            last = [own[-1] for own in trained(solved, EPOCHS, seeds)[0]]
            spread = f" ± {statistics.stdev(last):.3f}" if len(last) > 1 else ""
            cells.append(f"{statistics.mean(last):.3f}{spread}")
            cells.append(number(solved.method.get("local_epsilon")))
        rows.append(f"| {' | '.join(cells)} |")
    heads = [f"accuracy at {epsilon:g} | local epsilon" for epsilon in FAIR]
    return [
        f"{EPOCHS} epochs, {len(seeds)} seed{'s' * (len(seeds) > 1)}; {MEAN}.",
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
    terms, stream = ShuffledTerms("costs", PEOPLE, 500, each, law), Randomness().stream("costs")
    place, contents = (
        terms.sealing(1),
        terms.contents(np.repeat(np.arange(500), each), law.blanket(messages, stream))[1],
    )
    watch = Watch()
    key.open_rows(seal_rows(contents, key.public, place, workers)[stream.permutation(messages)], place, workers)
    sealed = watch.stop()
    session, heap = SealedSession(terms, workers), Collected()
    for person in range(PEOPLE):
        heap.add(np.full(10, person), np.arange(10) * 50 + person % 50, np.full(10, 0.5))
    watch = Watch()
    session.sum(1, [heap], stream)
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
    contender = shuffled("", "ss-topk", local_epsilon=78.5, index_rate=0.02, padding=333)
    plan, federation, randomness = planned(contender, 1.0, 4), loaded("encoders", 0), Randomness.from_seed(0)
    made = learner(plan.experiment.model, federation.labels, federation.train.features.shape[1:], randomness)
    simulation = Simulation(plan, federation, made, randomness)
    found = []
    for step in range(1, 5):
        watch = Watch()
        simulation.round(step)
        jax.block_until_ready(simulation.server)
        found.append(watch.stop())
    return min(found[1:])


# --- the page --------------------------------------------------------------------------------------------------------


def save(pictures: Path, name: str, svg: str) -> None:
    pictures.mkdir(exist_ok=True)
    (pictures / f"{name}.svg").write_text(svg, encoding="utf-8")


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
        begin, end = f"<!-- {name}: written by examples/shuffle/run.py -->", f"<!-- /{name} -->"
        text = options.page.read_text(encoding="utf-8")
        before, after = text.split(begin)[0], text.split(end)[1]
        options.page.write_text("\n".join([before + begin, "", *lines, end + after]), encoding="utf-8")


if __name__ == "__main__":
    main()
