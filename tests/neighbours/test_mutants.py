"""Planted errors, each on the real code: the harness finds every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.data import load
from tacit.data.load import within_caps
from tacit.engine.simulate import Simulation
from tacit.exchange.plain import Plain
from tacit.exchange.sums import Grid, share_variance
from tacit.families.shuffle.worker import EncoderWork
from tacit.families.subject_dp.methods import HiGrad
from tacit.federation.protocol.coordinator import CoordinatorSide
from tacit.federation.site.shard import pseudonyms
from tacit.kernels import Steps, bounded, clipped_gradient_sum
from tacit.kernels.exact_sums import Counts
from tacit.methods.central import Upload
from tacit.methods.clips import Clip
from tacit.methods.local_noise import NoisyBatchesClaim
from tacit.methods.per_subject import SubjectSGD, SubjectWork
from tacit.planning.claims import Promise
from tacit.privacy import Randomness
from tests.compiled import forget_compiled
from tests.neighbours.cells import CROWD, Cell, verdicts
from tests.neighbours.worlds import CHUNK

pytestmark = pytest.mark.slow

SUBJECTS = Cell("subject-sgd", "plain", "simulator", "worst")
APART = Cell("subject-sgd", "plain", "federation", "worst")
MASKED = Cell("subject-sgd", "masked", "simulator", "worst")
SILO = Cell("dp-fedavg", "plain", "simulator", "worst")
NAIVE = Cell("uldp-naive", "plain", "simulator", "worst")


def loading(change: Callable[[Any], Any]) -> Any:
    """The loader's records, changed."""

    def loaded(*given: Any, **options: Any) -> Any:
        federation = load(*given, **options)
        return replace(federation, train=change(federation.train).grouped())

    return patch("tacit.engine.run.load", loaded)


def by_mean(train: Any) -> Any:
    return replace(train, labels=train.labels - train.labels.mean())


def by_largest(train: Any) -> Any:
    return replace(train, features=train.features * np.float32(np.abs(train.labels).max() / 10))


def without_outliers(train: Any) -> Any:
    return train.take(np.abs(train.labels) <= 2 * np.abs(train.labels).mean())


def dealt_by_rank(train: Any) -> Any:
    return replace(train, silo=(np.unique(train.subject, return_inverse=True)[1] % 3).astype(np.int32))


def balanced(train: Any) -> Any:
    """As many records of every silo as the smallest has."""
    sizes = np.bincount(train.silo)
    rank = np.arange(len(train)) - np.searchsorted(train.silo, train.silo)
    return train.take(rank < sizes.min())


def every_second(train: Any) -> Any:
    return train.take(slice(None, None, 2))


