"""What stands on the pages, and what must not."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tacit import report
from tacit.privacy import Gaussian, Ledger, PoissonSampled, Repeated, account, attack_limits
from tacit.privacy.terms import percent
from tacit.report.figures import thinned
from tacit.report.page import COLORS, Html, color_name, json_script, style_of, tag
from tacit.report.run_files import read_run
from tacit.report.sheet import ledger_problem

MOST_BYTES = 400_000
NASTY = '</script><script>alert("x")</script><img src=x onerror=alert(1)>&amp;'


class Page(HTMLParser):
    """The page as a browser takes it apart: tags with attributes, visible text, figures."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.figures: list[dict] = []
        self._inside = ""
        self._is_figure = False
        self.source = file.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        self._is_figure = tag == "script" and "data-chart" in dict(attrs)

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._is_figure and self._inside == "script":
            self.figures.append(json.loads(data))
        elif self._inside not in ("script", "style"):
            self.texts.append(data)

    def without_library(self) -> str:
        """Everything but the drawing library: what comes from the run, and our own style and code."""
        return re.sub(r"<script data-library>.*?</script>", "", self.source, flags=re.DOTALL)

    def headings(self) -> list[str]:
        return [tag for tag, _ in self.tags if re.fullmatch("h[1-6]", tag)]

    def alternatives(self) -> list[str | None]:
        return [attributes.get("aria-label") for tag, attributes in self.tags if tag == "canvas"]


@pytest.fixture
def page_of(make_run):
    """The report of a run with these changes."""
    return lambda **changes: Page(report.write(make_run(**changes)))


# ---- what is private stays out


def test_no_private_number_reaches_the_shareable_page(make_run, private_numbers):
    run = make_run()
    shared = Page(report.write(run)).without_library()
    numbers = private_numbers(run)
    assert len(numbers) > 200
    any_of_them = "|".join(map(re.escape, numbers))
    assert re.findall(rf"(?<![\d.])(?:{any_of_them})(?!\d)", shared) == []


def test_the_local_page_has_the_private_numbers_and_says_that_it_stays(make_run):
    run = make_run()
    report.write(run)
    local = Page(run / "local.html")
    assert "Stays with the data holder" in local.text
    assert "31,557,013" in local.text
    assert "People whom two silos share" in local.text


def test_without_private_numbers_there_is_no_local_page(make_run):
    run = make_run(local=False)
    report.write(run)
    assert not (run / "local.html").exists()


def test_the_shareable_page_is_the_same_with_and_without_private_numbers(make_run):
    assert report.write(make_run("a/run")).read_text() == report.write(make_run("b/run", local=False)).read_text()


def test_the_place_of_the_run_on_the_machine_is_not_told(page_of):
    assert "secret-place" not in page_of().source


def test_figures_hold_no_more_digits_than_they_show(page_of):
    values = [number for figure in page_of().figures for number in numbers(figure)]
    assert len(values) > 500
    for value in values:
        assert len(f"{value:.15g}".replace(".", "").strip("-0")) <= 4


# ---- self-contained and safe


def test_the_page_fetches_nothing(page_of):
    page = page_of()
    for _, attributes in page.tags:
        assert not attributes.get("src")
        assert (attributes.get("href") or "#").startswith(("#", "data:"))
    assert "url(" not in page.without_library()
    assert "@import" not in page.without_library()
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_text_of_users_cannot_become_markup(make_run):
    names = [NASTY, "plain"]
    run = make_run(
        names=names,
        title=NASTY,
        method={"name": NASTY, "about": NASTY, "paper": NASTY},
        guarantees=[{"unit": NASTY, "view": NASTY, "epsilon": 1.0, "assumptions": [NASTY], "sampling": NASTY}],
        environment={"platform": NASTY, NASTY: "1"},
    )
    (run / "plan.toml").write_text(f"title = '{NASTY}'")
    for file in (report.write(run), run / "local.html", report.compare([run, make_run("other")])):
        page = Page(file)
        assert "img" not in [tag for tag, _ in page.tags]
        scripts = [list(a) for tag, a in page.tags if tag == "script" and "data-chart" not in a]
        assert scripts == [["data-library"], ["data-library"], []]
        assert NASTY in page.text or file.name == "comparison.html"
        assert page.figures


