"""The silos' half of a round, and all silos and the server in one process.

The simulator has all silos in one :class:`LocalSilos`; a silo on a federation is alone in its own. Both do the same
work with the same code, and with one seed they draw the same numbers: every draw is named by the number of its silo.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from tacit.data import Federation
from tacit.engine.evaluate import Scores, of_own_models, score
from tacit.engine.kernel import Worked, kernels, outputs, own_outputs, prepared
from tacit.engine.learner import Learner
from tacit.engine.process_group import ALONE, ProcessGroup
from tacit.engine.worker import Contributed, Given, Worker
from tacit.errors import UserError
from tacit.exchange import Exchange, Plain, SumFacts, Summing, places_of
from tacit.exchange.plain import Total
from tacit.kernels import Arrays, key_words
from tacit.kernels.stored import is_on_disk
from tacit.methods import Facts, Info, ServerState
from tacit.models import Params
from tacit.models.model import DROPOUT
from tacit.names import load
from tacit.planning.plan import Plan, sum_facts
from tacit.privacy import Noise, Randomness

# Room for at least so many records: small silos share one compiled shape, whatever their size.
FEWEST_ROWS = 256


class LocalSilos:
    """Silos at work. Rounds are numbered from 1.

    noise   what these kernels add to a sum: the whole of it in the simulator, a silo's share on a federation
    grid    the step of the grid of a sum that gets noise inside the compiled round; None without such noise: other
            exchanges have their own grid, and other sums are in floating point
    here    the silos of which this is the work; None: all
    common  what all silos draw from
    totals  the records in all silos of each subject that has some here, by rising key, where not all silos are here
            and weights need them: ``[subjects]``
    processes  those that share the work
    """

    def __init__(
        self,
        plan: Plan,
        facts: Facts,
        federation: Federation,
        learner: Learner,
        randomness: Randomness,
        *,
        noise: Noise | None,
        here: Sequence[int] | None = None,
        common: Randomness | None = None,
        totals: np.ndarray | None = None,
        processes: ProcessGroup = ALONE,
    ) -> None:
        self.method, self.exchange, self.facts = plan.options.build(facts), plan.exchange, facts
        self.federation = federation
        self.learner, self.frozen = learner, learner.frozen
        self.randomness, self.noise = randomness, noise
        self.here, self.common, self.totals, self.processes = here, common, totals, processes
        if self.method.info.serverless:  # now that the data have said how many nodes there are
            plan.options.resolve(facts)
        self.method.claim.check_size(learner.parameters)
        adds = adding(plan.exchange)
        self.grid = None if sum_noise(plan, facts) is None else adds.step(self.sum_facts())
        self.arrays = self._arrays()
        self.kernels = kernels(self.method, plan.server_step, learner.objective, facts, noise, adds, self.grid)
        self.work: Worker = load(self.method.work.worker)(self)
        everywhere = self.method.work.states(learner.params, federation.silo_count)
        # what the silos that are here keep, stacked: every leaf [silos, …]
        self.states = everywhere if here is None else jax.tree.map(lambda leaf: leaf[np.asarray(here, int)], everywhere)
        # over all rounds: how much of what is clipped was not finite and counted as zero; private, like the records
        self.not_finite: jax.Array = jnp.int32(0)

    def feed(self, federation: Federation) -> None:
        """Other features of the same rows, under constants that have been released meanwhile."""
        self.federation = federation
        self.arrays = self._arrays()

    def _arrays(self) -> Arrays:
        """Features as the model wants them, and labels. No index refers to the rows after the last record."""
        train = self.federation.train
        if is_on_disk(train.features):
            if self.learner.objective.prepare is not None:
                problem = "the model changes features before training, which are in a file"
                raise UserError("not-supported", "engine.features", problem, 'use "memory" or another model')
            stored: Any = (train.features, train.labels)  # a call takes its own rows to the device
            return Arrays(*stored)
        features = prepared(self.learner.objective, _at_least(1, train.features))
        return Arrays(*(jnp.asarray(_at_least(FEWEST_ROWS, array)) for array in (features, train.labels)))

    def sum_facts(self) -> SumFacts:
        """What is public about the sum over all silos."""
        return sum_facts(self.method, self.facts)

    def given(self, broadcast: Any, number: int = 0) -> Given:
        """What the work of round ``number`` begins with."""
        frozen = self.frozen
        if self.learner.drops:  # a key per round; that of a record follows from it (``adapters``)
            words = self.randomness.stream("dropout", number).words(1).view(np.uint32)
            frozen = {**frozen, DROPOUT: jnp.asarray(words)}
        return Given(broadcast, frozen, self.arrays, self.states)

    def numbers(self, broadcast: Any) -> int:
        """How many numbers a silo's contribution has."""
        return self.work.numbers(self.given(broadcast))

    def contributed(self, number: int, drawn: Any, broadcast: Any, form: Any) -> Contributed:
        """What the silos that are here hand to an exchange with parties of its own, in the ``form`` it has for it."""
        works: dict[str, Callable[..., Contributed]] = {
            "integers": self.work.integers,
            "subjects": self.work.subjects,
            "reports": self.work.reports,
        }
        return works[self.exchange.carries](drawn, self.given(broadcast, number), form)

    def count(self, not_finite: int | jax.Array) -> None:
        """Count what was not finite in a round."""
        if self.method.private:  # the others clip nothing
            self.not_finite = self.not_finite + not_finite


