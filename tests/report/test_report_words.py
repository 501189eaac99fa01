"""Sentences say what the numbers say, in both directions."""

from __future__ import annotations

import math

import pytest

from tacit.report import words
from tacit.report.run_files import read_run


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.81234, "0.812"),
        (0.0, "0.000"),
        (-0.5, "−0.500"),
        (12.3456, "12.35"),
        (1523.6, "1,524"),
        (0.00004, "4.0e−5"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_metrics_have_three_decimals_and_thousands_separators(value, shown):
    assert words.number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.042, "42 ms"), (3.21, "3.2 s"), (9.97, "10 s"), (42.4, "42 s"), (192, "3 min 12 s"), (7500, "2 h 05 min")],
)
def test_durations_read_as_people_say_them(seconds, shown):
    assert words.duration(seconds) == shown


@pytest.mark.parametrize(("value", "shown"), [(1e-5, "10⁻⁵"), (2.5e-6, "2.5 × 10⁻⁶"), (0.05, "0.05"), (0, "0")])
def test_delta_is_written_as_a_power_of_ten(value, shown):
    assert words.delta(value) == shown


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        ("public", "anyone who sees the released models"),
        ("silos:1", "one curious silo"),
        ("silos:3", "3 colluding silos"),
        ("server+silos:2", "the server together with 2 colluding silos"),
        ("something-new", "something-new"),
    ],
)
def test_views_are_said_in_plain_words(view, shown):
    assert words.view(view) == shown


def answer(run) -> str:
    return " ".join(words.is_joining_worth_it(read_run(run)))


def values(auc: dict[str, float | None]) -> dict[str, dict[str, float | None]]:
    return {name: {"auc": value} for name, value in auc.items()}


def joined(make_run, together, alone, *, overall=(0.8, 0.7), higher=True):
    return make_run(
        metrics={"auc": overall[0]},
        silos=values(together),
        baselines={"silo-only": {"metrics": {"auc": overall[1]}, "silos": values(alone)}},
        task={"name": "binary", "headline": "auc", "higher_is_better": {"auc": higher}},
    )


def test_joining_that_helps_every_silo_is_said_to_help(make_run):
    said = answer(joined(make_run, {"a": 0.8, "b": 0.9}, {"a": 0.7, "b": 0.6}))
    # scores of different silos' models cannot be ranked together: AUC is compared by its mean over silos
    assert said == (
        "By AUC, joining helped 2 of 2 silos. "
        "AUC on average over silos: 0.850 together, 0.650 alone (better together than alone)."
    )


def test_joining_that_helps_no_silo_is_said_not_to_help(make_run):
    said = answer(joined(make_run, {"a": 0.6, "b": 0.5}, {"a": 0.7, "b": 0.6}, overall=(0.55, 0.65)))
    assert said.startswith("By AUC, joining helped 0 of 2 silos; better alone: 2.")
    assert said.endswith("(worse together than alone).")


def test_for_a_metric_where_less_is_better_the_answer_turns_round(make_run):
    said = answer(joined(make_run, {"a": 0.6, "b": 0.5}, {"a": 0.7, "b": 0.6}, overall=(0.55, 0.65), higher=False))
    assert said.startswith("By AUC, joining helped 2 of 2 silos.")
    assert said.endswith("(better together than alone).")


def test_mixed_level_and_undefined_silos_are_counted_apart(make_run):
    together = {"a": 0.8, "b": 0.8, "c": 0.70001, "d": None}
    alone = {"a": 0.7, "b": 0.9, "c": 0.70002, "d": 0.5}
    said = answer(joined(make_run, together, alone))
    assert said.startswith("By AUC, joining helped 1 of 3 silos; better alone: 1; level: 1; not comparable: 1.")


@pytest.mark.parametrize(
    ("pooled", "end"),
    [
        (
            0.85,
            "0.850 pooled (better together than alone). Joining closes 67\N{NO-BREAK SPACE}% of the gap between "
            "working alone and pooling.",
        ),
        (0.80, "0.800 pooled (better together than alone)."),
        (0.79, "0.790 pooled (better together than alone)."),
    ],
)
def test_the_pooled_model_is_the_yardstick(make_run, pooled, end):
    baselines = {
        "silo-only": {"metrics": {"auc": 0.7}, "silos": {}},
        "pooled": {"metrics": {"auc": pooled}, "silos": {}},
    }
    assert answer(make_run(metrics={"auc": 0.8}, silos={}, baselines=baselines)).endswith(end)


