"""The attacks behind the pictures of docs/audit.md, each on Tacit's own engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

sys.path.append(str(Path(__file__).parents[2]))  # the folder of research/

import tacit
from research.attacks import (
    Membership,
    attribute,
    difference,
    invert_gradient,
    likelihood_ratio,
    membership,
    per_subject,
    rebuild,
)
from research.samples import MUCH, PAIRS, SAMPLES, hardly_noisy
from tacit.auditing.cases import case
from tacit.auditing.mechanism import audit_mechanism, claim_of, observed, simulation
from tacit.auditing.views import contributions
from tacit.data import Federation, Records
from tacit.engine import load_federation
from tacit.engine.kernel import outputs
from tacit.kernels import split_frozen
from tacit.methods.base import like
from tacit.privacy import Gaussian, Randomness, Repeated, account, calibrate_noise

EPSILON, DELTA = 4.0, 1e-5

# -- every private method, alone

SEEDS = 20


class Alone(NamedTuple):
    """A method in a small case, seen by one view: what is proved at little noise, the largest of the lower bounds of
    many audits, how many of them refuted it, and whether a small part of the promised noise was caught."""

    name: str
    view: str
    proved: float
    at_least: float
    refuted: int
    caught: bool
    seconds: float


def every_method() -> Iterator[Alone]:
    """20 audits of 600 runs each, and one of 800 runs with a small part of the noise; seconds of processor time."""
    for name, view in PAIRS:
        begun = time.process_time()
        one, noisier = SAMPLES[name].made(), SAMPLES[name].made(MUCH)
        found = [audit_mechanism(one, view, runs=300, randomness=Randomness.from_seed(seed)) for seed in range(SEEDS)]
        broken = audit_mechanism(noisier, view, runs=400, randomness=Randomness.from_seed(0), broken=hardly_noisy)
        yield Alone(
            name,
            view,
            account(claim_of(one, view), DELTA).epsilon,
            max(finding.epsilon for finding in found),
            sum(finding.refuted for finding in found),
            broken.refuted,
            time.process_time() - begun,
        )


# -- who was in the data?

PEOPLE, YEARS, SHADOWS = 400, 5, 12
OVERFIT = {"name": "fedavg", "batch_size": 16, "local_learning_rate": 0.3}
CONTENDERS = {
    "no privacy (fedavg)": ({"method": OVERFIT, "train": {"rounds": 300}}, "record"),
    "single records protected (local-record)": (
        {"method": {"name": "local-record", "clip": 0.5, "target_epsilon": EPSILON, "batches_per_round": 4}},
        "record",
    ),
    "people protected (subject-sgd)": (
        {
            "method": {"name": "subject-sgd", "clip": 0.5, "target_epsilon": EPSILON},
            "train": {"rounds": 20, "server_learning_rate": 2.0},
        },
        "subject",
    ),
}


def _people() -> Federation:
    """People of the built-in table with exactly five years each, alternately in two silos."""
    plan = tacit.plan({"data": {"source": "randhie"}, "method": {"name": "fedavg"}})
    train = load_federation(plan).train
    subjects, counts = np.unique(train.subject, return_counts=True)
    chosen = subjects[counts == YEARS][:PEOPLE]
    kept = np.isin(train.subject, chosen)
    number = np.searchsorted(chosen, train.subject[kept]).astype(np.int32)
    rows = Records(train.features[kept], train.labels[kept], number, (number % 2).astype(np.int32))
    whole = load_federation(plan)
    return replace(
        whole, train=rows.grouped(), test=rows, silo_names=("a", "b"), subject_count=PEOPLE, encoder=None, unpaid=None
    )


def _trained(settings: dict, unit: str, federation: Federation, members: np.ndarray, key: int) -> np.ndarray:
    """The loss of every record of ``federation`` under a model that was trained on ``members`` alone."""
    data = {
        "silos": {"column": "silo", "count": 2},
        "subjects": {"column": "person", "count": PEOPLE},
        "records_per_silo": PEOPLE * YEARS // 4,
    }
    caps = {"max_records_per_subject_and_silo": YEARS, "max_silos_per_subject": 1, "over_silo_cap": "refuse"}
    privacy = {"unit": unit, **caps, "delta": DELTA}
    train = {"rounds": 20, **settings.get("train", {})}
    model = {"name": "mlp", "hidden": [64]}
    plan = tacit.plan({"data": data, "model": model, "method": settings["method"], "train": train, "privacy": privacy})
    own = replace(federation, train=federation.train.take(members[federation.train.subject]))
    sim = simulation(plan, own, Randomness.from_seed(key))
    for number in range(1, plan.rounds + 1):
        sim.round(number)
    found = outputs(sim.learner.objective, sim.model(), federation.train.features)
    losses = sim.learner.task.losses
    assert losses is not None
    return np.asarray(losses(jnp.asarray(found), jnp.asarray(federation.train.labels)), np.float64)


def who_was_there(seed: int = 0) -> dict[str, dict[str, Membership]]:
    """For every contender: how well records and people are told from strangers, by loss and by likelihood ratio."""
    federation, rng = _people(), np.random.default_rng(seed)
    halves = []
    for _ in range(1 + SHADOWS):  # of each silo's people exactly half, so that all models have equally many records
        inside = np.zeros(PEOPLE, bool)
        for silo in range(2):
            inside[rng.permutation(np.arange(silo, PEOPLE, 2))[: PEOPLE // 4]] = True
        halves.append(inside)
    subject = federation.train.subject
    found = {}
    for name, (settings, unit) in CONTENDERS.items():
        # the usual scale of the attack is the logit of the probability of the true label
        losses = np.stack([_trained(settings, unit, federation, inside, i) for i, inside in enumerate(halves)])
        scores = -np.log(np.expm1(np.clip(losses, 1e-6, 30)))
        people = np.stack([per_subject(row, subject)[0] for row in scores])
        inside = np.stack(halves)
        found[name] = {
            "record, by loss": _of(scores[0], inside[0][subject]),
            "record, by likelihood": _of(
                likelihood_ratio(scores[0], scores[1:], inside[1:][:, subject]), inside[0][subject]
            ),
            "person, by loss": _of(people[0], inside[0]),
            "person, by likelihood": _of(likelihood_ratio(people[0], people[1:], inside[1:]), inside[0]),
        }
    return found


def _of(scores: np.ndarray, member: np.ndarray) -> Membership:
    return membership(scores[member], scores[~member])


# -- what did the picture look like?


def digits(pictures: int = 200) -> tuple[list[str], list[list[np.ndarray]]]:
    """The mean picture of a person who wrote one digit many times, and what comes back from the first update of the
    silo that holds nobody else."""
    silos = {"assign": "uniform", "count": 2}
    source = load_federation(tacit.plan({"data": {"source": "mnist", "silos": silos}, "method": {"name": "fedavg"}}))
    shown = []
    for key, digit in enumerate((3, 5, 8)):
        own = np.flatnonzero(source.train.labels == digit)[:pictures]
        others = np.flatnonzero(source.train.labels != digit)[:OTHERS]
        rows = np.concatenate([own, others])
        # the person is number 0 and alone in the first silo; everybody else has one picture, in the second
        subject = np.r_[np.zeros(pictures), 1 + np.arange(OTHERS)].astype(np.int32)
        train = Records(source.train.features[rows], source.train.labels[rows], subject, (subject > 0).astype(np.int32))
        made = replace(source, train=train, silo_names=("one person", "sixty people"), subject_count=1 + OTHERS)
        mean = source.train.features[own].mean(axis=0)
        shown.append([_grey(mean), *(_inverted(made, method, pictures, key) for method in UPDATES.values())])
    return ["the person's\nmean picture", *UPDATES], shown


OTHERS = 60
UPDATES = {
    "FedSGD,\nno privacy": {"name": "fedsgd"},
    "records protected,\nepsilon 4": {
        "name": "local-record",
        "clip": 1.0,
        "target_epsilon": EPSILON,
        "sample_rate": 1.0,
        "batches_per_round": 1,
        "local_learning_rate": 1.0,
    },
    "people protected,\nepsilon 4": {"name": "subject-sgd", "clip": 1.0, "target_epsilon": EPSILON},
}


def _inverted(made: Federation, method: dict, pictures: int, key: int) -> np.ndarray:
    """What the attacker makes of what it sees: the silo's own update, or only the sum where people are protected."""
    data = {
        "silos": {"column": "silo", "count": 2},
        "subjects": {"column": "person", "count": 1 + OTHERS},
        "records_per_silo": pictures,
        "task": "multiclass",
        "classes": 10,
    }
    caps = {"max_records_per_subject_and_silo": pictures, "max_silos_per_subject": 1, "over_silo_cap": "refuse"}
    privacy = {**caps, "delta": DELTA}
    model = {"name": "mlp", "hidden": [32]}
    plan = tacit.plan({"data": data, "model": model, "method": method, "train": {"rounds": 10}, "privacy": privacy})
    sim = simulation(plan, made, Randomness.from_seed(key))
    before = sim.server.params
    if plan.method.name == "subject-sgd":
        sim.round(1)
        layer = {name: np.asarray(sim.server.params["layer0"][name] - before["layer0"][name]) for name in ("w", "b")}
    else:
        vector = contributions(sim, 1)[0]
        trainable, _ = split_frozen(before, ())
        numbers = sum(leaf.size for layer in trainable.values() for leaf in layer.values())
        layer = {name: np.asarray(leaf) for name, leaf in like(jnp.asarray(vector[:numbers]), before)["layer0"].items()}
    found = invert_gradient(layer["w"], layer["b"]).reshape(28, 28)
    # ink is rare: whoever looks knows which side is up
    return _grey(found * np.sign(np.mean((found - found.mean()) ** 3)))


