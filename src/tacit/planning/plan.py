"""From an experiment to a Plan: everything public, validated, before any record is read."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from tacit.data import DataOptions, SourceFacts, source_facts
from tacit.data.options import Columns
from tacit.errors import Forbidden, UserError, nearest
from tacit.exchange import Exchange, ReportFacts, SumFacts
from tacit.kernels import ServerStep
from tacit.methods import METHODS, Facts, Info, Method, Options, find_method
from tacit.methods.base import FACT_KEYS
from tacit.models import Convexity, Model, convexity, metric_names
from tacit.notebook import box, line
from tacit.planning.chosen_model import check_model, chosen_model, chosen_task, dropout_note, parameters_of
from tacit.planning.claims import ASSIGNED, Once, Promise, exchanges_for, suits
from tacit.planning.experiment import (
    EvaluationOptions,
    ExchangeOptions,
    Experiment,
    ModelOptions,
    PrivacyOptions,
    TrainOptions,
    located,
    located_data,
    path_from,
    read_experiment,
    respelled,
)
from tacit.planning.left_out import (
    check_delta,
    check_headline,
    clipped_in_little_noise,
    delta_warning,
    settled,
    weights_warning,
)
from tacit.privacy import Event, Guarantee, Unit, View
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.terms import FEWEST_STATISTICS_NOISE, LOG_LOSS_BOUND, STATISTICS_NOISE, guarantees_html, noise_text

# Why nothing can be promised about data that each silo standardises by itself.
PER_SILO = 'data.standardize = "per-silo" computes constants from private records without noise'

# Metrics that can be released with noise, by kind of label: averages over records of scores that have a bound (the
# square of rmse is one).
PAID_METRICS = {
    "binary": ("accuracy", "log_loss"),
    "multiclass": ("accuracy", "log_loss"),
    "real": ("rmse",),
}

DECLARE = "declare it; it is public and must not be counted from private records"


@dataclass(frozen=True)
class Plan:
    """A validated experiment. Holds public facts only; ``guarantees()`` works without data."""

    experiment: Experiment
    promise: Promise
    folder: Path

    @property
    def options(self) -> Options:
        """The keys of ``[method]``, with the noise given or solved for."""
        return self.promise.options

    @property
    def method(self) -> Method:
        """The parts of the method."""
        return self.promise.method

    @property
    def exchange(self) -> Exchange:
        """The exchange with its keys."""
        return self.promise.exchange

    @property
    def title(self) -> str:
        """The title of the experiment."""
        return self.experiment.title

    @property
    def label(self) -> str:
        """The method as people tell runs apart: ``fedavg``, or ``fedavg + adam`` with another server optimiser."""
        optimizer = self.experiment.train.server_optimizer
        name = self.options.info.name
        return name if optimizer == "sgd" else f"{name} + {optimizer}"

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.promise.facts.rounds

    @property
    def records_kept(self) -> int | None:
        """The cap on records of a subject in a silo: the smaller of the declared one and the method's own."""
        return self.promise.facts.records_kept

    @property
    def noise_multiplier(self) -> float | None:
        """Given, or solved for; None for a method without noise."""
        return self.options.noise_value if self.options.noise_key == "noise_multiplier" else None

    @property
    def noise_deviation(self) -> float | None:
        """The standard deviation of the noise on every number of a sum; None for a method without noise."""
        return None if self.method.noise is None else self.method.noise.in_a_round

    @property
    def local_epsilon(self) -> float | None:
        """What one person's messages cost by themselves, given or solved for; None where people send none."""
        return self.options.noise_value if self.options.noise_key == "local_epsilon" else None

    @property
    def parameters(self) -> int | None:
        """How many numbers are learned; None where that is not known before a record is read."""
        return parameters_of(self.experiment.model, source_facts(self.data))

    @property
    def statistics(self) -> Once | None:
        """The release of constants for standardising, if they are released with noise."""
        return self.promise.release("statistics")

    @property
    def evaluation(self) -> Once | None:
        """The release of the final metrics, if they are released with noise."""
        return self.promise.release("evaluation")

    @property
    def paid_metrics(self) -> dict[str, float]:
        """The metrics that are released with noise, each with the largest score that a record may have."""
        return _paid_metrics(self.experiment.evaluation, source_facts(self.data).labels.kind)

    @property
    def headline(self) -> str:
        """The metric that is shown first: the one that is named, or the first of those that are computed."""
        return self.experiment.evaluation.headline or self.metric_names[0]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics of a run: all of the kind of label, or those that are released with noise."""
        kind = source_facts(self.data).labels.kind
        return metric_names(kind) if self.evaluation is None else tuple(self.paid_metrics)

    @property
    def data(self) -> DataOptions:
        """The data section with its paths made absolute."""
        return located_data(self.experiment.data, self.folder)

    @property
    def server_step(self) -> ServerStep:
        """The server's optimiser and its learning rate."""
        train = self.experiment.train
        return ServerStep(train.server_optimizer, train.server_learning_rate)

    @property
    def from_this_table(self) -> tuple[str, ...]:
        """The settings that were read from the private table: every guarantee holds only if they are public."""
        return self.promise.from_table

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know about the guarantees before anything runs."""
        found = [delta_warning(self.promise.delta, self.promise.facts.subjects)] if self.method.private else []
        found.append(weights_warning(self.experiment.model, self.options))
        found.append(dropout_note(self.experiment.model, source_facts(self.data)))
        return tuple(warning for warning in found if warning is not None)

    def guarantees(self) -> tuple[Guarantee, ...]:
        """What this plan promises, one guarantee per view."""
        return self.promise.guarantees()

    def events(self) -> dict[str, Event]:
        """What the whole run releases, metrics with noise included, by place of a ledger: for every unit and
        relation, and every view that :meth:`Promise.everywhere` covers."""
        promise = self.promise
        rounds = promise.participations(promise.facts.rounds)
        return promise.everywhere(lambda other, view: other.total(view, rounds))

    def path(self, name: str) -> Path:
        """A path of the experiment file: relative ones start at the file's own folder."""
        return path_from(self.folder, name)

    def with_method(self, name: str) -> Plan:
        """The same experiment under another method, for comparison: comparable local work, every silo in every round,
        and for a private method the epsilon of this plan."""
        info = find_method(name).info
        if info.private:
            method = {"name": name, "target_epsilon": self.promise.planned_epsilon()}
        else:
            numbers = self.options.reference_numbers(self.server_step)
            method = {"name": name} | {key: value for key, value in numbers.items() if value is not None}
            if "batches_per_round" in method:
                method.pop("local_epochs", None)
        plain = {"rounds": self.rounds, "server_learning_rate": 1.0, "server_optimizer": "sgd"}
        train = self.experiment.train.model_copy(update=plain)
        # nothing of it is released; its own unit and exchange
        free = self.experiment.privacy.model_copy(
            update={"budget": None, "budget_file": None, "unit": None, "against": ("public",)}
        )
        if info.units[0] == "record":  # of the records that this plan keeps, each is protected by itself
            free = free.model_copy(update={"max_records_per_subject_and_silo": None, "max_silos_per_subject": None})
        exchange = ExchangeOptions(name=exchanges_for(info)[0])
        update = {"method": method, "train": train, "privacy": free, "exchange": exchange}
        return _join(self.experiment.model_copy(update=update), self.folder)

    def _repr_html_(self) -> str:
        noise = "" if self.noise_multiplier is None else f"; noise multiplier {noise_text(self.noise_multiplier)}"
        what = f"{self.label}: {self.method.info.summary}; {self.rounds} rounds{noise}"
        return box(
            f"Plan: {self.title}", line(what), *guarantees_html([found.as_dict() for found in self.guarantees()])
        )

    def to_toml(self) -> str:
        """The experiment as a file that gives the same plan again, wherever it lies."""
        placed = located(self.experiment, self.folder)
        return tomli_w.dumps(respelled(_without_none(placed.model_dump(by_alias=True, exclude_unset=True))))


