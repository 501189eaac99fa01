from __future__ import annotations

import math

import pytest

from tacit.privacy import View, unprotected
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


def test_without_noise_every_view_gets_infinity_with_the_reason():
    guarantees = unprotected("subject", (View("public"), View("server")), 1e-5, "no noise")
    assert [g.epsilon for g in guarantees] == [math.inf, math.inf]
    assert not any(g.finite for g in guarantees)
    assert guarantees[0].as_dict()["epsilon"] == "inf"
    assert guarantees[0].as_dict()["assumptions"] == ["no noise"]
