"""Named sources: public facts without data, the built-in table, and clear words where files are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.data import SOURCES, DataOptions, load, source_facts
from tacit.data.sources import shakespeare
from tests.refusals import refuses

NAMES = ("randhie", "table", "mnist", "shakespeare", "heart", "tcga-brca", "creditcard", "insteval", "diabetes130")


def test_every_promised_source_is_there() -> None:
    assert set(SOURCES) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_facts_need_no_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    facts = source_facts(DataOptions(source=name, label="y" if name == "table" else None))
    assert facts.labels.kind
    assert facts.origin


def test_an_unknown_source_is_answered_with_the_nearest_name() -> None:
    with refuses("unknown-name", "data.source", names=["minst", "mnist"]):
        load(DataOptions(source="minst"))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("randhie", "table")])
def test_missing_files_are_answered_with_their_origin(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TACIT_DATA", raising=False)
    origin = source_facts(DataOptions(source=name)).origin
    with refuses("missing", "data.path") as caught:
        load(DataOptions(source=name))
    assert origin in str(caught.value)
    with refuses("file-not-found", "data.path") as caught:
        load(DataOptions(source=name, path=str(tmp_path)))
    assert origin in str(caught.value)


def test_randhie_has_its_known_people_sites_and_years() -> None:
    federation = load(DataOptions(source="randhie"))
    facts = source_facts(DataOptions(source="randhie"))
    assert len(federation.train) + len(federation.test) == 20_190
    assert federation.subject_count == facts.subject_count == 5912
    assert federation.silo_count == facts.silo_count == 6
    assert federation.train.features.shape[1:] == facts.feature_shape
    assert federation.held_out == "subjects"
    labels = np.concatenate([federation.train.labels, federation.test.labels])
    assert labels.mean() == pytest.approx(0.688, abs=0.001)


def test_randhie_is_standardised_by_constants_that_fit() -> None:
    features = load(DataOptions(source="randhie")).train.features
    assert np.abs(features.mean(axis=0)).max() < 0.3
    assert 0.8 < features.std(axis=0).min() <= features.std(axis=0).max() < 1.2
    assert np.abs(features).max() < 10


def test_no_feature_of_randhie_gives_the_outcome_away() -> None:
    train = load(DataOptions(source="randhie")).train
    correlation = np.corrcoef(train.features.T, train.labels)[-1, :-1]
    assert np.abs(correlation).max() < 0.3


def test_randhie_is_worth_learning_from() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    metrics = pytest.importorskip("sklearn.metrics")
    federation = load(DataOptions(source="randhie"))
    model = linear_model.LogisticRegression(max_iter=500).fit(federation.train.features, federation.train.labels)
    assert metrics.roc_auc_score(federation.test.labels, model.decision_function(federation.test.features)) > 0.7


def test_a_source_keeps_its_own_label() -> None:
    with refuses("conflict", "data.label", names=["randhie", "any_visit"]):
        load(DataOptions(source="randhie", label="age"))
    with refuses("conflict", "data.task", names=["randhie"]):
        load(DataOptions(source="randhie", task="real"))


def test_other_columns_of_a_source_may_be_chosen() -> None:
    options = DataOptions(source="randhie", numeric={"age": {"mean": 25, "scale": 17}, "female": {}})
    assert load(options).feature_names == ("age", "female")
    assert source_facts(options).feature_shape == (2,)


def test_people_and_silos_of_a_source_may_be_assigned() -> None:
    options = DataOptions(
        source="randhie", subjects={"assign": "zipf", "count": 100}, silos={"assign": "uniform", "count": 3}
    )
    federation, facts = load(options), source_facts(options)
    assert (facts.subject_count, facts.silo_count, facts.subject_column) == (100, 3, None)
    assert federation.silo_count == 3
    assert federation.held_out == "records"


def test_new_rows_of_a_source_can_be_encoded() -> None:
    encoder = load(DataOptions(source="randhie")).encoder
    assert encoder is not None
    row = pd.DataFrame({name: [column.mean] for name, column in encoder.columns.numeric.items()})
    assert (encoder.encode(row) == 0).all()


@pytest.mark.parametrize("setting", [{"label": "digit"}, {"numeric": ["x"]}, {"standardize": "per-silo"}])
def test_images_refuse_settings_about_columns(setting: dict, tmp_path: Path) -> None:
    with refuses("no-effect", f"data.{next(iter(setting))}", names=["mnist"]):
        load(DataOptions(source="mnist", path=str(tmp_path), **setting))


def made_plays(folder: Path) -> str:
    """Two plays: Ann speaks 60 + 59 characters in acts 1 and 2, Bob 100 in act 2, Cal too few for a window."""
    rows = [
        ("p", 1, 1, "p|ANN", "a" * 60),
        ("p", 2, 2, "p|BOB", "b" * 100),
        ("p", 2, 3, "p|ANN", "A" * 59),
        ("q", 0, 1, "q|CAL", "c" * 50),
        ("q", 3, 2, "q|DON", "d$" * 50),
    ]
    speeches = pd.DataFrame(rows, columns=["play", "act_no", "speech_no", "subject", "text"])
    speeches.to_csv(folder / "speeches.csv.gz", index=False)
    return str(folder)


def test_windows_run_over_all_that_one_character_says(tmp_path: Path) -> None:
    silos = {"assign": "uniform", "count": 2}
    federation = load(DataOptions(source="shakespeare", path=made_plays(tmp_path), silos=silos, test_fraction=0.5))
    records = len(federation.train) + len(federation.test)
    assert records == (120 - 80) + (100 - 80) + (100 - 80)
    assert federation.subject_count == 3
    text = np.concatenate([federation.train.features, federation.test.features])
    assert text.dtype == np.int32
    assert text.shape[1:] == (80,)
    shown = {"".join(shakespeare.ALPHABET[code] for code in row) for row in text}
    assert "a" * 60 + "\n" + "A" * 19 in shown
    assert "d " * 40 in shown  # '$' is outside the alphabet


def test_a_window_predicts_the_character_after_it(tmp_path: Path) -> None:
    options = DataOptions(source="shakespeare", path=made_plays(tmp_path), window_stride=7)
    raw = SOURCES["shakespeare"].read(options, None, np.random.default_rng(0))
    assert raw.silo_names == ("p", "q")
    windows = raw.features(np.arange(6))
    whole = shakespeare.encode_text("a" * 60 + "\n" + "A" * 59)
    for i in range(6):
        np.testing.assert_array_equal(windows[i], whole[7 * i : 7 * i + 80])
        assert raw.labels[i] == whole[7 * i + 80]


def test_a_characters_windows_lie_in_several_acts(tmp_path: Path) -> None:
    path = made_plays(tmp_path)
    raw = SOURCES["shakespeare"].read(
        DataOptions(source="shakespeare", path=path, silos={"column": "act"}), None, np.random.default_rng(0)
    )
    assert raw.silo_names == ("act 1", "act 2", "act 3", "act 4", "act 5")
    assert raw.silo is not None
    assert set(raw.silo) == {1, 2}


def test_mnist_is_scaled_by_public_constants_and_keeps_the_official_split(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28)).astype(np.uint8)
    digits = (np.arange(30) % 10).astype(np.uint8)
    np.savez(tmp_path / "mnist.npz", x_train=images[:20], y_train=digits[:20], x_test=images[20:], y_test=digits[20:])
    options = DataOptions(source="mnist", path=str(tmp_path), silos={"assign": "uniform", "count": 2})
    federation = load(options)
    assert federation.held_out == "given"
    assert federation.train.features.shape == (20, 28, 28)
    np.testing.assert_allclose(federation.test.features, (images[20:] / 255 - 0.1307) / 0.3081, rtol=1e-4, atol=1e-5)
