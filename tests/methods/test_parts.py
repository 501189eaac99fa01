"""A method is options plus parts: what is declared, what follows from it, and how little a new one needs."""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields, replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tacit.errors import UserError
from tacit.exchange import EXCHANGES
from tacit.methods import METHODS, Facts, Info, Method
from tacit.methods.clips import BatchClip, RecordClip, Shift, SiloClip, SubjectClip
from tacit.planning.claims import exchanges_for
from tests.methods.worlds import planned, random_federation, simulation
from tools import contributing

PRIVATE = [name for name, options in METHODS.items() if options.info.private]
FACTS = Facts(silos=4, subjects=50, records_per_silo=(100,) * 4, max_records=5, max_silos=2, parameters=100)

# What follows from what a method sends and who adds its noise.
SUITED = {
    ("uldp-naive",): {"plain", "masked"},
    ("subject-sgd", "uldp-avg", "uldp-sgd"): {"plain", "masked", "weighted"},
    ("dp-fedavg", "dp-fedsgd", "fine-tune", "per-fedavg", "pfedme", "fedem"): {"plain", "pairwise"},
    ("mean-regularized", "graph-regularized"): {"plain", "pairwise"},
    ("ss-simple", "ss-double", "ss-topk"): {"shuffled"},
    ("gossip-sgd", "muffliato-sgd", "random-walk", "local-walk"): {"direct"},
}
KNOWN = set().union(*SUITED.values())


def built(name: str, facts: Facts = FACTS, **numbers: Any) -> Method:
    options = METHODS[name](**numbers)
    known = options if options.noise_key is None else options.with_noise(1.0)
    return known.build(facts.pooled() if options.info.pools else facts)


@pytest.mark.parametrize("name", METHODS)
def test_the_exchanges_of_a_method_follow_from_its_parts(name):
    info = METHODS[name].info
    named = [found for names, found in SUITED.items() if name in names]
    alike = [found for names, found in SUITED.items() if _travels(METHODS[names[0]].info) == _travels(info)]
    assert set(exchanges_for(info)) & KNOWN == [*named, *alike, {"plain"}][0]


def _travels(info: Info) -> tuple[Any, ...]:
    return info.sends, info.place


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_exchange_that_does_not_suit_is_refused(name, exchange):
    if exchange in exchanges_for(METHODS[name].info):
        return
    with pytest.raises(UserError) as found:
        planned({"name": name}, exchange={"name": exchange})
    assert (found.value.code, found.value.field) == ("not-supported", "exchange.name")


@pytest.mark.parametrize("name", METHODS)
def test_what_is_declared_agrees_with_the_parts(name):
    method, info = built(name), METHODS[name].info
    assert (method.noise is None) == (info.place is None) == (METHODS[name].noise_key is None)
    assert method.noise is None or method.noise.place == info.place
    assert (method.clip is None) == (info.clips == "nothing")
    assert (method.added_noise is not None) == (info.place in ("shares", "once"))
    assert ("integers" in info.sends) <= (method.clip is not None and info.place in ("shares", "once"))


@pytest.mark.parametrize("name", METHODS)
def test_every_key_is_described(name):
    """By its type in option_keys, or in the docstring of its class or of the class that declares it."""
    options = METHODS[name]
    words = " ".join(inspect.getdoc(base) or "" for base in options.__mro__)
    hints = {key: hint for base in options.__mro__ for key, hint in inspect.get_annotations(base).items()}
    for field in fields(options):
        assert f"{field.name}  " in words or f"{field.name} " in words or "keys." in str(hints[field.name])


def test_a_clip_says_what_a_unit_moves():
    silo, batch = SiloClip(norm=0.5, sigma=2.0), BatchClip(norm=0.5, sigma=2.0)
    assert silo.sensitivity("silo", "zero-out", FACTS) == Shift(1.0, 0.0)
    assert silo.sensitivity("subject", "zero-out", FACTS) == Shift(4.0, 2)  # in 2 silos, each turns around
    assert silo.sensitivity("record", "replace", FACTS) == Shift(4.0, 2)
    assert batch.sensitivity("silo", "zero-out", FACTS).moved == 1.0
    assert batch.sensitivity("record", "zero-out", FACTS).moved == 2.0
    record, averaged = RecordClip(norm=0.5, sigma=2.0), RecordClip(norm=0.5, sigma=2.0, averaged=True)
    assert record.sensitivity("subject", "zero-out", FACTS) == Shift(5.0, 0.0)
    assert averaged.sensitivity("subject", "replace", FACTS) == Shift(2.0, 0.0)
    assert RecordClip(norm=0.5, sigma=2.0, most=3).sensitivity("record", "zero-out", FACTS) == Shift(2.0, 1.0)
    assert record.sensitivity("silo", "zero-out", FACTS) is None
    assert record.sensitivity("subject", "zero-out", replace(FACTS, max_records=None)) is None
    subject = SubjectClip(norm=0.5, sigma=2.0, share=0.25)
    assert subject.sensitivity("subject", "replace", FACTS) == Shift(2.0, 0.0)
    assert subject.sensitivity("record", "zero-out", FACTS) == Shift(0.5, 0.0)
    assert subject.noise_over(Shift(0.5)) == 4.0


def test_the_method_of_contributing_keeps_the_guarantee_of_subject_sgd(monkeypatch):
    """It replaces what a subject computes alone: directions, and gradients that are all clipped, are the same."""
    [text] = [text for _, path, text in contributing.blocks(contributing.pages()) if path.endswith("normalized_sgd.py")]
    module = ModuleType("normalized_sgd_of_the_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(text, module.__dict__)

    def moved(name: str, clip: float) -> np.ndarray:
        made = random_federation(np.random.default_rng(3))
        sim = simulation(made, {"name": name, "noise_multiplier": 2.0, "clip": clip})
        before = sim.shared_model()
        sim.round(1)
        return np.concatenate([np.ravel(sim.shared_model()[k][w] - before[k][w]) for k in before for w in before[k]])

    numbers = {"noise_multiplier": 2.0, "clip": 0.5, "subject_sample_rate": 0.3}
    with patch.dict(METHODS, {"normalized-sgd": module.NormalizedSGD}):
        new, known = (planned({"name": name, **numbers}) for name in ("normalized-sgd", "subject-sgd"))
        assert [g.epsilon for g in new.guarantees()] == [g.epsilon for g in known.guarantees()]
        for clip, same in ((1e-4, True), (10.0, False)):
            pair = moved("normalized-sgd", clip), moved("subject-sgd", clip)
            assert np.allclose(*pair, rtol=0, atol=1e-4 * clip) == same
