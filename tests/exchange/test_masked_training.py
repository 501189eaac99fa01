"""Methods under the masked exchange: the same model as with the plain sum, the noise that the ledger says."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree

import tacit
from tacit.engine import read_metrics
from tacit.engine.learner import learner
from tacit.engine.run import load_federation
from tacit.engine.simulate import Simulation
from tacit.exchange import Session
from tacit.exchange.post import TooFew
from tacit.exchange.sums import share_variance
from tacit.kernels.exact_sums import FINEST
from tacit.planning.plan import plan
from tacit.privacy import Ledger, Randomness
from tests.exchange.test_masked_sum import vanishing
from tests.refusals import refuses

CLIP = 0.5
METHODS = {
    "uldp-avg": {"local_epochs": 2, "local_learning_rate": 0.5},
    "uldp-sgd": {"subject_sample_rate": 0.5},
    "subject-sgd": {"subject_sample_rate": 0.5, "records_per_subject": 3},
    "uldp-naive": {"local_learning_rate": 0.5, "silo_sample_rate": 0.7},
}


def experiment_with(experiment: dict, method: str, exchange: dict, **numbers) -> dict:
    facts = {"subjects": {"column": "person", "count": 60}, "silos": {"column": "clinic", "count": 3}}
    options = {"clip": CLIP, "noise_multiplier": 0.0} | METHODS[method] | numbers
    data = experiment["data"] | facts
    return experiment | {"data": data, "method": {"name": method, **options}, "exchange": exchange}


def simulation(experiment: dict, frame: pd.DataFrame) -> Simulation:
    planned = plan(experiment)
    federation, randomness = load_federation(planned, frame), Randomness.from_seed(5)
    model = planned.experiment.model
    made = learner(model, federation.labels, federation.train.features.shape[1:], randomness)
    return Simulation(planned, federation, made, randomness)


def weights(simulation: Simulation) -> np.ndarray:
    return np.asarray(ravel_pytree(simulation.server.params)[0])


@pytest.mark.parametrize("method", METHODS)
def test_without_noise_the_model_is_that_of_the_plain_sum(method, experiment, visits):
    plain = simulation(experiment_with(experiment, method, {"name": "plain"}), visits)
    masked = simulation(experiment_with(experiment, method, {"name": "masked", "precision": 1e-9}), visits)
    for number in range(1, 5):
        assert plain.round(number) == masked.round(number)
        # (people + silos) x precision, and the grid of the plain sum: a step for each person's part in each of 3 silos
        np.testing.assert_allclose(weights(masked), weights(plain), atol=1e-6 + number * 3 * CLIP * FINEST)
    assert np.abs(weights(masked)).max() > 1e-3


def test_an_adaptive_clip_moves_as_with_the_plain_sum(experiment, visits):
    numbers = {"adaptive_clip": {"quantile": 0.6, "count_noise": 1e-4}, "noise_multiplier": 1e-4, "clip": 0.05}
    plain = simulation(experiment_with(experiment, "uldp-avg", {"name": "plain"}, **numbers), visits)
    fine = {"name": "masked", "precision": 1e-9}
    masked = simulation(experiment_with(experiment, "uldp-avg", fine, **numbers), visits)
    for number in range(1, 6):
        plain.round(number)
        masked.round(number)
    assert float(masked.server.extra) == pytest.approx(float(plain.server.extra), rel=1e-3)
    assert float(masked.server.extra) != pytest.approx(0.05, rel=0.01)


@pytest.mark.parametrize("exchange", [{}, {"drop_outs": 1}])
def test_the_noise_in_a_round_has_the_variance_that_the_ledger_says(exchange, experiment, visits):
    """One round of a model with 10,000 numbers, with and without noise: the variance is known to 6 % (1e-5)."""
    wide = experiment | {"model": {"name": "mlp", "hidden": [2000]}}
    models = []
    for sigma in (0.0, 2.0):
        numbers = {"noise_multiplier": sigma, "subject_sample_rate": 1.0}
        run = simulation(experiment_with(wide, "uldp-sgd", {"name": "masked", **exchange}, **numbers), visits)
        run.round(1)
        models.append(weights(run))
    expected = (2.0 * 0.5 / (60 * 3)) ** 2 * (3 * share_variance(3, exchange.get("drop_outs", 0), 0))
    assert expected >= (2.0 * 0.5 / (60 * 3)) ** 2
    assert np.var(models[1] - models[0]) == pytest.approx(expected, rel=0.06)


def test_a_masked_run_leaves_a_folder_with_its_promises(experiment, visits, tmp_path):
    made = experiment_with(experiment, "uldp-avg", {"name": "masked", "colluding": 1}, noise_multiplier=3.0)
    run = tacit.run(tacit.plan(made), frame=visits, out=tmp_path / "run")
    found = {str(guarantee["view"]): guarantee for guarantee in run.result["guarantees"]}
    assert set(found) == {"public", "server", "silo", "server+silos:1"}
    assert found["server"]["epsilon"] == found["public"]["epsilon"]
    assert any("3 of 3 silos stay" in text for text in found["server"]["assumptions"])
    assert run.result["seconds"]["exchange"] > 0
    assert not any("floating point" in text for text in found["server"]["assumptions"])


@pytest.mark.parametrize("seed", [5, None])
def test_a_round_that_ends_releases_nothing_and_costs_at_most_itself(seed, experiment, visits, tmp_path, monkeypatch):
    made = experiment_with(experiment, "uldp-avg", {"name": "masked"}, noise_multiplier=3.0)
    made = {key: value for key, value in made.items() if key != "seed"} | ({} if seed is None else {"seed": seed})
    take = Session.sum

    def with_a_silo_lost(session: Session, number: int, vectors: np.ndarray, noise: list, **own) -> np.ndarray:
        lost = {("vectors", session.terms.silos[1])} if number == 3 else set()
        return take(session, number, vectors, noise, vanishing(lost), **own)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "sum", with_a_silo_lost)
        with refuses("too-few", kind=TooFew, names=["south"]):
            tacit.run(made, visits, out=tmp_path / "run")
    assert rounds_in(tmp_path / "run/ledger.jsonl") == [1, 2, 3]  # written before the round begins
    assert max(line["round"] for line in read_metrics(tmp_path / "run/metrics.jsonl")) == 2
    resumed = tacit.run(made, visits, resume=tmp_path / "run")
    whole = tacit.run(made, visits, out=tmp_path / "whole")
    assert resumed.result["rounds"] == whole.result["rounds"] == 4
    assert rounds_in(tmp_path / "run/ledger.jsonl") in ([1, 2, 3, 3, 4], [1, 2, 3, 4])
    spent = [{g["view"]: g["epsilon"] for g in run.result["guarantees"]}["server"] for run in (resumed, whole)]
    assert spent[0] == spent[1] if seed else spent[1] < spent[0] < 1.25 * spent[1]


def rounds_in(ledger: Path) -> list[int]:
    return [line["round"] for line in Ledger(ledger).lines]


def test_the_server_gains_the_sampling_that_it_cannot_see(experiment):
    plain = plan(experiment_with(experiment, "uldp-sgd", {"name": "plain"}, noise_multiplier=3.0))
    masked = plan(experiment_with(experiment, "uldp-sgd", {"name": "masked"}, noise_multiplier=3.0))
    before = {str(g.view): g.epsilon for g in plain.guarantees()}
    after = {str(g.view): g.epsilon for g in masked.guarantees()}
    assert after["server"] == after["public"] == before["public"] < before["server"]


@pytest.mark.parametrize(
    ("change", "code", "field", "names"),
    [
        *(
            ({"method": method}, "not-supported", "exchange.name", ["masked", method["name"]])
            for method in (
                {"name": "local-record", "noise_multiplier": 1.0},
                {"name": "dp-fedavg", "noise_multiplier": 1.0},
                {"name": "fedavg"},
            )
        ),
        ({"exchange": {"name": "masked", "drop_outs": 2}}, "out-of-range", "exchange.drop_outs", ["3 silos", "1"]),
        ({"exchange": {"name": "masked", "key_bits": 3072}}, "unknown-key", "exchange.key_bits", ["masked"]),
        ({"exchange": {"name": "plain", "drop_outs": 1}}, "unknown-key", "exchange.drop_outs", ["plain"]),
        ({"exchange": {"name": "masked", "drop_outs": -1}}, "out-of-range", "exchange.drop_outs", ["-1"]),
        ({"privacy": {"against": ["server+silos:1"]}}, "unknown-name", "privacy.against", ["server+silos:1"]),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(change, code, field, names, experiment):
    made = experiment_with(experiment, "uldp-avg", {"name": "masked"}, noise_multiplier=3.0)
    made["data"] = made["data"] | {"records_per_silo": 200}
    with refuses(code, field, names=names):
        plan(made | change)


def test_compiled_rounds_of_the_plain_exchange_are_left_as_they_were(experiment, visits):
    plain = simulation(experiment_with(experiment, "uldp-avg", {"name": "plain"}, noise_multiplier=1.0), visits)
    plain.round(1)
    jax.block_until_ready(plain.server)
    assert plain._session is None
