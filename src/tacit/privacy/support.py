"""For which unit, relation, view and sampling Tacit proves anything: one closed table, and a reason for all the rest.

A combination is supported if there is a theorem for it *and* an event in ``events`` that is accounted for by it. What
the table does not list is refused, also where some bound may exist elsewhere: nothing is promised by analogy.

Sampling says who takes part by a coin that **the view does not know**. A view that knows the coins is accounted for
with "none" (specification 0.7), whatever was drawn:

none                everybody takes part in everything, or the view knows who does
poisson-records     every record enters a batch of its silo by a coin of public rate
poisson-subjects    one coin per subject and round, from a seed that the silos share
oblivious-subjects  the same by oblivious transfer, so that neither server nor silos know it (specification 4.7)
poisson-silos       one coin per silo and round; silos that are not drawn send noise
fixed-records       batches of a fixed number of records, without replacement
fixed-silos         a fixed number of silos per round, without replacement
shuffled-epochs     batches from a shuffled pass over the records; nothing is amplified (specification 0.4)
shuffled-reports    local reports in uniformly random order, padded by an honest shuffler (specification 5.2)
random-walk         a token that goes to a uniformly random silo next (specification 6.2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.terms import RELATIONS, UNITS, Relation, Unit, View

Sampling = Literal[
    "none",
    "poisson-records",
    "poisson-subjects",
    "oblivious-subjects",
    "poisson-silos",
    "fixed-records",
    "fixed-silos",
    "shuffled-epochs",
    "shuffled-reports",
    "random-walk",
]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)

_SILOS = ("silo", "silos", "server+silos")
_EVERYBODY = ("public", "server", *_SILOS)
_MEMBERS = ("neighbour", "coalition")


@dataclass(frozen=True)
class Supported:
    """One row: every combination of these is proved, by ``proof``; ``accounted`` names what builds its events."""

    sampling: Sampling
    units: tuple[Unit, ...]
    relation: Relation
    views: tuple[str, ...]
    proof: str
    accounted: tuple[str, ...]


SUPPORTED: tuple[Supported, ...] = (
    Supported(
        "none",
        ("record", "subject", "silo"),
        "zero-out",
        _EVERYBODY,
        "a sum in which the unit's part has norm at most C: exact Gaussian (specification 0.8, 2)",
        ("events.Gaussian", "events.Laplace", "events.DiscreteGaussian", "subject_events.weighted_users"),
    ),
    Supported(
        "none",
        ("record", "subject", "silo"),
        "replace",
        _EVERYBODY,
        "the same sum moves by at most 2 C (specification 0.2)",
        ("events.Gaussian", "subject_events.REPLACEMENT_FACTOR", "subject_events.clipped_batch_of_silo"),
    ),
    Supported(
        "none",
        ("subject", "silo"),
        "zero-out",
        _MEMBERS,
        "exact shift of the members' Gaussian view (specification 6.1, 6.3)",
        ("serverless.gopa", "serverless.gossip_event"),
    ),
    Supported(
        "none",
        ("subject", "silo"),
        "replace",
        _MEMBERS,
        "exact shift of the members' Gaussian view, twice the sensitivity (specification 6.1, 6.3)",
        ("serverless.gopa", "serverless.gossip_event"),
    ),
    Supported(
        "none",
        ("subject",),
        "replace",
        ("shuffler", "analyzer", "shuffler+analyzer"),
        "the local promise of every report (specification 5.2)",
        ("events.RandomizedResponse", "events.Laplace", "events.Pure"),
    ),
    Supported(
        "poisson-records",
        ("record", "subject"),
        "zero-out",
        _EVERYBODY,
        "sampled Gaussian and mixtures of Gaussians (specification 1.1, 1.2)",
        ("events.PoissonSampled", "subject_events.averaged_per_subject", "subject_events.summed_records"),
    ),
    Supported(
        "poisson-subjects",
        ("record", "subject"),
        "zero-out",
        ("public", "server"),
        "sampled Gaussian; a record is part of its subject (specification 1.2b, 4.3)",
        ("subject_events.weighted_users",),
    ),
    Supported(
        "oblivious-subjects",
        ("record", "subject"),
        "zero-out",
        ("public", "server"),
        "sampled Gaussian with rate a / M (specification 4.7)",
        ("subject_events.weighted_users",),
    ),
    Supported(
        "poisson-silos",
        ("record", "subject", "silo"),
        "zero-out",
        ("public",),
        "sampled Gaussian; what a silo holds is part of it (specification 1.2b)",
        ("events.PoissonSampled",),
    ),
    Supported(
        "fixed-records",
        ("record",),
        "replace",
        _EVERYBODY,
        "Renyi divergence of sampling without replacement (specification 0.4)",
        ("events.SampledWithoutReplacement",),
    ),
    Supported(
        "fixed-records",
        ("subject",),
        "zero-out",
        _EVERYBODY,
        "hypergeometric mixture with displaced records (specification 1.1)",
        ("subject_events.fixed_batches",),
    ),
    Supported(
        "fixed-silos",
        ("silo",),
        "replace",
        ("public",),
        "Renyi divergence of sampling without replacement (specification 6)",
        ("events.SampledWithoutReplacement",),
    ),
    Supported(
        "fixed-silos",
        ("subject",),
        "zero-out",
        ("public",),
        "hypergeometric mixture over silos (specification 1.2)",
        ("subject_events.sampled_silos_seen",),
    ),
    Supported(
        "shuffled-epochs",
        ("record", "subject"),
        "zero-out",
        _EVERYBODY,
        "one batch per epoch holds the record (specification 0.4)",
        ("subject_events.shuffled_epochs",),
    ),
    Supported(
        "shuffled-reports",
        ("subject",),
        "replace",
        ("public", "analyzer"),
        "clones and blankets (specification 5.2)",
        (
            "shuffled_protocols.ss_simple",
            "shuffled_protocols.ss_double_fixed",
            "shuffled_protocols.ss_double_bernoulli",
            "shuffled_protocols.ss_topk",
        ),
    ),
    Supported(
        "random-walk",
        ("subject", "silo"),
        "zero-out",
        ("public", *_MEMBERS),
        "as under replacement: a node without records is the identity, which brings nothing apart (specification 6.2)",
        ("events.RandomWalk",),
    ),
    Supported(
        "random-walk",
        ("subject", "silo"),
        "replace",
        ("public", *_MEMBERS),
        "amplification by iteration along the walk; against coalitions every visit in full (specification 6.2)",
        ("events.RandomWalk",),
    ),
)

_Key = tuple[Sampling, Unit, Relation, str]
_TABLE: dict[_Key, Supported] = {
    (row.sampling, unit, row.relation, view): row for row in SUPPORTED for unit in row.units for view in row.views
}


def support_of(unit: Unit, relation: Relation, view: View, sampling: str) -> Supported | None:
    """The row that covers this combination; None where there is none."""
    return _TABLE.get((sampling, unit, relation, view.kind))  # type: ignore[arg-type]


def refusal(unit: Unit, relation: Relation, view: View, sampling: str) -> str | None:
    """Why nothing is promised for this combination, with what to use instead; None where something is."""
    if support_of(unit, relation, view, sampling) is not None:
        return None
    if unit not in UNITS or relation not in RELATIONS or sampling not in SAMPLINGS:
        return (
            f"'{unit}', '{relation}', '{sampling}' are not all known; units: {', '.join(UNITS)}; "
            f"relations: {', '.join(RELATIONS)}; samplings: {', '.join(SAMPLINGS)}"
        )
    return _because(unit, relation, view, sampling) or _general(unit, relation, view, sampling)


def require_supported(unit: Unit, relation: Relation, view: View, sampling: str) -> Supported:
    """The row that covers this combination; ValueError with the reason where there is none."""
    row = support_of(unit, relation, view, sampling)
    if row is None:
        raise InvalidArgument("not-supported", "view", refusal(unit, relation, view, sampling) or "")
    return row


def _because(unit: Unit, relation: Relation, view: View, sampling: str) -> str | None:
    """The reason of the combinations that people are likely to ask for."""
    knows = f"who was drawn is known to {view.who}, and sampling gains nothing there: use 'none' for the view '{view}'"
    match sampling:
        case "poisson-records" | "fixed-records" | "shuffled-epochs" if unit == "silo":
            return (
                f"every batch is drawn from the silo's own data, so '{sampling}' gains nothing for a silo: use 'none'"
            )
        case "poisson-subjects" | "poisson-silos" | "fixed-silos" if view.kind in _SILOS:
            return knows
        case "oblivious-subjects" if view.kind in _SILOS:
            return "oblivious sampling is proved against the server and the public: use 'none' for silos"
        case "poisson-silos" | "fixed-silos" if view.kind == "server":
            return knows
        case "poisson-subjects" | "oblivious-subjects" if unit == "silo":
            return "sampling subjects hides no silo: use unit 'subject', or sampling 'none'"
        case "poisson-records" | "poisson-subjects" | "oblivious-subjects" | "poisson-silos" if relation == "replace":
            return "no bound is implemented for replacement under Poisson sampling: use relation 'zero-out'"
        case "shuffled-epochs" if relation == "replace":
            return "no bound is implemented for replacement in shuffled epochs: use relation 'zero-out'"
        case "fixed-records" if unit == "record" and relation == "zero-out":
            return "a record that leaves a batch of fixed size makes room for another one: use relation 'replace'"
        case "fixed-records" if unit == "subject" and relation == "replace":
            return "no bound is implemented for replacing all records of a subject in fixed batches: use 'zero-out'"
        case "shuffled-reports" if view.kind in ("shuffler", "shuffler+analyzer"):
            return "who shuffles knows the order: use sampling 'none', the local promise of every report"
        case "random-walk" if view.kind not in ("public", *_MEMBERS):
            return "a walk has nodes and no server: use the view 'neighbour', 'coalition' or 'public'"
        case _:
            return None


def _general(unit: Unit, relation: Relation, view: View, sampling: str) -> str:
    """What is supported with this sampling."""
    rows = (row for row in SUPPORTED if row.sampling == sampling)
    listed = "; ".join(f"{'/'.join(row.units)}, {row.relation}, {'/'.join(row.views)}" for row in rows)
    return (
        f"nothing is proved for unit '{unit}', relation '{relation}', view '{view}' with sampling '{sampling}'; "
        f"with it are: {listed}"
    )
