"""Exact counts for those who hold the data."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from tacit.data import DataOptions, describe, load


def made() -> dict:
    """Ten people with two records each in one bank, and person 0 with one more in the other; one is held out."""
    frame = pd.DataFrame({"person": [*range(10), *range(10), 0], "x": 0.0, "y": [0, 1] * 10 + [1]})
    frame["bank"] = np.where(frame["person"] < 5, "a", "b")
    frame.loc[20, "bank"] = "b"
    options = DataOptions(label="y", subjects={"column": "person"}, silos={"column": "bank"}, test_fraction=0.1, seed=0)
    return describe(load(options, frame=frame))


def test_a_description_is_plain_json() -> None:
    assert json.loads(json.dumps(made())) == made()


def test_counts_add_up() -> None:
    picture = made()
    assert sum(silo["records"] for silo in picture["silos"]) == picture["records"]
    assert sum(silo["test_records"] for silo in picture["silos"]) == picture["test_records"]
    assert picture["records"] + picture["test_records"] == 21
    assert picture["subjects"] == 9
    for silo in picture["silos"]:
        assert sum(silo["label"]) == silo["records"]


def test_histograms_count_every_person_once() -> None:
    picture = made()
    for name, key in (("records_per_subject", "records"), ("silos_per_subject", "silos")):
        assert sum(picture[name]["subjects"]) == picture["subjects"]
        assert len(picture[name][key]) == len(picture[name]["subjects"])
    total = sum(r * s for r, s in zip(*picture["records_per_subject"].values(), strict=True))
    assert total == picture["records"]


def test_overlap_has_the_people_of_a_silo_on_its_diagonal() -> None:
    picture = made()
    overlap = np.array(picture["overlap"])
    assert (overlap == overlap.T).all()
    assert overlap.diagonal().tolist() == [silo["subjects"] for silo in picture["silos"]]
    assert overlap[0, 1] == overlap.diagonal().sum() - picture["subjects"]


def test_real_labels_are_described_by_their_mean() -> None:
    frame = pd.DataFrame({"x": 0.0, "y": 2.5, "bank": ["a", "b"] * 10})
    picture = describe(load(DataOptions(label="y", task="real", silos={"column": "bank"}), frame=frame))
    assert [silo["label"] for silo in picture["silos"]] == [2.5, 2.5]