def plan(
    source: Plan | Experiment | str | Path | Mapping[str, Any], changes: Sequence[str] = (), folder: Path | None = None
) -> Plan:
    """The plan of an experiment file or of a dictionary of the same shape (a plan is its own).

    ``changes`` are ``a.b=value`` settings (values in TOML) that replace what the file says. ``folder`` is where
    relative paths start: the file's own folder, or the current one.
    """
    if isinstance(source, Plan):
        return source
    if not isinstance(source, Experiment | str | Path | Mapping):
        problem = f"a {type(source).__name__} is no experiment"
        raise UserError("wrong-type", "experiment", problem, "pass a path or a dictionary")
    home = folder or (Path(source).resolve().parent if isinstance(source, str | Path) else Path.cwd())
    experiment = source if isinstance(source, Experiment) else read_experiment(source, changes)
    own = ":" in experiment.model.name or experiment.model.loss is not None
    if own and str(home) not in sys.path:
        sys.path.append(str(home))  # the user's own model may be in the folder of the experiment file
    return _join(experiment, home)


def _join(experiment: Experiment, folder: Path) -> Plan:
    """Check what belongs together and build the plan."""
    experiment = _with_packed(experiment, folder)
    options = experiment.made_method()
    exchange = _exchange(experiment, options.info)
    options.check(exchange)
    _check_step(experiment.train, options.info)
    known = source_facts(located_data(experiment.data, folder))
    given, experiment = experiment.train, settled(experiment, options, exchange, known)
    check_model(experiment.model, known)
    _check_task(options, known)
    if options.info.personal and options.info.private and experiment.evaluation.status == "paid":
        problem = "'private' does not cover metrics of the silos' own models, which no noise protects"
        raise UserError("not-supported", "evaluation.status", problem, "use 'outside-guarantee', or name a public file")
    promised = _with_noise(_promise(experiment, options, exchange, known), experiment.privacy)
    result = clipped_in_little_noise(Plan(experiment, promised, folder), given, known.labels.kind)
    promised = result.promise
    exchange.check(sum_facts(promised.method, promised.facts))
    promised.method.claim.check_size(None)
    check_headline(experiment.evaluation.headline, result.metric_names)
    if result.method.private:
        check_delta(experiment.privacy, promised.facts.subjects)
    _check_budget(result)
    return result


