"""DP-FedAvg as it really runs: the noise that is added, what one silo can move, and the divisor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import tacit
from tacit.data import Federation
from tacit.engine.learner import load_arrays
from tacit.engine.run import load_federation, simulation_of
from tacit.engine.run import run as train
from tacit.engine.simulate import Simulation
from tacit.kernels import Steps
from tacit.privacy import Randomness

ERROR = 1e-6  # the probability with which a statistical test below fails though all is well
CLIP, SIGMA = 0.7, 3.0


@pytest.fixture
def central(experiment) -> dict[str, Any]:
    """An MLP of a few hundred numbers under DP-FedAvg; no seed."""
    del experiment["seed"]
    experiment["data"]["silos"]["count"] = 3
    experiment["model"] = {"name": "mlp", "hidden": [64]}
    numbers = {"clip": CLIP, "noise_multiplier": SIGMA}
    experiment["method"] = {"name": "dp-fedavg", "batch_size": 16, "local_learning_rate": 0.5, **numbers}
    experiment["train"] = {"rounds": 3}
    return experiment


def simulated(experiment: dict, visits, federation: Federation | None = None, key: bytes | None = None) -> Simulation:
    plan = tacit.plan(experiment)
    seed = plan.experiment.seed
    randomness = Randomness(key) if seed is None else Randomness.from_seed(seed)
    return simulation_of(plan, federation or load_federation(plan, visits), randomness)


def flat(simulation: Simulation) -> np.ndarray:
    return np.asarray(ravel_pytree(simulation.server.params)[0], np.float64)


def noise_alone(simulation: Simulation, rounds: range) -> np.ndarray:
    """``[rounds, parameters]``: what the compiled aggregate adds to a sum of nothing, times the divisor."""
    start, zero, drawn = flat(simulation), nothing(simulation), []
    for number in rounds:
        after = simulation.kernels.aggregate(simulation.server, (zero, zero), simulation.keys(number))
        drawn.append((np.asarray(ravel_pytree(after.params)[0], np.float64) - start) * divisor(simulation))
    return np.array(drawn)


def nothing(simulation: Simulation) -> Steps:
    """The sum before anybody contributed."""
    return simulation.work.nothing(simulation.given(simulation.broadcast)).vector


def divisor(simulation: Simulation) -> float:
    return simulation.method.work.rate * simulation.federation.silo_count


def upload(simulation: Simulation, silos: list[int], number: int = 1) -> np.ndarray:
    """The sum of uploads of these silos before any noise, by the compiled work of a round."""
    drawn = [[simulation.work._group(number, [k]) for k in silos]]
    totals, _, _ = simulation.work.do(drawn, simulation.given(simulation.broadcast))
    return totals[0].integers() * simulation.grid


# -- the noise ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_noise_on_the_sum_has_the_stated_variance_and_no_memory(central, visits, rate):
    central["method"]["silo_sample_rate"] = rate
    noise = noise_alone(simulated(central, visits), range(1, 201)) / (SIGMA * CLIP)
    count = noise.size
    # chi-square: the variance of all numbers, of every round, of every coordinate
    for axis, degrees in ((None, count), (1, noise.shape[1]), (0, noise.shape[0])):
        sums = np.atleast_1d(np.square(noise).sum(axis))
        tail = ERROR / 10 / len(sums) / 2
        assert stats.chi2.ppf(tail, degrees) < sums.min()
        assert sums.max() < stats.chi2.isf(tail, degrees)
    assert stats.kstest(noise.ravel(), "norm").pvalue > ERROR / 10
    # correlations of neighbouring rounds and coordinates, and between any two rounds
    for products in (noise[1:] * noise[:-1], noise[:, 1:] * noise[:, :-1]):
        assert abs(products.sum()) / np.sqrt(products.size) < stats.norm.isf(ERROR / 20)
    between = (noise @ noise.T)[np.triu_indices(len(noise), 1)] / np.sqrt(noise.shape[1])
    assert np.abs(between).max() < 1.1 * stats.norm.isf(ERROR / 20 / len(between))
    assert len(np.unique(noise.astype(np.float32))) > 0.95 * count


def test_runs_without_a_seed_draw_other_noise_and_runs_with_one_the_same(central, visits):
    rounds = range(1, 3)
    one, two = (noise_alone(simulated(central, visits), rounds) for _ in range(2))
    assert np.abs(one - two).min(axis=1).max() > 0
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) * np.sqrt(one.size) < stats.norm.isf(ERROR / 2) * 1.1
    seeded = [noise_alone(simulated({**central, "seed": seed}, visits), rounds) for seed in (4, 4, 5)]
    np.testing.assert_array_equal(seeded[0], seeded[1])
    assert (seeded[0] != seeded[2]).mean() > 0.99


def test_models_of_runs_without_a_seed_differ_and_with_a_seed_do_not(central, visits, tmp_path):
    def model(name: str, **more: Any) -> np.ndarray:
        run = train(tacit.plan({**central, **more}), frame=visits, out=tmp_path / name)
        return load_arrays(run.path / "model.safetensors", "test")[0]["layer0/w"]

    assert (model("a") != model("b")).all()
    np.testing.assert_array_equal(model("c", seed=1), model("d", seed=1))


def test_noise_does_not_shrink_when_nobody_takes_part(central, visits):
    """A round that no silo enters still changes the model by the full noise, over the same constant."""
    central["method"]["silo_sample_rate"] = 0.05
    simulation = simulated(central, visits)
    number = next(n for n in range(1, 500) if len(simulation.work._participants(n)) == 0)
    before = flat(simulation)
    simulation.round(number)
    moved = (flat(simulation) - before) * divisor(simulation) / (SIGMA * CLIP)
    assert stats.chi2.ppf(ERROR / 2, moved.size) < np.square(moved).sum() < stats.chi2.isf(ERROR / 2, moved.size)


# -- what one silo can do ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedsgd"])
def test_removing_a_silo_moves_the_sum_by_at_most_the_clip(central, visits, method):
    central["method"] = {"name": method, "clip": CLIP, "noise_multiplier": SIGMA, "batch_size": 16}
    if method == "dp-fedavg":
        central["method"] |= {"local_learning_rate": 5.0, "local_epochs": 3}
    rng = np.random.default_rng(1)
    federation = load_federation(tacit.plan(central), visits)
    biggest = 0.0
    for scale in (1e-3, 1.0, 1e2, 1e6):
        features = (federation.train.features * scale * rng.normal(size=federation.train.features.shape)).astype("f4")
        changed = replace(federation, train=replace(federation.train, features=features))
        simulation = simulated(central, visits, changed, key=bytes(32))
        everybody = upload(simulation, [0, 1, 2])
        assert np.isfinite(everybody).all()
        for silo in range(3):
            others = [k for k in range(3) if k != silo]
            moved = np.linalg.norm(everybody - upload(simulation, others))
            alone = np.linalg.norm(upload(simulation, [silo]))
            assert alone <= CLIP
            assert moved <= CLIP
            biggest = max(biggest, alone)
    assert biggest > 0.99 * CLIP  # the bound was put to the test


@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38])
def test_a_silo_whose_training_breaks_contributes_nothing_and_spoils_nothing(central, visits, poison):
    central["method"] |= {"local_learning_rate": 1e3, "local_epochs": 2}
    federation = load_federation(tacit.plan(central), visits)
    features = federation.train.features.copy()
    features[federation.train.silo == 1] = poison
    broken = replace(federation, train=replace(federation.train, features=features))
    simulation = simulated(central, visits, broken, key=bytes(32))
    contribution = upload(simulation, [1])
    assert np.isfinite(contribution).all()
    assert np.linalg.norm(contribution) <= CLIP
    if not np.isfinite(poison):
        assert not contribution.any()
        np.testing.assert_array_equal(upload(simulation, [0, 1, 2]), upload(simulation, [0, 2]))
    simulation.round(1)
    assert np.isfinite(flat(simulation)).all()


# -- the divisor -------------------------------------------------------------------------------------------------------


def test_the_divisor_is_a_public_constant_however_many_take_part(central, visits):
    central["method"] |= {"silo_sample_rate": 0.5, "noise_multiplier": 1e-9}
    simulation = simulated(central, visits, key=bytes(32))
    sizes = set()
    for number in range(1, 30):
        present = simulation.work._participants(number)
        sizes.add(len(present))
        before = flat(simulation)
        expected = upload(simulation, list(present), number) if len(present) else np.zeros_like(before)
        simulation.round(number)
        np.testing.assert_allclose(flat(simulation) - before, expected / 1.5, atol=2e-6)
    assert sizes == {0, 1, 2, 3}


def test_an_empty_silo_counts_in_the_divisor_and_adds_nothing(central, visits):
    federation = load_federation(tacit.plan(central), visits)
    kept = federation.train.silo != 2
    fewer = replace(federation.train, **{k: getattr(federation.train, k)[kept] for k in ("features", "labels")})
    fewer = replace(fewer, subject=federation.train.subject[kept], silo=federation.train.silo[kept])
    central["method"]["noise_multiplier"] = 1e-9
    with_it = simulated(central, visits, federation, key=bytes(32))
    without = simulated(central, visits, replace(federation, train=fewer.grouped()), key=bytes(32))
    assert without.federation.silo_count == 3
    assert not upload(without, [2]).any()
    sum_of_others = upload(with_it, [0, 1])
    before = flat(without)
    without.round(1)
    np.testing.assert_allclose(flat(without) - before, sum_of_others / 3, atol=2e-6)


def test_the_compiled_sum_is_the_same_whoever_compiles_it(central, visits):
    """The lanes' totals are added before the noise, not each with noise of its own."""
    simulation = simulated(central, visits, key=bytes(32))
    zero, keys = nothing(simulation), simulation.keys(1)
    ones = Steps.of(np.ones(zero.size, np.int64))
    split = simulation.kernels.aggregate(simulation.server, (ones, ones), keys)
    whole = simulation.kernels.aggregate(simulation.server, (ones.plus(ones), zero), keys)
    jax.tree.map(np.testing.assert_array_equal, split.params, whole.params)
