"""Studies before any work: what is trained, what is refused, and who is held out for a choice."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.studies.study import Study
from tacit.studies.study_file import StudyOptions, flat, merged, without
from tacit.studies.study_page import tuning_words
from tacit.studies.trial import _federation
from tests.refusals import refused_section, refuses
from tests.studies import made_study


def test_a_study_counts_its_trainings_each_once(tmp_path):
    study = Study(made_study.written(tmp_path), tmp_path / "out")
    # subject-sgd: 2 points x (2 settings + 2 seeds); fedavg has no noise and is the same at both points
    assert len(study.planned.expected) == 8 + 4
    assert study.status()["trainings"] == 12
    assert study.status()["finished"] == 0
    assert not (tmp_path / "out").exists()


def test_a_contender_that_is_added_costs_only_itself(tmp_path):
    before = Study(made_study.written(tmp_path / "one"), tmp_path / "out")
    third = {"name": "third", "method": {"name": "uldp-avg", "clip": 0.5, "noise_multiplier": 2.0}}
    contenders = [*made_study.study()["contenders"], third]
    after = Study(made_study.written(tmp_path / "two", contenders=contenders), tmp_path / "out")
    keys = [{training.key for training in study.planned.expected} for study in (before, after)]
    assert keys[0] < keys[1]
    assert len(keys[1] - keys[0]) == 2 * 2


def test_no_setting_is_chosen_with_people_that_results_are_tested_on(tmp_path):
    study = Study(made_study.written(tmp_path), tmp_path / "out")
    cell = study.planned.cells[0]
    result = _federation(study.planned.results(cell, 0)[0].trial)
    for training in study.planned.choices(cell):
        choice = _federation(training.trial)
        people = [set(np.unique(part.subject)) for part in (choice.train, choice.test)]
        assert not people[0] & people[1]
        assert people[0] | people[1] == set(np.unique(result.train.subject))
        assert not (people[0] | people[1]) & set(np.unique(result.test.subject))
        assert len(people[1]) == len(people[0] | people[1]) // 5


def test_a_choice_that_would_see_the_people_of_results_is_refused(tmp_path):
    data = {key: value for key, value in made_study.EXPERIMENT["data"].items() if key != "seed"}
    experiment = {**made_study.EXPERIMENT, "data": data}
    with refuses("missing", "data.seed"):
        Study(made_study.written(tmp_path, experiment=experiment))


def test_a_choice_at_one_point_must_not_hold_out_other_people(tmp_path):
    axes = [*made_study.study()["axes"], {"name": "data.test_fraction", "values": [0.2, 0.3]}]
    with refuses("conflict", "choose.at"):
        Study(made_study.written(tmp_path, axes=axes, choose={"at": {"data.test_fraction": 0.2}}))


def test_settings_that_are_chosen_at_one_point_are_judged_there_alone(tmp_path):
    study = Study(made_study.written(tmp_path, choose={"at": {"noise_multiplier": 1.0}}), tmp_path / "out")
    first, second = (cell for cell in study.planned.cells if cell.contender == "subject-sgd")
    assert [t.key for t in study.planned.choices(first)] == [t.key for t in study.planned.choices(second)]
    assert [t.key for t in study.planned.results(first, 0)] != [t.key for t in study.planned.results(second, 0)]


def test_a_method_that_cannot_reach_the_target_is_a_result_and_a_wrong_key_an_error(tmp_path):
    unreachable = {"name": "local", "method": {"name": "local-record", "target_epsilon": 1e-9, "sample_rate": 0.05}}
    contenders = [made_study.study()["contenders"][1], unreachable]
    study = Study(made_study.written(tmp_path, contenders=contenders, axes=[]), tmp_path / "out")
    assert [one["contender"] for one in study.status()["refused"]] == ["local"]
    assert study.tuning == "not-accounted"
    wrong = {"name": "wrong", "method": {"name": "subject-sgd", "clipp": 0.5, "noise_multiplier": 1.0}}
    with refuses("unknown-key", "method.clipp", file="contender 'wrong'"):
        Study(made_study.written(tmp_path, contenders=[wrong], axes=[]))


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"privacy": {"budget": 1.0, "budget_file": "b.jsonl"}}, "conflict", "privacy.budget_file"),
        ({"evaluation": {"data": "none"}}, "conflict", "evaluation.data"),
        ({"evaluation": {"status": "private", "noise_multiplier": 3.0}}, "not-supported", "evaluation.status"),
    ],
)
def test_what_a_study_cannot_count_is_refused_before_any_work(tmp_path, changes, code, field):
    experiment = made_study.EXPERIMENT | {name: {**made_study.EXPERIMENT.get(name, {}), **keys}
                                          for name, keys in changes.items()}  # fmt: skip
    contenders = [{"name": "one", "method": {"name": "subject-sgd", "clip": 0.5, "noise_multiplier": 2.0}}]
    with refuses(code, field):
        Study(made_study.written(tmp_path, experiment=experiment, contenders=contenders, axes=[]))


def test_an_axis_that_no_contender_has_and_an_unknown_metric_are_refused(tmp_path):
    with refuses("unknown-key", "axes.group_sise"):
        Study(made_study.written(tmp_path, axes=[{"name": "group_sise", "values": [1, 2]}]))
    with refuses("unknown-name", "metric"):
        Study(made_study.written(tmp_path, metric="rmse"))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"seeds": [1001]}, "conflict"),
        ({"seeds": [0, 0]}, "duplicate"),
        ({"reference": "nobody"}, "unknown-name"),
        ({"contenders": []}, "too-few"),
        ({"choose": {"at": {"noise_multiplier": 9.0}}}, "unknown-name"),
        ({"axes": [{"name": "epsilon"}]}, "conflict"),
        ({"extra": 1}, "unknown-key"),
    ],
)
def test_a_study_file_is_checked(changes, code):
    assert refused_section(StudyOptions, **made_study.study(**changes)).code == code


@pytest.mark.parametrize(("governance", "tuning"), [({}, "not-stated"), ({"tuning": "private"}, "private")])
def test_a_study_that_chooses_nothing_does_not_say_that_nothing_was_chosen(tmp_path, governance, tuning):
    experiment = {**made_study.EXPERIMENT, "governance": governance}
    contenders = [{"name": "fedavg", "method": {"name": "fedavg"}}]
    study = Study(made_study.written(tmp_path, experiment=experiment, contenders=contenders, axes=[]), tmp_path / "out")
    assert study.tuning == tuning
    assert tuning_words(tuning)


def test_settings_are_merged_key_by_key_and_dotted_keys_replace_a_whole_value():
    content = {"data": {"silos": {"column": "clinic", "count": 3}}, "train": {"rounds": 4}}
    assert merged(content, {"data": {"silos": {"count": 5}}})["data"]["silos"] == {"column": "clinic", "count": 5}
    assert merged(content, {"data.silos": {"count": 5}})["data"]["silos"] == {"count": 5}
    assert without(content, "data.silos.column") == {"data": {"silos": {"count": 3}}, "train": {"rounds": 4}}
    assert without(content, "privacy.unit") == content
    assert flat({"clip": [1.0], "train": {"rounds": [4]}}) == {"clip": [1.0], "train.rounds": [4]}
