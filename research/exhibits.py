"""Published accountings that do not hold, each beside an attack that shows it (specification 1.3, 5.1 and 6.3).

An exhibit is a small case in which the attack's lower bound is above the epsilon that the paper's own accounting gives,
and below what is proved. None of this says that a paper's algorithm is bad: with the right number beside it, each is as
good as that number.

record_rate      HiGradAvgDP [SubjectDP-2, T3.8] counts with the rate of a record; a person with many is in a batch
                 more often
batch_noise      LocalGroupDP [SubjectDP-1, SubjectDP-2] scales noise by the largest group in the batch, and so gives
                 its size away
marginal_gossip  pairwise gossip (Cyffers et al. 2022) adds divergences of messages that share the same noise
linked_messages  [FLAME] shuffles whole vectors and counts as if every coordinate were shuffled alone
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from tacit.auditing.bounds import guess, guesses_to_make, one_run_epsilon
from tacit.auditing.canaries import plant
from tacit.auditing.cases import case
from tacit.auditing.mechanism import observed, weigh
from tacit.auditing.one_run import score_uploads, train
from tacit.engine.learner import learner
from tacit.families.gossip.proofs import as_published_gossip, gaussian_event, gossip_exposure
from tacit.families.shuffle.proofs import as_published_flame_simple
from tacit.privacy import Pure, Randomness, Unprotected, View, account
from tacit.privacy.accounting.gaussian import gaussian_mu
from tacit.privacy.accounting.rdp import ORDERS, rdp_epsilon

Array = npt.NDArray[np.float64]

DELTA = 1e-5
CONFIDENCE = 0.999


@dataclass(frozen=True)
class Exhibit:
    """A published epsilon, what an attack found, and what is proved; ``setting`` says for what, ``attack`` how."""

    name: str
    setting: str
    attack: str
    published: float
    at_least: float
    proved: float
    confidence: float = CONFIDENCE
    delta: float = DELTA

    @property
    def shows(self) -> bool:
        """Whether the attack refutes what was published and not what is proved."""
        return self.published < self.at_least <= self.proved


def record_rate(randomness: Randomness, canaries: int = 1000, records: int = 10) -> Exhibit:
    """One run of ``higrad``: a thousand made people with ten records each, each there or not by a coin."""
    batches, rate, sigma = 200, 0.05, 2.0
    numbers = {"sample_rate": rate, "batches_per_round": batches, "noise_multiplier": sigma, "clip": 1.0}
    one = case({"name": "higrad", **numbers}, silos=2, subject_silos=1, records=records)
    crowd = one.absent
    base = learner(one.plan.experiment.model, crowd.labels, crowd.train.features.shape[1:], randomness)
    promise = one.plan.promise
    declared = replace(promise, facts=replace(promise.facts, records_per_silo=(canaries * records,) * 2))
    planted = plant(replace(one.plan, promise=declared), crowd, base, canaries, 0, randomness.stream("canaries"))
    seen = train(planted, randomness)
    assert seen.uploads is not None
    server = View.parse("server")
    event = planted.plan.promise.total(server, 1)
    scores = score_uploads(planted, seen.uploads, event)
    proved = account(event, DELTA).epsilon
    made = guesses_to_make(canaries, gaussian_mu(proved, DELTA), DELTA, CONFIDENCE)
    guarantee = next(line for line in one.plan.guarantees() if line.view == server)
    assert guarantee.as_published is not None
    return Exhibit(
        "The rate of a record, for a person",
        f"`higrad`, {records} records per person, {batches} batches at rate {rate:g}, noise multiplier {sigma:g}",
        f"one run, {canaries:,} made people, the server sees each silo's update",
        guarantee.as_published.epsilon,
        one_run_epsilon(guess(scores, planted.coins, made), DELTA, CONFIDENCE),
        proved,
    )


def batch_noise(randomness: Randomness, runs: int = 1500, records: int = 4) -> Exhibit:
    """One batch of ``local-group`` with the published noise, many times: the noise is wider if a person has many
    records, and its width is measured on a model of 50 numbers."""
    rate, sigma, width = 0.5, 2.0, 50
    method = {"name": "local-group", "noise": "as-published", "noise_multiplier": sigma, "clip": 1.0}
    numbers = {"sample_rate": rate, "batches_per_round": 1, "local_learning_rate": 1.0}
    one = case({**method, **numbers}, silos=2, subject_silos=1, records=records, features=width)
    seen = [
        observed(one.plan, federation, "server", runs, world, randomness).reshape(runs, 2, -1)[:, 0]
        for world, federation in enumerate((one.present, one.absent))
    ]
    widths = [np.log(np.square(numbers_).mean(axis=1, keepdims=True)) for numbers_ in seen]
    found = weigh(widths[0], widths[1], Unprotected("the noise follows the batch"), DELTA, CONFIDENCE)
    guarantee = next(line for line in one.plan.guarantees() if str(line.view) == "server")
    assert guarantee.as_published is not None
    return Exhibit(
        "Noise that follows the batch",
        f"`local-group` with the paper's noise, {records} records of a person, one batch at rate {rate:g}",
        f"{2 * runs:,} runs, the width of the noise in one silo's update",
        guarantee.as_published.epsilon,
        found.epsilon,
        guarantee.epsilon,
    )


def marginal_gossip(randomness: Randomness, runs: int = 40_000) -> Exhibit:
    """A ring of 20 nodes that average five times with their neighbours: node 0 solves for the value of node 5."""
    nodes, steps, ratio, target = 20, 5, 0.5, 5
    ring = np.eye(nodes)
    mixing = (ring + np.roll(ring, 1, axis=1) + np.roll(ring, -1, axis=1)) / 3
    rows = [np.linalg.matrix_power(mixing, t)[w] for t in range(steps) for w in (1, nodes - 1)]
    sees = np.stack([*rows, ring[0]])
    # what combination of the messages is the target's own, as far as there is one
    weights = np.linalg.lstsq(sees.T, ring[target], rcond=None)[0]
    rng = np.random.default_rng(randomness.integer("gossip"))
    # the sensitivity is 1, the noise of every node is added once
    noise = ratio * rng.normal(size=(2, runs, nodes))
    messages = (noise + np.array([1.0, 0.0])[:, None, None] * ring[target]) @ sees.T
    scores = messages @ weights
    event = gaussian_event(math.sqrt(gossip_exposure(mixing, steps, (0,))[target]) / ratio)
    found = weigh(scores[0][:, None], scores[1][:, None], event, DELTA, CONFIDENCE)
    share = float(as_published_gossip(mixing, steps, 0)[target])
    published = rdp_epsilon(ORDERS, ORDERS * share / (2 * ratio**2), DELTA)
    return Exhibit(
        "Messages that share their noise",
        f"gossip on a ring of {nodes}, {steps} exchanges, noise {ratio:g} times the sensitivity, five steps apart",
        f"{2 * runs:,} runs, the combination of messages in which all other noise cancels",
        published,
        found.epsilon,
        account(event, DELTA).epsilon,
    )


def linked_messages(
    randomness: Randomness, runs: int = 1500, subjects: int = 2000, dimensions: int = 20, local: float = 1.5
) -> Exhibit:
    """Shuffled vectors of locally noised numbers: a whole vector is far from where all others are."""
    rng = np.random.default_rng(randomness.integer("shuffle"))

    def score(value: float) -> Array:
        """How much likelier what the shuffler hands over is with ones in one vector than without, run by run."""
        found = []
        for _ in range(runs):
            messages = rng.laplace(scale=1 / local, size=(subjects, dimensions))
            messages[0] += value
            ratios = local * (np.abs(messages) - np.abs(messages - 1)).sum(axis=1)
            found.append(logsumexp(ratios) - math.log(subjects))
        return np.array(found)[:, None]

    whole = Pure(dimensions * local)
    found = weigh(score(1.0), score(0.0), whole, DELTA, CONFIDENCE)
    return Exhibit(
        "Vectors that stay together",
        f"{subjects:,} shuffled vectors of {dimensions} numbers, Laplace noise, local epsilon {local:g} each",
        f"{2 * runs:,} runs, the likelihood of the vectors as they come",
        as_published_flame_simple(dimensions, subjects, dimensions * local, DELTA),
        found.epsilon,
        dimensions * local,
    )


EXHIBITS: dict[str, Callable[[Randomness], Exhibit]] = {
    "record-rate": record_rate,
    "batch-noise": batch_noise,
    "marginal-gossip": marginal_gossip,
    "linked-messages": linked_messages,
}
