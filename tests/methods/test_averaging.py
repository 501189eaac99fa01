from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.data import Federation, Labels, Records
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.kernels import Rows
from tacit.methods import METHODS
from tacit.planning.plan import plan
from tacit.privacy import Randomness


def made_federation(sizes: list[int], seed: int = 0) -> Federation:
    """Silos of the given sizes with different label rules, three features."""
    rng = np.random.default_rng(seed)
    silo = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    features = (rng.normal(size=(len(silo), 3)) + silo[:, None]).astype(np.float32)
    labels = (features @ rng.normal(size=3) + rng.normal(size=len(silo)) > silo).astype(np.int32)
    records = Records(features, labels, np.arange(len(silo), dtype=np.int32), silo)
    names = tuple(f"silo {k + 1}" for k in range(len(sizes)))
    return Federation(records, records, Labels("binary", ("0", "1")), names, len(silo), ("a", "b", "c"), "records")


def quadratic_federation(centres: list[float], curvatures: list[float]) -> Federation:
    """Silo k's loss is (curvature_k theta - curvature_k centre_k)^2: least squares with one feature per record."""
    count = len(centres)
    silo = np.arange(count, dtype=np.int32)
    features = np.array(curvatures, np.float32)[:, None]
    labels = (np.array(curvatures) * np.array(centres)).astype(np.float32)
    records = Records(features, labels, silo, silo)
    return Federation(records, records, Labels("real"), tuple(map(str, silo)), count, ("x",), "records")


def simulation(
    federation: Federation, method: dict, train: dict | None = None, model: dict | None = None
) -> Simulation:
    model = model or {"name": "linear" if federation.labels.kind == "real" else "logistic"}
    made = plan({"seed": 1, "model": model, "method": method, "train": {"rounds": 5, **(train or {})}})
    randomness = Randomness.from_seed(1)
    start = learner(made.experiment.model, federation.labels, federation.train.features.shape[1:], randomness)
    return Simulation(made, federation, start, randomness)


def weights(simulation: Simulation) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(simulation.model())])


def test_fedavg_with_one_local_step_and_all_silos_is_one_step_of_pooled_sgd():
    federation = made_federation([50, 7, 200, 1])
    ours = simulation(federation, {"name": "fedavg", "batch_size": "all", "local_learning_rate": 0.7})
    pooled = simulation(federation, {"name": "pooled", "batch_size": "all", "local_learning_rate": 0.7})
    for number in (1, 2, 3):
        ours.round(number)
        pooled.round(number)
        np.testing.assert_allclose(weights(ours), weights(pooled), atol=1e-5)
    assert np.abs(weights(ours)).max() > 0.05  # it did move


def test_fedsgd_is_one_server_step_along_the_pooled_gradient():
    federation = made_federation([50, 7, 200])
    ours = simulation(federation, {"name": "fedsgd"}, {"server_learning_rate": 0.7})
    pooled = simulation(federation, {"name": "pooled", "batch_size": "all", "local_learning_rate": 0.7})
    for number in (1, 2):
        ours.round(number)
        pooled.round(number)
    np.testing.assert_allclose(weights(ours), weights(pooled), atol=1e-5)


def test_the_divisor_is_the_sum_over_the_participating_silos():
    """With half of the silos away, the step must be the mean of those that came, not half of it."""
    federation = made_federation([30, 30, 30, 30])
    sampled = simulation(
        federation, {"name": "fedavg", "silo_sample_rate": 0.5, "batch_size": "all", "local_learning_rate": 0.7}
    )
    number = next(n for n in range(1, 50) if 0 < len(sampled.work._participants(n)) < 4)
    present = sampled.work._participants(number)
    sampled.round(number)
    keep = np.isin(federation.train.silo, present)
    alone = replace(federation, train=federation.train.take(keep))
    pooled = simulation(alone, {"name": "pooled", "batch_size": "all", "local_learning_rate": 0.7})
    pooled.round(1)
    np.testing.assert_allclose(weights(sampled), weights(pooled), atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_round_in_which_nobody_takes_part_changes_nothing(optimizer):
    federation = made_federation([30, 30])
    method = {"name": "fedavg", "silo_sample_rate": 0.05}
    sampled = simulation(federation, method, {"server_optimizer": optimizer, "rounds": 1000})
    somebody = next(n for n in range(1, 900) if len(sampled.work._participants(n)) > 0)
    nobody = next(n for n in range(1, 900) if len(sampled.work._participants(n)) == 0)
    sampled.round(somebody)
    before = weights(sampled)
    assert np.abs(before).max() > 0
    assert sampled.round(nobody) == 0
    np.testing.assert_array_equal(weights(sampled), before)


def test_silos_of_any_size_share_compiled_shapes_without_padding_the_work():
    """Grouped, padded and looped, twenty unequal silos give what one silo after the other gives."""
    sizes = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 1, 1, 4, 9, 16, 25, 36, 49, 64, 81]
    federation = made_federation(sizes)
    ours = simulation(federation, {"name": "fedavg", "batch_size": 8, "local_learning_rate": 0.3})
    ours.round(1)
    objective, frozen = ours.learner.objective, ours.learner.frozen
    total, start = jnp.zeros(4), ours.learner.params
    for k, silo in enumerate(federation.silos):
        stream = ours.randomness.stream("batches", 1, k)
        alone = Rows(k, silo.start, len(silo), silo.offsets)
        records, real, steps = (part[0] for part in ours.work.schedule.draw([alone], [stream], 1))
        params = start
        for t in range(int(steps)):
            rows = records[t][: real[t]]
            x, y = ours.arrays.features[rows], ours.arrays.labels[rows]
            gradient = jax.grad(objective.loss)(params, frozen, x, y, jnp.ones(len(rows)))
            params = jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient)
        total += len(silo) * (jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)]))
    np.testing.assert_allclose(weights(ours), total / sum(sizes), atol=1e-5)


