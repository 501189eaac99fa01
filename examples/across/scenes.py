"""What each figure shows: data sets under allocations, and who competes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contenders import beyond, capped, published

from research.study import Contender, Settings


@dataclass(frozen=True)
class Scene:
    """One panel of a figure: a data set, how people and silos are assigned, and who competes.

    shares       another panel's results, by file name: who has run there is not trained again
    rate_factor  multiplies the chosen server rates: the paper divides by the number of silos, and rates were chosen for
                 five of them
    """

    name: str
    title: str
    data: str
    contenders: Sequence[Contender]
    changes: Settings
    shares: str = ""
    rate_factor: float = 1.0


@dataclass(frozen=True)
class Figure:
    """``metrics`` are those of its tables; the first is drawn. ``over`` is what its pictures have on their x axis."""

    title: str
    metrics: tuple[str, ...]
    scenes: Callable[[], list[Scene]]
    seeds: int
    over: str = "round"


def allocation(kind: str, people: int, silos: int | None) -> dict[str, Any]:
    """How records get their person and, where silos are not those of the data, their silo ([ULDP-FL], section 5.1)."""
    zipf = kind == "zipf"
    changes = {"data.subjects": {"assign": kind, "count": people, **({"alpha": 0.5} if zipf else {})}}
    if silos is not None:
        changes["data.silos"] = {"assign": kind, "count": silos, **({"alpha": 2.0} if zipf else {})}
    return changes


def panels(data: str, sizes: Sequence[int], silos: int | None) -> list[Scene]:
    """Figures 4 to 7: numbers of people, and allocations."""
    return [
        Scene(f"{kind}-{people}", f"{people:,} people, {kind}", data, published(data), changes)
        for people in sizes
        for kind in ("zipf", "uniform")
        for changes in (allocation(kind, people, silos),)
    ]


def digits() -> list[Scene]:
    """Figure 5: as figure 4, and people who have two of the ten digits only."""
    scenes = panels("mnist", (100, 10_000), 5)
    few_labels = [
        replace(scene, name=f"{scene.name}-2-labels", title=f"{scene.title}, 2 labels each", changes=changes)
        for scene in scenes
        if scene.name.startswith("zipf")
        for changes in ({**scene.changes, "data.labels_per_subject": 2},)
    ]
    return scenes + few_labels


def weighting() -> list[Scene]:
    """Figure 8: equal weights and record weights, over more and more silos."""
    return [
        Scene(
            f"{kind}-{silos}",
            f"{silos} silos, {kind}",
            "creditcard",
            averages(),
            allocation(kind, 1000, silos),
            shares=f"4-{kind}-1000" if silos == 5 else "",
            rate_factor=silos / 5,
        )
        for kind in ("zipf", "uniform")
        for silos in (5, 20, 50)
    ]


def averages() -> list[Contender]:
    """Per-person training with equal weights, and with record weights."""
    return [contender for contender in published("creditcard") if contender.label in ("uldp-avg", "uldp-avg-w")]


def sampling() -> list[Scene]:
    """Figure 9: the same method, with another rate at which people enter a round."""
    weighted = averages()[-1]
    rates = [
        replace(weighted, method={**weighted.method, "subject_sample_rate": rate}) for rate in (0.1, 0.3, 0.5, 0.7, 1.0)
    ]
    return [Scene("zipf-1000", "1,000 people, zipf", "creditcard", rates, {})]


def real() -> list[Scene]:
    """People who are in several silos by themselves."""
    titles = {
        "insteval": "InstEval: 2,972 students, 14 departments",
        "diabetes130": "Diabetes 130: 69,990 patients, 8 specialties",
    }
    return [Scene(data, title, data, published(data), {}) for data, title in titles.items()]


def options() -> list[Scene]:
    """What the paper does not have."""
    momentum = [contender for contender in published("creditcard") if contender.label == "uldp-avg-w, momentum"]
    contenders = [*averages(), *momentum, *beyond()]
    few = [*averages(), capped(10, {"privacy.max_silos_per_subject": 5})]
    return [
        Scene("zipf-1000", "1,000 people over 5 silos, zipf", "creditcard", contenders, {}, shares="4-zipf-1000"),
        Scene(
            "zipf-50-silos",
            "1,000 people over 50 silos, zipf",
            "creditcard",
            few,
            allocation("zipf", 1000, 50),
            shares="8-zipf-50",
            rate_factor=10.0,
        ),
    ]


RANKING = ("auc", "average_precision", "accuracy", "log_loss")
FIGURES = {
    "4": Figure("Creditcard (figure 4)", RANKING, lambda: panels("creditcard", (1000, 100), 5), seeds=5),
    "5": Figure("MNIST (figure 5)", ("accuracy", "log_loss"), digits, seeds=2),
    "6": Figure("Heart disease (figure 6)", ("accuracy", "auc"), lambda: panels("heart", (50, 200), None), seeds=5),
    "7": Figure("TCGA-BRCA (figure 7)", ("c_index",), lambda: panels("tcga-brca", (50, 200), None), seeds=5),
    "8": Figure("Weights and silos (figure 8)", ("log_loss", "auc", "average_precision"), weighting, seeds=5),
    "9": Figure("Sub-sampling of people (figure 9)", RANKING, sampling, seeds=5, over="subject_sample_rate"),
    "real": Figure("People truly across silos", ("auc", "accuracy"), real, seeds=5),
    "beyond": Figure("Beyond the paper", ("auc", "average_precision", "log_loss"), options, seeds=5),
}