def test_names_are_shown_letter_by_letter_in_charts(page_of):
    rows = page_of(names=["<b>A</b>", "B & C"]).figures[0]["rows"]
    assert sorted(rows[1:]) == ["<b>A</b>", "B & C"]  # written on a canvas, which knows no markup


def test_json_in_a_page_cannot_end_its_element():
    written = json_script({"a": "</script><!--"})
    assert written.count("</script>") == 1
    assert json.loads(written.split(">", 1)[1].rsplit("<", 1)[0]) == {"a": "</script><!--"}


def test_attributes_and_children_are_escaped_unless_they_are_markup():
    assert tag("p", "<i>", Html("<b>x</b>"), title='"') == '<p title="&quot;">&lt;i&gt;<b>x</b></p>'


# ---- the guarantee


def test_a_run_without_a_guarantee_says_so_plainly(page_of):
    text = page_of().text
    assert "No privacy guarantee: this run gives epsilon = infinity for every view." in text
    assert "Privacy guarantee Protects" not in text


def test_a_finite_guarantee_names_who_is_protected_from_whom(page_of, finite):
    text = page_of(guarantees=finite).text
    assert "No privacy guarantee" not in text
    assert (
        "Protects one person, with all records in all silos, from anyone who sees the released models: "
        "epsilon = 2.31 at delta = 10⁻⁵." in text
    )
    assert "No guarantee for one person against the server (epsilon = infinity)." in text
    assert "ε = 1.120, not valid: counts a person's silos as independent people" in text
    assert "At most 3 silos per person" in text


def test_a_seed_with_a_finite_guarantee_forbids_publication(page_of, finite):
    text = page_of(guarantees=finite, seed=7).text
    assert "can be regenerated from the seed" in text
    assert "must not be published" in text


def test_a_seed_without_a_guarantee_is_noted_and_nothing_is_forbidden(make_run):
    text = Page(report.write(make_run(seed=0))).text
    assert "This run used seed 0" in text
    assert "must not be published" not in text


def test_without_a_seed_nothing_is_said_of_regenerating(page_of, finite):
    assert "regenerated" not in page_of(guarantees=finite).text


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        (
            {"status": "outside-guarantee", "held_out": "subjects"},
            "computed on held-out people of the private data and are outside the guarantee.",
        ),
        (
            {"status": "outside-guarantee", "held_out": "elsewhere"},
            "of the silos that release their metrics (averages over silos) and are outside the guarantee.",
        ),
        ({"status": "paid", "held_out": "records"}, "records of the private data; the guarantee covers their release"),
        ({"status": "public", "held_out": "file"}, "computed on public data; releasing them reveals nothing private."),
    ],
)
def test_the_page_says_on_what_the_metrics_were_computed(page_of, evaluation, said):
    assert said in page_of(evaluation=evaluation).text


@pytest.mark.parametrize(("held_out", "advised"), [("subjects", True), ("elsewhere", False)])
def test_baselines_are_advised_only_where_they_can_be_had(page_of, held_out, advised):
    page = page_of(evaluation={"status": "outside-guarantee", "held_out": held_out}, alone=None, pooled=None)
    assert ("--baselines" in page.text) == advised
    assert "Not measured" in page.text


# ---- the privacy sheet

ROUND = PoissonSampled(0.1, Gaussian(3.0))


def private_run(make_run, rounds: int = 20, altered: bool = False, **changes) -> Path:
    """A run with a ledger and the epsilon that it adds up to."""
    epsilon = account(Repeated(ROUND, rounds), 1e-5).epsilon
    public = {
        "unit": "subject", "relation": "zero-out", "view": "public", "sampling": "poisson subjects 0.1",
        "epsilon": epsilon, "delta": 1e-5, "accountant": "pld", "assumptions": ["sizes are public"],
    }  # fmt: skip
    server = public | {"view": "server", "epsilon": "inf", "assumptions": ["the server sees it all"]}
    run = make_run(
        rounds=rounds, guarantees=[public, server], noise_multiplier=3.0, clip=0.5, noise_deviation=1.5, **changes
    )
    with Ledger(run / "ledger.jsonl") as ledger:
        for number in range(1, rounds + 1):
            events = {"subject/public/zero-out": ROUND}
            ledger.append(run="a", party="server", round=number, mechanism="m", step=number, events=events)
    if altered:
        (run / "ledger.jsonl").write_text((run / "ledger.jsonl").read_text().replace('"rate": 0.1', '"rate": 0.01'))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["epsilon"] = {"public": account(Repeated(ROUND, line["round"]), 1e-5).epsilon}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_the_page_opens_with_the_promise_in_one_sentence(make_run):
    text = Page(report.write(private_run(make_run))).text
    promise = "Adding or removing everything about any one person, in all silos together, changes the probability"
    assert text.index(promise) < text.index("AUC")


