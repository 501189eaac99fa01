"""Settings that are left out and follow from public facts, and checks and warnings of single settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tacit.data import SourceFacts
from tacit.errors import UserError, nearest
from tacit.exchange import Exchange
from tacit.methods import Options
from tacit.planning.experiment import Experiment, ModelOptions, PrivacyOptions, TrainOptions
from tacit.planning.verdict import verdict

if TYPE_CHECKING:
    from tacit.planning.plan import Plan


def settled(experiment: Experiment, options: Options, exchange: Exchange, known: SourceFacts) -> Experiment:
    """With what is left out of ``[train]`` and ``[privacy]`` and follows from the method, the exchange and public
    facts. It becomes a part of the experiment, so that a run folder says what was used."""
    train, privacy = experiment.train, experiment.privacy
    rule = {} if options.train_rule is None else options.train_rule.values(options, known.labels.kind)
    left_out = {key: value for key, value in rule.items() if key not in train.model_fields_set}
    cap, field = exchange.record_cap(known.silo_count or 0), "max_records_per_subject_and_silo"
    capped = {field: cap} if cap is not None and privacy.max_records_per_subject_and_silo is None else {}
    if not left_out and not capped:
        return experiment
    sections = {"train": train.model_copy(update=left_out), "privacy": privacy.model_copy(update=capped)}
    return experiment.model_copy(update=sections)


def clipped_in_little_noise(plan: Plan, given: TrainOptions, labels: str) -> Plan:
    """With the clip of the method's rule, where noise is small next to the signal. ``given`` is what the experiment
    says itself: a rate without a clip is one along directions. Noise is relative to the clip: no guarantee changes."""
    options, rule, experiment = plan.options, plan.options.train_rule, plan.experiment
    if (
        rule is None
        or not rule.applies(options)
        or labels == "real"
        or "server_learning_rate" in given.model_fields_set
    ):
        return plan
    found = verdict(plan)
    if found is None or found.ratio > rule.little_noise:
        return plan
    clip = {"clip": rule.clip}
    train = experiment.train.model_copy(update={"server_learning_rate": rule.clip_rate})
    made = experiment.model_copy(update={"train": train, "method": {**experiment.method, **clip}})
    return replace(plan, experiment=made, promise=replace(plan.promise, options=replace(options, **clip)))


def check_delta(privacy: PrivacyOptions, people: int | None) -> None:
    """Refuse a delta that leaves little of a guarantee, unless it is confirmed."""
    if people is None or privacy.confirm_delta or privacy.delta <= people**-0.5:
        return
    problem = f"{privacy.delta:g} is above 1 / sqrt({people:,} people): such a guarantee says next to nothing"
    fix = f"use {0.1 / people:.0e} or less, or set privacy.confirm_delta = true"
    raise UserError("out-of-range", "privacy.delta", problem, fix)


def delta_warning(delta: float, people: int | None) -> str | None:
    """What to know about a delta above 1 / people."""
    if people is None or delta * people <= 1:
        return None
    return (
        f"privacy.delta = {delta:g} is above 1 / {people:,} people: a method that publishes one person's records"
        f" at random could have this guarantee. Use {0.1 / people:.0e} or less."
    )


def weights_warning(model: ModelOptions, options: Options) -> str | None:
    """What to know about class weights where gradients are scaled to length 1."""
    if model.class_weights is None or options.train_rule is None or not options.train_rule.applies(options):
        return None
    return (
        "model.class_weights cancel for a subject whose records are all of one class, because gradients are scaled to"
        " length 1: set method.clip."
    )


def check_headline(named: str | None, known: Sequence[str]) -> None:
    """Refuse a headline that is not among the metrics of the run."""
    if named is not None and named not in known:
        problem = f"'{named}' is not a metric of this run; accepted: {', '.join(known)}"
        raise UserError("unknown-name", "evaluation.headline", problem, nearest(named, known))
