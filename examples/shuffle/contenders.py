"""Who competes on docs/shuffle.md, and what training them gave (results.json).

What is chosen for each contender is how far the server steps (for one of them also C), as research/study.py says: on a
fifth of the *training* people, after four epochs, with seeds that no result has. Everything else is the same for all,
or the paper's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))  # the folder of research/

from research.study import CHOOSING_SEED, Contender, Settings, curve, judged, planned
from tacit.data import Federation
from tacit.engine import load_federation
from tacit.planning.plan import Plan
from tacit.privacy import Laplace, Repeated
from tacit.privacy.accounting.account import calibrate_noise

HERE = Path(__file__).parent
FILE, RESULTS = HERE / "flame.toml", HERE / "results.json"
CHOOSING_EPOCHS = 4
PEOPLE, NUMBERS, DELTA = 1000, 7850, 5e-6
LOCAL = {"local_epochs": 5, "local_learning_rate": 0.1}
RANGE = 0.03  # C
STEPS = (0.01, 0.03, 0.1, 0.3)  # in units of C: what one number moves by if everybody agrees
RATE = "train.server_learning_rate"

Found = dict[str, Any]


@dataclass(frozen=True)
class Entrant(Contender):
    """A contender, whom people have to trust with it, whom its epsilon is about (``view``), and over how many seeds its
    settings are chosen."""

    trusts: str = ""
    view: str = "analyzer"
    choosing_seeds: int = 1

    @property
    def unit(self) -> str:
        """Who is a person: a subject that encodes, or a silo of its own."""
        return "silo" if "data.silos" in self.changes else "subject"


def shuffled(label: str, name: str, **numbers: Any) -> Entrant:
    """One of FLAME's protocols."""
    return _encoders(label, name, numbers, "shuffler and analyzer not to collude", "analyzer")


def local(label: str, name: str, **numbers: Any) -> Entrant:
    """LDP-FL: everybody adds noise alone."""
    return _encoders(label, name, numbers, "none", "server")


def trusted(label: str, **numbers: Any) -> Entrant:
    """DP-FL: a trusted analyzer adds Gaussian noise to the sum of clipped updates."""
    return _silos(label, {"name": "dp-fedavg", "clip": 1.0, **LOCAL, **numbers}, (0.1, 0.3, 1.0, 3.0), "the analyzer")


def open_() -> Entrant:
    """NP-FL: no privacy."""
    return _silos("not private", {"name": "fedavg", **LOCAL}, (1.0, 2.0, 4.0), "all parties")


def _encoders(label: str, name: str, numbers: dict[str, Any], trusts: str, view: str) -> Entrant:
    method = {"name": name, "value_range": RANGE, **LOCAL, **numbers}
    changes = {"exchange": {"name": "plain"}} if view == "server" else {}
    return Entrant(label, method, {RATE: [step / RANGE for step in STEPS]}, changes, trusts, view)


def _silos(label: str, method: dict[str, Any], rates: Sequence[float], trusts: str) -> Entrant:
    """Every person is a silo."""
    changes = {
        "data.silos": {"assign": "uniform", "count": PEOPLE},
        "exchange": {"name": "plain"},
        "privacy.unit": "silo",
    }
    return Entrant(label, method, {RATE: rates}, changes, trusts, "public")


def plan_of(entrant: Entrant, epochs: int, chosen: Settings | None = None, seed: int = 0) -> Plan:
    """The plan of an entrant for so many epochs: with 1,000 people, an epoch is a round."""
    return planned(FILE, _lasting(entrant, epochs), chosen or {}, seed)


def _lasting(entrant: Entrant, epochs: int) -> Entrant:
    privacy = {"delta": DELTA, "against": [entrant.view], "relation": "replace"}
    outside = {"train.rounds": epochs, **{f"privacy.{key}": value for key, value in privacy.items()}}
    return replace(entrant, changes={**outside, **entrant.changes})


def calibrated(entrant: Entrant, epsilon: float, epochs: int) -> Entrant:
    """The entrant with the least noise that keeps a *proved* epsilon over so many epochs against its view."""
    method = {key: value for key, value in entrant.method.items() if key not in ("local_epsilon", "noise_multiplier")}
    solved = plan_of(replace(entrant, method={**method, "target_epsilon": epsilon}), epochs)
    if solved.local_epsilon is not None:
        return replace(entrant, method={**method, "local_epsilon": solved.local_epsilon})
    return replace(entrant, method={**method, "noise_multiplier": solved.noise_multiplier})


def composed(entrant: Entrant, epsilon: float, epochs: int) -> Entrant:
    """LDP-FL with the least Laplace noise whose numbers, composed one by one, have this epsilon at delta. That is much
    less noise than its pure epsilon asks for, by which ``tacit plan`` goes."""
    noise = calibrate_noise(lambda noise: Repeated(Laplace(noise), epochs * NUMBERS), epsilon, DELTA)
    return replace(entrant, method={**entrant.method, "local_epsilon": NUMBERS / noise})


def trained(entrant: Entrant, epochs: int, seeds: Sequence[int]) -> Found:
    """The ``settings`` that were chosen, and ``accuracy [seed][epoch]`` on held-out digits.

    What results.json has is not trained again.
    """
    what = {"method": dict(entrant.method), "view": entrant.view, "epochs": epochs}
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else []
    for one in known:
        if all(one[key] == value for key, value in what.items()) and one["seeds"][: len(seeds)] == list(seeds):
            return {**one, "seeds": list(seeds), "accuracy": one["accuracy"][: len(seeds)]}
    begun, chosen = time.monotonic(), chosen_settings(entrant, epochs)
    accuracy = [_accuracies(entrant, epochs, chosen, seed) for seed in seeds]
    found = {**what, "seeds": list(seeds), "settings": chosen, "accuracy": accuracy}
    RESULTS.write_text(json.dumps([*known, found], indent=1) + "\n", encoding="utf-8")
    last = ", ".join(f"{own[-1]:.3f}" for own in accuracy)
    print(f"{entrant.label}: {chosen}: {last} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)
    return found


def chosen_settings(entrant: Entrant, epochs: int) -> dict[str, Any]:
    """What does best on held-out training people after so many epochs, or a few of them."""
    few = _lasting(entrant, min(epochs, CHOOSING_EPOCHS))
    seeds = range(CHOOSING_SEED, CHOOSING_SEED + entrant.choosing_seeds)
    return dict(max(judged(FILE, few, "accuracy", entrant.unit, seeds), key=lambda pair: pair[0])[1])


def _accuracies(entrant: Entrant, epochs: int, chosen: Settings, seed: int) -> list[float]:
    """After every epoch."""
    found = curve(plan_of(entrant, epochs, chosen, seed), _digits(entrant.unit, seed), range(1, epochs + 1))
    return [scores["accuracy"] for scores in found.values()]


@cache
def _digits(unit: str, seed: int) -> Federation:
    """MNIST parted among 1,000 people, by a seed."""
    any_ = open_() if unit == "silo" else shuffled("", "ss-simple", local_epsilon=1.0)
    return load_federation(plan_of(any_, 1, seed=seed))
