"""Attacks succeed where nothing stops them, and each says how well."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from research.attacks import (
    attribute,
    difference,
    invert_gradient,
    likelihood_ratio,
    membership,
    per_subject,
    rebuild,
)
from tacit.models import build

RNG = np.random.default_rng(0)


def test_membership_is_the_area_under_the_curve_and_the_share_found_at_few_false_alarms():
    score_in, score_out = RNG.normal(1, 1, 500).round(1), RNG.normal(0, 1, 700).round(1)
    found = membership(score_in, score_out)
    truth = np.r_[np.ones(500), np.zeros(700)]
    assert found.auc == pytest.approx(roc_auc_score(truth, np.r_[score_in, score_out]))
    threshold = np.sort(score_out)[-7]
    assert found.found_at_one_percent == pytest.approx((score_in > threshold).mean(), abs=0.01)
    assert membership(score_in + 100, score_out).found_at_one_percent == 1
    assert membership(score_out, score_out).auc == pytest.approx(0.5)


def test_many_weak_hints_about_a_person_are_one_strong_hint():
    subject = np.repeat(np.arange(400), 10)
    member = np.arange(400) < 200
    scores = 0.5 * member[subject] + RNG.normal(size=4000)
    records = membership(scores[member[subject]], scores[~member[subject]])
    means, people = per_subject(scores, subject)
    np.testing.assert_array_equal(people, np.arange(400))
    assert means[3] == pytest.approx(scores[30:40].mean())
    assert membership(means[member], means[~member]).auc > records.auc + 0.1


def test_likelihood_ratios_with_shadow_models_see_past_hard_and_easy_records():
    hard, member = 3 * RNG.normal(size=600), RNG.random(600) < 0.5
    shadow_in = RNG.random((16, 600)) < 0.5
    scores = hard + member + 0.7 * RNG.normal(size=600)
    shadows = hard + shadow_in + 0.7 * RNG.normal(size=(16, 600))
    ratio = likelihood_ratio(scores, shadows, shadow_in)
    assert membership(scores[member], scores[~member]).auc < 0.65
    assert membership(ratio[member], ratio[~member]).auc > 0.8


def test_the_gradient_of_one_record_gives_the_record_back():
    model = build("mlp", (6, 6), 3, hidden=[16])
    params = model.init(jax.random.key(0))
    image = RNG.random((1, 6, 6)).astype(np.float32)
    gradient = jax.grad(lambda p: jax.nn.logsumexp(model.apply(p, jnp.asarray(image))) - model.apply(p, image)[0, 1])(
        params
    )
    layer = gradient["layer0"]
    found = invert_gradient(np.asarray(layer["w"]), np.asarray(layer["b"]))
    np.testing.assert_allclose(found.reshape(6, 6), image[0], atol=1e-4)
    assert np.isfinite(invert_gradient(np.zeros((4, 2)), np.zeros(2))).all()


def test_two_means_that_differ_by_a_person_give_the_person_away():
    values = RNG.normal(40, 10, size=(1000, 2))
    found = difference(values.mean(0), values[1:].mean(0), 1000, 999)
    np.testing.assert_allclose(found, values[0], rtol=1e-8)


def test_which_value_somebody_has_is_the_side_on_which_a_release_lies():
    np.testing.assert_array_equal(attribute(np.array([[2.0, 0.0], [-1.0, 5.0]]), np.array([1.0, 0.0])), [True, False])


def test_answers_with_little_noise_give_everybodys_bit_back_and_with_much_noise_do_not():
    bits, queries = RNG.random(100) < 0.5, RNG.random((400, 100)) < 0.5
    exact = queries @ bits.astype(float)
    assert (rebuild(queries, exact + RNG.normal(size=400)) == bits).all()
    assert (rebuild(queries, exact + 60 * RNG.normal(size=400)) == bits).mean() < 0.75
