"""What all parties agree on before the first round: the plan, and what records look like.

Nothing here is private beyond what the plan declares public. A silo sends the form of its records (shapes, classes,
names of columns) and a number that it drew for this run; how many records it has, only under a method without a
guarantee (whose every update carries that number anyway). Where a plan says ``disclose_counts``, it also sends how many
records each subject has, by names that stand for subjects in this run alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from tacit.crypto import Refused, Secret
from tacit.data import Federation, Labels, Records, source_facts
from tacit.data.options import Columns
from tacit.errors import UserError
from tacit.exchange import people_of, places_of
from tacit.exchange.post import join, join_named, parted
from tacit.federation.protocol.messages import Told, read_counts, write_counts
from tacit.methods import Facts, Info
from tacit.planning.plan import Plan
from tacit.privacy import Randomness
from tacit.transport.channels import ANALYZER

DRAWN_BYTES = 32  # of the number that a silo draws for a run


Size = Annotated[int, Field(gt=0, lt=1 << 24)]
Number = Annotated[str, Field(pattern="^(float32|int32)$")]


class Form(Told):
    """What records look like, in every silo alike.

    shape, dtype              of one record's features
    label_shape, label_dtype  of one record's label
    kind, classes             what labels mean
    columns                   a hash of the names of the features, in order
    """

    shape: tuple[Size, ...]
    dtype: Number
    label_shape: tuple[Size, ...]
    label_dtype: Number
    kind: Annotated[str, Field(pattern=f"^({'|'.join(Labels.KINDS)})$")]
    classes: tuple[str, ...]
    columns: str

    @classmethod
    def of(cls, shard: Federation) -> Form:
        train, labels = shard.train, shard.labels
        return cls(
            shape=train.features.shape[1:],
            dtype=str(train.features.dtype),
            label_shape=train.labels.shape[1:],
            label_dtype=str(train.labels.dtype),
            kind=labels.kind,
            classes=labels.classes,
            columns=hashlib.sha256(repr(shard.feature_names).encode()).hexdigest(),
        )

    def no_records(self, silos: Sequence[str]) -> Federation:
        """Silos without records: what the coordinator knows."""
        features, labels = np.zeros((0, *self.shape), self.dtype), np.zeros((0, *self.label_shape), self.label_dtype)
        rows = Records(features, labels, np.zeros(0, np.int64), np.zeros(0, np.int32))
        return Federation(rows, rows, Labels(self.kind, self.classes), tuple(silos), 0, (), "elsewhere")


class Greeting(Told):
    """What the coordinator sends first: the silos, in order, and the hash of the plan."""

    silos: tuple[str, ...]
    plan: str


class Hello(Told):
    """What a silo answers: the form of its records, 32 random bytes for this run, and the hash of its own plan."""

    form: Form
    drawn: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * DRAWN_BYTES}}}$")]
    records: Annotated[int, Field(ge=0)]
    plan: str


class RoundsDone(Told):
    """How many rounds are done when a run begins."""

    done: int


def read_hello(content: bytes, peer: str, plan: str) -> Hello:
    """What ``peer`` answered, which must have the plan with that hash. Silos sign theirs for everyone, so that a server
    which sends every silo the hash that it expects is found out by all of them."""
    told = Hello.read(content, peer)
    if told.plan != plan:
        raise plan_mismatch(peer)
    return told


def plan_mismatch(peer: str) -> Refused:
    return Refused("plan-mismatch", "plan mismatch: its plan hash differs from ours", peer)


def refuse_in_federation(*rules: tuple[str, bool, str, str]) -> None:
    """A UserError about the first field that works in the simulator alone. Of each: whether, the problem, the fix."""
    for field, is_refused, problem, fix in rules:
        if is_refused:
            raise UserError("simulator-only", field, problem, fix)


def check_method(info: Info) -> None:
    """Refuse (UserError) a method that parties apart from each other cannot carry out."""
    refuse_in_federation(
        ("method.name", info.pools, f"{info.name} moves all records to one place", "use it in the simulator only"),
        ("method.name", info.serverless, f"{info.name} has no server, and a federation has one", "use the simulator"),
    )


def check_federated(plan: Plan) -> None:
    """Refuse (UserError) a plan that parties apart from each other cannot carry out."""
    info, carries, is_noisy = plan.method.info, plan.exchange.carries_once, plan.evaluation is not None
    check_method(info)
    reports_twice = info.gathers == "places" and plan.promise.facts.max_silos != 1
    problem = f"is not 1: under {info.name} a person with records in several silos would report in each of them"
    refuse_in_federation(("privacy.max_silos_per_subject", reports_twice, problem, "declare 1, if no subject has"))
    plan.exchange.check_federated()
    problem, fix = f"the {plan.exchange.name} exchange carries no", "leave it out, or use masked, weighted or plain"
    median = getattr(plan.options, "group_size", None) == "median"
    refuse_in_federation(
        ("data.standardize", not carries and plan.statistics is not None, f"{problem} constants with noise", fix),
        ("evaluation.status", not carries and is_noisy, f"{problem} metrics with noise", fix),
        ("evaluation.status", info.personal and is_noisy, f"{info.name} has no shared model", "leave it out"),
        ("method.group_size", median, "'median' looks at the records of all silos", "use a number"),
    )


def numeric_columns(plan: Plan) -> Columns:
    """The columns whose constants get noise."""
    columns = source_facts(plan.data).columns
    assert columns is not None, "a plan with noise on constants has a table"
    return columns


def taking_part(plan: Plan, silos: Sequence[str]) -> tuple[str, ...]:
    """All parties that the server sends messages to: silos, and the third party of the exchange."""
    third = plan.exchange.third_party
    return (*silos, *(() if third is None else (third,)))


def in_their_places(shard: Federation, k: int, silos: int, people: int) -> Federation:
    """People of a silo who report for themselves, in the places that are those of silo ``k`` (``people_of``): by their
    own keys alone. Two people with one place are one encoder."""
    own = people_of(k, people, silos)
    if not len(own):
        raise Refused("bad-terms", f"{people} people for {silos} silos leave none for each")
    place = places_of(shard.train.subject, people) // silos % len(own)
    return replace(shard, train=replace(shard.train, subject=own[place]).grouped())


def meant(plan: Plan) -> dict[str, Any]:
    """The experiment of a plan for all parties: without paths, and with the noise that was solved for."""
    content: dict[str, Any] = plan.experiment.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
    for key in ("path", "encoding", "decimal"):  # of the requester's own file
        content.get("data", {}).pop(key, None)
    content.get("privacy", {}).pop("budget_file", None)
    if plan.experiment.model.name == "packed":  # the hash stays
        content["model"].pop("path", None)
    if "exchange" in content:  # one order and one spelling, however the keys were written
        made = plan.exchange.options()
        content["exchange"] = {key: value for key, value in made.items() if key in content["exchange"]}
    options = plan.options
    if options.noise_key is not None and content["method"].pop("target_epsilon", None) is not None:
        content["method"][options.noise_key] = options.noise_value
    return content


def mark(plan: Plan) -> str:
    """A hash of a plan and of the whole experiment that it was made of.

    Every field counts: who is held out, for example, follows from ``data.seed`` and ``data.test_fraction``, and
    ``Promise.total`` counts on all silos to hold out the same people. What the experiment leaves to defaults is in the
    plan, so that parties with other defaults differ, too.
    """
    promise = plan.promise
    made = {
        "experiment": meant(plan),
        "method": {"name": plan.options.info.name, **asdict(plan.options)},
        "exchange": plan.exchange.options(),
        "facts": asdict(promise.facts),
        "unit": promise.unit,
        "relation": promise.relation,
        "once": [asdict(once) for once in promise.once],
        "step": asdict(plan.server_step),
    }
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def agreed_facts(plan: Plan, hellos: Mapping[str, Hello]) -> Facts:
    return replace(plan.promise.facts, silos=len(hellos), records=sum(hello.records for hello in hellos.values()))


def check_silos(plan: Plan, silos: Sequence[str], roster: Mapping[str, bytes], server: str) -> None:
    """Refuse a list of silos of another number than the plan has, or with names that are not on the roster."""
    declared = plan.promise.facts.silos
    if len(set(silos)) != len(silos) or not silos:
        raise Refused("malformed", "a list of silos that is empty, or names one twice", server)
    if declared and declared != len(silos):
        raise Refused("wrong-parties", f"{len(silos)} silos where the plan promises {declared}", server)
    strangers = set(silos) - set(roster) | {server, ANALYZER} & set(silos)
    if strangers:
        raise Refused("unknown-party", f"silos that are not on the roster: {', '.join(sorted(strangers))}", server)


def discloses_counts(plan: Plan) -> bool:
    """Whether silos disclose how many records each subject has, as the plan says and its guarantees count."""
    return plan.method.work.record_weights is not None and plan.exchange.index is None


def longest_counts(plan: Plan) -> int:
    """No list of counts has more bytes: room for four times as many people as are declared; 0 without such lists."""
    return 16 * max(4 * (plan.promise.facts.subjects or 0), 1 << 16) if discloses_counts(plan) else 0


def tell_counts(run: str, names: np.ndarray, counts: np.ndarray) -> bytes:
    """How many records a silo has of each subject, for this start of the run (:func:`run_mark`) and no other."""
    return join([run.encode(), write_counts(names, counts)])


def told_counts(run: str, content: bytes, peer: str) -> tuple[np.ndarray, np.ndarray]:
    """What ``peer`` told with :func:`tell_counts`: names and counts."""
    of, counts = parted(content, peer, 2)
    if of != run.encode():
        raise Refused("wrong-run", "counts of another start of the run", peer)
    return read_counts(counts, peer)


def run_mark(run: str, told: Mapping[str, bytes]) -> str:
    """The name of the run under which exchanges sign: with everything that silos sent at its start, so that signatures
    of parties that got different answers do not fit."""
    return f"{run}/{hashlib.sha256(join_named(told)).hexdigest()}"


def common_randomness(plan: Plan, secret: Secret, run: str, drawn: Mapping[str, bytes]) -> Randomness:
    """The randomness that all silos have in common and the server does not know: from the secret that they share and
    from a number that each drew for this run, so that no party can make it repeat. With a seed, that of the plan."""
    if plan.experiment.seed is not None:
        return Randomness.from_seed(plan.experiment.seed)
    told = join([run.encode(), join_named(drawn)])
    key = bytes(secret.expose())
    return Randomness(hashlib.blake2b(told, key=key, digest_size=32, person=b"tacit-common").digest())