def _with_packed(experiment: Experiment, folder: Path) -> Experiment:
    """With the hash of the packed model that ``model.path`` names: it is a part of what the parties compare."""
    if experiment.model.name != "packed":
        return experiment
    from tacit.models.packed_model import find

    numbers = located(experiment, folder).model.numbers
    found = find(numbers.get("path"), numbers.get("sha256"))
    return experiment.model_copy(update={"model": experiment.model.model_copy(update={"sha256": found.sha256})})


def _promise(experiment: Experiment, options: Options, exchange: Exchange, known: SourceFacts) -> Promise:
    """The promise, with the noise still to be solved for where a target is given.

    Without ``privacy.against``: every view that the exchange speaks of, and the target binds those that the method does
    not trust and that learn nothing from the run's own rules about silos.
    """
    privacy, info = experiment.privacy, options.declared
    unit = privacy.unit or info.units[0]
    facts = _facts(experiment, options, unit, known)
    once = _once(experiment, known)
    if once and facts.subjects is None and exchange.masking is not None:
        problem = "is required: the width of a masked sum that is released once follows from it"
        raise UserError("missing", "data.subjects.count", problem, DECLARE)
    if unit not in info.units:
        problem = f"{info.name} does not protect a {unit}"
        raise UserError("not-supported", "privacy.unit", problem, f"use {' or '.join(info.units)}")
    views = _views(privacy.against, exchange, facts.silos)
    made = Promise(
        options,
        exchange,
        facts,
        unit,
        privacy.relation or info.relation(unit),
        views,
        views,
        privacy.delta,
        seeded=experiment.seed is not None,
        leaks=(PER_SILO,) if experiment.data.standardize == "per-silo" else (),
        once=once,
        beforehand=(ASSIGNED,) if experiment.data.assigned_together else (),
        from_table=_from_table(experiment),
    )
    if privacy.against is not None:
        return made
    trusts = () if exchange.noise_from_silos_only else info.trusts
    learns = {view for view in views if made.drops_for(view) or (exchange.index == "list" and view.holds_records)}
    return replace(made, against=tuple(view for view in views if view.kind not in trusts and view not in learns))


def _from_table(experiment: Experiment) -> tuple[str, ...]:
    """The settings that ``data.from_this_table`` names; each must be set."""
    for name in experiment.data.from_this_table:
        place: Any = experiment.model_dump(by_alias=True, exclude_unset=True)
        for key in name.split("."):
            if not isinstance(place, dict) or key not in place:
                problem = f"'{name}' is not set in this experiment"
                raise UserError("unknown-name", "data.from_this_table", problem, "name settings that the file has")
            place = place[key]
    return experiment.data.from_this_table


