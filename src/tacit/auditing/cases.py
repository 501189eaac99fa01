"""Small artificial federations in which one unit moves a release as far as possible, with a plan on public facts.

Records are linear regression with a huge label: the gradient of such a record points along its features for any model,
and every clip scales it to exactly the clip. One feature is set, or all of them if numbers are clipped one by one. All
other subjects are

silent   without a gradient: the release is the unit and noise. Worst if contributions are clipped one by one
against  with the largest gradient in the opposite direction. Worst if a sum is clipped, whose direction one unit can
         reverse
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from tacit.data import Federation, Labels, Records
from tacit.methods import Options, find_method
from tacit.planning.plan import Plan, plan
from tacit.privacy import Relation, Unit

Others = Literal["silent", "against"]

FEATURES = 4
PULL = 1e6  # label of the unit: outweighs all others together
WEIGHT = 10.0  # its feature: the gradient is nearly all along it, the rest is on the bias
CROWD = 6  # other people in every silo, with one record each

# A subject that is part of what is clipped as a whole can reverse its direction; otherwise a unit moves furthest if no
# other subject moves.
TURNS_AROUND = ("silo", "batch")


@dataclass(frozen=True)
class Case:
    """Two neighbouring federations with one plan."""

    plan: Plan
    unit: Unit
    relation: Relation
    present: Federation
    absent: Federation  # without the unit, or with another one in its place
    absent_elsewhere: Federation  # without what the unit has outside the last silo, which knows its own records

    def without(self, view: str) -> Federation:
        """The world to distinguish from ``present``: the guarantee against a silo is about other silos' records."""
        return self.absent_elsewhere if view == "silo" else self.absent


def case(
    method: Mapping[str, Any],
    *,
    unit: Unit | None = None,
    others: Others | None = None,
    silos: int = 2,
    records: int = 3,
    subject_silos: int | None = None,
    rounds: int = 1,
    exchange: Mapping[str, Any] | None = None,
    crowd: int = CROWD,
    features: int = FEATURES,
    delta: float = 1e-5,
    capped: bool = False,
) -> Case:
    """The case of a ``[method]`` for its unit: a subject has ``records`` records in each of its silos (all, unless
    ``subject_silos`` says otherwise), a silo is the first one, a record is a person's only one. ``exchange`` is an
    ``[exchange]``; left out: plain. ``capped``: caps are declared for records, too."""
    most = silos if subject_silos is None else subject_silos
    protects = unit or find_method(method["name"]).info.units[0]
    caps = {"max_records_per_subject_and_silo": records, "max_silos_per_subject": most, "over_silo_cap": "refuse"}
    experiment = {
        "data": {
            "silos": {"column": "silo", "count": silos},
            "subjects": {"column": "person", "count": 1 + crowd * silos},
            "records_per_silo": crowd + records,
            "task": "real",
            "numeric": [f"x{i}" for i in range(features)],
        },
        "model": {"name": "linear"},
        "method": dict(method),
        "train": {"rounds": rounds},
        "privacy": {
            # with caps, another record could take the place of a removed one
            **({} if protects == "record" and not capped else caps),
            "delta": delta,
            **({} if unit is None else {"unit": unit}),
        },
        "exchange": dict(exchange or {"name": "plain"}),
    }
    made = plan(experiment)
    protected, relation = made.promise.unit, made.promise.relation
    bounds = None if made.method.clip is None else made.method.clip.of
    pulls = others or ("against" if bounds in TURNS_AROUND and protected != "silo" else "silent")
    rows, own = _rows(protected, silos, most, records, crowd, pulls, features, features if bounds == "number" else 1)
    changed = (_changed(rows, which, relation) for which in (own, own & (rows.silo < silos - 1)))
    worlds = (_federation(world, silos, 1 + crowd * silos) for world in (rows, *changed))
    return Case(made, protected, relation, *worlds)


def numbers_of(options: Options) -> dict[str, Any]:
    """Options as the ``[method]`` that gives it again, with the noise that it has."""
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    kept = {key: value for key, value in given.items() if value is not None and key != "target_epsilon"}
    if "batches_per_round" in kept:
        kept.pop("local_epochs", None)
    if (adaptive := kept.get("adaptive_clip")) is not None:
        kept["adaptive_clip"] = {field.name: getattr(adaptive, field.name) for field in fields(adaptive)}
    return {"name": options.info.name, **kept}


def _rows(
    unit: Unit, silos: int, most: int, records: int, crowd: int, others: Others, width: int, pulled: int
) -> tuple[Records, np.ndarray]:
    """The records, and which of them are the unit's. Subject 0 is the unit, or has the unit's records; all others have
    one record. Of ``width`` features ``pulled`` are set."""
    own_silo = np.repeat(np.arange(most), records) if unit == "subject" else np.zeros(1, int)
    subject = np.concatenate([np.zeros(len(own_silo), np.int64), 1 + np.arange(crowd * silos)])
    silo = np.concatenate([own_silo, np.repeat(np.arange(silos), crowd)]).astype(np.int32)
    own = np.arange(len(subject)) < len(own_silo)
    features = np.zeros((len(subject), width), np.float32)
    features[own | (others == "against"), :pulled] = WEIGHT
    labels = np.where(own, PULL, -1.0 if others == "against" else 0.0).astype(np.float32)
    kept = own | (silo > 0) if unit == "silo" else np.ones_like(own)  # the first silo has no other subject
    return Records(features, labels, subject, silo).take(kept), own[kept]


def _changed(rows: Records, which: np.ndarray, relation: Relation) -> Records:
    """Some rows zeroed out, or others in their place, which pull the other way."""
    if relation == "replace":
        return replace(rows, labels=np.where(which, -rows.labels, rows.labels))
    return rows.take(~which)


def _federation(rows: Records, silos: int, subjects: int) -> Federation:
    records = rows.grouped()
    names = tuple(f"silo {k + 1}" for k in range(silos))
    columns = tuple(f"x{i}" for i in range(rows.features.shape[1]))
    return Federation(records, records, Labels("real"), names, subjects, columns, "records")
