"""Models of one's own beside one for all, and what differing silos do to one model: one command, one page.

    TACIT_DATA=… python examples/personal/run.py docs/personal.md                 writes both parts
    TACIT_DATA=… python examples/personal/run.py docs/personal.md --only digits   one of them

Rates, the pull, steps and clips are chosen on a fifth of the training records (research/study.py), then run with other
seeds on the held-out ones. Every part of the page stands between two comments; pictures lie in a folder beside it.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from tacit.data import Federation
from tacit.engine import load_federation
from tacit.engine.evaluate import Scores
from tacit.planning.plan import Plan
from tacit.report.page import RUN_STYLES
from tacit.report.words import worst_silo

sys.path.append(str(Path(__file__).parents[2]))  # the folder of research/

from research import plots
from research.picture import Mark, dots
from research.study import (
    CHOOSING_SEED,
    Contender,
    Settings,
    changed,
    planned,
    simulated,
    without_strangers,
    written_between,
)

HERE = Path(__file__).parent
SEEDS = (2, 3)  # settings were once changed after results of 0 and 1
DIGITS, DRIFT = HERE / "digits.toml", HERE / "drift.toml"
METRIC = "accuracy"
EPSILON = 8.0
SHARE = 0.2  # of the training images, by lot: silos with little to learn from
ALPHAS = (100.0, 0.3, 0.03)

WORK = {"batch_size": 32, "batches_per_round": 5, "local_learning_rate": 1.0}
RATES = {"local_learning_rate": (1.0, 3.0, 10.0)}
SERVER = {"train.server_learning_rate": (1.0, 3.0)}
# What every method chooses from without privacy. A pull of 0 is silos alone: no grid reaches further.
CHOICES: dict[str, dict[str, tuple[float, ...]]] = {
    "silo-only": RATES,
    "fedavg": RATES | SERVER,
    "fine-tune": {"personal_epochs": (5, 20)},
    "mean-regularized": {"personal_weight": (0.0, 0.003, 0.03)},
    "graph-regularized": {"personal_weight": (0.0, 0.003, 0.03)},
    "per-fedavg": {"adaptation_steps": (5, 25)},
    "pfedme": {"inner_learning_rate": (0.3, 1.0)},
    "fedem": RATES | SERVER,
}
# With privacy: the clip, and where the server's rate was chosen without noise, that too.
CLIPS: dict[str, dict[str, tuple[float, ...]]] = {
    "dp-fedavg": {"clip": (0.3, 1.0, 3.0)},
    "fedem": {"clip": (0.3, 1.0)} | SERVER,
}


@dataclass(frozen=True)
class Outcome:
    """Accuracy of own models and of the one for all: over all held-out records, and in the worst silo; one number
    per seed. Nothing where there is no such model."""

    contender: Contender
    own: tuple[float, ...]
    own_worst: tuple[float, ...]
    shared: tuple[float, ...]
    shared_worst: tuple[float, ...]
    chosen: Settings


def contenders(private: bool) -> list[Contender]:
    """All methods with and without privacy, and what each chooses from."""
    own: dict[str, Settings] = {
        "fine-tune": {},
        "mean-regularized": {},
        "graph-regularized": {"relations": "learned"},
        "per-fedavg": {"inner_learning_rate": 0.3, "order": "hessian-vector"},
        "pfedme": {"personal_weight": 0.5},
        "fedem": {},
    }
    grids = CLIPS if private else CHOICES
    # without privacy: no noise, and a clip that nothing reaches
    wrapper = {"noise_multiplier": needed_noise()} if private else {"noise_multiplier": 0.0, "clip": 1e6}
    alone: dict[str, Settings] = {"dp-fedavg": wrapper} if private else {"silo-only": {}, "fedavg": {}}
    methods = {**alone, **{name: {**wrapper, **more} for name, more in own.items()}}
    return [Contender(name, {"name": name, **WORK, **more}, grids.get(name, {})) for name, more in methods.items()]


def kept(label: str, known: Mapping[str, Settings]) -> Settings:
    """What a private method takes over: its own settings without privacy, and the clip of ``dp-fedavg``, whose rates
    are the ones that all started from."""
    if label == "dp-fedavg":
        return {}
    return {**known[label], "clip": known["dp-fedavg"]["clip"]}


@lru_cache
def needed_noise() -> float:
    """The noise that keeps EPSILON: the same for all of these methods, whose guarantee is the same."""
    plan = changed(DIGITS, {}, 0, {"name": "dp-fedavg", "target_epsilon": EPSILON})
    assert plan.noise_multiplier is not None
    return plan.noise_multiplier


# -- running


@lru_cache(maxsize=4)
def loaded(file: Path, silos: str, seed: int) -> Federation:
    """The records of a file's plan under a seed; ``silos`` is how they lie, as text, and read once."""
    changes = {} if not silos else {"data.silos": {"assign": "dirichlet", "count": 20, "alpha": float(silos)}}
    federation = load_federation(changed(file, changes, seed))
    kept = np.random.default_rng(seed).random(len(federation.train)) < SHARE
    return replace(federation, train=federation.train.take(kept))