def held_out_by_rank(keys: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    return np.unique(keys, return_inverse=True)[1] % 5 == 2


def held_out_by_count(keys: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    people, which = np.unique(keys, return_inverse=True)
    return np.random.default_rng(seed + len(people)).permutation(len(people))[which] < fraction * len(people)


def first_records(subject: np.ndarray, silo: np.ndarray, **caps: Any) -> np.ndarray:
    kept = within_caps(subject, silo, **caps)
    return kept & (np.cumsum(kept) <= 60)


def weighted_by_parity(self: Any, counts: np.ndarray, totals: np.ndarray, facts: Any) -> np.ndarray:
    return np.full(len(counts), (1 + len(counts) % 2) / 2 / facts.silos_of_a_subject)


def weighted_by_totals(self: Any, counts: np.ndarray, totals: np.ndarray, facts: Any) -> np.ndarray:
    return counts / (1.0 + totals)


def weighted_by_everybody(self: Any, counts: np.ndarray, totals: np.ndarray, facts: Any) -> np.ndarray:
    return np.minimum(1 / 3, 60 / (counts.sum() * np.ones(len(counts))) / 3)


def after_round(change: Callable[[Simulation, Any], Any]) -> Any:
    """The released model, changed."""
    done = Simulation.round

    def round_(self: Simulation, number: int) -> int:
        taken = done(self, number)
        self.server = self.server._replace(params=jax.tree.map(lambda leaf: change(self, leaf), self.server.params))
        return taken

    return patch.object(Simulation, "round", round_)


def noise_by_data(self: Simulation, number: int) -> Any:
    return KEYS(self, number + len(self.federation.train))


KEYS = Simulation.keys


def local_times_records(local: Any) -> Any:
    def counted(self: Any, work: Any, broadcast: Any, state: Any) -> Any:
        found = local(self, work, broadcast, state)
        return found._replace(vector=found.vector * work.records / 20)

    return counted


def wide(vector: Any, clip: Any) -> Any:
    found, *rest = bounded(vector, clip)
    return 1.5 * found, *rest


def doubled(counts: Any) -> Any:
    return lambda *given: Counts(*(2 * count for count in counts(*given)))


def half_noise(build: Any) -> Any:
    def halved(self: Any, facts: Any) -> Any:
        method = build(self, facts)
        return replace(method, noise=replace(method.noise, std=method.noise.std / 2))

    return halved


def added_up(build: Any) -> Any:
    """A subject's gradients in a batch are added up, not averaged."""

    def summed(self: Any, facts: Any) -> Any:
        method = build(self, facts)
        return replace(method, work=replace(method.work, clip=replace(method.work.clip, averaged=False)))

    return summed


def coins_of_each_silo() -> Any:
    silos, drawn = count(), "tacit.federation.protocol.agreement.common_randomness"
    return patch(drawn, lambda *_: Randomness.from_seed(next(silos) % 3))


def outward(self: Grid, vectors: Any, factors: Any = 1.0) -> Any:
    scale = np.asarray(factors, np.float64) / self.precision
    steps = np.asarray(vectors, np.float64) * (scale[..., np.newaxis] if scale.ndim else scale)
    return np.rint(steps * 1.2).astype(np.int64)


def by_rank(keys: np.ndarray, parts: int) -> np.ndarray:
    return np.unique(keys, return_inverse=True)[1] % parts


def modulo_count(identifiers: Any, secret: Any) -> np.ndarray:
    return (pseudonyms(identifiers, secret).view(np.uint64) % np.uint64(CROWD)).astype(np.int64)


def added_in_single_precision(self: Steps, steps: jax.Array) -> Steps:
    total = self.numbers(1.0) + steps.astype(jnp.float32)
    size = jnp.abs(total)
    high = jnp.floor(size / 2.0**32)
    found = Steps((size - high * 2.0**32).astype(jnp.uint32), high.astype(jnp.uint32))
    return found._negated(total < 0)


def chunk_by_chunk(*given: Any) -> Any:
    *before, index, weight, blocks, clip, counts = given
    ends = jnp.minimum(blocks[0] + CHUNK * jnp.arange(len(index) // CHUNK + 2), blocks[-1])
    return clipped_gradient_sum(*before, index, weight, ends, clip, counts)


@contextmanager
def single_precision() -> Iterator[None]:
    """Chunk after chunk is added to one running sum."""
    with (
        patch.object(Steps, "added", added_in_single_precision),
        patch("tacit.kernels.clipped_sum.TOGETHER", 1),
        patch("tacit.kernels.noisy_descent.clipped_gradient_sum", chunk_by_chunk),
        patch("tacit.kernels.batches.blocks_for", lambda expected: 1),
    ):
        yield


# the guarantees of the first version that were false, by the number of the advisory
REVERTED: dict[str, tuple[Cell, Callable[[], Any]]] = {
    "F1": (
        Cell("uldp-avg", "weighted", "simulator", "private weights, records-phantom"),
        lambda: patch("tacit.methods.per_subject.slot_shift", lambda table, silos, records, curious: 1.0),
    ),
    "F2": (
        Cell("higrad", "plain", "federation", "one answers"),
        lambda: patch.object(NoisyBatchesClaim, "requires_all_silos", False),
    ),
    "F3": (
        Cell("subject-sgd", "plain", "federation", "crowd"),
        lambda: patch("tacit.federation.site.shard.pseudonyms", modulo_count),
    ),
    "F4, turns": (
        Cell("uldp-avg", "plain", "simulator", "turns"),
        lambda: patch("tacit.engine.people_work.shares", by_rank),
    ),
    "F4, reports": (
        Cell("ldp-laplace", "plain", "simulator", "reports"),
        lambda: patch("tacit.exchange.sums.shares", by_rank),
    ),
    "F4, places": (
        Cell("muffliato-sgd", "direct", "simulator", "people as nodes"),
        lambda: patch("tacit.engine.simulate.places_of", by_rank),
    ),
    "F6": (Cell("central-group", "plain", "simulator", "many records"), single_precision),
    "F6, noise in the silo": (Cell("local-record", "plain", "simulator", "many records"), single_precision),
    "F8": (
        Cell("subject-sgd", "plain", "simulator", "one silo each"),
        lambda: patch.object(Promise, "drops_for", lambda self, view: False),
    ),
}

MUTANTS: dict[str, tuple[Cell, Callable[[], Any]]] = {
    "constants from the data": (SUBJECTS, lambda: loading(by_mean)),
    "a scale from the data": (SUBJECTS, lambda: loading(by_largest)),
    "outliers dropped by a threshold from the data": (SUBJECTS, lambda: loading(without_outliers)),
    "silos dealt by rank": (Cell("higrad", "plain", "simulator", "confined"), lambda: loading(dealt_by_rank)),
    "silos cut to the size of the smallest": (SUBJECTS, lambda: loading(balanced)),
    "every second record used": (SUBJECTS, lambda: loading(every_second)),
    "hold-out by rank": (SUBJECTS, lambda: patch("tacit.data.load.drawn", held_out_by_rank)),
    "hold-out by count": (SUBJECTS, lambda: patch("tacit.data.load.drawn", held_out_by_count)),
    "a cap over all subjects": (SUBJECTS, lambda: patch("tacit.data.load.within_caps", first_records)),
    "a weight from a private count": (SUBJECTS, lambda: patch.object(SubjectWork, "weights_of", weighted_by_parity)),
    "a weight from all records": (SUBJECTS, lambda: patch.object(SubjectWork, "weights_of", weighted_by_everybody)),
    "a weight from other silos": (
        Cell("uldp-sgd", "plain", "simulator", "worst"),
        lambda: patch.object(SubjectWork, "weights_of", weighted_by_totals),
    ),
    "a divisor from the data": (
        SUBJECTS,
        lambda: after_round(lambda sim, leaf: leaf * (100 / len(sim.federation.train))),
    ),
    "a divisor by realised subjects": (
        SUBJECTS,
        lambda: after_round(lambda sim, leaf: leaf / len(np.unique(sim.federation.train.subject))),
    ),
    "noise that depends on the data": (SUBJECTS, lambda: patch.object(Simulation, "keys", noise_by_data)),
    "half the noise": (SUBJECTS, lambda: patch.object(SubjectSGD, "build", half_noise(SubjectSGD.build))),
    "no share of the noise": (APART, lambda: patch.object(Plain, "share", lambda self, vector, *_: vector)),
    "too small a share in a masked sum": (
        MASKED,
        lambda: patch(
            "tacit.exchange.masked.share_variance", lambda silos, *rest: share_variance(silos, *rest) / silos
        ),
    ),
    "rounding that lets a norm grow": (MASKED, lambda: patch.object(Grid, "truncated", outward)),
    "shares with a silo missing": (
        Cell("subject-sgd", "plain", "federation", "one answers"),
        lambda: patch.object(CoordinatorSide, "_from_all", CoordinatorSide._taken),
    ),
    "coins of each silo": (Cell("subject-sgd", "plain", "federation", "common coins"), coins_of_each_silo),
    "a clip that is too wide": (SILO, lambda: patch("tacit.methods.central.bounded", wide)),
    "a count with half its noise": (
        Cell("subject-sgd", "plain", "simulator", "adaptive clip"),
        lambda: patch.object(Clip, "counts", doubled(Clip.counts)),
    ),
    "no clip": (NAIVE, lambda: patch("tacit.families.weighting.methods.clipped", lambda v, c: v)),
    "updates weighted by records": (
        SILO,
        lambda: patch.object(Upload, "local", local_times_records(Upload.local)),
    ),
    "records added up where they are to be averaged": (
        Cell("higrad", "plain", "simulator", "worst"),
        lambda: patch.object(HiGrad, "build", added_up(HiGrad.build)),
    ),
    "only those with records report": (
        Cell("ldp-laplace", "plain", "federation", "reports"),
        lambda: patch.object(EncoderWork, "_pieces", lambda self, people: iter(())),
    ),
}


@contextmanager
def compiled_anew() -> Iterator[None]:
    """What was compiled before knows nothing of a planted error, and what is compiled with it must not stay."""
    forget_compiled()
    try:
        yield
    finally:
        forget_compiled()


def is_caught(cell: Cell) -> bool:
    try:
        return not all(verdict.holds for verdict in verdicts(cell).values())
    except AssertionError:  # how much leaves, or whether anything does, depends on the data
        return True


@pytest.mark.parametrize("name", [*REVERTED, *MUTANTS])
def test_a_planted_error_is_found(name):
    cell, planted = (REVERTED | MUTANTS)[name]
    with compiled_anew(), planted():
        assert is_caught(cell)
