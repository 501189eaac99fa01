"""Run folders are read as they are: half-written, resumed, or with parts missing."""

from __future__ import annotations

import json
import math

import pytest

from tacit.report.run_files import read_run
from tests.refusals import refuses


def test_a_folder_without_a_result_is_a_users_mistake(tmp_path):
    with refuses("wrong-file", "run", names=["result.json"]):
        read_run(tmp_path)


def test_a_broken_result_is_a_users_mistake(tmp_path):
    (tmp_path / "result.json").write_text('{"title": ')
    with refuses("file-damaged", "run"):
        read_run(tmp_path)


@pytest.mark.parametrize("key", ["rounds", "data"])
def test_a_result_with_a_value_of_the_wrong_type_is_a_users_mistake(make_run, key):
    run = make_run()
    result = json.loads((run / "result.json").read_text())
    bad = {"rounds": "many", "data": {"silos": "six"}}
    (run / "result.json").write_text(json.dumps(result | {key: bad[key]}))
    with refuses("file-damaged", "run", names=["result.json"]):
        read_run(run)


def test_a_resumed_round_counts_once_and_a_half_written_line_not_at_all(make_run):
    run = make_run(rounds=4)
    again = {"round": 2, "seconds": 9.0, "silos_in_round": 6, "metrics": {"auc": 0.625}, "silos": {}}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(again) + '\n{"round": 5, "metr')
    curve = read_run(run).curve
    assert [point.round for point in curve] == [0, 1, 2, 3, 4]
    assert curve[2].metrics == {"auc": 0.625}


def test_numbers_that_are_not_finite_are_missing(make_run):
    run = read_run(make_run(metrics={"auc": math.nan, "log_loss": math.inf, "f1": 0.5}))
    assert run.metrics == {"auc": None, "log_loss": None, "f1": 0.5}


def test_an_epsilon_that_cannot_be_read_promises_nothing(make_run):
    lines = [{"unit": "subject", "view": "public", "epsilon": value} for value in ("inf", None, "2.0", math.inf)]
    assert [line.epsilon for line in read_run(make_run(guarantees=lines)).guarantees] == [math.inf] * 4


def test_what_is_read_for_sharing_holds_no_count_of_private_records(make_run):
    run = read_run(make_run())
    assert all(set(values) == {"auc", "accuracy", "f1", "log_loss"} for values in run.silos.values())


def test_a_baselines_name_does_not_lead_out_of_the_folder(make_run):
    outside = make_run("outside", rounds=3)
    baselines = {"../../outside": {"metrics": {"auc": 0.7}, "silos": {}}}
    assert outside.exists()
    assert read_run(make_run(baselines=baselines)).baselines["../../outside"].curve == ()
