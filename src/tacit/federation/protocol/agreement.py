"""What all parties settle before the first round: that they mean the same plan, and what records look like.

Nothing here is private beyond what the plan declares public. A silo tells the form of its records (shapes, classes,
names of columns) and a number that it drew for this run; how many records it has, only under a method that promises
nothing (whose every update carries that number anyway). Where a plan says ``disclose_counts``, it also tells how many
records each subject has, by names that stand for subjects in this run alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tacit.crypto import Refused, Secret
from tacit.data import Federation, Labels, Records, source_facts
from tacit.errors import UserError
from tacit.exchange import people_of, places_of
from tacit.exchange.post import join, join_named, parted
from tacit.federation.protocol.messages import read_counts, read_json, write_counts
from tacit.methods import Facts, Info
from tacit.planning.plan import Plan
from tacit.privacy import Randomness
from tacit.transport.table import ANALYZER

# Of the number that a silo draws for a run.
DRAWN_BYTES = 32


@dataclass(frozen=True)
class Form:
    """What records look like, in every silo alike.

    shape, dtype              of one record's features
    label_shape, label_dtype  of one record's label
    kind, classes             what labels say
    columns                   a hash of the names of the features, in order
    """

    shape: tuple[int, ...]
    dtype: str
    label_shape: tuple[int, ...]
    label_dtype: str
    kind: str
    classes: tuple[str, ...]
    columns: str

    @classmethod
    def of(cls, shard: Federation) -> Form:
        train, labels = shard.train, shard.labels
        columns = hashlib.sha256(repr(shard.feature_names).encode()).hexdigest()
        return cls(
            train.features.shape[1:],
            str(train.features.dtype),
            train.labels.shape[1:],
            str(train.labels.dtype),
            labels.kind,
            labels.classes,
            columns,
        )

    def as_dict(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], peer: str) -> Form:
        """The form that ``peer`` tells; refused if it is none."""
        try:
            form = cls(
                tuple(int(size) for size in value["shape"]),
                str(np.dtype(value["dtype"])),
                tuple(int(size) for size in value["label_shape"]),
                str(np.dtype(value["label_dtype"])),
                str(value["kind"]),
                tuple(str(name) for name in value["classes"]),
                str(value["columns"]),
            )
        except (KeyError, TypeError, ValueError):
            raise Refused("malformed", "a form of records that is none", peer) from None
        numbers = all(kind in ("float32", "int32") for kind in (form.dtype, form.label_dtype))
        sizes = [*form.shape, *form.label_shape]
        if not numbers or form.kind not in Labels.KINDS or any(not 0 < size < 1 << 24 for size in sizes):
            raise Refused("out-of-range", "a form of records that cannot be", peer)
        return form

    def no_records(self, silos: Sequence[str]) -> Federation:
        """Silos without records: what the coordinator knows."""
        nobody, nowhere = np.zeros(0, np.int64), np.zeros(0, np.int32)
        rows = Records(
            np.zeros((0, *self.shape), self.dtype), np.zeros((0, *self.label_shape), self.label_dtype), nobody, nowhere
        )
        return Federation(rows, rows, Labels(self.kind, self.classes), tuple(silos), 0, (), "elsewhere")


class Hello(NamedTuple):
    """What a silo tells at the start."""

    form: Form
    drawn: bytes
    records: int


def read_hello(content: bytes, peer: str, plan: str) -> Hello:
    """What ``peer`` told, which must mean the plan with that mark: a server that tells every silo the mark that it
    expects is found out by all of them, since silos sign theirs for everyone."""
    told = read_json(content, peer, {"form": dict, "drawn": str, "records": int, "plan": str})
    try:
        drawn = bytes.fromhex(told["drawn"])
    except ValueError:
        drawn = b""
    if len(drawn) != DRAWN_BYTES or told["records"] < 0:
        raise Refused("malformed", "a greeting that is none", peer)
    if told["plan"] != plan:
        raise Refused("plan-mismatch", "plan mismatch: its plan hash differs from ours", peer)
    return Hello(Form.from_dict(told["form"], peer), drawn, told["records"])


def check_method(info: Info) -> None:
    """Refuse (UserError) a method that parties apart from each other cannot carry out."""
    if info.pools:
        problem = f"{info.name} moves all records to one place"
        raise UserError("simulator-only", "method.name", problem, "use it in the simulator only, as a reference")
    if info.serverless:
        problem = f"{info.name} has no server, and a federation has one"
        raise UserError("simulator-only", "method.name", problem, "use it in the simulator")


def check_federated(plan: Plan) -> None:
    """Refuse (UserError) a plan that parties apart from each other cannot carry out."""
    method, options = plan.method, plan.options
    check_method(method.info)
    if method.info.gathers == "places" and plan.promise.facts.max_silos != 1:
        problem = f"is not 1: under {method.name} a person with records in several silos would report in each of them"
        raise UserError("simulator-only", "privacy.max_silos_per_subject", problem, "declare 1, if no subject has")
    plan.exchange.check_federated()
    if not plan.exchange.carries_once:
        for once, what, field in (
            (plan.statistics, "constants", "data.standardize"),
            (plan.evaluation, "metrics", "evaluation.status"),
        ):
            if once is not None:
                problem = f"{what} that are paid for do not travel in the {plan.exchange.name} exchange"
                fix = "leave it out, or use exchange masked, weighted or plain"
                raise UserError("simulator-only", field, problem, fix)
    if plan.evaluation is not None and method.info.personal:
        problem = f"silos' own models are theirs alone: {method.name} has no metrics that all could pay for"
        raise UserError("simulator-only", "evaluation.status", problem, "leave it out")
    if getattr(options, "group_size", None) == "median":
        problem = "'median' looks at the records of all silos"
        raise UserError("simulator-only", "method.group_size", problem, "use a number")


def column_bounds(plan: Plan) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The public bounds, low and high, of the columns whose constants the plan pays for."""
    columns = source_facts(plan.data).columns
    assert columns is not None, "a plan that pays for constants has bounds for them"
    return columns.bounds()