def _facts(experiment: Experiment, options: Options, unit: Unit, known: SourceFacts) -> Facts:
    """The public facts of the run; refuses a plan that lacks one which the method needs."""
    privacy = experiment.privacy
    facts = Facts(
        silos=known.silo_count or 0,
        rounds=experiment.train.rounds,
        subjects=known.subject_count,
        records_per_silo=_records_per_silo(experiment.data.records_per_silo, known.silo_count),
        max_records=privacy.max_records_per_subject_and_silo,
        max_silos=privacy.max_silos_per_subject,
        delta=privacy.delta,
        parameters=parameters_of(experiment.model, known),
        convex=_convexity(experiment.model, known.labels.kind),
        records_kept=privacy.max_records_per_subject_and_silo,
    )
    for fact in options.needs(unit):
        if not getattr(facts, fact):
            problem = f"is missing: {options.info.name} needs it to protect a {unit}"
            raise UserError("missing", FACT_KEYS[fact], problem, DECLARE)
    over = facts.silos_of_a_subject < facts.silos and privacy.over_silo_cap == "drop"
    facts = options.resolve(facts.pooled() if options.info.pools else facts)
    if "rounds" in experiment.train.model_fields_set and experiment.train.rounds != facts.rounds:
        problem = f"is {experiment.train.rounds}, and method.epochs asks for {facts.rounds} rounds"
        raise UserError("conflict", "train.rounds", problem, "leave one of the two out")
    return replace(facts, moves_up=facts.records_kept is not None, moves_over=over)


def _convexity(model: ModelOptions, kind: str) -> Convexity | None:
    """What is known about the loss as a function of what is trained; nothing about a loss of the user's own, nor about
    a product of factors."""
    if model.loss is not None or model.low_rank is not None:
        return None
    return convexity(model.name, kind, model.class_weights)


def _check_step(train: TrainOptions, info: Info) -> None:
    """Refuse settings of a server's step where there is no server."""
    for key in ("server_learning_rate", "server_optimizer"):
        if info.serverless and getattr(train, key) != TrainOptions.model_fields[key].default:
            problem = f"has no meaning for {info.name}, which has no server"
            raise UserError("no-effect", f"train.{key}", problem, "set method.local_learning_rate")


def _once(experiment: Experiment, known: SourceFacts) -> tuple[Once, ...]:
    """What is released once with noise; refuses settings that exclude each other."""
    privacy, evaluation = experiment.privacy, experiment.evaluation
    if evaluation.status == "public" and evaluation.data == "held-out":
        problem = "held-out records are as private as those that are trained on, not 'public'"
        fix = "name a public file in evaluation.data, or leave it out"
        raise UserError("conflict", "evaluation.status", problem, fix)
    if evaluation.data == "none" and evaluation.status != "outside-guarantee":
        problem = "'none' leaves no records to compute metrics on"
        raise UserError("conflict", "evaluation.data", problem, "leave evaluation.status out, or use 'held-out'")
    found = []
    if experiment.data.standardize == "paid":
        if known.columns is None:
            problem = f"'private' is for tables, and source '{experiment.data.source}' is none"
            raise UserError("not-supported", "data.standardize", problem, "leave it out")
        if not known.columns.unbounded:
            known.columns.bounds()
        noise = privacy.statistics_noise_multiplier or _statistics_noise(experiment, known, known.columns)
        found.append(Once("statistics", noise))
    elif privacy.statistics_noise_multiplier is not None:
        problem = "nothing needs it: no statistics are released"
        fix = 'leave it out, or set data.standardize = "private"'
        raise UserError("no-effect", "privacy.statistics_noise_multiplier", problem, fix)
    if evaluation.status == "paid":
        _paid_metrics(evaluation, known.labels.kind)
        if evaluation.noise_multiplier is None:
            problem = "is missing: private metrics need noise"
            raise UserError("missing", "evaluation.noise_multiplier", problem, "add it, for example 10.0")
        apart = evaluation.data == "held-out" and known.holds_out_people
        found.append(Once("evaluation", evaluation.noise_multiplier, apart))
    else:
        for key in ("noise_multiplier", "metrics", "loss_bound"):
            if getattr(evaluation, key) is not None:
                problem = f"has no meaning with status '{evaluation.status}'"
                fix = 'leave it out, or set evaluation.status = "private"'
                raise UserError("no-effect", f"evaluation.{key}", problem, fix)
    if found and not known.silo_count:
        problem = "is missing: what is released once has noise in shares, one per silo"
        raise UserError("missing", "data.silos.count", problem, DECLARE)
    return tuple(found)


