"""Labels are checked against what is declared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from tacit.data import DataOptions, Federation, Labels, source_facts
from tests.refusals import refuses

Read = Callable[..., Federation]
Refusal = Callable[..., None]


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
    refusal("undeclared-value", "data.label", with_label(2), names=["'ill'", "'2'", "0, 1"])


def test_a_missing_label_is_refused(refusal: Refusal) -> None:
    refusal("missing-values", "data.label", with_label(np.nan), names=["600 rows"])


def test_multiclass_needs_declared_classes(refusal: Refusal, read: Read) -> None:
    refusal("missing", "data.classes", task="multiclass")
    assert read(task="multiclass", classes=3).labels.classes == ("0", "1", "2")


def test_a_binary_task_has_two_classes(refusal: Refusal) -> None:
    refusal("conflict", "data.classes", classes=3)


def test_real_labels_are_float32(read: Read) -> None:
    federation = read(lambda frame: frame.assign(ill=frame["age"] / 3), task="real")
    assert federation.train.labels.dtype == np.float32


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_real_labels_must_be_finite(refusal: Refusal, value: float) -> None:
    refusal("missing-values", "data.label", with_label(value), task="real", names=["'ill'"])


def test_text_is_no_real_label(refusal: Refusal) -> None:
    refusal("wrong-type", "data.label", with_label("high"), task="real", names=["'ill'"])


def test_survival_labels_are_time_and_event(read: Read) -> None:
    federation = read(
        lambda frame: frame.assign(days=np.arange(1, 601)), label={"time": "days", "event": "ill"}, numeric=["age"]
    )
    assert federation.labels.kind == "survival"
    assert federation.train.labels.shape == (len(federation.train), 2)
    assert set(np.unique(federation.train.labels[:, 1])) == {0, 1}


def test_survival_times_must_be_positive(refusal: Refusal) -> None:
    label = {"time": "days", "event": "ill"}
    zero = lambda frame: frame.assign(days=0)  # noqa: E731
    refusal("out-of-range", "data.label.time", zero, label=label, numeric=["age"], names=["'days'", "600 rows"])


def test_a_missing_label_setting_is_refused(refusal: Refusal) -> None:
    refusal("missing", "data.label", label=None)


def test_the_label_kind_is_public_before_any_record_is_read() -> None:
    assert source_facts(DataOptions(label="y", task="real", path="not/there.csv")).labels == Labels("real")


def test_a_class_named_twice_is_refused() -> None:
    with refuses("duplicate", "data.classes"):
        source_facts(DataOptions(label="y", task="multiclass", classes=["a", "b", "a"]))