def sum_noise(plan: Plan, facts: Facts, place: str | None = None) -> Noise | None:
    """The noise that the compiled round adds to a sum (in that ``place`` only), if there is any; exchanges other than
    the plain one add their own to the integers that they carry."""
    noise = plan.options.build(facts).added_noise if plan.exchange.carries == "sum" else None
    return None if noise is None or noise.std == 0 or place not in (None, noise.place) else noise


def adding(exchange: Exchange) -> Plain:
    """How sums inside the compiled round are taken; what other exchanges have summed is not changed any more."""
    return cast(Plain, exchange) if exchange.carries == "sum" else Plain()


def noise_keys(noise: Noise | None, number: int, randomness: Randomness, places: Sequence[int]) -> Any:
    """What the noise of some parties on a round's sum is drawn from; nothing without noise.

    Keys ``[rounds, places, 8]`` of this round and of those before it as far as the noise reaches back, and the weights
    ``[rounds]`` of their normals: 0 before the first round.
    """
    if noise is None:
        return ()
    rounds = range(number, number - len(noise.weights), -1)
    keys = [[key_words(randomness.stream("noise", t, place)) for place in places] for t in rounds]
    begun = [weight if t >= 1 else 0.0 for weight, t in zip(noise.weights, rounds, strict=True)]
    return np.array(keys), np.array(begun, np.float32)


def _at_least(count: int, rows: np.ndarray) -> np.ndarray:
    """``rows``, and zeros after them where there are fewer."""
    missing = np.zeros((max(0, count - len(rows)), *rows.shape[1:]), rows.dtype)
    return np.concatenate([rows, missing]) if len(missing) else rows


# Who is shown what a round's aggregate is made of: the server's state before it, the sums over silos (in parts that are
# still to be added), and the keys of the noise that goes on top.
Watch = Callable[[ServerState, tuple[Total, ...], Any], None]


