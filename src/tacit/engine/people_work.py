"""Local work person by person: everybody in every silo learns alone, is clipped, weighted and added up."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from tacit.data import Federation
from tacit.engine.lanes import LANES, in_lanes
from tacit.learning import Arrays, Lane, Objective, PeopleSum, arrange, people_sum
from tacit.learning import drawn as draw_records
from tacit.methods import Facts, ServerState
from tacit.methods.per_subject import PerSubject
from tacit.models import Params
from tacit.privacy import Randomness


class Drawn(NamedTuple):
    """A round's people: lanes of work, and the sum of their weights."""

    lanes: tuple[Lane, ...]
    weight: np.float32


class PeopleWork:
    """Who is in a round and with which records, and the weighted sums of what they contribute."""

    def __init__(
        self,
        method: PerSubject,
        facts: Facts,
        federation: Federation,
        objective: Objective,
        params: Params,
        arrays: Arrays,
        randomness: Randomness,
    ) -> None:
        self.method, self.objective, self.randomness = method, objective, randomness
        silos = federation.silos
        self._subject = np.concatenate([silo.subjects for silo in silos])
        self._starts = np.concatenate([silo.offsets[:-1] for silo in silos])
        self._counts = np.concatenate([np.diff(silo.offsets) for silo in silos])
        self._subjects, self._silos = federation.subject_count, federation.silo_count
        self._weights = self._checked_weights(facts)
        self._layout = method.learning.layout(objective, params, arrays)
        self._everybody: Drawn | None = None

    def _checked_weights(self, facts: Facts) -> np.ndarray:
        """The weights, which must sum to at most 1 over the silos of every person."""
        totals = np.bincount(self._subject, self._counts, self._subjects)[self._subject]
        weights = self.method.weights_of(self._counts, totals, facts)
        if (np.bincount(self._subject, weights) > 1 + 1e-9).any():
            raise AssertionError("a person's weights over all silos sum to more than 1")
        return weights

    def draw(self, number: int) -> Drawn:
        """The people of a round: everybody by one coin, whatever the number of silos and records."""
        method = self.method
        if method.subject_sample_rate == 1 and method.most_records is None:
            if self._everybody is None:
                self._everybody = self._arranged(self._starts, self._counts, self._weights)
            return self._everybody
        present = np.ones(len(self._subject), bool)
        if method.subject_sample_rate < 1:
            coins = self.randomness.stream("subjects", number).coins(method.subject_sample_rate, self._subjects)
            present = coins[self._subject]
        starts, counts, weights = self._starts[present], self._counts[present], self._weights[present]
        if method.most_records is None:
            return self._arranged(starts, counts, weights)
        stream = self.randomness.stream("records", number)
        rows, starts, counts = draw_records(starts, counts, stream, method.most_records)
        return self._arranged(starts, counts, weights, rows)

    def _arranged(
        self, starts: np.ndarray, counts: np.ndarray, weights: np.ndarray, rows: np.ndarray | None = None
    ) -> Drawn:
        lanes = arrange(starts, counts, weights, self._layout, rows=rows, lanes=LANES)
        return Drawn(lanes, np.float32(weights.sum()))

    def participants(self, drawn: Drawn) -> int:
        """Every silo takes part, if only with its share of the noise; how many people did is nobody's business."""
        return self._silos

    def do(
        self, drawn: Drawn, server: ServerState, frozen: Params, arrays: Arrays, states: Any
    ) -> tuple[tuple[jax.Array, ...], Any]:
        """The sum of everybody's contributions; people keep nothing."""
        params, clip = self.method.broadcast(server)
        local = self.method.learning
        work = partial(people_sum, self.objective, frozen, arrays, params)
        found = in_lanes(lambda lane: work(lane, local, clip), drawn.lanes)
        return (_vector(self.method, tuple(found), drawn.weight, clip),), states


@partial(jax.jit, static_argnums=0)
def _vector(method: PerSubject, found: tuple[PeopleSum, ...], weight: jax.Array, clip: jax.Array) -> jax.Array:
    total = found[0]
    for other in found[1:]:
        total = total.plus(other)
    return method.vector(total, weight, clip)