def distance_after(method: dict, rounds: int) -> float:
    """How far from the joint optimum of three very different quadratics a method ends."""
    centres, curvatures = [-10.0, 1.0, 4.0], [0.2, 1.0, 3.0]
    federation = quadratic_federation(centres, curvatures)
    ours = simulation(federation, method, model={"name": "tests.methods.test_averaging:one_number"})
    for number in range(1, rounds + 1):
        ours.round(number)
    squares = np.square(curvatures)
    optimum = (squares * centres).sum() / squares.sum()
    return float(abs(weights(ours)[0] - optimum))


def one_number(input_shape, outputs):
    """A model with a single weight and no bias."""
    return (
        lambda key: {"layer0": {"w": jnp.zeros((input_shape[0], outputs))}},
        lambda params, x: x @ params["layer0"]["w"],
    )


def test_scaffold_beats_fedavg_on_strongly_heterogeneous_quadratics():
    common = {"batches_per_round": 20, "local_learning_rate": 0.05}
    fedavg = distance_after({"name": "fedavg", **common}, 60)
    scaffold = distance_after({"name": "scaffold", **common}, 60)
    assert fedavg > 0.1  # drift: FedAvg settles away from the optimum
    assert scaffold < 0.01 * fedavg


def test_scaffold_finds_the_optimum_when_only_some_silos_take_part():
    """The server's control variate must stay the mean of all silos' ones, whoever took part."""
    common = {"batches_per_round": 10, "local_learning_rate": 0.05, "silo_sample_rate": 0.4}
    assert distance_after({"name": "scaffold", **common}, 300) < 1e-4


def test_other_silos_take_part_in_other_rounds():
    sampled = simulation(made_federation([5] * 8), {"name": "fedavg", "silo_sample_rate": 0.5})
    drawn = [tuple(sampled.work._participants(number)) for number in range(1, 401)]
    assert len(set(drawn)) > 100
    present = np.bincount([k for silos in drawn for k in silos], minlength=8)
    # each silo is in Binomial(400, .5) rounds: 5 standard deviations, error probability below 1e-5 over eight silos
    assert (np.abs(present - 200) < 50).all()


def test_the_proximal_term_reduces_drift():
    common = {"batches_per_round": 20, "local_learning_rate": 0.05}
    assert distance_after({"name": "fedprox", "proximal": 5.0, **common}, 100) < 0.5 * distance_after(
        {"name": "fedavg", **common}, 100
    )


def test_fedprox_without_pull_is_fedavg():
    federation = made_federation([20, 30])
    one = simulation(federation, {"name": "fedprox", "proximal": 0.0, "batch_size": 8})
    other = simulation(federation, {"name": "fedavg", "batch_size": 8})
    one.round(1)
    other.round(1)
    np.testing.assert_array_equal(weights(one), weights(other))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "yogi", "adagrad"])
def test_every_server_optimiser_lowers_the_loss(optimizer):
    federation = made_federation([80, 120])
    rate = 1.0 if optimizer in ("sgd", "momentum") else 0.1
    ours = simulation(
        federation,
        {"name": "fedavg", "local_learning_rate": 0.1},
        {"server_optimizer": optimizer, "server_learning_rate": rate},
    )
    before = ours.evaluate(federation, per_silo=False).overall["log_loss"]
    for number in range(1, 11):
        ours.round(number)
    assert ours.evaluate(federation, per_silo=False).overall["log_loss"] < before - 0.02


def test_silo_only_keeps_a_model_per_silo_that_no_other_silo_touches():
    federation = made_federation([40, 60])
    both = simulation(federation, {"name": "silo-only", "batch_size": 8})
    both.round(1)
    changed = federation.train.features.copy()
    changed[federation.train.silo == 1] *= -3
    other = replace(federation, train=replace(federation.train, features=changed))
    again = simulation(other, {"name": "silo-only", "batch_size": 8})
    again.round(1)
    for one, two in zip(jax.tree.leaves(both.model()), jax.tree.leaves(again.model()), strict=True):
        np.testing.assert_array_equal(one[0], two[0])
        assert np.abs(np.asarray(one[1] - two[1])).max() > 0


def test_frozen_layers_stay_as_they_were():
    federation = made_federation([40, 60])
    frozen = {"name": "mlp", "hidden": [4], "freeze": ["layer0"]}
    ours = simulation(federation, {"name": "fedavg"}, model=frozen)
    before = jax.tree.map(np.asarray, ours.model())
    ours.round(1)
    after = ours.model()
    np.testing.assert_array_equal(before["layer0"]["w"], after["layer0"]["w"])
    assert np.abs(before["layer1"]["w"] - after["layer1"]["w"]).max() > 0


def test_every_method_without_noise_promises_infinity():
    for name, method in METHODS.items():
        if not method.info.private:
            made = plan({"method": {"name": name}})
            assert made.guarantees()
            assert not any(guarantee.finite for guarantee in made.guarantees())