def _statistics_noise(experiment: Experiment, known: SourceFacts, columns: Columns) -> float:
    """The noise of constants where the experiment gives none, from public facts.

    A histogram of columns without bounds (``noisy_queries.Spreads``) sees n / m subjects where each counts 1 / m, under
    noise of z sqrt(2 F) on every cell. The largest z is taken that leaves 20 standard deviations to that count, between
    10 and the least that may be spent: 3, or what takes a third of the target's 1 / sigma. Below 8 the columns could
    not be told from noise, and the plan is refused.
    """
    target, people = experiment.method.get("target_epsilon"), known.subject_count
    if not columns.unbounded or people is None:
        return STATISTICS_NOISE
    least = FEWEST_STATISTICS_NOISE
    if isinstance(target, int | float) and target > 0:
        from tacit.privacy.mechanisms.noise_mechanisms import gaussian_sigma

        least = max(least, 3 * gaussian_sigma(float(target), experiment.privacy.delta))
    silos = experiment.privacy.max_silos_per_subject or known.silo_count or 1
    visible = people / silos / math.sqrt(2 * len(columns.numeric))
    if visible / least < 8:
        width = len(columns.numeric)
        problem = f"{people} subjects in up to {silos} silos each are too few for the constants of {width} columns"
        fix = "declare constants or bounds in data.numeric, lower privacy.max_silos_per_subject, or use fewer columns"
        raise UserError("too-few", "data.standardize", problem, fix)
    return max(least, min(STATISTICS_NOISE, visible / 20))


def _paid_metrics(evaluation: EvaluationOptions, kind: str) -> dict[str, float]:
    """Names and bounds of the metrics that a private evaluation releases."""
    known = PAID_METRICS.get(kind, ())
    if not known:
        problem = f"'private' has no metric for a {kind} task: none is an average over records"
        raise UserError("not-supported", "evaluation.status", problem, "use 'public' or 'outside-guarantee'")
    names = evaluation.metrics or known
    for name in names:
        if name not in known:
            problem = f"'{name}' is not an average of bounded scores; accepted: {' and '.join(known)}"
            raise UserError("unknown-name", "evaluation.metrics", problem, nearest(name, known))
    if len(set(names)) < len(names):
        raise UserError("duplicate", "evaluation.metrics", "a metric is named twice", "name each once")
    if evaluation.loss_bound is None and "rmse" in names:
        problem = "is missing: the largest squared error of a record that counts is a public choice"
        raise UserError("missing", "evaluation.loss_bound", problem, "declare it, on the scale of the label squared")
    bound = evaluation.loss_bound or LOG_LOSS_BOUND
    return {name: 1.0 if name == "accuracy" else bound for name in names}


def _records_per_silo(declared: int | tuple[int, ...] | None, silos: int | None) -> tuple[int, ...] | None:
    """One number for every silo."""
    if declared is None or silos is None:
        return None
    if isinstance(declared, int):
        return (declared,) * silos
    if len(declared) != silos:
        problem = f"lists {len(declared)} numbers for {silos} silos"
        raise UserError("mismatch", "data.records_per_silo", problem, "give one number, or one per silo")
    return declared


def _with_noise(promised: Promise, privacy: PrivacyOptions) -> Promise:
    """The noise as given, or as a target needs it."""
    options = promised.options
    key = options.noise_key
    if key is None:
        return promised
    given, target = getattr(options, key) is not None, getattr(options, "target_epsilon", None)
    if given and target is not None:
        raise UserError("conflict", "method.target_epsilon", f"is given together with {key}", "keep one of the two")
    if given:
        return promised
    if target is None:
        problem = f"{options.info.name} has no noise: neither {key} nor target_epsilon is given"
        raise UserError("missing", f"method.{key}", problem, "add one of them")
    return promised.with_noise_for(target, "as-published" if options.publishes else privacy.target)


def _exchange(experiment: Experiment, info: Info) -> Exchange:
    """The exchange, if it suits the method."""
    exchange = experiment.made_exchange(exchanges_for(info)[0] if info.serverless else None)
    if not suits(type(exchange), info):
        noise = "" if info.place is None else f" with noise {info.adds}"
        problem = (
            f"'{exchange.name}' carries {exchange.carries}, and {info.name} sends {' or '.join(info.sends)}{noise}"
        )
        raise UserError("not-supported", "exchange.name", problem, f"use {exchanges_for(info)[0]}")
    return exchange