def test_the_sheet_takes_its_limits_from_what_the_ledger_says(make_run):
    run = private_run(make_run)
    limits = attack_limits(Repeated(ROUND, 20))
    text = Page(report.write_sheet(run)).text
    assert percent(limits.tpr_at_fpr[0.001]) in text
    assert percent((1 + limits.advantage) / 2) in text
    assert "20 releases written down before they were made; chain verified" in text
    assert "Nothing is promised against the server: the server sees it all." in text
    assert "multiplier 3, clip 0.5, standard deviation 1.5" in text


def test_the_sheet_is_one_page_without_scripts_to_sign(make_run):
    page = Page(report.write_sheet(private_run(make_run, alone=None, pooled=None)))
    assert "script" not in [tag for tag, _ in page.tags]
    for part in ("It rests on", "Sizes are public", "It does not cover", "The metrics of this run", "Signature"):
        assert part in page.text


@pytest.mark.parametrize("write", [report.write, report.write_sheet])
def test_a_seeded_run_says_that_its_noise_can_be_regenerated_and_forbids_publication(make_run, write):
    text = Page(write(private_run(make_run, seed=7))).text
    assert "can be regenerated from the seed" in text
    assert "The model must not be published" in text
    assert "a party that knows it can regenerate the noise" in text


def test_a_run_without_a_guarantee_has_a_sheet_that_promises_nothing(make_run):
    text = Page(report.write_sheet(make_run())).text
    assert "No privacy guarantee: this run gives epsilon = infinity for every view." in text
    assert "It does not cover" not in text


def test_a_ledger_that_was_altered_confirms_nothing(make_run):
    text = Page(report.write(private_run(make_run, altered=True))).text
    assert "The ledger does not confirm this run" in text
    assert "the ledger was altered" in text


def test_a_ledger_that_adds_up_to_more_than_the_result_says_is_pointed_out(make_run):
    run = private_run(make_run)
    result = json.loads((run / "result.json").read_text())
    result["guarantees"][0]["epsilon"] = 0.01
    (run / "result.json").write_text(json.dumps(result))
    assert "more than the 0.0100 of the result file" in Page(report.write(run)).text


def test_privacy_spent_is_drawn_over_rounds_with_the_budget(make_run):
    run = private_run(make_run)
    (run / "plan.toml").write_text("[privacy]\nbudget = 2.5\n")
    page = Page(report.write(run))
    spent, budget = next(lines for f in page.figures if (lines := f["series"])[-1]["name"] == "Budget")
    assert budget["y"] == [2.5, 2.5]
    assert spent["y"][0] == 0
    assert spent["y"] == sorted(spent["y"])
    assert "Privacy spent" in page.text


def test_a_run_that_its_budget_stopped_says_after_which_round(make_run):
    run = private_run(make_run, status="budget", rounds_planned=50)
    assert "Stopped by its privacy budget after round 20 of 50 planned rounds" in Page(report.write(run)).text


def test_metrics_beside_a_finite_guarantee_are_said_to_be_outside_it(make_run):
    said = "Metrics are outside the guarantee"
    assert said in Page(report.write(private_run(make_run))).text
    public = {"status": "public", "held_out": "file"}
    page = Page(report.write(private_run(lambda **c: make_run("public", **c), evaluation=public)))
    assert said not in page.text


def test_a_run_without_metrics_says_nothing_about_on_what_they_were_computed(make_run):
    run = private_run(make_run, metrics={}, silos={}, alone=None, pooled=None, local=False)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    without = [line | {"metrics": {}, "silos": {}} for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in without))
    page = Page(report.write(run))
    assert "No metric was computed in this run." in page.text
    assert "Metrics on private records; this run has none." in page.text
    for wrong in ("These metrics were computed", "The metrics of this run", "Metrics are outside the guarantee"):
        assert wrong not in page.text


