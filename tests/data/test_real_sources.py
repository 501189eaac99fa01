"""The real files agree with what is publicly known about them. Needs TACIT_DATA; run with ``-m slow``."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tacit.data import DataOptions, describe, load, source_facts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TACIT_DATA" not in os.environ, reason="TACIT_DATA does not name the folder of the files"),
]

FIVE = {"assign": "zipf", "count": 5}


@pytest.mark.parametrize(
    ("settings", "train", "test", "subjects", "silos"),
    [
        ({"source": "heart"}, 486, 254, 740, 4),
        ({"source": "tcga-brca"}, 866, 222, 1088, 6),
        ({"source": "creditcard", "silos": FIVE}, 24_584, 42_722, 67_306, 5),
        ({"source": "mnist", "silos": FIVE}, 60_000, 10_000, 70_000, 5),
        ({"source": "mnist", "subjects": {"column": "writer"}, "silos": {"column": "hsf"}}, 60_000, 10_000, 836, 2),
    ],
)
def test_sources_with_a_split_of_their_own(settings: dict, train: int, test: int, subjects: int, silos: int) -> None:
    federation = load(DataOptions(**settings))
    assert federation.held_out == "given"
    assert (len(federation.train), len(federation.test)) == (train, test)
    assert (federation.subject_count, federation.silo_count) == (subjects, silos)
    assert np.isfinite(federation.train.features).all()


@pytest.mark.parametrize(
    ("settings", "records"),
    [
        ({"source": "insteval"}, 73_421),
        ({"source": "diabetes130"}, 99_343),
        ({"source": "shakespeare", "window_stride": 10}, 421_626),
        ({"source": "shakespeare", "window_stride": 10, "silos": {"column": "act"}}, 421_626),
    ],
)
def test_sources_with_real_people(settings: dict, records: int) -> None:
    options = DataOptions(**settings)
    federation, facts = load(options), source_facts(options)
    assert federation.held_out == "subjects"
    assert len(federation.train) + len(federation.test) == records
    assert federation.subject_count == facts.subject_count
    assert federation.silo_count == facts.silo_count
    assert federation.train.features.shape[1:] == facts.feature_shape


def test_heart_hospitals_have_their_published_sizes() -> None:
    picture = describe(load(DataOptions(source="heart")))
    assert [(silo["records"], silo["test_records"]) for silo in picture["silos"]] == [
        (199, 104),
        (172, 89),
        (30, 16),
        (85, 45),
    ]


def test_shakespeare_has_all_its_windows() -> None:
    federation = load(DataOptions(source="shakespeare"))
    assert len(federation.train) + len(federation.test) == 4_210_897


def test_lecturers_one_hot() -> None:
    options = DataOptions(source="insteval", categorical={"lecturer": []})
    federation = load(options)
    assert federation.train.features.shape[1:] == source_facts(options).feature_shape == (1139,)
    assert (federation.train.features[:, 11:].sum(axis=1) == 1).all()
