"""The coordinator's side of a federation."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np

from tacit.crypto import EVERYONE, Refused
from tacit.crypto.crypto_errors import REFUSALS
from tacit.data import Federation
from tacit.engine.charges import check_goes_on
from tacit.engine.evaluate import (
    Scores,
    constants_found,
    constants_query,
    masked_sum,
    metrics_found,
    metrics_query,
    noise_in_sum,
)
from tacit.engine.learner import Learner, is_finite, learner, packed
from tacit.engine.loop import Answers, Diverged, Hooks, Part, Status, driven, loop
from tacit.engine.simulate import LocalSilos, noise_keys, sum_noise
from tacit.escape import escaped
from tacit.exchange import Keys, ServerRole
from tacit.exchange.plain import Total
from tacit.exchange.post import SERVER, TooFew, join, join_named, read_sums, write_sums
from tacit.exchange.session import led
from tacit.federation.protocol.agreement import (
    Hello,
    agreed_facts,
    check_federated,
    check_silos,
    column_bounds,
    discloses_counts,
    longest_counts,
    mark,
    read_hello,
    run_mark,
    told_counts,
)
from tacit.federation.protocol.keys import ServerKeys
from tacit.federation.protocol.memory import keep, recall
from tacit.federation.protocol.messages import (
    AROUND,
    BEGIN,
    CONSTANTS,
    EXCHANGE,
    HELLO,
    METRICS,
    OPEN,
    REFUSED,
    STATISTICS,
    TOTALS,
    UNPAID,
    WORK,
    Desk,
    Message,
    write_json,
)
from tacit.kernels import Steps
from tacit.methods import ServerState
from tacit.models import Params
from tacit.planning.plan import Plan
from tacit.privacy import Randomness
from tacit.privacy.mechanisms.noisy_queries import Means, Moments

Read = TypeVar("Read")

_log = logging.getLogger("tacit.federation")


class RoundFailed(Exception):
    """A round, or setup (round 0), that could not be finished; nothing of it is released. ``number`` says which."""

    def __init__(self, code: str, number: int, reason: str) -> None:
        assert code in REFUSALS, f"{code} is not a code of refusals"
        super().__init__(f"{f'round {number}' if number else 'setup'} was not finished: {reason}")
        self.code, self.number, self.reason = code, number, reason


class RefusedAnswer(NamedTuple):
    """Whose answer was missing or refused, when and why."""

    round: int
    phase: str
    silo: str
    reason: str
    code: str


class Outcome(NamedTuple):
    """What a federation has learned: the model, after how many rounds, whose answers were missing or refused, and how
    the rounds ended (:class:`~tacit.engine.loop.RoundsEnded`)."""

    model: Params
    rounds: int
    refusals: tuple[RefusedAnswer, ...]
    metrics: Scores | None = None
    status: Status = "finished"
    reason: str = ""


class CoordinatorSide:
    """Everything that the server does: the rounds of a federation (:class:`~tacit.engine.loop.Rounds`).

    ``silos``: who takes part, in the order of the plan (of ``data.records_per_silo``, say).

    ``checkpoint`` is a file that is replaced after every round. With ``resume`` the run goes on from it: other objects
    of this class and of ``SiloSide``, other keys and names of the run, the same plan. A round that was not finished is
    made again; without a seed with other noise, so that it is another release.

    An answer that is missing, late, too long, not signed by its silo for this run, round and phase, or not what is due
    counts as none: it is noted in ``refusals``, and the others go on as far as the exchange allows.
    """

    def __init__(
        self,
        plan: Plan,
        silos: Sequence[str],
        keys: ServerKeys,
        *,
        checkpoint: Path | None = None,
        resume: bool = False,
    ) -> None:
        check_federated(plan)
        check_silos(plan, silos, keys.roster, SERVER)
        if resume:
            check_goes_on(plan)
        self.plan, self.names, self._mark = plan, tuple(silos), mark(plan)
        self.refusals: list[RefusedAnswer] = []
        self._keys = keys
        self._checkpoint, self._resume = checkpoint, resume
        self._randomness = Randomness.from_seed(plan.experiment.seed)
        self._desk = Desk(secrets.token_hex(16), SERVER, keys.identity, keys.roster)
        self._most = AROUND
        self._role: ServerRole
        self.server: ServerState
        self.done = 0

    def phases(self, hooks: Hooks | None = None) -> Part[Outcome]:
        """The whole run: yields what to send to whom; is sent back the answers (None: no answer in time)."""
        status, reason, metrics = yield from loop(self, hooks or Hooks())
        return Outcome(self.model(), self.done, tuple(self.refusals), metrics, status, reason)

    def set_up(self, hooks: Hooks) -> Part[None]:
        yield from self._failing(0, self._setup(hooks))

    def step(self, number: int) -> Part[int]:
        """A round, and its checkpoint. Who took part is not counted."""
        total = yield from self._failing(number, self._round(number))
        keys = noise_keys(self._silos.noise, number, self._randomness, [len(self.names)])
        after = self._silos.kernels.aggregate(self.server, (total,), keys)
        if not is_finite(after):
            raise Diverged(f"round {number} was not finished: the model is no longer finite")
        self.server, self.done = after, number
        if self._checkpoint is not None:
            keep(self._checkpoint, self._mark, number, self._state)
        return 0

    def metrics(self) -> Part[Scores | None]:
        try:
            return (yield from self._metrics())
        except Refused as refused:  # the model is there without them
            self.refusals.append(RefusedAnswer(self._desk.number, METRICS, "", str(refused), refused.code))
            return None

    def _metrics(self) -> Part[Scores]:
        """Metrics of the model, from a sum over all silos with the noise that is paid for."""
        self._desk.begin(self.done + 1)
        query = metrics_query(self.plan)
        noisy = yield from self._noisy_sum(METRICS, packed(self.model()), query)
        return metrics_found(self.plan, noisy, noise_in_sum(self.plan, query))

    def _noisy_sum(self, phase: str, content: bytes, query: Means | Moments) -> Part[np.ndarray]:
        """A sum over all silos with the noise that is paid for, carried as updates are."""
        plan, masked = self.plan, self.plan.exchange.masking
        told = dict.fromkeys(self.names, self._desk.write(EVERYONE, phase, content))
        answers = yield told
        if masked is not None:
            asked = masked_sum(plan, query)
            terms = masked.terms(f"{self._run}/{phase}", self.names, query.numbers, asked)
            self._most = max(self._most, AROUND + terms.longest)
            role = masked.server(terms, self._party)
            role.begin(self._desk.number)
            yield from self._led(role, self._taken(told, answers, phase, _as_it_is))
            noisy: np.ndarray = role.numbers()
            return noisy

        def part(silo: str, content: bytes) -> np.ndarray:
            return read_sums(self._desk.read(silo, phase, content), query.numbers, silo)

        total: np.ndarray = np.sum([*self._from_all(told, answers, phase, part).values()], axis=0)
        return total

    def _standardized(self, hooks: Hooks) -> Part[None]:
        """The columns of all silos under constants that are paid for: those that were paid for before, or new ones."""
        constants = hooks.before_statistics()
        if constants is None:
            query = constants_query(self.plan, *column_bounds(self.plan))
            noisy = yield from self._noisy_sum(STATISTICS, b"", query)
            constants = constants_found(query, noisy, noise_in_sum(self.plan, query))
            hooks.after_statistics(constants)
        told = self._to_all(CONSTANTS, write_sums(np.concatenate(constants)))
        answers = yield told
        self._from_all(told, answers, CONSTANTS, self._signed(CONSTANTS))

    def model(self) -> Params:
        """The shared model as it stands, frozen layers included; known when setup has ended. Where silos have
        but their own, where they began."""
        shared = self.plan.method.server.shared(self.server)
        return {**(self.server.params if shared is None else shared), **self._silos.frozen}

    def unpaid(self) -> bytes:
        """What asks silos for metrics of the model without noise, outside the guarantee: good in this round alone."""
        return self._desk.write(EVERYONE, UNPAID, packed(self.model()))

    @property
    def federation(self) -> Federation:
        """What the coordinator knows of the records: their form and their silos, and none of them."""
        return self._silos.federation

    @property
    def learner(self) -> Learner:
        return self._silos.learner

    @property
    def _party(self) -> Keys:
        return Keys(SERVER, self._keys.identity, self._keys.roster)

    @property
    def _state(self) -> Any:
        return {"server": self.server, "frozen": self._silos.frozen}

    def _failing(self, number: int, part: Part[Read]) -> Part[Read]:
        """A part of the protocol of which any failure is that of round ``number``."""
        try:
            return (yield from part)
        except Refused as error:
            raise RoundFailed(error.code, number, str(error)) from None

    # -- answers

    def _taken(
        self, told: Mapping[str, bytes], answers: Answers, phase: str, read: Callable[[str, bytes], Read]
    ) -> dict[str, Read]:
        """What those who were told something have answered, as far as it can be read."""
        found = {}
        for silo in told:
            try:
                found[silo] = read(silo, self._content(silo, answers.get(silo), phase))
            except Refused as refused:
                self._note(phase, silo, refused)
        return found

    def _content(self, silo: str, answer: bytes | None, phase: str) -> bytes:
        if answer is None:
            raise Refused("no-answer", "no answer", silo)
        message, desk = Message.from_bytes(answer, silo, self._most), self._desk
        if message.phase == REFUSED:
            reason = desk.read(silo, REFUSED, message.check(desk.run, desk.number, REFUSED, silo))
            raise Refused("rejected", f"refuses: {reason[:200].decode(errors='replace')!r}", silo)
        return message.check(desk.run, desk.number, phase, silo)

    def _note(self, phase: str, silo: str, refused: Refused) -> None:
        self.refusals.append(RefusedAnswer(self._desk.number, phase, silo, str(refused), refused.code))
        _log.warning("round %d, %s: %s", self._desk.number, phase, escaped(refused))

    def _from_all(
        self, told: Mapping[str, bytes], answers: Answers, phase: str, read: Callable[[str, bytes], Read]
    ) -> dict[str, Read]:
        """The same where no answer may be missing."""
        found = self._taken(told, answers, phase, read)
        if len(found) < len(told):
            missing = ", ".join(refusal.reason for refusal in self.refusals[len(found) - len(told) :])
            raise TooFew(f"every silo is needed here (phase of {phase}); {missing}")
        return found

    def _signed(self, phase: str) -> Callable[[str, bytes], bytes]:
        return lambda silo, content: self._desk.read(silo, phase, content)

    def _to_all(self, phase: str, content: bytes) -> dict[str, bytes]:
        return {silo: self._desk.write(silo, phase, content) for silo in self.names}

    # -- setup

    def _setup(self, hooks: Hooks) -> Part[None]:
        greeting = write_json({"silos": list(self.names), "plan": self._mark})
        told = self._to_all(HELLO, greeting)
        answers = yield told
        signed: dict[str, bytes] = {}

        def heard_from(silo: str, content: bytes) -> bytes:
            signed[silo] = content
            return self._desk.read(silo, HELLO, content, to_everyone=True)

        heard = self._from_all(told, answers, HELLO, heard_from)
        hellos = {silo: read_hello(content, silo, self._mark) for silo, content in heard.items()}
        self._prepare(run_mark(self._desk.run, heard), hellos)
        done = write_json({"done": self.done})
        told = self._to_all(BEGIN, join([done, join_named(signed), packed(self._silos.frozen)]))
        answers = yield told
        if discloses_counts(self.plan):
            counted: dict[str, bytes] = {}

            def counts_from(silo: str, content: bytes) -> None:
                counted[silo] = content
                told_counts(self._desk.read(silo, BEGIN, content, to_everyone=True), self._run, silo)

            self._from_all(told, answers, BEGIN, counts_from)
            told = self._to_all(TOTALS, join_named(counted))
            answers = yield told
            self._from_all(told, answers, TOTALS, self._signed(TOTALS))
        else:
            self._from_all(told, answers, BEGIN, self._signed(BEGIN))
        if self.plan.statistics is not None:
            yield from self._standardized(hooks)
        if self.plan.exchange.third_party is not None:
            yield from self._asked_third(HELLO, greeting)
            yield from self._asked_third(BEGIN, join_named(signed))
        if self.plan.exchange.opens:
            told = self._to_all(OPEN, b"")
            answers = yield told
            read = _as_it_is if self._role.signs_opening else self._signed(OPEN)
            first = self._from_all(told, answers, OPEN, read)
            self._role.open()
            yield from self._led(self._role, first)

    def _asked_third(self, phase: str, content: bytes, *, signed: bool = True) -> Part[bytes]:
        """What the third party answers; without it nothing goes on. Not ``signed``: by its exchange, for everyone."""
        third = self.plan.exchange.third_party
        assert third is not None
        told = {third: self._desk.write(third, phase, content)}
        answers = yield told
        return self._from_all(told, answers, phase, self._signed(phase) if signed else _as_it_is)[third]

    def _prepare(self, run: str, hellos: Mapping[str, Hello]) -> None:
        """The model, for records of which the form is now known, and the exchange."""
        plan, first = self.plan, hellos[self.names[0]].form
        self._run = run
        others = [silo for silo, hello in hellos.items() if hello.form != first]
        if others:
            raise Refused("mismatch", f"records of another form than those of {self.names[0]}", ", ".join(others))
        facts = agreed_facts(plan, self.names, {silo: hello.records for silo, hello in hellos.items()})
        nobody = first.no_records(self.names)
        start = plan.experiment.model.init_from
        made = learner(
            plan.experiment.model,
            nobody.labels,
            first.shape,
            self._randomness,
            None if start is None else plan.path(start),
        )
        noise = sum_noise(plan, facts, "once")
        self._silos = silos = LocalSilos(plan, facts, nobody, made, self._randomness, noise=noise, here=())
        self.server = plan.method.server.init(plan.server_step, made.params, facts.silos)
        if self._resume:
            assert self._checkpoint is not None, "there is nothing to resume from"
            self.done, state = recall(self._checkpoint, self._mark, self._state)
            self.server, silos.frozen = state["server"], state["frozen"]
        self._numbers = silos.numbers(plan.method.server.broadcast(self.server))
        self._most = AROUND + 8 * self._numbers + (longest_counts(plan) if discloses_counts(plan) else 0)
        known = replace(silos.sum_facts(), complete=plan.method.claim.requires_all_silos)
        self._role = plan.exchange.server(plan.exchange.terms(run, self.names, self._numbers, known), self._party)
        self._most += self._role.longest

    # -- a round

    def _round(self, number: int) -> Part[Total]:
        """The sum over silos of what they contribute."""
        self._desk.begin(number)
        role, has_third = self._role, self.plan.exchange.third_party is not None
        preface = (yield from self._asked_third(WORK, b"", signed=False)) if has_third else b""
        # the same for all silos, and signed once: it may be long
        model = self._desk.write(
            EVERYONE, WORK, join([packed(self.plan.method.server.broadcast(self.server)), preface])
        )
        told = dict.fromkeys(self.names, model)
        answers = yield told
        role.begin(number, self._randomness.stream("shuffler", number), preface)
        yield from self._led(role, self._taken(told, answers, WORK, _as_it_is if role.signs else self._signed(WORK)))
        total = role.numbers()
        return total if isinstance(total, Steps) else jnp.asarray(total, jnp.float32)

    def _led(self, role: ServerRole, first: Mapping[str, bytes]) -> Part[None]:
        """An exchange's own messages, each in one of ours. Those with the third party are signed here."""

        def refuse(party: str, refused: Refused) -> None:
            self._note(EXCHANGE, party, refused)
            if role.strict:
                raise refused

        def framed(party: str, message: bytes) -> bytes:
            desk = self._desk
            return desk.framed(EXCHANGE, message) if party in self.names else desk.write(party, EXCHANGE, message)

        def content_of(party: str, content: bytes) -> bytes:
            return content if party in self.names else self._desk.read(party, EXCHANGE, content)

        conversation = led(role, first, refuse)
        try:
            told = next(conversation, None)
            while told is not None:
                sent = {party: framed(party, message) for party, message in told.items()}
                answers = yield sent
                arrived = self._taken(sent, answers, EXCHANGE, content_of)
                if role.strict and any(answers.get(party) is not None for party in sent if party not in arrived):
                    raise Refused("rejected", self.refusals[-1].reason)
                told = conversation.send(arrived)
        except StopIteration:
            return
        except TooFew as few:
            reasons = ", ".join(one.reason for one in self.refusals if one.round == self._desk.number)
            raise TooFew("; ".join(filter(None, (str(few).removesuffix(f" [{few.code}]"), reasons)))) from None


def _as_it_is(party: str, content: bytes) -> bytes:
    return content


def drive(
    coordinator: CoordinatorSide, carry: Callable[[dict[str, bytes]], Answers], hooks: Hooks | None = None
) -> Outcome:
    """The whole run: ``carry`` takes what to send to whom, and gives the answers."""
    return driven(coordinator.phases(hooks), carry)