# ---- whole with every part, and with parts missing


def test_a_full_report_answers_in_the_order_in_which_people_ask(page_of):
    page = page_of()
    order = ["No privacy guarantee", "AUC", "Is joining worth it?", "Round by round", "Silo by silo", "The experiment"]
    places = [page.text.index(part, page.text.index("data: randhie")) for part in order]
    assert places == sorted(places)
    assert "12,737 parameters" in page.text
    assert "1 min 37 s" in page.text
    assert "hidden = [32]" in page.text
    assert len(page.figures) == 6


def test_a_stopped_run_says_after_how_many_rounds(page_of):
    text = page_of(status="stopped", rounds_planned=250).text
    assert "This run was stopped after 100 of 250 planned rounds." in text


def test_a_finished_run_has_no_such_banner(page_of):
    assert "stopped" not in page_of().text


WHOLE = {
    "everything": {},
    "no baselines": {"alone": None, "pooled": None},
    "only pooled": {"alone": None},
    "only alone": {"pooled": None},
    "one evaluation": {"rounds": 0},
    "two evaluations": {"rounds": 1},
    "no metric": {"metrics": {}, "silos": {}, "baselines": {}},
    "null metrics": {"metrics": {"auc": None, "accuracy": None}, "silos": {"a": {"auc": None}}},
    "one metric": {"metrics": {"auc": 0.7}, "silos": {"a": {"auc": 0.7}}},
    "one silo": {"names": ["only"]},
    "large metric": {"metrics": {"rmse": 15_230.4}, "task": {"name": "real", "headline": "rmse"}},
    "no guarantee stated": {"guarantees": []},
    "61 silos": {"names": [f"silo {number}" for number in range(61)], "rounds": 3},
    "61 silos, no baselines": {"names": [str(n) for n in range(61)], "alone": None, "pooled": None, "rounds": 3},
    "nothing but a title": {
        key: {}
        for key in ("method", "model", "task", "metrics", "silos", "baselines", "seconds", "environment", "data")
    }
    | {"guarantees": [], "evaluation": {}, "noise_multiplier": None},
}


@pytest.mark.parametrize("changes", WHOLE.values(), ids=WHOLE.keys())
def test_the_page_stays_whole_whatever_is_missing(make_run, changes):
    run = make_run(**changes)
    report.write(run)
    for file in (run / "report.html", run / "local.html"):
        page = Page(file)
        assert not re.search(r"\b(NaN|nan|None|null|undefined|inf)\b", page.text)
        assert page.headings()[:2] == ["h1", "h2"]
        assert "h3" not in page.headings()[:2]
        for figure, spoken in zip(page.figures, page.alternatives(), strict=True):
            assert spoken
            assert "NaN" not in spoken
            assert numbers(figure)


def numbers(figure: object) -> list[float]:
    """All numbers of a figure, however deep."""
    if isinstance(figure, dict):
        # how it looks is no data
        figure = [value for key, value in figure.items() if key not in ("dash", "hollow", "red", "share", "sideways")]
    if isinstance(figure, list):
        return [number for part in figure for number in numbers(part)]
    return [figure] if isinstance(figure, int | float) and not isinstance(figure, bool) else []


def test_rounds_that_were_never_evaluated_are_no_obstacle(make_run):
    run = make_run()
    for file in [run / "metrics.jsonl", run / "plan.toml", *run.glob("baselines/*/metrics.jsonl")]:
        file.unlink()
    page = Page(report.write(run))
    assert "no curve to draw" in page.text
    assert "Experiment file" not in page.text


def test_without_baselines_the_page_says_how_to_get_them(page_of):
    assert "Run the experiment again with --baselines" in page_of(alone=None, pooled=None).text


def test_classes_of_a_silo_are_pictured_locally(make_run):
    run = make_run()
    exact = json.loads((run / "local.json").read_text())
    for silo in exact["silos"]:
        silo["label"] = [40, 0, 60]
    (run / "local.json").write_text(json.dumps(exact))
    report.write(run)
    page = Page(run / "local.html")
    shares = next(f["values"] for f in page.figures if f["kind"] == "heat")
    assert shares[0] == [0.4, 0, 0.6]
    assert "Class 2" in page.text
    (run / "local.json").write_text(json.dumps(exact | {"classes": ["well", "ill", "2"]}))
    report.write(run)
    text = Page(run / "local.html").text
    assert "Class 0" not in text
    assert "Class 2" in text  # a bare number is said to be a class
    assert "well" in text


