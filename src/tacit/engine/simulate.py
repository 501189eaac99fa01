"""The engine in this process: every silo's local work, compiled, one group of silos after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.config import Plan
from tacit.data import Federation
from tacit.engine.evaluate import Scores, score
from tacit.engine.kernel import kernels, outputs
from tacit.engine.learner import Learner
from tacit.learning import Arrays, stack
from tacit.models import Params
from tacit.privacy import Randomness

# Silos per compiled call: enough to make the cost of a call small, few enough to keep index arrays small.
GROUP = 16


class Simulation:
    """The moving state of a simulated run: the server's and the silos'. Rounds are numbered from 1."""

    def __init__(self, plan: Plan, federation: Federation, learner: Learner, randomness: Randomness) -> None:
        self.method = plan.method
        self.federation = pooled(federation) if self.method.pools else federation
        self.learner = learner
        self.randomness = randomness
        self.kernels = kernels(self.method, plan.server_step, plan.exchange, learner.objective)
        train = self.federation.train
        self.arrays = Arrays(jnp.asarray(train.features), jnp.asarray(train.labels))
        self.server = self.method.init(plan.server_step, learner.params)
        self.states = self._first_states()
        self._nobody = self.kernels.nobody(self.server, learner.frozen, self.arrays)
        self.group = min(GROUP, 1 << (self.federation.silo_count - 1).bit_length())

    def _first_states(self) -> Any:
        """What the silos keep, stacked: every leaf ``[silos, …]``."""
        one = self.method.silo_state(self.learner.params)
        silos = self.federation.silo_count
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (silos, *leaf.shape)), one)

    @property
    def state(self) -> Any:
        """Everything that a checkpoint must hold."""
        return {"server": self.server, "silos": self.states}

    @state.setter
    def state(self, value: Any) -> None:
        self.server, self.states = value["server"], value["silos"]

    def round(self, number: int) -> int:
        """One round: who takes part, their local work, the sum, the server's step. Returns how many took part."""
        silos = self._participants(number)
        broadcast = self.method.broadcast(self.server)
        total = self._nobody
        for start in range(0, len(silos), self.group):
            members = silos[start : start + self.group]
            total = self._work(number, members, broadcast, total)
        self.server = self.kernels.aggregate(self.server, total)
        return len(silos)

    def _participants(self, number: int) -> np.ndarray:
        """Poisson sampling with the method's public rate; the coins are nobody's but the run's."""
        count, rate = self.federation.silo_count, self.method.silo_sample_rate
        if rate >= 1:
            return np.arange(count)
        return np.flatnonzero(self.randomness.stream("silos", number).coins(rate, count))

    def _work(self, number: int, members: np.ndarray, broadcast: Any, total: Any) -> Any:
        """Local work of up to ``group`` silos, added to ``total``; their states move on."""
        views = [self.federation.silos[k] for k in members]
        plans = [
            self.method.batches(silo.start, len(silo), self.randomness.stream("batches", number, int(k)))
            for k, silo in zip(members, views, strict=True)
        ]
        counts = np.zeros(self.group, np.float32)
        counts[: len(views)] = [len(silo) for silo in views]
        # the last group is padded with silos of weight 0 and no step; out-of-range writes are dropped
        places = np.full(self.group, self.federation.silo_count)
        places[: len(members)] = members
        states = jax.tree.map(lambda leaf: leaf.at[places].get(mode="clip"), self.states)
        frozen = self.learner.frozen
        batches = stack(plans, self.group)
        total, states = self.kernels.work(broadcast, frozen, states, self.arrays, batches, counts, total)
        self.states = jax.tree.map(lambda all_, new: all_.at[places].set(new, mode="drop"), self.states, states)
        return total

    def model(self) -> Params:
        """The model as it stands, frozen layers included; for personal methods every leaf is ``[silos, …]``."""
        if not self.method.personal:
            return {**self.server.params, **self.learner.frozen}
        silos = self.federation.silo_count
        frozen = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (silos, *leaf.shape)), self.learner.frozen)
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
        return score(self.learner.task, found, test, federation.silo_names, per_silo)


def pooled(federation: Federation) -> Federation:
    """The same records in one place."""
    train = replace(federation.train, silo=np.zeros_like(federation.train.silo)).grouped()
    return replace(federation, train=train, silo_names=("all records",))