def sum_facts(method: Method, facts: Facts) -> SumFacts:
    """What is public about the sum over silos that ``method`` asks for."""
    silos, people, clip, work = facts.silos, facts.subjects or 1, method.clip, method.work
    reports = work.reports(facts)
    if reports is not None:
        return SumFacts(silos, people, reports.value_range, reports=ReportFacts(*reports.numbers))
    if clip is not None and clip.of == "subject":
        largest, norm, noise = clip.largest, clip.largest_norm, method.added_noise
        weights, numbers = work.record_weights, facts.parameters
        table = None if weights is None else weights.table(facts)
        if numbers is not None and clip.adaptive is not None:
            numbers += 1
        return SumFacts(
            silos,
            people,
            largest,
            noise,
            facts.max_records,
            work.rate,
            norm=norm,
            weights=table,
            numbers=numbers,
        )
    bound = 0.0 if clip is None or clip.of == "number" else clip.largest
    return SumFacts(silos, silos, bound, method.added_noise)


def model_and_form(plan: Plan) -> tuple[Model, tuple[int, ...], int]:
    """The model of a plan, the shape of one record, and the number of outputs; a UserError where they are not known
    before a record is read."""
    facts, options = source_facts(plan.data), plan.experiment.model
    if facts.feature_shape is None:
        problem = "the shape of a record is not known before the table is read"
        raise UserError("missing", "data.numeric", problem, "declare the feature columns")
    outputs = chosen_task(options, facts.labels).outputs
    return chosen_model(options, facts.feature_shape, outputs), facts.feature_shape, outputs


def _check_task(options: Options, facts: SourceFacts) -> None:
    """Refuse a method that looks at single records where a record alone has no loss (``Task.losses``)."""
    key = options.record_losses
    if key is None or facts.labels.kind != "survival":
        return
    able = ", ".join(name for name, kind in METHODS.items() if kind.info.private and kind().record_losses is None)
    fix = f"use one of {able}" if key == "name" else "leave it out"
    raise UserError(
        "not-supported",
        f"method.{key}",
        f"{options.info.name} clips or batches single records, and Cox has no per-record gradient",
        fix,
    )


def _views(against: tuple[str, ...] | None, exchange: Exchange, silos: int) -> tuple[View, ...]:
    """The views that guarantees are printed for: those that are named, or all of the exchange."""
    known = exchange.views(silos)
    try:
        views = tuple(dict.fromkeys(View.parse(text) for text in (known if against is None else against)))
    except InvalidArgument as error:
        fix = "list views such as public, server, silo, silos:2 or server+silos:2"
        raise UserError(error.code, "privacy.against", error.problem, fix) from None
    for view in views:
        if exchange.reveals_to(view) is None:
            problem = f"the {exchange.name} exchange has no view '{view}'"
            settings = exchange.settings_for(view)
            fix = f"use {', '.join(known)}" + (f", or set {settings}" if settings else "")
            raise UserError("unknown-name", "privacy.against", problem, fix)
    return views


def _check_budget(plan: Plan) -> None:
    """Refuse a budget that nothing can keep."""
    privacy = plan.experiment.privacy
    if privacy.budget is None:
        return
    if privacy.target == "as-published":
        _check_published_budget(plan)
    elif math.isinf(plan.promise.planned_epsilon()):
        infinite = [g for g in plan.guarantees() if not g.finite and g.view in plan.promise.against]
        reason = f": {infinite[0].assumptions[0]}" if infinite and infinite[0].assumptions else ""
        problem = f"{privacy.budget:g} is set, and the epsilon of {plan.method.name} is infinite{reason}"
        fix = "remove the budget, choose a private method, or name other views in privacy.against"
        raise Forbidden("no-guarantee", "privacy.budget", problem, fix)


def _check_published_budget(plan: Plan) -> None:
    """A paper's number is about the rounds of one run: it does not add up with anything else."""
    fix = 'use privacy.target = "proved"'
    if plan.experiment.privacy.budget_file is not None:
        raise UserError("not-supported", "privacy.budget_file", "published numbers of several runs do not add up", fix)
    if plan.promise.once:
        paid = " and ".join(once.mechanism for once in plan.promise.once)
        problem = f"the published accounting does not cover the {paid}"
        raise UserError("not-supported", "privacy.budget", problem, fix)
    if math.isinf(plan.promise.published_epsilon()):
        problem = f"nothing is published for {plan.method.name} and these views"
        raise UserError("not-supported", "privacy.target", problem, fix)


def _without_none(value: Any) -> Any:
    """TOML has no null: leave such keys out."""
    if isinstance(value, dict):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    return [_without_none(entry) for entry in value] if isinstance(value, list | tuple) else value