def _grey(image: np.ndarray) -> np.ndarray:
    """From 0 to 1, as bright as it gets."""
    spread = image.max() - image.min()
    return (image - image.min()) / spread if spread > 0 else image


# -- what does somebody earn?


def secret_sign(multipliers: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)) -> tuple[list[float], list[float]]:
    """(epsilons, shares): how often the attacker reads from one released model which of two values a person has."""
    epsilons, shares = [], []
    for sigma in multipliers:
        one = case({"name": "uldp-sgd", "noise_multiplier": sigma, "clip": 1.0})
        flipped = replace(one.present, train=replace(one.present.train, labels=-one.present.train.labels))
        truth = (
            (observed(one.plan, one.present, "public", 500, 0, Randomness.from_seed(1)), True),
            (
                observed(one.plan, flipped, "public", 500, 1, Randomness.from_seed(1)),
                False,
            ),
        )
        direction = np.eye(truth[0][0].shape[1])[1]  # the bias comes first, then the feature that carries the secret
        right = [np.mean(attribute(seen, direction) == value) for seen, value in truth]
        shares.append(float(np.mean(right)))
        epsilons.append(account(Gaussian(sigma / 2), DELTA).epsilon)
    return epsilons, shares


def two_releases(people: int = 1000, trials: int = 2000) -> list[tuple[str, float]]:
    """What is off, on average, in a person's income (in thousands, between 0 and 100) from two means that differ by
    that person."""
    rng = np.random.default_rng(3)
    incomes = rng.gamma(4.0, 8.0, size=people).clip(0, 100)
    rows = []
    for name, epsilon in (("no noise", None), ("epsilon 8 for both", 8.0), ("epsilon 1 for both", 1.0)):
        sigma = 0.0 if epsilon is None else 100 * calibrate_noise(lambda s: Repeated(Gaussian(s), 2), epsilon, DELTA)
        noise = sigma * rng.normal(size=(2, trials)) / people
        found = difference(incomes.mean() + noise[0], incomes[1:].mean() + noise[1], people, people - 1)
        rows.append((name, float(np.mean(np.abs(found - incomes[0])))))
    return rows


def subset_sums(people: int = 200) -> tuple[list[float], list[float], float, float]:
    """(noise, share of bits that come back), and the same for the noise that epsilon 1 asks for all answers."""
    rng = np.random.default_rng(4)
    bits, queries = rng.random(people) < 0.5, rng.random((4 * people, people)) < 0.5
    exact = queries @ bits.astype(float)

    def share(noise: float) -> float:
        return float(
            np.mean([np.mean(rebuild(queries, exact + noise * rng.normal(size=len(exact))) == bits) for _ in range(5)])
        )

    noises = [0.0, 1.0, 2.0, 5.0, 10.0, 14.0, 20.0, 30.0, 50.0, 80.0]
    private = calibrate_noise(lambda s: Repeated(Gaussian(s), 4 * people), 1.0, DELTA)
    return noises, [share(noise) for noise in noises], private, share(private)
