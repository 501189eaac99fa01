"""The figures of [ULDP-FL] on the paper's data, and what the paper could not show: one command per figure.

    TACIT_DATA=… python examples/across/run.py 4 docs/across.md                trains, then writes tables and pictures
    TACIT_DATA=… python examples/across/run.py 4 docs/across.md --only zipf-1000 --seeds 3       a part of it
    python examples/across/run.py 4 docs/across.md --draw                      the page again, from what was trained

Figures: 2, 4, 5, 6, 7, 8, 9, real (people truly across silos), beyond (options that the paper does not have). What was
trained is kept in results/; settings come from settings.json (choose.py); what cannot run says why.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from choose import settings_of
from contenders import RATE, SIGMA
from conversion import conversion
from scenes import FIGURES, Figure, Scene
from shown import section

from research.study import Contender, curve, epsilons, planned, spread, written_between
from tacit.data import Federation
from tacit.engine import load_federation
from tacit.errors import TacitError
from tacit.planning.plan import Plan
from tacit.privacy.accounting.as_published import as_published_uldp_group

HERE = Path(__file__).parent
RESULTS = HERE / "results"
POINTS = 10  # so many on every curve

Found = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=["2", *FIGURES])
    parser.add_argument("page", type=Path)
    parser.add_argument("--only", action="append", help="panels to train, by name; the others stay as they are")
    parser.add_argument("--who", action="append", help="methods to train, by label; the others stay as they are")
    parser.add_argument("--seeds", type=int, help="so many seeds, from 0 on")
    parser.add_argument("--draw", action="store_true", help="train nothing")
    options = parser.parse_args()
    pictures = options.page.parent / "figures"
    if options.figure == "2":
        lines = conversion(pictures / "across-2.svg", options.page)
    else:
        figure = FIGURES[options.figure]
        lines = []
        for scene in figure.scenes():
            kept = RESULTS / f"{options.figure}-{scene.name}.json"
            if not options.draw and (options.only is None or scene.name in options.only):
                trained(figure, scene, range(options.seeds or figure.seeds), kept, options.who)
            if kept.is_file():
                found = json.loads(kept.read_text(encoding="utf-8"))
                picture = pictures / f"across-{options.figure}-{scene.name}.svg"
                lines += section(figure, scene, found, picture, options.page)
            else:
                lines += [f"### {scene.title}", "", "Not run.", ""]
    written_between(options.page, f"across {options.figure}: written by examples/across/run.py", lines)


def trained(figure: Figure, scene: Scene, seeds: Sequence[int], kept: Path, who: Sequence[str] | None) -> None:
    """Everybody in a scene, or only ``who``; written down as they come, in the scene's order."""
    known: dict[tuple[str, float | None], Found] = {}
    if who is not None and kept.is_file():
        known = {(one["label"], one.get("over")): one for one in json.loads(kept.read_text(encoding="utf-8"))}
    places = [(contender.label, contender.method.get(figure.over)) for contender in scene.contenders]
    kept.parent.mkdir(exist_ok=True)
    for place, contender in zip(places, scene.contenders, strict=True):
        if who is None or contender.label in who:
            known[place] = shared(scene, contender, seeds) or result(figure, scene, contender, seeds)
            print(scene.name, contender.label, in_short(known[place]), file=sys.stderr, flush=True)
            in_order = [known[other] for other in places if other in known]
            kept.write_text(json.dumps(in_order, indent=1) + "\n", encoding="utf-8")


def in_short(one: Found) -> str:
    """The last values of a result, for whoever waits."""
    if "refused" in one:
        return str(one["refused"])
    last = {name: spread([run[-1] for run in runs]) for name, runs in one["metrics"].items()}
    return ", ".join(f"{name} {value}" for name, value in last.items()) + f", {one['seconds']} s"


def shared(scene: Scene, contender: Contender, seeds: Sequence[int]) -> Found | None:
    """The result of another panel that is the same experiment, as far as these seeds go."""
    file, wanted = RESULTS / f"{scene.shares}.json", list(seeds)
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    for one in known:
        if one["label"] == contender.label and one.get("seeds", [])[: len(wanted)] == wanted:
            metrics = {name: runs[: len(wanted)] for name, runs in one["metrics"].items()}
            return {**one, "seeds": wanted, "metrics": metrics}
    return None


def result(figure: Figure, scene: Scene, contender: Contender, seeds: Sequence[int]) -> Found:
    """A contender's curves under the seeds, and what they cost; see shown.py."""
    chosen, begun = settings_of(scene.data, contender), time.monotonic()
    chosen = {key: value * scene.rate_factor if key == RATE else value for key, value in chosen.items()}
    contender = replace(contender, changes={**contender.changes, **scene.changes})
    runs = []
    try:
        for seed in seeds:
            plan = planned(file_of(scene), contender, chosen, seed)
            points = [math.ceil(plan.rounds * (k + 1) / POINTS) for k in range(POINTS)]
            federation = load_federation(plan)
            runs.append(list(curve(plan, federation, points).values()))
        costs = epsilons(plan, points)
    except TacitError as error:
        return {"label": contender.label, "refused": str(error)}
    published = [paper for _, paper in costs]
    if contender.method.get("group_size") in ("max", "median"):
        published = paper_on_group(contender, scene, plan, points)
    return {
        "label": contender.label,
        "settings": chosen,
        "seeds": list(seeds),
        "rounds": points,
        "metrics": {name: [[scores.get(name) for scores in run] for run in runs] for name in figure.metrics},
        "proved": ["inf" if math.isinf(proved) else proved for proved, _ in costs],
        "published": published,
        "noise_multiplier": plan.noise_multiplier,
        "constant": constant_accuracy(federation),
        "over": contender.method.get(figure.over),
        "seconds": round(time.monotonic() - begun, 1),
    }


def constant_accuracy(federation: Federation) -> float | None:
    """The accuracy of always giving the more frequent of two answers."""
    if federation.labels.kind != "binary":
        return None
    positive = float(federation.test.labels.mean())
    return max(positive, 1 - positive)


def paper_on_group(contender: Contender, scene: Scene, plan: Plan, points: Sequence[int]) -> list[float]:
    """What the paper prints for group sizes that are statistics of the data: it counts everybody's records."""
    everything = replace(contender, method={**contender.method, "group_size": "max"})
    train = load_federation(planned(file_of(scene), everything, {}, plan.experiment.seed)).train
    counts = np.unique(train.subject, return_counts=True)[1]
    size = int(counts.max() if contender.method["group_size"] == "max" else np.median(counts))
    rate, steps = contender.method["sample_rate"], contender.method["batches_per_round"]
    return [as_published_uldp_group(size, rate, SIGMA, steps * number, plan.promise.delta) for number in points]


def file_of(scene: Scene) -> Path:
    return HERE / f"{scene.data}.toml"


if __name__ == "__main__":
    main()