# ---- number of test records


def test_scores_of_silos_stand_next_to_their_number_of_test_records(make_run):
    names = ["north", "south", "west"]
    run = make_run(names=names, test_records={"north": 0, "south": 40, "west": 7900})
    page = Page(report.write(run))
    for said in ("north fewer than 10", "south about 40", "west about 7,900"):
        assert page.text.count(said) == 2, said  # with and without joining, and silo by silo
    notes = page.figures[0]["notes"]
    assert sorted(notes[1:]) == ["about 40 test records", "about 7,900 test records", "fewer than 10 test records"]


def test_runs_of_earlier_versions_have_no_column_of_test_records(page_of):
    assert "Test records" not in page_of(test_records=None).text


def test_the_local_page_has_scores_next_to_exact_numbers(make_run):
    run = make_run(names=["north", "south"])
    report.write(run)
    final = json.loads((run / "result.json").read_text())["silos"]["north"]["auc"]
    assert f"north 310,007 31,013 7,919 {final:.3f}" in Page(run / "local.html").text


# ---- every page is small


@pytest.mark.parametrize("silos", [6, 186, 1000])
def test_reports_stay_below_400_kilobytes_however_many_silos(make_run, silos):
    names = [f"Hospital {number:04d} of the northern region" for number in range(silos)]
    run = make_run(names=names, rounds=200 if silos < 1000 else 40)
    report.write(run)
    for file in (run / "report.html", run / "local.html"):
        assert file.stat().st_size <= MOST_BYTES, file.name


def test_a_comparison_of_thirty_runs_stays_below_400_kilobytes(make_run):
    runs = [make_run(f"run {k}", alone=None, pooled=None, local=False, rounds=400) for k in range(30)]
    assert report.compare(runs).stat().st_size <= MOST_BYTES


def test_of_many_runs_the_best_eight_are_drawn_at_first(make_run):
    runs = [make_run(f"run {k}", together=0.7 + 0.005 * k, local=False, rounds=3) for k in range(12)]
    page = Page(report.compare(runs))
    hidden = {f"run {k}" for k in range(4)}
    assert {one["name"] for one in page.figures[0]["series"] if one.get("off")} == hidden
    pressed = {a["data-series"]: a["aria-pressed"] for tag, a in page.tags if "data-series" in a}
    assert {name for name, state in pressed.items() if state == "false"} == hidden


def test_a_long_line_keeps_its_ends():
    kept = thinned(1001, 250)
    assert len(kept) == 250
    assert (kept[0], kept[-1]) == (0, 1000)
    assert thinned(3, 250) == [0, 1, 2]
    assert thinned(1, 250) == [0]


def test_many_silos_have_a_band_two_ends_and_a_choice(page_of):
    names = [f"silo {number}" for number in range(186)]
    page = page_of(names=names)
    figure = next(f for f in page.figures if "extra" in f)
    assert [one["name"].split(":")[0] for one in figure["series"]] == [
        "Middle 80 % of silos", "Middle 80 % of silos", "Median silo", "Worst", "Best", "All silos",
    ]  # fmt: skip
    assert sorted(figure["extra"]["series"]) == sorted(names)


