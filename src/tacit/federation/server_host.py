"""The process of the server, apart from what carries its bytes.

A :class:`CoordinatorHost` calls the silos, leads them through the run and keeps its folder: plan, ledger (a round's
line before the round), metrics, model, checkpoint, result. It remembers the state of every silo's ledger.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tacit.crypto import Refused
from tacit.data import source_facts
from tacit.data.encode import FeatureEncoder
from tacit.data.options import Columns
from tacit.engine import folder as files
from tacit.engine.charges import Charges
from tacit.engine.evaluate import RANKING, Numbers, Scores, about
from tacit.engine.learner import save_tree, write_bytes
from tacit.engine.loop import Clock, Constants, Hooks, Status
from tacit.errors import Forbidden, TacitError
from tacit.exchange.post import SERVER
from tacit.federation.carrier.envelope import CALL, EVALUATE, FAILED, MESSAGE, ONE, Call, Reply, SiloMetrics, calls
from tacit.federation.carrier.processes import party_log
from tacit.federation.kits import RUNS, Kit
from tacit.federation.protocol.agreement import taking_part
from tacit.federation.protocol.sides import CoordinatorSide, RoundFailed, ServerKeys, drive
from tacit.federation.request import Request
from tacit.federation.site.policy import Head
from tacit.federation.site.retention import EXPIRED, OUTCOME, REQUESTED, at_work, expire_at_server
from tacit.privacy.ledger import plain_file

HEADS = "heads.json"
SHARED = (
    files.PLAN,
    files.LEDGER,
    files.METRICS,
    files.MODEL,
    files.ENCODER,
    files.RESULT,
    files.PACKED_MODEL,
)  # what the requester gets

MOST_DATASETS = 1000  # of one silo, whose ledgers are remembered

# (what, {silo: bytes}) -> {silo: bytes, or None where nothing came in time}
Send = Callable[[str, Mapping[str, bytes]], Mapping[str, bytes | None]]


class Ended(NamedTuple):
    """How an attempt at a run ended.

    finished   all rounds are done
    budget     the next round would exceed the plan's own budget
    diverged   the model is no longer finite; the last finite one is kept
    refused    silos' policies forbid it: by silo, the rules
    failed     a silo gave no valid answer where it was needed; the run can be requested again
    expired    the run ended or was interrupted long ago, and its files were removed
    """

    status: str
    reason: str = ""
    rules: Mapping[str, tuple[str, ...]] = {}


class CoordinatorHost(Hooks):
    """The server in one attempt at a run. ``progress`` says how far it is."""

    def __init__(self, kit: Kit, request: Request, send: Send) -> None:
        self.folder = kit.ours / RUNS / request.run
        self.progress: dict[str, Any] = {"state": "calling", "done": 0, "metrics": {}, "left": {}}
        self._kit, self._request, self._plan, self._send = kit, request, request.plan, send
        self._log = party_log(kit)
        self._rules: dict[str, tuple[str, ...]] = {}
        self._silent: set[str] = set()
        self._without_metrics: set[str] = set()
        self._scores: Scores = files.NOT_EVALUATED
        self._history: list[dict[str, Any]] = []
        self._is_ours = False  # whether the folder is that of this very request
        self._ended: dict[str, Any] = {}

    def run(self) -> Ended:
        """The whole attempt; leaves the folder as it is. A run that was finished before is not repeated."""
        plan, request = self._plan, self._request
        self._log.info(
            "run     %s (attempt %d) of %s: %s, %s, %d rounds",
            *(request.run, request.attempt, request.requester, plan.label, plan.exchange.name, plan.rounds),
        )
        with ExitStack() as stack:
            try:
                stack.enter_context(at_work(self.folder))
                self._open_folder()
                ended = self._ended_before() or self._called() or self._led()
            except Forbidden as error:
                ended = Ended("budget", str(error))
            except (RoundFailed, Refused, TacitError) as error:
                ended = Ended("refused" if self._rules else "failed", str(error), dict(self._rules))
            except OSError as error:
                ended = Ended("failed", f"the server cannot write: {error.strerror}")
            self.progress["state"] = ended.status
            self._ended = {**ended._asdict(), "left": self.progress["left"]}
            if self._is_ours:
                with suppress(OSError):  # a full disk
                    files.write_json(self.folder / OUTCOME, self._ended)
                    if ended.status == "finished":  # it is never resumed
                        (self.folder / files.CHECKPOINT).unlink(missing_ok=True)
        with suppress(OSError):
            for run in expire_at_server(self.folder.parent):
                self._log.info("expired run %s: its ledger stays", run)
        self._log.info("ended   %s: %s", request.run, " ".join(filter(None, (ended.status, ended.reason))))
        return ended

    def share(self, target: Path) -> None:
        """Copy what the requester gets into the folder ``target``."""
        files.write_json(target / OUTCOME, self._ended)
        for name in SHARED:
            if self._is_ours and (self.folder / name).is_file():
                shutil.copy(self.folder / name, target)

    def _ended_before(self) -> Ended | None:
        file = self.folder / OUTCOME
        before = files.read_json(file, "run") if file.is_file() else {"status": ""}
        if before["status"] == EXPIRED:
            return Ended(EXPIRED, before["reason"])
        return Ended("finished") if before["status"] == "finished" else None

    def _open_folder(self) -> None:
        """The run's folder, new or that of earlier attempts at the same request."""
        file, request = self.folder / REQUESTED, self._request
        if file.is_file() and files.read_json(file, "run")["digest"] != request.digest:
            raise RoundFailed("wrong-run", 0, "the run's name belongs to another request")
        self._check_latest()
        files.write_json(file, {"digest": request.digest, "attempt": request.attempt})
        self._is_ours = True

    def _write_encoder(self, columns: Columns | None) -> None:
        """How new rows are encoded, by the columns' constants."""
        assert columns is not None, "checked when the request was read"
        data = self._plan.experiment.data
        encoder = FeatureEncoder(columns.checked(), data.standardize, data.missing, None, self._kit.silos)
        files.write_json(self.folder / files.ENCODER, encoder.to_dict())

    def _check_latest(self) -> None:
        """An attempt that continues after a later one has begun leaves the folder to that one."""
        file = self.folder / REQUESTED
        if file.is_file() and files.read_json(file, "run")["attempt"] > self._request.attempt:
            self._is_ours = False
            raise RoundFailed("out-of-turn", 0, "a later attempt at the run has begun")

    def _called(self) -> Ended | None:
        """Call every silo, and the analyzer; how it ended where one of them does not take part."""
        files.keep_packed(self.folder, self._plan.experiment)
        write_bytes(self.folder / files.PLAN, self._plan.to_toml().encode())
        if self._plan.statistics is None:
            self._write_encoder(source_facts(self._plan.data).columns)
        seen, post = self._heads(), calls(self._kit, SERVER, self._request)

        def call(party: str) -> bytes:
            heads = {dataset: Head(*head) for dataset, head in seen.get(party, {}).items()}
            return post.write(party, CALL, Call(heads).to_bytes())

        answers = self._carried(CALL, {party: call(party) for party in taking_part(self._plan, self._kit.silos)})
        if self._rules:
            by = ", ".join(f"{silo} ({', '.join(rules)})" for silo, rules in self._rules.items())
            return Ended("refused", f"by {by}", dict(self._rules))
        absent = [silo for silo, answer in answers.items() if answer is None]
        return Ended("failed", f"no answer from {', '.join(absent)}") if absent else None

    def _led(self) -> Ended:
        """The protocol from its beginning, or from the last checkpoint."""
        plan, checkpoint = self._plan, self.folder / files.CHECKPOINT
        goes_on = checkpoint.is_file()
        clock = self.folder / files.CLOCK
        self._clock = Clock(files.read_json(clock, "run") if goes_on and clock.is_file() else None)
        self._history = files.read_metrics(self.folder / files.METRICS) if goes_on else []
        keys = ServerKeys(self._kit.identity(), self._kit.roster())
        with Charges(plan, self.folder / files.LEDGER, self._request.run) as charges:
            self._charges = charges
            self._side = CoordinatorSide(plan, self._kit.silos, keys, checkpoint=checkpoint, resume=goes_on)
            self.progress["state"] = "setting up"
            try:
                outcome = drive(self._side, self._worked, self)
                ended = Ended(outcome.status, outcome.reason)
                if outcome.metrics is not None:
                    self._scores = outcome.metrics
                    self._write_metrics(plan.rounds)
            except Forbidden as error:
                ended = Ended("budget", str(error))
            finally:
                for one in self._side.refusals:
                    self._log.warning("without %s in round %d, %s: %s", one.silo, one.round, one.phase, one.reason)
            self._write_result(ended.status)
        return ended

    def _worked(self, told: Mapping[str, bytes]) -> dict[str, bytes | None]:
        with self._clock("train"):
            return self._carried(MESSAGE, told)

    # -- around the rounds

    def before_statistics(self) -> Constants | None:
        """Constants of an earlier attempt; where there are none, the ledger line for new ones is written."""
        file = self.folder / files.ENCODER
        if file.is_file():
            self._charges.check_covers(0, "statistics")
            return FeatureEncoder.from_dict(files.read_json(file, "run")).columns.constants()
        self._check_latest()
        self._charges.charge_once("statistics", 0)
        return None

    def after_statistics(self, constants: Constants) -> None:
        columns = source_facts(self._plan.data).columns
        assert columns is not None, "checked when the request was read"
        self._write_encoder(columns.with_constants(*constants))

    def ready(self) -> None:
        """Check that the ledger has all rounds of the checkpoint. If the server was killed right after its last
        checkpoint, do now what is done after a round."""
        done = self._side.done
        self._charges.check_covers(done)
        if not done:
            self._evaluate(0)
        elif self._paid() is None and (
            done == self._plan.rounds or not self._history or self._history[-1]["round"] < done
        ):
            self.after_round(done, 0)

    def before_round(self, number: int) -> None:
        self._check_latest()
        with self._clock("ledger"):
            self._charges.charge(number)
        self.progress |= {"state": "training", "done": number - 1}

    def after_round(self, number: int, participants: int) -> None:
        with self._clock("ledger"):
            save_tree(self.folder / files.MODEL, self._side.model(), {"round": str(number)})
            files.write_json(self.folder / files.CLOCK, self._clock.seconds())
        self._log.info("done    round %d of %d after %.3f s", number, self._plan.rounds, self._clock.elapsed)
        if files.evaluation_due(self._plan, number):
            self._evaluate(number)
        self.progress["done"] = number

    def before_metrics(self, status: Status) -> bool:
        """Whether metrics with noise are still to be released: not where they are known, or exceed the budget."""
        if status != "finished":
            return False
        if (known := self._paid()) is not None:
            self._scores = known
            return False
        try:
            self._charges.charge_once("evaluation", self._side.done)
        except Forbidden as error:
            self._log.warning("without metrics: %s", error)
            return False
        return True

    def _paid(self) -> Scores | None:
        """Metrics with noise of an earlier attempt."""
        last = self._history[-1] if self._history else {}
        return Scores(last["metrics"], {}, last["standard_errors"]) if last.get("standard_errors") else None

    # -- metrics

    def _evaluate(self, number: int) -> None:
        """Metrics of the model, as averages over the silos whose policies allow them, weighted by held-out records.
        None where the plan has metrics with noise."""
        with self._clock("evaluate"):
            asked = () if self._plan.evaluation is not None else self._kit.silos
            told = dict.fromkeys([silo for silo in asked if silo not in self._without_metrics], self._side.unpaid())
            before = dict(self._rules)
            answers = self._carried(EVALUATE, told)
            # a silo that keeps its metrics does not refuse the run, and is not asked again
            self._without_metrics |= {silo for silo, rules in self._rules.items() if "metrics" in rules}
            self._rules = before
            found = {silo: self._told(silo, answer) for silo, answer in answers.items() if answer is not None}
            self._scores = _together({silo: scores for silo, scores in found.items() if scores is not None})
        self._write_metrics(number)

    def _told(self, silo: str, answer: bytes) -> SiloMetrics | None:
        """What a silo has sent; None where it is malformed, or has other metrics than the task."""
        try:
            told = SiloMetrics.read(answer, silo)
            if told.metrics.keys() <= self._side.learner.task.metrics.keys():
                return told
        except Refused:
            pass
        self._log.warning("refused %s: malformed metrics", silo)
        return None

    def _write_metrics(self, number: int) -> None:
        line = files.metrics_line(number, self._clock.elapsed, self._charges.epsilons(number), self._scores)
        self._history = [old for old in self._history if old["round"] < number] + [line]
        write_bytes(self.folder / files.METRICS, "".join(json.dumps(one) + "\n" for one in self._history).encode())
        self.progress["metrics"] = self._scores.overall

    def _write_result(self, status: str) -> None:
        side = self._side
        result = files.summary(
            self._plan,
            self.folder,
            status,
            rounds=side.done,
            federation=side.federation,
            learner=side.learner,
            guarantees=self._charges.guarantees(),
            scores=self._scores,
            seconds=self._clock.seconds(),
        )
        files.write_json(self.folder / files.RESULT, {**result, "baselines": {}})

    def _carried(self, what: str, messages: Mapping[str, bytes]) -> dict[str, bytes | None]:
        """Send messages, and open the replies; a refusal or a failure is logged, and counts as no answer.

        A silo that gave no answer once is not asked again in this attempt: the others would wait in every phase.
        """
        arrived = self._send(what, {silo: data for silo, data in messages.items() if silo not in self._silent})
        return {silo: self._opened(what, silo, arrived.get(silo)) for silo in messages}

    def _opened(self, what: str, silo: str, data: bytes | None) -> bytes | None:
        if data is None:
            if silo not in self._silent:
                self._log.warning("silent  %s: no answer to %s in time", silo, ONE[what])
                self._silent.add(silo)
            return None
        try:
            reply = Reply.from_bytes(data, silo)
        except Refused as error:
            self._log.warning("refused %s: a reply: %s", silo, error.reason)
            return None
        if reply.head is not None:
            self._remember(silo, reply.dataset, reply.head, reply.recounts)
        if what == CALL and reply.left is not None:
            self.progress["left"][silo] = reply.left
        if reply.rules:
            if what == EVALUATE and reply.rules == ("metrics",):  # the default of a policy
                self._log.info("without metrics of %s: it keeps metrics without noise", silo)
            else:
                word = "failed " if FAILED in reply.rules else "refused"
                self._log.warning("%s %s: %s (%s)", word, silo, ONE[what], ", ".join(reply.rules))
            if not {FAILED, "message"} & set(reply.rules):  # its policy forbids the run, now and later
                self._rules[silo] = reply.rules
        return reply.content

    def _heads(self) -> dict[str, dict[str, list[Any]]]:
        file = self._kit.ours / HEADS
        return dict(files.read_json(file, "KIT")) if file.is_file() else {}

    def _remember(self, silo: str, dataset: str, head: Head, recounts: tuple[str, ...] = ()) -> None:
        """Keep the state of a silo's ledger on disk: an older backup of it is then detected. Only the first
        ``MOST_DATASETS`` data sets of a silo are remembered."""
        lock = plain_file(self._kit.ours / f"{HEADS}.lock", os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other runs may be active
            seen = self._heads()
            known = seen.setdefault(silo, {})
            if silo not in self._kit.silos or (dataset not in known and len(known) >= MOST_DATASETS):
                self._log.warning("refused %s: too many ledgers, or an unknown silo", silo)
            elif head.lines > known.get(dataset, [-1])[0]:
                if known and dataset not in known:
                    self._log.warning("new budget: %s uses a ledger that is new here (%s)", silo, dataset)
                    for other in recounts:
                        words = "new budget: the table of ledger %s of %s was counted in ledger %s, %s lines"
                        self._log.warning(words, dataset, silo, other, known.get(other, ["unknown"])[0])
                known[dataset] = list(head)
                files.write_json(self._kit.ours / HEADS, seen)
        finally:
            os.close(lock)


def _together(found: Mapping[str, SiloMetrics]) -> Scores:
    names = dict.fromkeys(name for told in found.values() for name in told.metrics)
    overall: Numbers = {}
    for name in names:
        known = [(told.records, value) for told in found.values() if (value := told.metrics.get(name)) is not None]
        total = sum(n for n, _ in known)
        overall[name] = sum(n * value for n, value in known) / total if total else None
    averages = {name: overall[name] for name in sorted(RANKING & overall.keys())}
    tested = {silo: about(told.records) for silo, told in found.items()}
    return Scores(overall, {silo: told.metrics for silo, told in found.items()}, over_silos=averages, tested=tested)
