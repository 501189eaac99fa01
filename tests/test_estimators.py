"""The scikit-learn estimators."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import tacit
from tacit import TacitClassifier, TacitRegressor, TacitSurvival
from tacit.estimators import LABEL, PERIOD, InvalidInput, in_periods
from tests.refusals import refuses

ROWS = 400
ENDS = [0.2, 0.5, 1.0, 2.0, 4.0]


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    """Features ``[400, 5]``, and scores ``[400]`` that follow the first of them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 5))
    return X, X[:, 0] + 0.3 * rng.normal(size=ROWS)


@pytest.fixture(scope="module")
def fitted(table) -> TacitClassifier:
    X, score = table
    return TacitClassifier(random_state=0).fit(X, np.where(score > 0, "yes", "no"))


def lifetimes(X: np.ndarray) -> np.ndarray:
    """``[rows, 2]`` (time, event): a larger first feature means sooner; a fifth is censored."""
    rng = np.random.default_rng(1)
    return np.column_stack([rng.exponential(np.exp(-X[:, 0])), rng.random(len(X)) < 0.8])


@pytest.mark.parametrize(
    "estimator",
    [TacitClassifier(rounds=5), TacitRegressor(rounds=5), TacitSurvival(rounds=5, times=[1.0, 2.0, 4.0])],
    ids=lambda estimator: type(estimator).__name__,
)
def test_all_checks_of_scikit_learn_pass_without_an_exception(estimator):
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    assert {check["check_name"] for check in found if check["status"] not in ("passed", "skipped")} == set()
    assert {check["check_name"] for check in found if check["status"] == "skipped"} <= {"check_array_api_input"}


def test_a_classifier_learns_and_names_what_it_read_from_the_table(table, fitted):
    X, score = table
    assert fitted.score(X, np.where(score > 0, "yes", "no")) > 0.85
    np.testing.assert_allclose(fitted.predict_proba(X).sum(axis=1), 1)
    assert fitted.plan_.from_this_table == ("data.subjects.count", "data.classes")
    (promised,) = fitted.guarantees_
    assert (promised["view"], promised["unit"], promised["valid"]) == ("public", "subject", "only-if")
    assert promised["epsilon"] <= 4
    assert isinstance(fitted.run_, tacit.Run)
    assert not fitted.run_.metrics  # no private record is held out, and none is measured


def test_numbers_that_are_declared_are_not_read_from_the_table(table):
    X, score = table
    settings = {"data": {"subjects": {"count": 500}, "classes": ["no", "yes"]}}
    model = TacitClassifier(rounds=5, settings=settings).fit(X, np.where(score > 0, "yes", "no"))
    assert model.plan_.from_this_table == ()
    assert model.guarantees_[0]["valid"] == "yes"
    with refuses("undeclared-value", "data.classes", InvalidInput):
        model.fit(X, np.where(score > 0, "maybe", "no"))