def scored(plan: Plan, federation: Federation) -> Scores:
    simulation = simulated(plan, federation)
    for number in range(1, plan.rounds + 1):
        simulation.round(number)
    return simulation.evaluate(federation, per_silo=True)


def chosen_for(contender: Contender, federation: Federation) -> Settings:
    """The best of the grid on held-out training records."""

    def judged() -> Iterator[tuple[float, Settings]]:
        for values in itertools.product(*contender.grid.values()):
            settings = dict(zip(contender.grid, values, strict=True))
            score = scored(planned(DIGITS, contender, settings, CHOOSING_SEED), federation).overall[METRIC]
            yield (-math.inf if score is None else score), settings

    return max(judged(), key=lambda pair: pair[0])[1]


def outcome(contender: Contender, settings: Settings) -> Outcome:
    """Under settings that are taken over, and those that the contender chooses itself."""
    if contender.grid:
        settled = replace(contender, grid={**{name: (value,) for name, value in settings.items()}, **contender.grid})
        settings = chosen_for(settled, without_strangers(loaded(DIGITS, "", CHOOSING_SEED), CHOOSING_SEED))
    own, shared = [], []
    for seed in SEEDS:
        found = scored(planned(DIGITS, contender, settings, seed), loaded(DIGITS, "", seed))
        of_one = found if found.shared is None and contender.label in ("fedavg", "dp-fedavg") else found.shared
        shared += [] if of_one is None else [numbers(of_one)]
        own += [] if of_one is found else [numbers(found)]
    columns = [tuple(column) for pair in (own, shared) for column in (zip(*pair, strict=True) if pair else ((), ()))]
    return Outcome(contender, *columns, settings)


def numbers(scores: Scores) -> tuple[float, float]:
    """Accuracy over all held-out records, and in the worst silo."""
    worst = worst_silo(scores.silos, METRIC, 1)
    return scores.overall[METRIC] or math.nan, math.nan if worst is None else worst[1]


# -- parts of the page


