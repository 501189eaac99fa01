"""The engine in this process: a round's local work, the sum, the noise, the server's step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tacit.config import Plan, sum_facts
from tacit.data import Federation
from tacit.engine.encoder_work import EncoderWork
from tacit.engine.evaluate import Scores, of_own_models, score
from tacit.engine.kernel import Worked, kernels, outputs, prepared
from tacit.engine.learner import Learner
from tacit.engine.people_work import PeopleWork
from tacit.engine.silo_work import SiloWork
from tacit.exchange import (
    Grid,
    Masked,
    MaskedSession,
    Shuffled,
    ShuffledSession,
    SumFacts,
    Weighted,
    WeightedSession,
)
from tacit.learning import Arrays, key_words
from tacit.methods import Facts, ServerState
from tacit.methods.encoders import Encoder
from tacit.methods.per_subject import PerSubject
from tacit.models import Params
from tacit.privacy import Randomness


class Labour(Protocol):
    """A round's local work: who takes part and what they look at is drawn first, then it is done."""

    def draw(self, number: int) -> Any: ...

    def participants(self, drawn: Any) -> int: ...

    def do(self, drawn: Any, server: ServerState, frozen: Params, arrays: Arrays, states: Any) -> Worked: ...


# Who is shown what a round's aggregate is made of: the server's state before it, the sums over silos (in parts that are
# still to be added), and the keys of the noise that goes on top.
Watch = Callable[[ServerState, tuple[jax.Array, ...], Any], None]


