"""The engine in this process: every silo's local work, compiled, one group of silos after the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.config import Plan
from tacit.data import Federation
from tacit.engine.evaluate import Scores, over_silos, score
from tacit.engine.kernel import kernels, outputs
from tacit.engine.learner import Learner
from tacit.learning import Arrays, Rows, power_of_two
from tacit.learning.noise import key_words
from tacit.models import Params
from tacit.privacy import Randomness

# Silos per compiled call: enough to make the cost of a call small, few enough to keep index arrays small.
GROUP = 8
# Silos are worked on in so many lanes at a time, each with its own sum. A constant, not the number of cores, so that
# the order of additions is always the same (the compiler may still round differently on another machine).
LANES = 2


class Group(NamedTuple):
    """Silos of one compiled call: their ``places [group]``, their ``counts [group]`` of records, their batches."""

    places: np.ndarray
    counts: np.ndarray
    batches: Any


class Simulation:
    """The moving state of a simulated run: the server's and the silos'. Rounds are numbered from 1."""

    def __init__(self, plan: Plan, federation: Federation, learner: Learner, randomness: Randomness) -> None:
        self.method = plan.method
        self.federation = pooled(federation) if self.method.pools else federation
        self.learner = learner
        self.frozen = learner.frozen
        self.randomness = randomness
        train = self.federation.train
        facts = replace(plan.promise.facts, silos=self.federation.silo_count, records=len(train))
        self.schedule = self.method.schedule(facts)
        self.kernels = kernels(self.method, plan.server_step, plan.exchange, learner.objective, facts)
        self._noisy = self.method.sum_noise(facts) is not None
        self.arrays = Arrays(jnp.asarray(train.features), jnp.asarray(train.labels))
        self.server = self.method.init(plan.server_step, learner.params)
        self.states = self._first_states()
        self._rows = [Rows(k, silo.start, len(silo), silo.offsets) for k, silo in enumerate(self.federation.silos)]
        nothing = self.schedule.draw([Rows(0, 0, 0, np.zeros(1, int))], [randomness.stream("nobody")], 1)
        nothing = jax.tree.map(lambda leaf: leaf[0], nothing)
        self._nobody = self.kernels.nobody(self.server, self.frozen, self.arrays, nothing)
        self.group = min(GROUP, power_of_two(-(-self.federation.silo_count // LANES)))
        self._drawn: dict[int, list[list[Group]]] = {}
        self._rounds = plan.rounds
        self._compiled = False

    def _first_states(self) -> Any:
        """What the silos keep, stacked: every leaf ``[silos, …]``."""
        one = self.method.silo_state(self.learner.params)
        silos = self.federation.silo_count
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (silos, *leaf.shape)), one)

    @property
    def state(self) -> Any:
        """Everything that a checkpoint must hold."""
        return {"server": self.server, "silos": self.states, "frozen": self.frozen}

    @state.setter
    def state(self, value: Any) -> None:
        self.server, self.states, self.frozen = value["server"], value["silos"], value["frozen"]

    def round(self, number: int) -> int:
        """One round: who takes part, their local work, the sum, the server's step. Returns how many took part.

        The device works while the host goes on: the next round's batches are drawn meanwhile. They depend on the
        run's randomness alone, so whoever asks for another round next gets the same numbers.
        """
        lanes = self._drawn.pop(number, None) or self._draw(number)
        broadcast = self.method.broadcast(self.server)
        if self._compiled:
            others = [_threads().submit(self._work, broadcast, lane) for lane in lanes[1:]]
            done = [self._work(broadcast, lanes[0]), *(other.result() for other in others)]
        else:  # one lane after the other, or both would compile the same thing
            done = [self._work(broadcast, lane) for lane in lanes]
            self._compiled = True
        self.server = self.kernels.aggregate(self.server, tuple(total for total, _ in done), self._keys(number))
        self._put_back([group for lane in lanes for group in lane], [states for _, kept in done for states in kept])
        if number < self._rounds:
            self.prepare(number + 1)
        return sum(int((group.counts > 0).sum()) for lane in lanes for group in lane)

    def _keys(self, number: int) -> Any:
        """The keys ``[silos + 1, 8]`` of a round's noise: each silo's, and the server's; nothing without noise."""
        if not self._noisy:
            return ()
        places = range(self.federation.silo_count + 1)
        return np.stack([key_words(self.randomness.stream("noise", number, place)) for place in places])

    def _work(self, broadcast: Any, lane: list[Group]) -> tuple[jax.Array, list[Any]]:
        """The sum over one lane's silos, and what they keep, group by group."""
        total, kept = self._nobody, []
        for group in lane:
            states = jax.tree.map(partial(_at, group.places), self.states)
            total, states = self.kernels.work(
                broadcast, self.frozen, states, self.arrays, group.batches, group.counts, total
            )
            kept.append(states)
        return total, kept

    def _put_back(self, groups: list[Group], kept: list[Any]) -> None:
        """The silos' new states into their places, in one write; what lies beyond the last silo is padding."""
        if not groups or not jax.tree.leaves(self.states):
            return
        places = np.concatenate([group.places for group in groups])
        self.states = jax.tree.map(
            lambda leaf, *new: leaf.at[places].set(jnp.concatenate(new), mode="drop"), self.states, *kept
        )

    def prepare(self, number: int) -> None:
        """Draw a round's batches ahead of time; what does not fit into memory fails here."""
        self._drawn = {number: self._draw(number)}

    def _draw(self, number: int) -> list[list[Group]]:
        """Who takes part in a round and which records they look at: a list of groups for each lane."""
        lanes = self._dealt(self._participants(number))
        size = self.group
        return [[self._group(number, lane[i : i + size]) for i in range(0, len(lane), size)] for lane in lanes]

    def _dealt(self, silos: np.ndarray) -> list[list[int]]:
        """Silos dealt to the lanes, largest first, each to the lane with the fewest records so far."""
        lanes: list[list[int]] = [[] for _ in range(LANES)]
        load = [0] * LANES
        for k in sorted(silos.tolist(), key=lambda k: -len(self.federation.silos[k])):
            lane = load.index(min(load))
            lanes[lane].append(k)
            load[lane] += len(self.federation.silos[k])
        return lanes

    def _participants(self, number: int) -> np.ndarray:
        """Poisson sampling with the method's public rate; the coins are nobody's but the run's."""
        count, rate = self.federation.silo_count, self.method.participation
        if rate >= 1:
            return np.arange(count)
        return np.flatnonzero(self.randomness.stream("silos", number).coins(rate, count))

    def _group(self, number: int, members: list[int]) -> Group:
        """The work of up to ``group`` silos; the rest is padding: no step, weight 0, a place beyond the last silo."""
        rows = [self._rows[k] for k in members]
        streams = [self.randomness.stream("batches", number, k) for k in members]
        batches = self.schedule.draw(rows, streams, self.group)
        places = np.full(self.group, self.federation.silo_count)
        places[: len(members)] = members
        counts = np.zeros(self.group, np.float32)
        counts[: len(rows)] = [silo.records for silo in rows]
        return Group(places, counts, batches)

    def model(self) -> Params:
        """The model as it stands, frozen layers included; for personal methods every leaf is ``[silos, …]``."""
        if not self.method.personal:
            return {**self.server.params, **self.frozen}
        silos = self.federation.silo_count
        frozen = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (silos, *leaf.shape)), self.frozen)
        return {**self.states, **frozen}

    def outputs(self, features: np.ndarray, silo: np.ndarray) -> np.ndarray:
        """Outputs for rows of the given silos: of the global model, or of each silo's own."""
        objective, model = self.learner.objective, self.model()
        if not self.method.personal:
            return outputs(objective, model, features)
        result = np.zeros((len(features), objective.task.outputs), np.float32)
        for k in np.unique(silo):
            own = jax.tree.map(lambda leaf, k=k: leaf[k], model)
            result[silo == k] = outputs(objective, own, features[silo == k])
        return result

    def evaluate(self, federation: Federation, per_silo: bool) -> Scores:
        """Metrics on the held-out records."""
        test = federation.test
        found = self.outputs(test.features, test.silo)
        own = self.method.personal
        scores = score(self.learner.task, found, test, federation.silo_names, per_silo or own)
        return over_silos(scores, test) if own else scores


def _at(places: np.ndarray, leaf: jax.Array) -> jax.Array:
    return leaf.at[places].get(mode="clip")


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads that hand the lanes after the first to the device: work from one thread runs one after the other."""
    return ThreadPoolExecutor(LANES - 1, thread_name_prefix="tacit-lane")


def pooled(federation: Federation) -> Federation:
    """The same records in one place."""
    train = replace(federation.train, silo=np.zeros_like(federation.train.silo)).grouped()
    return replace(federation, train=train, silo_names=("all records",))