def digits(page: Path | None) -> list[str]:
    """Every method with and without privacy: a table and two pictures each, written as far as they are known."""
    lines: list[str] = []
    known: dict[str, Settings] = {}
    for private in (False, True):
        found: list[Outcome] = []
        how = f"every silo protected, epsilon {EPSILON:g}" if private else "without privacy"
        for contender in contenders(private):
            begun = time.monotonic()
            found.append(outcome(contender, kept(contender.label, known) if private else {}))
            known.setdefault(contender.label, found[-1].chosen)
            print(f"{row(found[-1])} {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
            drawn = pictures(page, "private" if private else "open", how, found)
            part = [f"### {how[:1].upper()}{how[1:]}", "", *drawn, *table(found), ""]
            put(page, "digits", [*lines, *part])
        lines += part
    return lines


def pictures(page: Path | None, name: str, how: str, found: Sequence[Outcome]) -> list[str]:
    """Own models and the one for all, over all records and in the worst silo."""
    lines = []
    for what, words in (("", "all held-out records"), ("_worst", "the worst of 100 silos")):
        rows = []
        for one in found:
            label = one.contender.label
            for kind, text, hollow in (("own", "own", False), ("shared", "one for all", True)):
                values = getattr(one, f"{kind}{what}")
                alone = not (one.own and one.shared)
                if values:
                    called = label if alone else f"{label}, {text}"
                    rows.append((called, Mark(mean(values), deviation(values), hollow=hollow)))
        title = f"Accuracy, {words}; {how}"
        unit = f"accuracy, {len(SEEDS)} seeds; hollow: one model for all"
        lines += picture(page, f"{name}{what.replace('_', '-')}", title, dots(rows, title, unit))
    return lines


def table(found: Sequence[Outcome]) -> list[str]:
    columns = ("method", "own models", "worst silo", "one for all", "its worst silo", "settings")
    return ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", *map(row, found)]


def row(one: Outcome) -> str:
    cells = [shown(values) for values in (one.own, one.own_worst, one.shared, one.shared_worst)]
    settings = ", ".join(f"{key.rpartition('.')[2]} {value:g}" for key, value in one.chosen.items())
    return f"| `{one.contender.label}` | " + " | ".join(cells) + f" | {settings} |"


def drift(page: Path | None) -> list[str]:
    """FedAvg, FedProx and SCAFFOLD where silos differ more and more."""
    methods = {
        "FedAvg": {"name": "fedavg"},
        "FedProx": {"name": "fedprox", "proximal": 0.1},
        "SCAFFOLD": {"name": "scaffold"},
    }
    work = {"batch_size": 50, "batches_per_round": 50, "local_learning_rate": 0.05}
    found: dict[str, list[tuple[float, ...]]] = {label: [] for label in methods}
    for alpha in ALPHAS:
        for label, method in methods.items():
            begun, scores = time.monotonic(), []
            for seed in SEEDS:
                plan = changed(DRIFT, {}, seed, {**method, **work})
                scores.append(scored(plan, loaded(DRIFT, str(alpha), seed)).overall[METRIC] or math.nan)
            found[label].append(tuple(scores))
            seconds = time.monotonic() - begun
            print(f"alpha {alpha:g} {label} {shown(scores)} {seconds:.0f} s", file=sys.stderr, flush=True)
    places = [f"{alpha:g}" for alpha in ALPHAS]
    tracks = [
        plots.Track(label, style, [mean(values) for values in own], [deviation(values) for values in own])
        for (label, own), style in zip(found.items(), RUN_STYLES, strict=False)
    ]
    title = "One model for 20 silos whose labels differ: accuracy after 10 rounds"
    drawn = plots.lines(places, tracks, title, "alpha of the Dirichlet law: silos differ more to the right", METRIC)
    head = ["| method | " + " | ".join(f"alpha {alpha}" for alpha in places) + " |", "|---" * (len(places) + 1) + "|"]
    rows = [f"| {label} | " + " | ".join(shown(values) for values in own) + " |" for label, own in found.items()]
    return [*picture(page, "drift", title, drawn), *head, *rows, ""]


PARTS: dict[str, Callable[[Path | None], list[str]]] = {"digits": digits, "drift": drift}


def put(page: Path | None, name: str, lines: Sequence[str]) -> None:
    if page is not None:
        written_between(page, f"{name}: written by examples/personal/run.py", lines)


def picture(page: Path | None, name: str, title: str, drawn: str) -> list[str]:
    """A picture in the folder beside the page, and the line that shows it."""
    if page is None:
        return []
    folder = page.parent / page.stem
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.svg").write_text(drawn, encoding="utf-8")
    return [f"![{title}]({page.stem}/{name}.svg)", ""]


def mean(values: Sequence[float]) -> float:
    return statistics.mean(values)


def deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def shown(values: Sequence[float]) -> str:
    return f"{mean(values):.3f} ± {deviation(values):.3f}" if values else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--only", choices=PARTS, action="append")
    options = parser.parse_args()
    for name in options.only or PARTS:
        lines = PARTS[name](options.page)
        put(options.page, name, lines)
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