class Simulation:
    """The moving state of a simulated run: the server's and the silos'. Rounds are numbered from 1."""

    def __init__(self, plan: Plan, federation: Federation, learner: Learner, randomness: Randomness) -> None:
        self.method = plan.method
        self.federation = self._together(federation)
        self.learner = learner
        self.frozen = learner.frozen
        self.randomness = randomness
        train = self.federation.train
        # how many records there are is nobody's business where something is promised
        records = 0 if self.method.private else len(train)
        facts = replace(plan.promise.facts, silos=self.federation.silo_count, records=records)
        self.arrays = self._arrays()
        self.server = self.method.init(plan.server_step, learner.params)
        self.states = self._first_states()
        # over all rounds: how much of what is clipped was not finite and counted as zero; private, like the records
        self.not_finite: jax.Array = jnp.int32(0)
        self.kernels = kernels(self.method, plan.server_step, plan.exchange, learner.objective, facts)
        self._private_sum = plan.exchange if isinstance(plan.exchange, Masked | Weighted | Shuffled) else None
        self.work: Labour = self._work(facts)
        self.facts = facts
        self.watch: Watch | None = None
        self._session: MaskedSession | WeightedSession | ShuffledSession | None = None
        self.exchange_seconds = 0.0  # of the last round, where the exchange is not part of the compiled work
        # the noise that is added to the sum within the compiled round; other exchanges add it themselves
        self.noise = self.method.sum_noise(facts) if self._private_sum is None else None
        self._drawn: dict[int, Any] = {}
        self._rounds = plan.rounds

    def feed(self, federation: Federation) -> None:
        """Other features of the same rows, under constants that have been released meanwhile."""
        self.federation = self._together(federation)
        self.arrays = self._arrays()

    def _together(self, federation: Federation) -> Federation:
        """In one place what the method wants there: everything, or all records of a person."""
        return pooled(federation) if self.method.pools or isinstance(self.method, Encoder) else federation

    def _arrays(self) -> Arrays:
        train = self.federation.train
        return Arrays(jnp.asarray(prepared(self.learner.objective, train.features)), jnp.asarray(train.labels))

    def _work(self, facts: Facts) -> Labour:
        """How this method's local work is done: person by person, or silo by silo."""
        objective, params = self.learner.objective, self.learner.params
        if isinstance(self.method, Encoder):
            return EncoderWork(self.method, facts, self.federation, objective, params, self.arrays, self.randomness)
        if isinstance(self.method, PerSubject):
            work = PeopleWork(self.method, facts, self.federation, objective, params, self.arrays, self.randomness)
            # whom nobody knows to be left out, everybody works on
            work.draws_everybody = isinstance(self._private_sum, Weighted) and self._private_sum.hidden_sampling
            return work
        return SiloWork(self.method, facts, self.federation, self.kernels, self.randomness)

    def _first_states(self) -> Any:
        """What the silos keep, stacked: every leaf ``[silos, …]``."""
        one = self.method.silo_state(self.learner.params)
        silos = self.federation.silo_count
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (silos, *leaf.shape)), one)

    @property
    def state(self) -> Any:
        """Everything that a checkpoint must hold."""
        return {"server": self.server, "silos": self.states, "frozen": self.frozen, "not_finite": self.not_finite}

    @state.setter
    def state(self, value: Any) -> None:
        self.server, self.states, self.frozen = value["server"], value["silos"], value["frozen"]
        self.not_finite = value["not_finite"]

    def round(self, number: int) -> int:
        """One round: who takes part, their local work, the sum, the server's step. Returns how many took part.

        The device works while the host goes on: the next round's batches are drawn meanwhile. They depend on the
        run's randomness alone, so whoever asks for another round next gets the same numbers.
        """
        drawn = self._drawn.pop(number, None) or self.work.draw(number)
        totals, self.states, not_finite = self.worked(number, drawn)
        keys = self.keys(number)
        if self.watch is not None:
            self.watch(self.server, totals, keys)
        self.server = self.kernels.aggregate(self.server, totals, keys)
        if self.method.private:  # the others clip nothing
            self.not_finite = self.not_finite + sum(not_finite)
        if number < self._rounds:
            self.prepare(number + 1)
        return self.work.participants(drawn)

    def worked(self, number: int, drawn: Any) -> Worked:
        """The sum over silos (in parts that are still to be added), and what stays with them."""
        exchange = self._private_sum
        if exchange is None:
            return self.work.do(drawn, self.server, self.frozen, self.arrays, self.states)
        if isinstance(exchange, Shuffled):
            return self._shuffled(exchange, number, drawn)
        grid = Grid(exchange.precision)
        names = self.federation.silo_names
        facts = self.sums
        noise = [self.randomness.stream("noise", number, silo) for silo in range(len(names))]
        if isinstance(exchange, Weighted):
            assert isinstance(self.work, PeopleWork)
            people, not_finite = self.work.people(drawn, self.server, self.frozen, self.arrays, grid)
            start = time.perf_counter()
            if not isinstance(self._session, WeightedSession):  # its parties, each with keys of its own
                counts = self.work.record_counts(facts.people)
                self._session = exchange.session(names, self.work.numbers, facts, counts)
            total, states = self._session.sum(number, people, noise), self.states
        else:
            assert isinstance(self.work, SiloWork | PeopleWork)
            vectors, states, not_finite = self.work.each(
                drawn, self.server, self.frozen, self.arrays, self.states, grid
            )
            start = time.perf_counter()
            if not isinstance(self._session, MaskedSession):
                self._session = exchange.session(names, vectors.shape[1], facts)
            total = self._session.sum(number, vectors, noise)
        self.exchange_seconds = time.perf_counter() - start
        return Worked((jnp.asarray(total, jnp.float32),), states, (not_finite,))

    def _shuffled(self, exchange: Shuffled, number: int, drawn: Any) -> Worked:
        """For every dimension the sum of what people report, as the analyzer finds it behind the shuffler."""
        assert isinstance(self.work, EncoderWork)
        if self._session is None:
            self._session = exchange.session(sum_facts(self.method, self.facts))
        assert not isinstance(self._session, MaskedSession | WeightedSession)
        reports, not_finite = self.work.reports(drawn, self.server, self.frozen, self.arrays, self._session.collect)
        start = time.perf_counter()
        total = self._session.sum(number, reports, self.randomness.stream("shuffler", number))
        self.exchange_seconds = time.perf_counter() - start
        return Worked((jnp.asarray(total, jnp.float32),), self.states, (not_finite,))

    @property
    def sums_elsewhere(self) -> bool:
        """Whether the sum is taken, and its noise added, by parties outside the compiled round."""
        return self._private_sum is not None

    @property
    def sums(self) -> SumFacts:
        """What is public about the sums over silos. There are as many people as declared: who is held out is numbered
        after all who have training records, and counts only where an audit adds people after them."""
        facts = sum_facts(self.method, self.facts)
        if not isinstance(self.method, PerSubject):
            return facts
        numbered = int(self.federation.train.subject.max(initial=-1)) + 1
        return replace(facts, people=max(facts.people, numbered))

    def keys(self, number: int) -> Any:
        """What the noise on a round's sum is drawn from; nothing without noise.

        Keys ``[rounds, silos + 1, 8]``, each silo's and the server's, of this round and of those before it as far as
        the noise reaches back, and the weights ``[rounds]`` of their normals: 0 before the first round.
        """
        if self.noise is None:
            return ()
        places = range(self.federation.silo_count + 1)
        rounds = range(number, number - len(self.noise.weights), -1)
        keys = [[key_words(self.randomness.stream("noise", t, place)) for place in places] for t in rounds]
        begun = [weight if t >= 1 else 0.0 for weight, t in zip(self.noise.weights, rounds, strict=True)]
        return np.array(keys), np.array(begun, np.float32)

    def prepare(self, number: int) -> None:
        """Draw a round's batches ahead of time; what does not fit into memory fails here."""
        self._drawn = {number: self.work.draw(number)}

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
        return of_own_models(scores) if own else scores


def pooled(federation: Federation) -> Federation:
    """The same records in one place."""
    train = replace(federation.train, silo=np.zeros_like(federation.train.silo)).grouped()
    return replace(federation, train=train, silo_names=("all records",))
