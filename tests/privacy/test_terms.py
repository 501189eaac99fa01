from __future__ import annotations

import math

import pytest

from tacit.privacy import AsPublished, Guarantee, Linkage, View
from tacit.privacy.invalid import InvalidArgument
from tests.refusals import refuses


@pytest.mark.parametrize("text", ["public", "server", "silo", "silos:2", "server+silos:3", "coalition:[a,b]"])
def test_a_view_reads_back_as_it_was_written(text):
    assert str(View.parse(text)) == text


UNKNOWN, MALFORMED = ["everyone", "silos:x", ""], ["silos", "silos:0", "public:2", "coalition:[]"]


@pytest.mark.parametrize("text", [*UNKNOWN, *MALFORMED])
def test_what_is_no_view_is_refused(text):
    with refuses("unknown-name" if text in UNKNOWN else "malformed", "view", InvalidArgument):
        View.parse(text)


def test_the_json_of_a_guarantee_has_plain_values_and_a_word_for_infinity():
    facts = ("subject", "zero-out", View("silos", 2), "none", math.inf, 1e-5, "none", ("no noise",))
    guarantee = Guarantee(*facts, AsPublished(math.inf, "no", "no bound"), Linkage(2, math.inf))
    assert not guarantee.finite
    assert guarantee.as_dict() == {
        "unit": "subject",
        "relation": "zero-out",
        "view": "silos:2",
        "sampling": "none",
        "epsilon": "inf",
        "delta": 1e-5,
        "accountant": "none",
        "assumptions": ["no noise"],
        "as_published": {"epsilon": "inf", "valid": "no", "reason": "no bound"},
        "linkage": {"pseudonyms": 2, "epsilon": "inf"},
        "valid": "yes",
    }
    assert Guarantee(*facts).as_dict()["linkage"] is None
