"""The silo's side of a federation."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.crypto import EVERYONE, Refused
from tacit.data import Federation, Records
from tacit.data.invalid_rows import column_limits
from tacit.data.load import within_caps
from tacit.engine.charges import check_goes_on, events, once_events
from tacit.engine.evaluate import Query, constants_query, masked_sum, metric_values, metrics_query
from tacit.engine.kernel import outputs
from tacit.engine.learner import WrongTree, is_finite, learner, unpacked
from tacit.engine.simulate import LocalSilos, noise_keys, sum_noise
from tacit.engine.worker import Contributed, WorkTally
from tacit.exchange import SiloRole
from tacit.exchange.post import SERVER, OutOfTurn, parted, read_sums, write_sums
from tacit.federation.protocol import agreement
from tacit.federation.protocol.memory import SiloMemory
from tacit.federation.protocol.messages import AROUND, Message, Phase
from tacit.federation.protocol.party import Party, SiloKeys
from tacit.models import Params
from tacit.planning.plan import Plan
from tacit.privacy import Event, Nothing, Randomness, Stream, Unprotected
from tacit.privacy.proofs.noisy_silo_sums import noisy_sum

# (mechanism, round, events by place): called before anything that it is about leaves; raises what forbids it.
BeforeRelease = Callable[[str, int, Mapping[str, Event]], None]


def allow(mechanism: str, number: int, released: Mapping[str, Event]) -> None:
    """A party without a ledger."""


class SiloSide(Party):
    """Everything that one silo does: bytes in, bytes out. Owns its records, its keys and what its method keeps.

    ``shard`` holds this silo's records, as the only silo; subjects have the keys that they have in all silos. Records
    beyond the plan's cap are left out here.

    ``before_release(mechanism, round, events)`` is called before an answer leaves that shows something about records;
    what it raises, ``handle`` raises, and nothing leaves. ``events`` are those of ``engine.charges.events`` for this
    silo's own plan, empty where it promises nothing (a ledger line without events counts as unprotected). In a round
    ``mechanism`` is the method's name; ``"counts"`` in round 0 is what a plan discloses about numbers of records. It is
    called with the first message that depends on records: a plain update, a masked vector, encrypted sums, reports.

    ``memory`` is a folder of the silo's own for what its method keeps between rounds (control variates, a model of its
    own). Without one, a run of such a method cannot be resumed after the silo was stopped.
    """

    _to_everyone = ("statistics", "work", "metrics")
    _signed_apart = ("exchange",)
    _keys: SiloKeys

    def __init__(
        self,
        plan: Plan,
        name: str,
        shard: Federation,
        keys: SiloKeys,
        *,
        before_release: BeforeRelease = allow,
        memory: Path | None = None,
    ) -> None:
        super().__init__(plan, name, keys)
        self._shard, self._before_release = _capped(shard, plan.records_kept), before_release
        self._unpaid = shard if plan.statistics is not None else None
        self._form = agreement.Form.of(shard)
        self._randomness = Randomness.from_seed(plan.experiment.seed)
        self._drawn = secrets.token_bytes(agreement.DRAWN_BYTES)
        self._memory = SiloMemory(memory, self._mark)
        self._silos: LocalSilos | None = None
        self.role: SiloRole  # of the exchange that is going on

    # -- messages

    def refusal(self, reason: str) -> bytes:
        """What to send in place of an answer: that this silo will not take part, and a reason that others may read."""
        return self._here.write(SERVER, "refused", reason.encode())

    def to_evaluate(self, message: bytes) -> Params:
        """The model to evaluate without noise; Refused unless the server has signed it for this run and round."""
        read, desk = Message.from_bytes(message, SERVER, self._most), self._here
        content = read.check(desk.run, desk.number, "unpaid", SERVER)
        return self._model(desk.read(SERVER, "unpaid", content, to_everyone=True))

    @property
    def silos(self) -> LocalSilos:
        """This silo at work, after setup: what it keeps, its model where the method is personal."""
        if self._silos is None:
            raise OutOfTurn("setup has not ended", SERVER)
        return self._silos

    @property
    def place(self) -> int:
        return self._names.index(self.name)

    # -- setup

    def _hello(self, content: bytes) -> bytes:
        self._greeted(content)
        if self.name not in self._names:
            raise Refused("wrong-parties", "a list of silos without us", SERVER)
        records = 0
        if not self.plan.method.private:
            self._before_release("counts", 0, {})
            records = len(self._shard.train)
        hello = agreement.Hello(form=self._form, drawn=self._drawn.hex(), records=records, plan=self._mark)
        self._told = hello.to_bytes()
        self._next = ("begin",)
        made = learner(self.plan.experiment.model, self._shard.labels, self._form.shape, Randomness.from_seed(0))
        answers = len(self._names) * (AROUND + len(self._told))
        self._most = AROUND + answers + 2 * _bytes_of((made.params, made.frozen))
        self._made = made
        return self._here.write(EVERYONE, "hello", self._told)

    def _from_silos(self, phase: Phase, data: bytes) -> dict[str, bytes]:
        told = super()._from_silos(phase, data)
        if told[self.name] != self._told:
            raise Refused("mismatch", f"a {phase} message of ours that we have not sent", SERVER)
        return told

    def _begin(self, content: bytes) -> bytes:
        progress, signed, frozen = parted(content, SERVER, 3)
        done = agreement.RoundsDone.read(progress, SERVER).done
        told = self._from_silos("hello", signed)
        hellos = {peer: agreement.read_hello(part, peer, self._mark) for peer, part in told.items()}
        self._run = agreement.run_mark(self._here.run, told)
        drawn = {peer: bytes.fromhex(hello.drawn) for peer, hello in hellos.items()}
        self._common = agreement.common_randomness(self.plan, self._keys.common, self._here.run, drawn)
        self._facts = agreement.agreed_facts(self.plan, hellos)
        self._frozen = _tree(frozen, self._made.frozen)
        if not 0 <= done <= self.plan.rounds:
            raise Refused("out-of-range", f"{done} rounds done of {self.plan.rounds}", SERVER)
        if done:
            check_goes_on(self.plan)
        self._done = done
        self._placed = self._among_all(self._shard)
        if not agreement.discloses_counts(self.plan):
            self._go_on(None)
            return self._here.write(SERVER, "begin", b"")
        shown = {place: event if isinstance(event, Unprotected) else Nothing() for place, event in self._events.items()}
        self._before_release("counts", 0, shown)
        self._most += len(self._names) * (AROUND + agreement.longest_counts(self.plan))
        self._next = ("totals",)
        people, counts = np.unique(self._placed.train.subject, return_counts=True)
        self._counted = self._common.lots(people, "counts").view(
            np.int64
        )  # names of subjects in this run, by rising key
        order = np.argsort(self._counted)
        self._told = agreement.tell_counts(self._run, self._counted[order], counts[order])
        return self._here.write(EVERYONE, "begin", self._told)

    def _totals(self, content: bytes) -> bytes:
        """Each subject's records in all silos: added up here, from what silos have signed for this start of the run. A
        server that could send totals would make people with records in m silos weigh up to m."""
        totals = np.zeros(len(self._counted), np.int64)
        for peer, part in self._from_silos("begin", content).items():
            names, counts = agreement.told_counts(self._run, part, peer)
            _, ours, theirs = np.intersect1d(self._counted, names, assume_unique=True, return_indices=True)
            totals[ours] += counts[theirs]
        self._go_on(totals)
        return self._here.write(SERVER, "totals", b"")

    def _among_all(self, shard: Federation) -> Federation:
        if self.plan.method.info.gathers == "places":
            subjects = self.plan.promise.facts.subjects or 1
            shard = agreement.in_their_places(shard, self.place, len(self._names), subjects)
        return shard.among(self._names, self.place)

    def _go_on(self, totals: np.ndarray | None) -> None:
        """To the first round; or to constants with noise, where the plan has them."""
        if self._unpaid is None:
            self._ready(totals)
        else:
            self._of_all, self._next = totals, ("statistics", "constants")

    def _statistics(self, content: bytes) -> bytes:
        """Our part of the sums for constants, with the noise of the plan."""
        assert self._unpaid is not None
        assert self._unpaid.unpaid is not None, "a silo loads columns without constants"
        train, columns = self._unpaid.train, self._unpaid.unpaid
        query = constants_query(self.plan, columns.columns)
        noise = self._randomness.stream("statistics", self.place)
        self._leaving = "statistics", 0
        return self._part("statistics", query, columns.values(), train, noise, ("constants",))

    def _constants(self, content: bytes) -> bytes:
        """Our columns under constants that all silos get: they are public. Their bounds are checked: with a scale so
        small that a number overflows, our failure would show that there is such a number."""
        assert self._unpaid is not None
        columns = agreement.numeric_columns(self.plan)
        low, high, finest = column_limits(columns)
        told = read_sums(content, 2 * len(low), SERVER)
        means, scales = told.reshape(2, len(low))
        if not ((low <= means) & (means <= high) & (finest <= scales) & (scales <= high - low)).all():
            raise Refused("out-of-range", "constants beyond the declared bounds of their columns", SERVER)
        standardized = self._unpaid.standardized(means.tolist(), scales.tolist())
        self._placed = self._among_all(_capped(standardized, self.plan.records_kept))
        self._ready(self._of_all)
        return self._here.write(SERVER, "constants", b"")

    def _ready(self, totals: np.ndarray | None) -> None:
        """Everything is known: set up the work, and the exchange."""
        plan, facts = self.plan, self._facts
        made = replace(self._made, frozen=self._frozen)
        self._silos = silos = LocalSilos(
            plan,
            facts,
            self._placed,
            made,
            self._randomness,
            noise=sum_noise(plan, facts, "shares"),
            here=(self.place,),
            common=self._common,
            totals=totals,
        )
        if not self._done:
            self._memory.forget()
            self._remember(0)
        elif self._kept is not None:
            self._kept = self._memory.recall(self._done, self._kept)
        self._template = plan.method.server.broadcast(
            plan.method.server.init(plan.server_step, made.params, facts.silos)
        )
        self._most = AROUND + 2 * _bytes_of((self._template, made.frozen))
        exchange = plan.exchange
        terms = exchange.terms(self._run, self._names, silos.numbers(self._template), silos.sum_facts())
        (members,) = silos.work.members() or (None,)
        self.role = exchange.silo(terms, self._party, members)
        self._most += self.role.longest
        self._next = ("open",) if exchange.opens else ("work", "metrics")

    @property
    def _kept(self) -> Any:
        """What this silo's method keeps; None where that is nothing."""
        own = jax.tree.map(lambda leaf: leaf[0], self.silos.states)
        return own if jax.tree.leaves(own) else None

    @_kept.setter
    def _kept(self, own: Any) -> None:
        self.silos.states = jax.tree.map(lambda leaf: leaf[None], own)

    def _remember(self, number: int) -> None:
        if self._kept is not None:
            self._memory.keep(number, self._kept)

    def _open(self, content: bytes) -> bytes:
        self._next = ("exchange", "work")
        return self._sent("open", self.role.open(), self.role.signs_opening)

    # -- rounds

    def _work(self, content: bytes) -> bytes:
        """A round's local work; the answer is what it came to, or the beginning of an exchange about it."""
        number, silos = self._here.number, self.silos
        model, preface = parted(content, SERVER, 2)
        broadcast = _tree(model, self._template)
        if not is_finite(broadcast):
            raise Refused("out-of-range", "a model that is not finite", SERVER)
        if not self._done < number <= self.plan.rounds:
            raise Refused("mismatch", f"round {number} where {self._done} of {self.plan.rounds} are done", SERVER)
        drawn = silos.work.draw(number)
        self._next = ("work", "metrics")  # the round before is over, even if this one fails
        self._leaving = self.plan.method.name, number
        (part,), silos.states, tally = self._contribution(number, drawn, broadcast)
        self._remember(number)
        first = self.role.begin(number, part, self._randomness.stream("noise", number, self.place), preface)
        silos.count(tally.not_finite)
        answer = self._sent("work", first, self.role.signs)
        self._next = ("exchange", "work", "metrics")
        return answer

    def _contribution(self, number: int, drawn: Any, broadcast: Any) -> Contributed:
        """What this silo hands to the exchange, what it keeps, and the tally of its work."""
        silos = self.silos
        if self.plan.exchange.compiled:
            worked = silos.work.do(drawn, silos.given(broadcast, number))
            keys = noise_keys(silos.noise, number, self._randomness, [self.place])
            vector = silos.kernels.sent(worked.totals, (keys[0][:, 0], keys[1]) if keys else ())
            return Contributed([vector], worked.states, WorkTally(sum(worked.not_finite)))
        return silos.contributed(number, drawn, broadcast, self.role.form)

    def _sent(self, phase: Phase, content: bytes, is_signed: bool) -> bytes:
        """A message of the exchange, after the ledger line that it may need."""
        if self.role.shows:
            self._release()
        return self._here.framed(phase, content) if is_signed else self._here.write(SERVER, phase, content)

    def _metrics(self, content: bytes) -> bytes:
        """Metrics of a model on subjects that are held out here, with noise: once, after the last round. The answer is
        this silo's part of a sum, or the beginning of a masked sum of its own."""
        plan, desk = self.plan, self._here
        if plan.evaluation is None:
            raise Refused("not-planned", "asks for metrics that are not in the plan", SERVER)
        if desk.number != plan.rounds + 1:
            raise Refused("mismatch", f"asks for metrics as if round {desk.number} were the one after the last", SERVER)
        made, test = self.silos.learner, self.silos.federation.test
        model = self._model(content)
        values = metric_values(plan, outputs(made.objective, model, test.features), test)
        noise = self._randomness.stream("evaluation", plan.rounds, self.place)
        self._leaving = "evaluation", plan.rounds
        return self._part("metrics", metrics_query(plan), values, test, noise, ())

    def _part(
        self,
        phase: Phase,
        query: Query,
        values: np.ndarray,
        records: Records,
        noise: Stream,
        then: tuple[Phase, ...],
    ) -> bytes:
        """Our part of a sum with noise, or the beginning of a masked sum of its own; ``then`` is due after it."""
        plan, desk, masked = self.plan, self._here, self.plan.exchange.masking
        self._next = then
        part = query.parts(values, records.subject, np.zeros(len(records), int), 1)[0]
        if masked is not None:
            self._next = ("exchange", *then)
            asked = masked_sum(plan, query)
            terms = masked.terms(f"{self._run}/{phase}", self._names, query.numbers, asked)
            self._most = max(self._most, AROUND + terms.longest)
            self.role = masked.silo(terms, self._party, None)
            return self._sent(phase, self.role.begin(desk.number, masked.grid.truncated(part), noise), True)
        self._release()
        share = query.sigma / math.sqrt(len(self._names))
        return desk.write(SERVER, phase, write_sums(noisy_sum(part[None], share, [noise])))

    def _model(self, content: bytes) -> Params:
        made = self.silos.learner
        model: Params = _tree(content, {**made.params, **made.frozen})
        if not is_finite(model):
            raise Refused("out-of-range", "a model that is not finite", SERVER)
        return model

    def _exchange(self, content: bytes) -> bytes:
        """The next message of an exchange; any error in it ends the round for this silo."""
        return self._sent("exchange", self.role.receive(content), True)

    def _release(self) -> None:
        """Called before the result of the last work leaves."""
        mechanism, number = self._leaving
        once = next((once for once in self.plan.promise.once if once.mechanism == mechanism), None)
        self._before_release(mechanism, number, self._events if once is None else once_events(self.plan.promise, once))

    @cached_property
    def _events(self) -> dict[str, Event]:
        """What one round releases; empty for a method without a guarantee."""
        return events(self.plan.promise) if self.plan.method.private else {}


def _capped(shard: Federation, most: int | None) -> Federation:
    """With at most ``most`` records of a subject: the first ones, as its silo has them."""
    train = shard.train.grouped()
    if most is not None:
        train = train.take(within_caps(train.subject, train.silo, records=most))
    return replace(shard, train=train)


def _tree(data: bytes, template: Any) -> Any:
    try:
        return unpacked(data, template)
    except WrongTree as unfit:
        raise Refused("malformed", f"a message that {unfit}", SERVER) from None


def _bytes_of(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
