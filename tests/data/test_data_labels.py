"""Labels are checked against what is declared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from tacit.data import DataOptions, Federation, Labels, source_facts
from tacit.errors import UserError

Read = Callable[..., Federation]
Refusal = Callable[..., str]


def with_label(values: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(ill=values)


@pytest.mark.parametrize("kind", [int, float, bool])
def test_binary_labels_may_be_numbers_or_bools(read: Read, kind: type) -> None:
    federation = read(lambda frame: frame.assign(ill=frame["ill"].astype(kind)))
    assert federation.labels == Labels("binary", ("0", "1"))
    assert federation.train.labels.dtype == np.int32
    assert set(np.unique(federation.train.labels)) == {0, 1}


def test_two_declared_class_names_are_coded_in_their_order(read: Read) -> None:
    words = read(lambda frame: frame.assign(ill=np.where(frame["ill"] == 1, "ill", "well")), classes=["well", "ill"])
    np.testing.assert_array_equal(words.train.labels, read().train.labels)


def test_a_label_outside_the_classes_is_refused(refusal: Refusal) -> None:
    assert refusal(with_label(2)).startswith("data.label: column 'ill' has the label '2' outside the classes 0, 1;")


def test_a_missing_label_is_refused(refusal: Refusal) -> None:
    assert "is missing in 600 rows" in refusal(with_label(np.nan))


def test_multiclass_needs_declared_classes(refusal: Refusal, read: Read) -> None:
    assert refusal(task="multiclass").startswith("data.classes:")
    assert read(task="multiclass", classes=3).labels.classes == ("0", "1", "2")


def test_a_binary_task_has_two_classes(refusal: Refusal) -> None:
    assert refusal(classes=3).startswith("data.classes: a binary task has 2 classes, not 3;")


def test_real_labels_are_float32(read: Read) -> None:
    federation = read(lambda frame: frame.assign(ill=frame["age"] / 3), task="real")
    assert federation.train.labels.dtype == np.float32


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_real_labels_must_be_finite(refusal: Refusal, value: float) -> None:
    assert refusal(with_label(value), task="real").startswith("data.label: column 'ill' is missing or infinite")


def test_text_is_no_real_label(refusal: Refusal) -> None:
    assert refusal(with_label("high"), task="real").startswith("data.label: column 'ill' is not numeric")


def test_survival_labels_are_time_and_event(read: Read) -> None:
    federation = read(
        lambda frame: frame.assign(days=np.arange(1, 601)), label={"time": "days", "event": "ill"}, numeric=["age"]
    )
    assert federation.labels.kind == "survival"
    assert federation.train.labels.shape == (len(federation.train), 2)
    assert set(np.unique(federation.train.labels[:, 1])) == {0, 1}


def test_survival_times_must_be_positive(refusal: Refusal) -> None:
    line = refusal(lambda frame: frame.assign(days=0), label={"time": "days", "event": "ill"}, numeric=["age"])
    assert line.startswith("data.label.time: column 'days' is not positive in 600 rows")


def test_a_missing_label_setting_is_refused(refusal: Refusal) -> None:
    assert refusal(label=None).startswith("data.label: no label column is named")


def test_the_label_kind_is_public_before_any_record_is_read() -> None:
    assert source_facts(DataOptions(label="y", task="real", path="not/there.csv")).labels == Labels("real")


def test_a_class_named_twice_is_refused() -> None:
    with pytest.raises(UserError, match="named twice"):
        source_facts(DataOptions(label="y", task="multiclass", classes=["a", "b", "a"]))