class Simulation(LocalSilos):
    """All silos and the server in one process, and their moving state. Rounds are numbered from 1."""

    def __init__(
        self,
        plan: Plan,
        federation: Federation,
        learner: Learner,
        randomness: Randomness,
        processes: ProcessGroup = ALONE,
    ) -> None:
        self._people = plan.promise.facts.subjects
        placed = _together(plan.method.info, federation, self._people)
        # how many records there are is not public where something is promised
        records = 0 if plan.method.private else len(federation.train)
        facts = replace(plan.promise.facts, silos=placed.silo_count, records=records)
        if plan.method.info.gathers == "subjects":
            facts = replace(facts, subjects=facts.silos)
        elif plan.method.info.serverless and plan.method.private and plan.promise.facts.silos != facts.silos:
            # a guarantee among nodes counts on how many they are
            problem = f"{plan.promise.facts.silos} silos are promised and the data have {facts.silos}"
            raise UserError("mismatch", "data.silos.count", problem, "declare as many as there are")
        super().__init__(plan, facts, placed, learner, randomness, noise=sum_noise(plan, facts), processes=processes)
        self.server = self.method.server.init(plan.server_step, learner.params, facts.silos)
        self._own: tuple[Any, Params] | None = None
        self.watch: Watch | None = None
        self._session: Summing | None = None
        self.exchange_seconds = 0.0  # of the last round, where the exchange is not part of the compiled work
        self._drawn: dict[int, Any] = {}
        self._rounds = plan.rounds

    def feed(self, federation: Federation) -> None:
        super().feed(_together(self.method.info, federation, self._people))
        self._own = None

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
        run's randomness alone, so that any other order of rounds gives the same numbers.
        """
        self.processes.told((np.int32(number), self.server))
        drawn = self._drawn.pop(number, None) or self.work.draw(number)
        totals, states, not_finite = self.worked(number, drawn)
        keys = self.keys(number)
        if self.watch is not None:
            self.watch(self.server, totals, keys)
        self.server = self.kernels.aggregate(self.server, totals, keys)
        self.states = states
        self.count(sum(not_finite))
        if number < self._rounds:
            self.prepare(number + 1)
        return self.work.participants(drawn)

    def share(self) -> None:
        """This process's share of every round, until the first process has no more of them."""
        while True:
            number, self.server = self.processes.told((np.int32(0), self.server))
            if number == 0:
                return
            self.worked(int(number), self._drawn.pop(int(number), None) or self.work.draw(int(number)))
            if number < self._rounds:
                self.prepare(int(number) + 1)

    def end(self) -> None:
        """Let the other processes go."""
        self.processes.told((np.int32(0), self.server))

    @property
    def broadcast(self) -> Any:
        """What silos are sent of the server's state."""
        return self.method.server.broadcast(self.server)

    def worked(self, number: int, drawn: Any) -> Worked:
        """The sum over silos (in parts that are still to be added), and what stays with them."""
        exchange, broadcast, names = self.exchange, self.broadcast, self.federation.silo_names
        if exchange.compiled:
            return self.work.do(drawn, self.given(broadcast, number))
        start = time.perf_counter()
        if self._session is None:  # its parties, each with keys of its own
            members = self.work.members()
            self._session = exchange.session(names, self.numbers(broadcast), self.sum_facts(), members)
        found_at = time.perf_counter()
        found = self.contributed(number, drawn, broadcast, self._session.form)
        worked_for = time.perf_counter() - found_at
        noise = [self.randomness.stream("noise", number, silo) for silo in range(len(names))]
        total = self._session.sum(number, found.parts, noise, stream=self.randomness.stream("shuffler", number))
        tally = found.tally  # complete now that the exchange has taken everything
        self.exchange_seconds = time.perf_counter() - start - worked_for - tally.seconds
        return Worked((jnp.asarray(total, jnp.float32),), found.states, (tally.not_finite,))

    def keys(self, number: int) -> Any:
        """What the noise on a round's sum is drawn from, each silo's and the server's (:func:`noise_keys`)."""
        return noise_keys(self.noise, number, self.randomness, range(self.federation.silo_count + 1))

    def prepare(self, number: int) -> None:
        """Draw a round's batches ahead of time; what does not fit into memory fails here."""
        self._drawn = {number: self.work.draw(number)}

    def shared_model(self) -> Params | None:
        """The shared model as it stands, frozen layers included; None where silos have only their own."""
        shared = self.method.server.shared(self.server)
        return None if shared is None else {**shared, **self.frozen}

    def own_models(self) -> Params:
        """Of a personal method, every silo's own model, frozen layers included: every leaf ``[silos, …]``."""
        made_of = (self.server, self.states)
        if self._own is None or any(new is not old for new, old in zip(made_of, self._own[0], strict=True)):
            self._own = made_of, self.work.own(self.given(self.broadcast))
        silos = self.federation.silo_count
        frozen = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (silos, *leaf.shape)), self.frozen)
        return {**self._own[1], **frozen}

    def model(self) -> Params:
        """The model that is used: the shared one, or of a personal method the silos' own."""
        if self.method.info.personal:
            return self.own_models()
        shared = self.shared_model()
        assert shared is not None
        return shared

    @property
    def learned(self) -> Any:
        """Everything that models are made of."""
        return (self.server.params, self.states) if self.method.info.personal else self.server.params

    def outputs(self, features: np.ndarray, silo: np.ndarray) -> np.ndarray:
        """Outputs for rows of the given silos: of the shared model, or of each silo's own."""
        objective, model, apply = self.learner.objective, self.model(), self.method.server.outputs
        if not self.method.info.personal:
            return outputs(objective, model, features, apply)
        return own_outputs(objective, model, features, silo, apply)

    def evaluate(self, federation: Federation, per_silo: bool) -> Scores:
        """Metrics on the held-out records; of a personal method also those of the shared model."""
        own = self.method.info.personal
        scores = self._scores(federation, self.outputs(federation.test.features, federation.test.silo), per_silo or own)
        if not own:
            return scores
        shared = self.shared_model()
        if shared is None:
            return of_own_models(scores)
        found = outputs(self.learner.objective, shared, federation.test.features, self.method.server.outputs)
        return replace(of_own_models(scores), shared=self._scores(federation, found, per_silo=True))

    def _scores(self, federation: Federation, found: np.ndarray, per_silo: bool) -> Scores:
        return score(self.learner.task, found, federation.test, federation.silo_names, per_silo)


def _together(info: Info, federation: Federation, people: int | None) -> Federation:
    """In one place what the method wants there: everything, or all records of a person."""
    if info.gathers == "subjects":
        return by_subject(federation, people)
    if info.gathers == "nothing":
        return federation
    train = replace(federation.train, silo=np.zeros_like(federation.train.silo))
    if info.gathers == "places":
        train = replace(train, subject=places_of(train.subject, people or 1))
    return replace(federation, train=train.grouped(), silo_names=("all records",))


def by_subject(federation: Federation, people: int | None) -> Federation:
    """The same records, those of each subject in one place, of as many as there are declared ``people``: by the keys of
    people alone, so that no subject moves others. Some places have several people, others none. Where no number
    is declared, nothing is promised, and each subject has a place alone."""
    train = federation.train
    subjects, own = np.unique(train.subject, return_inverse=True)
    place = own if people is None else places_of(train.subject, people)
    names = tuple(f"place {number}" for number in range(people or len(subjects)))
    return replace(federation, train=replace(train, silo=place.astype(np.int32)).grouped(), silo_names=names)
