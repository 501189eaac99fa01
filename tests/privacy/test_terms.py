from __future__ import annotations

import math

import pytest

from tacit.privacy import View, unprotected


@pytest.mark.parametrize("text", ["public", "server", "silo", "silos:2", "server+silos:3", "coalition:[a,b]"])
def test_a_view_reads_back_as_it_was_written(text):
    assert str(View.parse(text)) == text


@pytest.mark.parametrize("text", ["everyone", "silos", "silos:0", "silos:x", "public:2", "coalition:[]", ""])
def test_what_is_no_view_is_refused(text):
    with pytest.raises(ValueError, match=r"view|number|members"):
        View.parse(text)


def test_without_noise_every_view_gets_infinity_with_the_reason():
    guarantees = unprotected("subject", (View("public"), View("server")), 1e-5, "no noise")
    assert [g.epsilon for g in guarantees] == [math.inf, math.inf]
    assert not any(g.finite for g in guarantees)
    assert guarantees[0].as_dict()["epsilon"] == "inf"
    assert guarantees[0].as_dict()["assumptions"] == ["no noise"]
