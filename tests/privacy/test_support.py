"""The table of what is proved is closed: every combination is either in it or refused with a reason."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from pathlib import Path

import pytest

import tacit.privacy
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.support import SAMPLINGS, SUPPORTED, refusal, require_supported, support_of
from tacit.privacy.terms import RELATIONS, UNITS, View
from tests.refusals import refuses

PRIVACY = Path(tacit.privacy.__file__).parent
VIEWS = [
    View.parse(text)
    for text in (
        "public",
        "server",
        "silo",
        "silos:2",
        "server+silos:3",
        "shuffler",
        "analyzer",
        "shuffler+analyzer",
        "neighbour",
        "coalition:[a,b]",
    )
]


def test_every_combination_is_supported_or_refused_with_a_reason() -> None:
    for unit, relation, view, sampling in product(UNITS, RELATIONS, VIEWS, SAMPLINGS):
        row, reason = support_of(unit, relation, view, sampling), refusal(unit, relation, view, sampling)
        assert (row is None) != (reason is None)
        if row is not None:
            assert require_supported(unit, relation, view, sampling) is row
        else:
            assert reason is not None
            assert len(reason) > 30
            with refuses("not-supported", "view", InvalidArgument):
                require_supported(unit, relation, view, sampling)


def test_every_row_says_by_what_it_is_accounted_for() -> None:
    for row in SUPPORTED:
        assert "specification" in row.proof
        for name in row.accounted:
            module, attribute = name.split(".")
            (file,) = PRIVACY.rglob(f"{module}.py")
            dotted = ".".join(file.relative_to(PRIVACY).with_suffix("").parts)
            assert hasattr(import_module(f"tacit.privacy.{dotted}"), attribute)
        # no combination twice
        assert all(
            support_of(u, row.relation, v, row.sampling) is row for u in row.units for v in VIEWS if v.kind in row.views
        )


@pytest.mark.parametrize(
    ("unit", "relation", "view", "sampling", "part"),
    [
        ("silo", "zero-out", "server", "poisson-records", "own data"),
        ("subject", "zero-out", "silo", "poisson-subjects", "who was drawn is known"),
        ("silo", "zero-out", "server", "poisson-silos", "who was drawn is known"),
        ("record", "zero-out", "public", "fixed-records", "'replace'"),
        ("subject", "replace", "public", "poisson-records", "'zero-out'"),
        ("subject", "replace", "shuffler+analyzer", "shuffled-reports", "'none'"),
        ("silo", "replace", "server", "random-walk", "'neighbour'"),
        ("record", "replace", "neighbour", "none", "nothing is proved"),
        ("person", "replace", "public", "none", "not all known"),
        ("subject", "zero-out", "public", "every-other", "not all known"),
    ],
)
def test_refusals_say_what_to_use_instead(unit, relation, view, sampling, part) -> None:
    assert part in (refusal(unit, relation, View.parse(view), sampling) or "")


def test_the_combinations_of_the_specification_are_supported() -> None:
    for unit, relation, view, sampling in (
        ("subject", "zero-out", "public", "poisson-records"),
        ("subject", "zero-out", "server", "none"),
        ("subject", "replace", "analyzer", "shuffled-reports"),
        ("record", "replace", "public", "fixed-records"),
        ("silo", "replace", "server", "none"),
        ("silo", "zero-out", "coalition:[a]", "none"),
        ("silo", "replace", "neighbour", "random-walk"),
    ):
        assert refusal(unit, relation, View.parse(view), sampling) is None
