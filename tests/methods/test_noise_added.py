"""The noise that is really added: its variance (chi-square, error probability 1e-6), and that nothing is reused.

Where every feature is zero, the weights of a linear model move by noise alone; only its bias sees the labels.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from tacit.engine.simulate import Simulation
from tacit.kernels import gaussian, key_words, nonce_words
from tacit.methods.clips import AdaptiveClip
from tacit.privacy import Randomness
from tests.methods.worlds import before_noise, federation, simulation, weights

WIDE = 2000
SIGMA, CLIP, RATE = 3.0, 0.5, 0.2


def silent(silos: int = 2, rows: int = 12, scale: float = 0.0) -> Any:
    """Records without features, several people with several records each, in every silo."""
    rng = np.random.default_rng(0)
    features = scale * rng.normal(size=(rows * silos, WIDE))
    subject, silo = np.arange(rows * silos) % 5, np.repeat(np.arange(silos), rows)
    return federation(features, rng.normal(size=rows * silos), subject, silo, silos)


def assert_variance(noise: np.ndarray, variance: float) -> None:
    """``noise`` is centred and has this variance: chi-square and normal, each with error probability 1e-6."""
    low, high = chi2.ppf([5e-7, 1 - 5e-7], len(noise))
    assert low < np.square(noise).sum() / variance < high
    assert abs(noise.mean()) < 4.9 * np.sqrt(variance / len(noise))


def assert_independent(one: np.ndarray, other: np.ndarray) -> None:
    assert abs(np.corrcoef(one, other)[0, 1]) < 4.9 / np.sqrt(len(one))


def moves(sim: Simulation, rounds: int = 1) -> list[np.ndarray]:
    """By what each round moved the weights that only noise moves."""
    found, before = [], weights(sim)
    for number in range(1, rounds + 1):
        sim.round(number)
        after = weights(sim)
        found.append((after - before)[-WIDE:])
        before = after
    return found


# at rate 1e-9 every batch is empty
@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("local-record", 0.2),
        ("higrad", 0.2),
        ("user-ldp", 0.2),
        ("higrad", 1e-9),
    ],
)
def test_every_batch_of_every_silo_has_its_own_noise_also_an_empty_one(name, rate):
    """Two silos, three batches, two rounds: variances add up, so no noise is used twice."""
    silos, batches, step = 2, 3, 0.1
    method = {"name": name, "noise_multiplier": SIGMA, "clip": CLIP, "sample_rate": rate, "batches_per_round": batches}
    sim = simulation(silent(silos), {**method, "local_learning_rate": step}, data={"records_per_silo": 50})
    divisor = 1.0 if name == "user-ldp" else rate * 50
    first, second = moves(sim, 2)
    variance = silos * batches * (step * SIGMA * CLIP / divisor / silos) ** 2
    assert_variance(first, variance)
    assert_variance(second, variance)
    assert_independent(first, second)


def test_the_noise_of_a_batch_does_not_depend_on_the_records():
    """With and without features, so small that they move nothing themselves."""
    common = {"name": "higrad", "noise_multiplier": SIGMA, "clip": CLIP, "sample_rate": RATE, "batches_per_round": 3}
    method = {**common, "local_learning_rate": 0.1}
    (one,) = moves(simulation(silent(), method, data={"records_per_silo": 50}))
    (other,) = moves(simulation(silent(scale=1e-7), method, data={"records_per_silo": 50}))
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert np.abs(one).max() > 0.01


SHARES = {
    "subject-sgd": ({"name": "subject-sgd", "subject_sample_rate": 0.5}, SIGMA * CLIP / 2.5),
    "uldp-naive": ({"name": "uldp-naive"}, SIGMA * CLIP * 3 / 3),
}
ONCE = {
    "dp-fedavg": ({"name": "dp-fedavg", "silo_sample_rate": 0.5}, SIGMA * CLIP / 1.5),
    "central-group": ({"name": "central-group", "sample_rate": RATE}, np.sqrt(3) * SIGMA * CLIP / (RATE * 300)),
}


@pytest.mark.parametrize("name", [*SHARES, *ONCE])
def test_the_sum_of_a_round_has_the_stated_noise(name):
    method, deviation = (SHARES | ONCE)[name]
    sim = simulation(silent(3), {**method, "noise_multiplier": SIGMA, "clip": CLIP})
    first, second = moves(sim, 2)
    assert_variance(first, deviation**2)
    assert_variance(second, deviation**2)
    assert_independent(first, second)


def test_shares_are_equal_parts_of_the_variance_one_from_each_silos_own_key():
    sim = simulation(silent(3), {"name": "uldp-sgd", "noise_multiplier": SIGMA, "clip": CLIP})
    (total,) = moves(sim)
    keys = [key_words(sim.randomness.stream("noise", 1, k)) for k in range(3)]
    shares = [gaussian(key, nonce_words(0), (1 + WIDE,))[1:] * SIGMA * CLIP / np.sqrt(3) for key in keys]
    np.testing.assert_allclose(-total * 15, sum(shares), atol=1e-4)
    for share in shares:
        assert_variance(np.asarray(share), (SIGMA * CLIP) ** 2 / 3)
    assert_independent(shares[0], shares[1])


def test_published_noise_of_local_group_follows_the_largest_group_of_each_batch():
    """What makes it give group sizes away: a batch with a larger group gets more noise."""
    common = {"name": "local-group", "noise": "as-published", "noise_multiplier": 2.0, "clip": CLIP}
    method = {**common, "batches_per_round": 1, "local_learning_rate": 1.0, "sample_rate": 1.0}
    sim = simulation(
        silent(1, rows=10),
        method,
        privacy={"max_records_per_subject_and_silo": 2},
        data={"records_per_silo": 10},
    )
    levels = sim.work.schedule.noise
    assert levels[0] == levels[1] == pytest.approx(2.0, rel=1e-3)
    assert levels[2] > 1.5 * levels[1]
    assert_variance(moves(sim)[0], (levels[2] * CLIP / 10) ** 2)  # everybody's two records are in the batch


# -- a clip that follows a quantile


# one of each way in which vectors are clipped and noise is added
ADAPTIVE = {
    "subject-sgd": {"name": "subject-sgd"},
    "dp-fedsgd": {"name": "dp-fedsgd"},
    "higrad": {"name": "higrad", "sample_rate": 0.5, "batches_per_round": 2, "local_learning_rate": 1e-9},
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_noise_is_scaled_to_the_clip_that_was_used_and_the_clip_moves_towards_the_quantile(name):
    """Norms are those of the labels, around 1. The same round again: the same normals."""
    adaptive = {"quantile": 0.7, "rate": 0.5, "count_noise": 0.05}
    method = {**ADAPTIVE[name], "noise_multiplier": 1e-3, "clip": CLIP, "adaptive_clip": adaptive}
    sim = simulation(silent(), method, data={"records_per_silo": 12})
    start, found = sim.server, {}
    for clip in (1e-3, 1e3):
        sim.server = start._replace(extra=np.float32(clip))
        (noise,) = moves(sim)
        found[clip] = np.square(noise, dtype=np.float64).sum()
        after = float(sim.server.extra)
        assert after < 0.95 * clip if clip > 1 else after > 1.05 * clip
        sim.server = start
    assert found[1e3] == pytest.approx(1e12 * found[1e-3], rel=1e-2)


def test_the_count_has_the_stated_noise():
    """Read off the clip, which moves by rate times the noisy share."""
    adaptive = {"count_noise": 7.0, "rate": 0.5}
    method = {"name": "subject-sgd", "noise_multiplier": SIGMA, "clip": CLIP, "adaptive_clip": adaptive}
    data = {"subjects": {"column": "person", "count": 10**6}, "records_per_silo": 10**6}
    made = federation(np.zeros((4, 3)), np.zeros(4), [0, 1, 2, 3], [0, 0, 1, 1], 2)
    sim = simulation(made, method, rounds=150, data=data)
    noise = []
    for number in range(1, 151):
        sim.server = sim.server._replace(extra=np.float32(1.0))
        sim.round(number)
        noise.append(-np.log(float(sim.server.extra)) / 0.5 * 1e6)
    noise = np.array(noise) - 1.0  # everybody is below: four times 1/2, at weight 1/2
    # float32 keeps 1e-7 of a share of 7e-6, so a few per cent of each draw
    low, high = chi2.ppf([5e-7, 1 - 5e-7], len(noise))
    assert 0.98 * low < np.square(noise).sum() / 7.0**2 < 1.02 * high


def test_a_clip_with_nothing_to_clip_stops_before_it_vanishes():
    adaptive = AdaptiveClip(rate=50.0)
    clip = jnp.float32(1.0)
    for _ in range(20):
        clip = adaptive.next(clip, jnp.float32(0.5))
    assert float(clip) == pytest.approx(1e-9)


def test_the_clip_settles_at_the_quantile_however_many_silos_people_are_in():
    """Norms 1 .. 40 of people in one of three silos each: the weights sum to a third of what they could."""
    rng = np.random.default_rng(0)
    sizes = np.arange(1, 41) / 2.0
    features, labels = np.zeros((40, 3)), -sizes
    made = federation(features, labels, np.arange(40), rng.integers(3, size=40), 3)
    adaptive = {"quantile": 0.9, "count_noise": 0.01, "rate": 1.0}
    method = {"name": "subject-sgd", "noise_multiplier": 1e-3, "clip": 0.1, "adaptive_clip": adaptive}
    sim = simulation(made, method, rounds=60, train={"server_learning_rate": 1e-9})
    for number in range(1, 61):
        sim.round(number)
    assert float(sim.server.extra) == pytest.approx(36, abs=1.6)


def test_who_cannot_be_computed_is_not_below_the_clip_whatever_the_exchange():
    """Two of three people are zeros, since their records are not finite: that is no reason to lower the clip."""
    rng = np.random.default_rng(0)
    features = np.where(np.arange(30)[:, None] % 3 == 0, rng.normal(size=(30, 4)), np.nan)
    made = federation(features, rng.normal(size=30), np.arange(30), np.arange(30) % 2, 2)
    adaptive = {"count_noise": 1e-4, "rate": 1.0}
    method = {"name": "subject-sgd", "noise_multiplier": 1e-4, "clip": 1e3, "adaptive_clip": adaptive}
    for exchange in ("plain", "masked"):
        sim = simulation(made, method, exchange={"name": exchange}, privacy={"max_silos_per_subject": 1})
        sim.round(1)
        assert int(sim.not_finite) == 20
        assert float(sim.server.extra) == pytest.approx(1e3 * np.exp((20 - 10) / 2 / 30), rel=1e-3)


def test_fresh_runs_have_fresh_noise():
    made = silent(3)
    found = []
    for _ in range(2):
        sim = simulation(made, {"name": "uldp-sgd", "noise_multiplier": SIGMA, "clip": CLIP})
        sim.randomness = Randomness.from_seed(None)
        found += moves(sim)
    assert_independent(*found)


def test_what_is_before_the_noise_is_not_what_is_sent():
    sim = simulation(silent(3), {"name": "uldp-sgd", "noise_multiplier": SIGMA, "clip": CLIP})
    assert not before_noise(sim, sim.work.draw(1))[1:].any()
    assert moves(sim)[0].all()
