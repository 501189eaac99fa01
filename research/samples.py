"""All private methods in small cases, and variants with code of their own: for tests and docs/audit.md.

Every sample has the views with a guarantee that run code of their own. With ``LITTLE`` noise an attack comes near to
what is proved. With a small part of ``MUCH`` noise (:func:`hardly_noisy`) a method clearly violates its guarantee: an
audit that does not detect this could not detect anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tacit.auditing.cases import Case, case
from tacit.methods import METHODS
from tacit.planning.plan import Plan

# (noise multiplier, local epsilon of methods with local noise)
LITTLE, MUCH = (0.5, 2.0), (2.0, 0.5)


@dataclass(frozen=True)
class Sample:
    """A ``[method]`` without its noise, the numbers of its case, and who looks."""

    method: dict[str, Any]
    views: tuple[str, ...] = ("public",)
    case: dict[str, Any] = field(default_factory=dict)

    def made(self, noise: tuple[float, float] = LITTLE) -> Case:
        multiplier, local = noise
        encodes = METHODS[self.method["name"]].noise_key == "local_epsilon"
        given = {"local_epsilon": local} if encodes else {"noise_multiplier": multiplier, "clip": 1.0}
        return case({**given, **self.method}, **self.case)


BATCHES = {"sample_rate": 0.5, "batches_per_round": 2, "local_learning_rate": 0.1}
ONE_RECORD = {"records": 1}
SHUFFLED = {"exchange": {"name": "shuffled", "sealed": False}, **ONE_RECORD}
HALF = {"index_rate": 0.5}
SUBJECT = {"unit": "subject"}
NODES = {"exchange": {"name": "direct"}, "silos": 3}
ADAPTIVE = {"adaptive_clip": {"count_noise": 1.0}}

SAMPLES: dict[str, Sample] = {
    "subject-sgd": Sample({"name": "subject-sgd", "subject_sample_rate": 0.5}, ("public", "server")),
    "subject-sgd, all people": Sample({"name": "subject-sgd"}, ("silo",)),  # a silo knows the coins: no amplification
    "subject-sgd, training": Sample({"name": "subject-sgd", "local_epochs": 2, "records_per_subject": 2}),
    "subject-sgd, adaptive": Sample({"name": "subject-sgd", **ADAPTIVE}),
    "uldp-avg": Sample({"name": "uldp-avg", "local_epochs": 2}, ("public", "server", "silo")),
    "uldp-sgd": Sample({"name": "uldp-sgd", "subject_sample_rate": 0.5}),
    "uldp-naive": Sample({"name": "uldp-naive"}, ("public", "server")),
    "uldp-naive, silo": Sample({"name": "uldp-naive"}, case={"unit": "silo"}),
    "uldp-group": Sample({"name": "uldp-group", "group_size": 4, **BATCHES}, case={"records": 2}),
    "local-record": Sample({"name": "local-record", **BATCHES}, ("public", "server")),
    "local-record, subject": Sample({"name": "local-record", **BATCHES}, case=SUBJECT),
    "local-group": Sample({"name": "local-group", "group_cap": 2, **BATCHES}, ("public", "server")),
    "higrad": Sample({"name": "higrad", **BATCHES}, ("public", "server")),
    "higrad, one batch": Sample({"name": "higrad", **BATCHES, "batches_per_round": 1}),
    "higrad, adaptive": Sample({"name": "higrad", **ADAPTIVE, **BATCHES}),
    # whole batches: what is drawn elsewhere would hide a silo, and that is not proved
    "user-ldp": Sample({"name": "user-ldp", **BATCHES, "sample_rate": 1.0}, ("public", "server")),
    "user-ldp, subject": Sample({"name": "user-ldp", **BATCHES}, case=SUBJECT),
    "pooled-dp-sgd": Sample({"name": "pooled-dp-sgd", **BATCHES}),
    "dp-fedavg": Sample({"name": "dp-fedavg", "silo_sample_rate": 0.5, "batch_size": 4}),
    "dp-fedavg, subject": Sample({"name": "dp-fedavg"}, case=SUBJECT),  # all silos: what lots hide is unproved
    "dp-fedsgd": Sample({"name": "dp-fedsgd"}),
    "central-group": Sample({"name": "central-group", "sample_rate": 0.5}),
    "fine-tune": Sample({"name": "fine-tune"}),
    "mean-regularized": Sample({"name": "mean-regularized", "silo_sample_rate": 0.5}),
    "mean-regularized, subject, two rounds": Sample({"name": "mean-regularized"}, case={**SUBJECT, "rounds": 2}),
    "graph-regularized": Sample({"name": "graph-regularized", "relations": "learned"}),
    "per-fedavg": Sample({"name": "per-fedavg", "order": "hessian-vector"}),
    "pfedme": Sample({"name": "pfedme"}),
    "fedem": Sample({"name": "fedem", "components": 2}),
    "muffliato-sgd": Sample({"name": "muffliato-sgd", "topology": "complete"}, case=NODES),
    "muffliato-sgd, adopted": Sample({"name": "muffliato-sgd", "adopt": True}, case=NODES),
    "random-walk": Sample({"name": "random-walk", "walk_steps": 3}, case=NODES),
    "local-walk": Sample({"name": "local-walk", "walk_steps": 3}, case=NODES),
    "ldp-gaussian": Sample({"name": "ldp-gaussian"}, ("public", "server"), ONE_RECORD),
    "ldp-laplace": Sample({"name": "ldp-laplace"}, ("public", "server"), ONE_RECORD),
    "ss-simple": Sample({"name": "ss-simple"}, ("public", "shuffler+analyzer"), SHUFFLED),
    "ss-double": Sample({"name": "ss-double", **HALF}, ("public", "shuffler+analyzer"), SHUFFLED),
    "ss-double, fixed": Sample({"name": "ss-double", "index_sampling": "fixed", **HALF}, case=SHUFFLED),
    "ss-topk": Sample({"name": "ss-topk", **HALF}, case=SHUFFLED),
}
# any other method that adds noise: its defaults
SAMPLES |= {
    name: Sample({"name": name})
    for name, kind in METHODS.items()
    if kind.info.private and name not in {sample.method["name"] for sample in SAMPLES.values()}
}
PAIRS = [(name, view) for name, sample in SAMPLES.items() for view in sample.views]


def hardly_noisy(plan: Plan) -> Plan:
    """The plan with a tenth of its noise; with a hundredth if the noise of all subjects is in the sum."""
    options, given = plan.options, plan.options.noise_value
    left = 0.01 / given if options.noise_key == "local_epsilon" else 0.1 * given
    return replace(plan, promise=replace(plan.promise, options=options.with_noise(left)))
