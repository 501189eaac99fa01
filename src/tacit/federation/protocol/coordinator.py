"""The coordinator's side of a federation."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np

from tacit.crypto import EVERYONE, Refused
from tacit.crypto.crypto_errors import REFUSALS
from tacit.data import Federation
from tacit.engine.charges import check_goes_on
from tacit.engine.evaluate import (
    Query,
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
from tacit.federation.protocol import agreement
from tacit.federation.protocol.memory import keep, recall
from tacit.federation.protocol.messages import AROUND, Desk, Message, Phase
from tacit.federation.protocol.party import ServerKeys
from tacit.kernels import Steps
from tacit.methods import ServerState
from tacit.models import Params
from tacit.planning.plan import Plan
from tacit.privacy import Randomness

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
    """The model, rounds done, missing or refused answers, and how the rounds ended (``engine.loop.RoundsEnded``)."""

    model: Params
    rounds: int
    refusals: tuple[RefusedAnswer, ...]
    metrics: Scores | None = None
    status: Status = "finished"
    reason: str = ""


class CoordinatorSide:
    """Everything that the server does: the rounds of a federation (:class:`~tacit.engine.loop.Rounds`).

    ``silos``: who takes part, in the order of the plan (as in ``data.records_per_silo``).

    ``checkpoint`` is a file that is replaced after every round. With ``resume`` the run continues from it, with other
    objects of this class and of ``SiloSide``, other keys and names of the run, and the same plan. A round that was not
    finished is repeated; without a seed with other noise, so that it is another release.

    An answer that is missing, late, too long, not signed by its silo for this run, round and phase, or not the one that
    is due is listed in ``refusals``; the others continue as far as the exchange allows.
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
        agreement.check_federated(plan)
        agreement.check_silos(plan, silos, keys.roster, SERVER)
        if resume:
            check_goes_on(plan)
        self.plan, self.names, self._mark = plan, tuple(silos), agreement.mark(plan)
        self.refusals: list[RefusedAnswer] = []
        self._keys, self._party = keys, Keys(SERVER, keys.identity, keys.roster)
        self._checkpoint, self._resume = checkpoint, resume
        self._randomness = Randomness.from_seed(plan.experiment.seed)
        self._desk = Desk(secrets.token_hex(16), *self._party)
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
        """Metrics of the model, from a sum over all silos with the noise of the plan."""
        try:
            self._desk.begin(self.done + 1)
            query = metrics_query(self.plan)
            noisy = yield from self._noisy_sum("metrics", packed(self.model()), query)
            return metrics_found(self.plan, noisy, noise_in_sum(self.plan, query))
        except Refused as refused:  # the model is there without them
            self.refusals.append(RefusedAnswer(self._desk.number, "metrics", "", str(refused), refused.code))
            return None

    def _noisy_sum(self, phase: Phase, content: bytes, query: Query) -> Part[np.ndarray]:
        """A sum over all silos with the noise of the plan, carried as updates are."""
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
        """The columns of all silos under constants with noise: those that were released before, or new ones."""
        constants = hooks.before_statistics()
        if constants is None:
            query = constants_query(self.plan, agreement.numeric_columns(self.plan))
            noisy = yield from self._noisy_sum("statistics", b"", query)
            constants = constants_found(query, noisy, noise_in_sum(self.plan, query))
            hooks.after_statistics(constants)
        yield from self._asked("constants", write_sums(np.concatenate(constants)))

    def model(self) -> Params:
        """The shared model after setup, with frozen layers. Where silos have only their own, that of the start."""
        shared = self.plan.method.server.shared(self.server)
        return {**(self.server.params if shared is None else shared), **self._silos.frozen}

    def unpaid(self) -> bytes:
        """The message that asks silos for metrics without noise, outside the guarantee: valid in this round alone."""
        return self._desk.write(EVERYONE, "unpaid", packed(self.model()))

    @property
    def federation(self) -> Federation:
        return self._silos.federation

    @property
    def learner(self) -> Learner:
        return self._silos.learner

    @property
    def _state(self) -> Any:
        return {"server": self.server, "frozen": self._silos.frozen}

    def _failing(self, number: int, part: Part[Read]) -> Part[Read]:
        """A part of the protocol whose failure is that of round ``number``."""
        try:
            return (yield from part)
        except Refused as error:
            raise RoundFailed(error.code, number, str(error)) from None

    # -- answers

    def _taken(
        self, told: Mapping[str, bytes], answers: Answers, phase: Phase, read: Callable[[str, bytes], Read]
    ) -> dict[str, Read]:
        """The answers that can be read, of parties that were sent something."""
        found = {}
        for silo in told:
            try:
                found[silo] = read(silo, self._content(silo, answers.get(silo), phase))
            except Refused as refused:
                self._note(phase, silo, refused)
        return found

    def _content(self, silo: str, answer: bytes | None, phase: Phase) -> bytes:
        if answer is None:
            raise Refused("no-answer", "no answer", silo)
        message, desk = Message.from_bytes(answer, silo, self._most), self._desk
        if message.phase == "refused":
            reason = desk.read(silo, "refused", message.check(desk.run, desk.number, "refused", silo))
            raise Refused("rejected", f"refuses: {reason[:200].decode(errors='replace')!r}", silo)
        return message.check(desk.run, desk.number, phase, silo)

    def _note(self, phase: str, silo: str, refused: Refused) -> None:
        self.refusals.append(RefusedAnswer(self._desk.number, phase, silo, str(refused), refused.code))
        _log.warning("round %d, %s: %s", self._desk.number, phase, escaped(refused))

    def _from_all(
        self, told: Mapping[str, bytes], answers: Answers, phase: Phase, read: Callable[[str, bytes], Read]
    ) -> dict[str, Read]:
        """The same where no answer may be missing."""
        found = self._taken(told, answers, phase, read)
        if len(found) < len(told):
            missing = ", ".join(refusal.reason for refusal in self.refusals[len(found) - len(told) :])
            raise TooFew(f"every silo is needed here (phase of {phase}); {missing}")
        return found

    def _signed(self, phase: Phase) -> Callable[[str, bytes], bytes]:
        return lambda silo, content: self._desk.read(silo, phase, content)

    def _asked(
        self, phase: Phase, content: bytes, read: Callable[[str, bytes], bytes] | None = None
    ) -> Part[dict[str, bytes]]:
        """The answers of all silos to a message that is signed for each; by default they are signed for us."""
        told = {silo: self._desk.write(silo, phase, content) for silo in self.names}
        answers = yield told
        return self._from_all(told, answers, phase, read or self._signed(phase))

    def _for_everyone(
        self, phase: Phase, content: bytes, check: Callable[[bytes, str], object] = lambda content, silo: None
    ) -> Part[tuple[dict[str, bytes], dict[str, bytes]]]:
        """What all silos answer to everyone: as they have signed it, and what it says."""
        signed: dict[str, bytes] = {}

        def read(silo: str, content: bytes) -> bytes:
            signed[silo] = content
            told = self._desk.read(silo, phase, content, to_everyone=True)
            check(told, silo)
            return told

        contents = yield from self._asked(phase, content, read)
        return signed, contents

    # -- setup

    def _setup(self, hooks: Hooks) -> Part[None]:
        greeting = agreement.Greeting(silos=self.names, plan=self._mark).to_bytes()
        signed, told = yield from self._for_everyone("hello", greeting)
        hellos = {silo: agreement.read_hello(content, silo, self._mark) for silo, content in told.items()}
        self._prepare(agreement.run_mark(self._desk.run, told), hellos)
        begin = join([agreement.RoundsDone(done=self.done).to_bytes(), join_named(signed), packed(self._silos.frozen)])
        if agreement.discloses_counts(self.plan):
            counted, _ = yield from self._for_everyone("begin", begin, partial(agreement.told_counts, self._run))
            yield from self._asked("totals", join_named(counted))
        else:
            yield from self._asked("begin", begin)
        if self.plan.statistics is not None:
            yield from self._standardized(hooks)
        if self.plan.exchange.third_party is not None:
            yield from self._asked_third("hello", greeting)
            yield from self._asked_third("begin", join_named(signed))
        if self.plan.exchange.opens:
            first = yield from self._asked("open", b"", _as_it_is if self._role.signs_opening else None)
            self._role.open()
            yield from self._led(self._role, first)

    def _asked_third(self, phase: Phase, content: bytes, *, signed: bool = True) -> Part[bytes]:
        """What the third party answers; the run needs it. Not ``signed``: by its exchange, for everyone."""
        third = self.plan.exchange.third_party
        assert third is not None
        told = {third: self._desk.write(third, phase, content)}
        answers = yield told
        return self._from_all(told, answers, phase, self._signed(phase) if signed else _as_it_is)[third]

    def _prepare(self, run: str, hellos: Mapping[str, agreement.Hello]) -> None:
        plan, first = self.plan, hellos[self.names[0]].form
        self._run = run
        others = [silo for silo, hello in hellos.items() if hello.form != first]
        if others:
            raise Refused("mismatch", f"records of another form than those of {self.names[0]}", ", ".join(others))
        facts = agreement.agreed_facts(plan, hellos)
        empty = first.no_records(self.names)
        start = plan.experiment.model.init_from
        file = None if start is None else plan.path(start)
        made = learner(plan.experiment.model, empty.labels, first.shape, self._randomness, file)
        noise = sum_noise(plan, facts, "once")
        self._silos = silos = LocalSilos(plan, facts, empty, made, self._randomness, noise=noise, here=())
        self.server = plan.method.server.init(plan.server_step, made.params, facts.silos)
        if self._resume:
            assert self._checkpoint is not None, "there is nothing to resume from"
            self.done, state = recall(self._checkpoint, self._mark, self._state)
            self.server, silos.frozen = state["server"], state["frozen"]
        self._numbers = silos.numbers(plan.method.server.broadcast(self.server))
        self._most = AROUND + 8 * self._numbers + agreement.longest_counts(plan)
        known = replace(silos.sum_facts(), complete=plan.method.claim.requires_all_silos)
        self._role = plan.exchange.server(plan.exchange.terms(run, self.names, self._numbers, known), self._party)
        self._most += self._role.longest

    # -- a round

    def _round(self, number: int) -> Part[Total]:
        self._desk.begin(number)
        role, has_third = self._role, self.plan.exchange.third_party is not None
        preface = (yield from self._asked_third("work", b"", signed=False)) if has_third else b""
        # the same for all silos, and signed once: it may be long
        model = packed(self.plan.method.server.broadcast(self.server))
        told = dict.fromkeys(self.names, self._desk.write(EVERYONE, "work", join([model, preface])))
        answers = yield told
        role.begin(number, self._randomness.stream("shuffler", number), preface)
        read = _as_it_is if role.signs else self._signed("work")
        yield from self._led(role, self._taken(told, answers, "work", read))
        total = role.numbers()
        return total if isinstance(total, Steps) else jnp.asarray(total, jnp.float32)

    def _led(self, role: ServerRole, first: Mapping[str, bytes]) -> Part[None]:
        """An exchange's own messages, each in one of ours. Those with the third party are signed here."""

        def refuse(party: str, refused: Refused) -> None:
            self._note("exchange", party, refused)
            if role.strict:
                raise refused

        def framed(party: str, message: bytes) -> bytes:
            desk = self._desk
            return desk.framed("exchange", message) if party in self.names else desk.write(party, "exchange", message)

        def content_of(party: str, content: bytes) -> bytes:
            return content if party in self.names else self._desk.read(party, "exchange", content)

        conversation = led(role, first, refuse)
        try:
            told = next(conversation, None)
            while told is not None:
                sent = {party: framed(party, message) for party, message in told.items()}
                answers = yield sent
                arrived = self._taken(sent, answers, "exchange", content_of)
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