# ---- colours


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.2."""

    def luminance(color: str) -> float:
        shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("side", [0, 1], ids=["light", "dark"])
def test_texts_and_lines_can_be_told_from_the_page(side):
    paper = COLORS["paper"][side]
    texts = {"ink", "soft", "accent", "danger", "warning"}
    drawn = {color_name(style_of(k).color) for k in range(8)} | {"danger", "accent"}
    assert {name: found for name in texts if (found := contrast(COLORS[name][side], paper)) < 4.5} == {}
    assert {name: found for name in drawn if (found := contrast(COLORS[name][side], paper)) < 3} == {}


def test_forty_series_look_different():
    assert len({style_of(k) for k in range(40)}) == 40


# ---- several runs


def test_runs_are_compared_by_metrics_guarantee_and_cost(make_run, finite):
    plain, private = make_run("plain", together=0.82), make_run("private", together=0.78, guarantees=finite)
    page = Page(report.compare([plain, private]))
    assert "By AUC, plain leads with 0.819." in page.text
    assert "none (ε = ∞)" in page.text
    assert "ε = 2.31 at δ = 10⁻⁵: one person, from anyone who sees the released models" in page.text
    assert len(page.figures) == 5
    assert (plain.parent / "comparison.html").exists()


def test_a_comparison_goes_where_it_is_told(make_run, tmp_path):
    assert report.compare([make_run()], tmp_path / "here.html") == tmp_path / "here.html"


def test_runs_on_different_data_are_not_ranked(make_run):
    one, other = make_run("one", together=0.82), make_run("other", together=0.78)
    plan = (other / "plan.toml").read_text()
    (other / "plan.toml").write_text(plan.replace('source = "randhie"', 'source = "table"\npath = "b.csv"'))
    page = Page(report.compare([one, other]))
    assert "These runs were not tested on the same data: data.source, data.path differ." in page.text
    assert "leads" not in page.text
    assert "the best of each metric is bold" not in page.text


def test_runs_with_other_seeds_held_out_other_people(make_run):
    one, other = make_run("one"), make_run("other")
    (other / "plan.toml").write_text("seed = 4\n" + (other / "plan.toml").read_text())
    assert "another seed holds out other people" in report.verdict([one, other])


def test_a_comparison_says_when_metrics_disagree(make_run):
    task = {"name": "binary", "headline": "accuracy", "higher_is_better": {"accuracy": True, "auc": True}}
    blind = make_run("blind", task=task, metrics={"accuracy": 0.98, "auc": 0.5})
    seeing = make_run("seeing", task=task, metrics={"accuracy": 0.97, "auc": 0.9})
    assert report.verdict([blind, seeing]) == (
        "The metrics disagree. By accuracy, blind leads with 0.980. By AUC, seeing leads with 0.900."
    )


def test_runs_with_different_headlines_have_no_winner(make_run):
    other = make_run("other", task={"name": "binary", "headline": "rmse"}, metrics={"rmse": 3.0})
    assert "none of them is called the best" in Page(report.compare([make_run(), other])).text


def test_the_comparison_table_has_a_row_per_run_and_infinity_where_nothing_is_promised(make_run, finite):
    one, other = make_run("x/run"), make_run("y/run", guarantees=finite, metrics={"auc": 0.75, "f1": None})
    table = report.comparison_table([one, other])
    assert list(table.index) == ["run", "run (2)"]
    assert table["auc"].tolist() == [read_run(one).metrics["auc"], 0.75]
    assert table["epsilon [subject, public]"].tolist() == [float("inf"), 2.3074]
    assert table["epsilon [subject, server]"].tolist() == [float("inf"), float("inf")]
    assert table["total_seconds"].tolist() == [97.3, 97.3]
    assert table["f1"].isna().tolist() == [False, True]


def test_the_page_does_not_say_where_files_lie(make_run):
    run = make_run()
    (run / "plan.toml").write_text(
        '[data]\npath = "/home/ada/clinic/visits.csv"\n[model]\nname = "/home/ada/mine:net"\n'
    )
    text = Page(report.write(run)).text
    assert "/home/ada" not in text
    assert '"…/visits.csv"' in text
    assert '"…/mine:net"' in text


def test_a_ledger_that_says_nothing_of_a_guarantee_does_not_confirm_it(make_run):
    run = private_run(make_run)
    (run / "ledger.jsonl").unlink()
    with Ledger(run / "ledger.jsonl") as ledger:
        ledger.append(run="a", party="server", round=1, mechanism="m", step=1, events={})
    assert "add up to epsilon ∞" in str(ledger_problem(read_run(run)))


def test_runs_on_other_windows_of_a_text_were_tested_on_other_records(make_run):
    run = make_run()
    (run / "plan.toml").write_text('[data]\nsource = "shakespeare"\n')
    every = read_run(run).test_data
    (run / "plan.toml").write_text('[data]\nsource = "shakespeare"\nwindow_stride = 1\n')
    assert read_run(run).test_data == every
    (run / "plan.toml").write_text('[data]\nsource = "shakespeare"\nwindow_stride = 40\n')
    assert read_run(run).test_data != every