def taking_part(plan: Plan, silos: Sequence[str]) -> tuple[str, ...]:
    """All parties that the server speaks to in a run: silos, and the third party of the exchange."""
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
    """The experiment of a plan as all parties mean it: without the paths of the one who wrote it, and with the noise
    that was solved for."""
    content: dict[str, Any] = plan.experiment.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
    content.get("data", {}).pop("path", None)
    content.get("privacy", {}).pop("budget_file", None)
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


def agreed_facts(plan: Plan, silos: Sequence[str], records: Mapping[str, int]) -> Facts:
    """The public facts of the run, now that it is known who takes part."""
    return replace(plan.promise.facts, silos=len(silos), records=sum(records.values()))


def check_silos(plan: Plan, silos: Sequence[str], roster: Mapping[str, bytes], server: str) -> None:
    """Refuse a list of silos that is not the one that was promised, or with strangers on it."""
    declared = plan.promise.facts.silos
    if len(set(silos)) != len(silos) or not silos:
        raise Refused("malformed", "a list of silos that is empty, or names one twice", server)
    if declared and declared != len(silos):
        raise Refused("wrong-parties", f"{len(silos)} silos where the plan promises {declared}", server)
    strangers = set(silos) - set(roster) | {server, ANALYZER} & set(silos)
    if strangers:
        raise Refused("unknown-party", f"silos that are none on the roster: {', '.join(sorted(strangers))}", server)


def discloses_counts(plan: Plan) -> bool:
    """Whether silos disclose how many records each subject has, as the plan says and its guarantees count."""
    return plan.method.work.needs_totals and plan.exchange.index is None


def longest_counts(plan: Plan) -> int:
    """No list of counts has more bytes: room for four times as many people as are declared."""
    return 16 * max(4 * (plan.promise.facts.subjects or 0), 1 << 16)


def tell_counts(run: str, names: np.ndarray, counts: np.ndarray) -> bytes:
    """How many records a silo has of each subject, for this start of the run (:func:`run_mark`) and no other."""
    return join([run.encode(), write_counts(names, counts)])


def told_counts(content: bytes, run: str, peer: str) -> tuple[np.ndarray, np.ndarray]:
    """What ``peer`` told with :func:`tell_counts`: names and counts."""
    of, counts = parted(content, peer, 2)
    if of != run.encode():
        raise Refused("wrong-run", "counts of another start of the run", peer)
    return read_counts(counts, peer)


def run_mark(run: str, told: Mapping[str, bytes]) -> str:
    """The name of the run under which exchanges sign: with everything that silos told at its start, so that those who
    were told different stories do not understand each other."""
    return f"{run}/{hashlib.sha256(join_named(told)).hexdigest()}"


def common_randomness(plan: Plan, secret: Secret, run: str, drawn: Mapping[str, bytes]) -> Randomness:
    """The randomness that all silos have in common and the server does not know: from the secret that they share and
    from a number that each drew for this run, so that no party can make it repeat. With a seed, that of the plan."""
    if plan.experiment.seed is not None:
        return Randomness.from_seed(plan.experiment.seed)
    told = join([run.encode(), join_named(drawn)])
    key = bytes(secret.expose())
    return Randomness(hashlib.blake2b(told, key=key, digest_size=32, person=b"tacit-common").digest())
