"""`tacit survey` and `tacit.survey`: from a table to answers, with a line in the ledger before them."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from typer.testing import CliRunner

import tacit
from tacit.families.survey.ask import Survey
from tacit.privacy import Ledger
from tacit.ui.main import app
from tests.refusals import refuses


@pytest.fixture
def table(visits, tmp_path):
    visits.to_csv(tmp_path / "visits.csv", index=False)
    return tmp_path / "visits.csv"


def command(*arguments: object):
    return CliRunner().invoke(app, ["survey", *map(str, arguments)])


def ask(visits: pd.DataFrame, tmp_path, **changes) -> Survey:
    question = {"epsilon": 1.0, "categories": ["no", "yes"], "subject": "person", "seed": 1, **changes}
    return tacit.survey(visits, question.pop("column", "smoker"), out=tmp_path / "survey", **question)[0]


def test_a_survey_prints_answers_with_error_bars_and_leaves_a_folder(table, tmp_path):
    arguments = ("--column", "smoker", "--epsilon", 1, "--categories", "no,yes", "--subject", "person")
    done = command(table, *arguments, "--out", tmp_path / "survey")
    assert done.exit_code == 0, done.output
    for part in ("estimate", "95 % interval", "60 people", "anyone who sees", "the server is trusted", "--noise local"):
        assert part in " ".join(done.stdout.split())
    found = json.loads((tmp_path / "survey" / "survey.json").read_text())
    assert [answer["answer"] for answer in found["answers"]] == ["no", "yes"]
    assert "95 % interval" in (tmp_path / "survey" / "survey.html").read_text()
    with Ledger(tmp_path / "survey" / "ledger.jsonl") as ledger:
        (line,) = ledger.lines
    assert line["mechanism"] == "survey of smoker"
    assert "subject/public/replace" in line["events"]


def test_json_is_one_object(table, tmp_path):
    done = command(
        table,
        "--column",
        "age",
        "--epsilon",
        2,
        "--range",
        "0:100",
        "--noise",
        "local",
        "--out",
        tmp_path / "s",
        "--json",
    )
    found = json.loads(done.stdout)
    assert found["kind"] == "mean"
    assert found["people"] == 600  # every row is a subject
    assert {line["view"]: line["epsilon"] for line in found["guarantees"]} == {"server": 2.0, "public": 2.0}
    assert found["other_error"] < found["expected_error"]


@pytest.mark.parametrize("place", ["central", "local"])
def test_estimates_are_near_the_truth(visits, tmp_path, place):
    found = ask(visits, tmp_path, epsilon=8.0, place=place)
    truth = visits.groupby("person")["smoker"].apply(lambda own: (own == "yes").mean()).mean()
    answer = found.frame().loc["yes"]
    assert abs(answer["estimate"] - truth) < 4 * answer["standard_error"]
    assert answer["low"] < answer["estimate"] < answer["high"]


def test_a_trusted_server_sees_everything_and_a_local_survey_trusts_no_party(visits, tmp_path):
    central = {str(line.view): line.epsilon for line in ask(visits, tmp_path).guarantees}
    assert central == {"public": 1.0, "server": float("inf")}


def test_surveys_share_a_budget(table, tmp_path):
    arguments = [table, "--column", "smoker", "--epsilon", 1, "--categories", "no,yes", "--subject", "person"]
    shared = ["--ledger", tmp_path / "book.jsonl", "--budget", 2.5]
    for number in range(2):
        assert command(*arguments, *shared, "--out", tmp_path / f"s{number}").exit_code == 0
    refused = command(*arguments, *shared, "--out", tmp_path / "s2")
    assert isinstance(refused.exception, tacit.Forbidden)
    assert (refused.exception.code, refused.exception.field) == ("budget-exhausted", "--budget")
    assert not (tmp_path / "s2").exists()
    with Ledger(tmp_path / "book.jsonl") as ledger:
        assert len(ledger.lines) == 2


def test_the_line_is_there_before_the_answer(visits, tmp_path, monkeypatch):
    """Whatever goes wrong in between, what may have left is counted."""
    from tacit.families.survey.questions import CentralShares

    def fails(*_: object) -> None:
        raise RuntimeError("cut off")

    monkeypatch.setattr(CentralShares, "release", fails)
    with pytest.raises(RuntimeError):
        ask(visits, tmp_path)
    with Ledger(tmp_path / "survey" / "ledger.jsonl") as ledger:
        assert len(ledger.lines) == 1


def test_other_questions_have_other_noise_under_the_same_seed(visits, tmp_path):
    one = ask(visits, tmp_path / "a")
    same = ask(visits, tmp_path / "b")
    other = ask(visits, tmp_path / "c", epsilon=2.0)
    assert one.answers == same.answers
    truth = visits.groupby("person")["smoker"].apply(lambda own: (own == "no").mean()).mean()
    # noise of the first is twice that of the second if they were drawn from the same numbers
    assert abs((one.answers[0].estimate - truth) - 2 * (other.answers[0].estimate - truth)) > 1e-6


def test_one_question_with_one_seed_is_asked_once(visits, tmp_path):
    """Two answers with the same noise, with and without a person, show what the person said."""
    ask(visits, tmp_path / "a", ledger=tmp_path / "book.jsonl")
    ask(visits, tmp_path / "b", ledger=tmp_path / "book.jsonl", epsilon=2.0)
    ask(visits, tmp_path / "c", ledger=tmp_path / "book.jsonl", seed=None)
    ask(visits, tmp_path / "d", ledger=tmp_path / "book.jsonl", seed=None)
    with refuses("seed-reused", "--seed"):
        ask(visits[visits["person"] != 7], tmp_path / "e", ledger=tmp_path / "book.jsonl")
    with Ledger(tmp_path / "book.jsonl") as ledger:
        assert len(ledger.lines) == 4


@pytest.mark.parametrize(
    ("changes", "code", "field", "names"),
    [
        ({"epsilon": 0}, "out-of-range", "--epsilon", []),
        ({"column": "smokes"}, "unknown-name", "--column", ["smokes", "smoker"]),
        ({"categories": ["no"]}, "invalid-value", "--categories", ["no"]),
        ({"categories": ["no", "maybe"]}, "undeclared-value", "--categories", ["smoker", "yes"]),
        ({"categories": None}, "missing", "--categories or --range", []),
        ({"bounds": (0, 1)}, "conflict", "--categories or --range", []),
        ({"categories": None, "bounds": (0, 1)}, "wrong-type", "--column", ["smoker"]),
        ({"categories": None, "bounds": (1, 0), "column": "age"}, "out-of-range", "--range", []),
        ({"place": "local", "delta": 1e-6}, "no-effect", "--delta", []),
        ({"subject": "whom"}, "unknown-name", "--subject", ["whom"]),
        ({"ledger": "nowhere/book.jsonl"}, "file-access", "--ledger", ["nowhere/book.jsonl"]),
    ],
)
def test_a_mistake_names_the_option_and_the_fix(visits, tmp_path, changes, code, field, names):
    with refuses(code, field, names=names):
        ask(visits, tmp_path, **changes)
    assert not (tmp_path / "survey").exists()


def test_missing_answers_are_refused(visits, tmp_path):
    visits.loc[3, "smoker"] = None
    with refuses("missing-values", "--column"):
        ask(visits, tmp_path)


def test_a_range_in_another_form_is_refused(table, tmp_path):
    done = command(table, "--column", "age", "--epsilon", 1, "--range", "0-100", "--out", tmp_path / "s")
    assert (done.exception.code, done.exception.field) == ("malformed", "--range")