def test_where_joining_hurts_no_gap_is_said_to_close(make_run):
    baselines = {
        "silo-only": {"metrics": {"auc": 0.82}, "silos": {}},
        "pooled": {"metrics": {"auc": 0.85}, "silos": {}},
    }
    said = answer(make_run(metrics={"auc": 0.8}, silos={}, baselines=baselines))
    assert said == "AUC: 0.800 together, 0.820 alone, 0.850 pooled (worse together than alone)."


def test_without_baselines_nothing_is_claimed(make_run):
    assert answer(make_run(baselines={})) == ""


# ---- more than one judge


def two_judges(make_run, accuracy: tuple[float, float], auc: tuple[float, float]) -> str:
    (together, alone), (ranked, before) = accuracy, auc
    metrics = {"accuracy": together, "auc": ranked}
    return answer(
        make_run(
            metrics=metrics,
            silos={"a": metrics},
            baselines={
                "silo-only": {
                    "metrics": {"accuracy": alone, "auc": before},
                    "silos": {"a": {"accuracy": alone, "auc": before}},
                }
            },
            task={"name": "binary", "headline": "accuracy", "higher_is_better": {"accuracy": True, "auc": True}},
        )
    )


def test_where_a_rare_class_makes_accuracy_blind_the_verdict_says_that_metrics_disagree(make_run):
    said = two_judges(make_run, accuracy=(0.98, 0.97), auc=(0.51, 0.83))
    assert said.startswith("By accuracy, joining helped")
    assert "AUC on average over silos: 0.510 together, 0.830 alone (worse together than alone)." in said
    assert said.endswith("The metrics disagree: where one class is rare, AUC says more than accuracy.")


def test_metrics_that_agree_are_both_shown_without_a_warning(make_run):
    said = two_judges(make_run, accuracy=(0.9, 0.8), auc=(0.9, 0.8))
    assert "Accuracy: 0.900 together, 0.800 alone" in said
    assert "AUC on average over silos: 0.900 together, 0.800 alone" in said
    assert "disagree" not in said


def test_an_epsilon_is_never_shown_smaller_than_it_is():
    assert words.epsilon(2.3001) == "2.31"
    assert words.epsilon(2.3) == "2.30"
    assert words.epsilon(1234.2) == "1,235"


def test_a_papers_number_is_shown_with_its_digits():
    shown = [words.published_epsilon(value) for value in (0.8349, 7.9949, 10.72551, 98.787, 2151.98, math.inf)]
    assert shown == ["0.8349", "7.995", "10.73", "98.79", "2,152", "∞"]


def test_ranking_metrics_are_judged_by_the_average_that_the_run_s_table_shows(make_run):
    """Weighted by test records, as the metrics of silos alone are; without it, silo b would weigh as much as a."""
    run = make_run(
        metrics={"auc": 0.8},
        silos=values({"a": 0.8, "b": 0.5}),
        over_silos={"auc": 0.79},
        baselines={
            "silo-only": {
                "metrics": {"auc": 0.71}, "silos": values({"a": 0.7, "b": 0.9}), "over_silos": {"auc": 0.71}
            },
            "pooled": {"metrics": {"auc": 0.9}, "silos": values({"a": 0.8, "b": 0.9}), "over_silos": {"auc": 0.81}},
        },
        task={"name": "binary", "headline": "auc", "higher_is_better": {"auc": True}},
    )  # fmt: skip
    said = answer(run)
    assert "AUC on average over silos: 0.790 together, 0.710 alone, 0.810 pooled" in said


@pytest.mark.parametrize(
    ("evaluation", "names_the_option"),
    [
        ({"held_out": "elsewhere", "status": "outside-guarantee"}, True),
        ({"held_out": "elsewhere", "status": "paid"}, False),
        ({"held_out": "subjects", "status": "outside-guarantee"}, False),
        ({}, False),
    ],
)
def test_without_metrics_of_a_federation_the_option_for_private_ones_is_named(evaluation, names_the_option):
    assert ('status = "private"' in words.no_metrics(evaluation)) is names_the_option