def test_subjects_and_silos_are_those_of_the_guarantee(table):
    X, score = table
    model = TacitClassifier(rounds=5).fit(X, score > 0, subjects=np.arange(ROWS) // 2, silos=np.arange(ROWS) % 3)
    assert {line["view"] for line in model.guarantees_} >= {"public", "server", "silo"}
    assert model.plan_.promise.facts.subjects == ROWS // 2
    assert model.plan_.from_this_table == ("data.subjects.count", "data.silos.count", "data.classes")
    with refuses("mismatch", "subjects", InvalidInput):
        model.fit(X, score > 0, subjects=np.arange(3))


def test_a_pickle_predicts_the_same_and_holds_no_ledger(table, fitted):
    X, _ = table
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert "ledger.jsonl" in {file.name for file in fitted.run_.path.iterdir()}
    assert "ledger.jsonl" not in {file.name for file in again.run_.path.iterdir()}
    with pytest.raises(NotFittedError):
        clone(fitted).predict(X)


def test_several_classes_and_names_of_columns(table):
    X, score = table
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = TacitClassifier(random_state=0, columns={"a": {"mean": 0.0, "scale": 1.0}})
    model.fit(frame, np.digitize(score, [-0.5, 0.5]))
    assert model.predict_proba(frame).shape == (ROWS, 3)
    assert model.score(frame, np.digitize(score, [-0.5, 0.5])) > 0.6
    assert list(model.plan_.experiment.data.numeric) == list("abcde")
    with refuses("unknown-name", "columns", InvalidInput):
        clone(model).set_params(columns={"z": {"scale": 2.0}}).fit(frame, score > 0)


def test_private_constants_are_within_the_guarantee(table):
    X, score = table
    options: dict[str, Any] = {"standardize": "private", "columns": {"low": 0, "high": 100}}
    model = TacitClassifier(random_state=0, epsilon=8.0, **options).fit(50 + 5 * X, score > 0)
    assert model.plan_.statistics is not None
    assert model.guarantees_[0]["epsilon"] <= 8
    assert model.score(50 + 5 * X, score > 0) > 0.8


def test_a_regressor_learns_on_the_declared_scale_of_the_target(table):
    X, score = table
    model = TacitRegressor(random_state=0, target_mean=500.0, target_scale=100.0).fit(X, 500 + 100 * score)
    assert model.score(X, 500 + 100 * score) > 0.7


def test_a_survival_model_ranks_and_its_curves_fall(table):
    X, _ = table
    y = lifetimes(X)
    model = TacitSurvival(times=ENDS, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.65
    curves = model.predict_survival_function(X)
    assert curves.shape == (ROWS, len(ENDS))
    assert (np.diff(curves, axis=1) <= 0).all()
    structured = np.array([(bool(event), time) for time, event in y], dtype=[("event", "?"), ("time", "f8")])
    same = TacitSurvival(times=ENDS, random_state=0).fit(X, structured)
    np.testing.assert_array_equal(same.predict(X), model.predict(X))


def test_a_row_has_a_record_for_each_period_that_it_reached():
    times, events = np.array([0.2, 0.3, 0.3, 9.0, 0.1]), np.array([1, 0, 1, 1, 0])
    found = in_periods(pd.DataFrame({"row": range(5)}), times, events, np.array([0.2, 0.5]))
    records = found[["row", PERIOD, LABEL]].to_numpy().tolist()
    # an event in the first period, censored in the second, an event in the second, none, censored in the first
    assert records == [[0, 0, 1], [1, 0, 0], [2, 0, 0], [2, 1, 1], [3, 0, 0], [3, 1, 0]]


@pytest.mark.parametrize(("times", "code"), [(None, "missing"), ([2.0, 1.0], "out-of-range"), ([0.0], "out-of-range")])
def test_the_periods_of_a_survival_model_are_declared(table, times, code):
    X, _ = table
    with refuses(code, "times", InvalidInput):
        TacitSurvival(times=times).fit(X, lifetimes(X))


def test_a_pipeline_routes_subjects_and_silos(table):
    X, score = table
    groups = np.arange(ROWS) // 2
    with sklearn.config_context(enable_metadata_routing=True):
        model = TacitClassifier(rounds=5).set_fit_request(subjects=True, silos=True)
        pipeline = make_pipeline(FunctionTransformer(lambda x: x / 2), model)
        pipeline.fit(X, score > 0, subjects=groups, silos=np.arange(ROWS) % 2)
        assert pipeline[-1].plan_.promise.facts.subjects == ROWS // 2
        assert pipeline[-1].plan_.promise.facts.silos == 2
        parts = GroupKFold(2)
        alone = clone(model).set_fit_request(silos=False)
        given = {"subjects": groups, "groups": groups}
        found = cross_validate(alone, X, score > 0, params=given, cv=parts, return_estimator=True)
        assert [fold.plan_.promise.facts.subjects for fold in found["estimator"]] == [ROWS // 4] * 2
