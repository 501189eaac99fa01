"""The pages in a real browser. Where none is installed these tests are slow ones: deselected, not passed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

import tacit
from tacit import report
from tacit.planning import sweep as sweeper
from tests.browser import BROWSER, Browser

pytestmark = [pytest.mark.slow] if BROWSER is None else []

LONG = "a-silo-with-a-name-that-is-longer-than-a-phone-is-wide"
AUDIT = {
    "title": "Any doctor visit within a year", "method": "subject-sgd", "rounds": 10, "unit": "subject",
    "verdict": "not-refuted",
    "guarantees": [{"view": "public", "as_published": {"epsilon": 1.1}}],
    "canaries": [
        {
            "kind": kind, "seen": seen, "view": view, "canaries": 1000, "guesses": 200, "right": 120, "delta": 1e-5,
            "confidence": 0.95, "epsilon": 0.31, "fdp_epsilon": 0.52, "estimate": 0.9, "proved": proved,
            "refuted": False,
        }
        for kind, seen, view, proved in [
            ("gradient", "rounds", "server", "inf"),
            ("gradient", "final", "public", 2.0),
            ("input", "final", "public", 2.0),
        ]
    ],
    "mechanism": [
        {
            "view": "public", "runs": 5000, "noise": "noise 1.5", "epsilon": 0.4, "gaussian_epsilon": 0.6,
            "proved": 2.0, "hits": 0.3, "false_alarms": 0.1, "most_hits": 0.6, "refuted": False, "confidence": 0.95,
        }
    ],
}  # fmt: skip
SWEEP = {
    "title": "Fraud",
    "data": {"source": "randhie", "records_per_silo": 2700},
    "model": {"name": "logistic"},
    "method": {"name": "uldp-avg", "clip": 1.0, "noise_multiplier": 2.0, "local_learning_rate": 0.1},
    "train": {"rounds": 5},
    "privacy": {"delta": 1e-5},
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def network() -> dict:
    """Epsilons between the nodes of a ring."""
    steps = [[min(abs(i - j), 12 - abs(i - j)) for j in range(12)] for i in range(12)]
    return {
        "nodes": 12, "topology": "ring", "gap": 0.1,
        "by_distance": [{"distance": d, "pairs": 12, "largest": 2.0 / d, "mean": 1.5 / d} for d in range(1, 7)],
        "epsilons": [["inf" if d == 0 else 2.0 / d for d in row] for row in steps],
    }  # fmt: skip


@pytest.fixture(scope="module")
def pages(make_at, tmp_path_factory, network) -> dict[str, Path]:
    """One page of each kind."""
    tmp_path = tmp_path_factory.mktemp("pages")
    run = make_at(tmp_path / "whole", names=[LONG, "B", "C"], network=network)
    (run / "audit.json").write_text(json.dumps(AUDIT))
    local = json.loads((run / "local.json").read_text())
    for silo in local["silos"]:
        silo["label"] = [40, 0, 60]
    (run / "local.json").write_text(json.dumps(local))
    many = make_at(tmp_path / "many", names=[f"silo {number}" for number in range(186)])
    frame = pd.DataFrame({"smoker": ["no", "yes", "no", "never asked about it"] * 50})
    answers = ["no", "yes", "never asked about it"]
    survey = tacit.survey(frame, "smoker", epsilon=1.0, categories=answers, out=tmp_path / "survey")[1]
    sweep = sweeper.sweep(SWEEP, ["rounds=5,10,200", "noise_multiplier=1,2"], Path())
    return {
        "report": report.write(run),
        "local": run / "local.html",
        "sheet": report.write_sheet(run),
        "audit": report.write_audit(run),
        "comparison": report.compare([run, many], tmp_path / "comparison.html"),
        "many": report.write(many),
        "many-local": many / "local.html",
        "sweep": report.sweep_page(sweep, tmp_path / "sweep.html"),
        "survey": survey / "survey.html",
    }


def test_every_page_is_drawn_small_silent_and_fits_a_phone(pages, browser):
    for name, page in pages.items():
        assert page.stat().st_size <= 400_000, name
        charts = len(re.findall("<canvas", page.read_text()))
        assert charts or name == "sheet", name
        for width, dark in ((1280, False), (390, True)):
            browser.open(page, width, dark=dark)
            assert browser.run("document.documentElement.dataset.charts || '0'") == str(charts), name
            assert browser.run("document.documentElement.scrollWidth") <= width, name
            assert browser.run("document.title").strip(), name
            assert browser.requests == [page.as_uri()], name
            assert browser.said == [], name


def test_text_of_users_is_not_run(make_run, browser):
    page = report.write(make_run(names=["</script><script>throw 1</script>", "B", "C"]))
    browser.open(page)
    assert browser.said == []
    assert int(browser.run("document.documentElement.dataset.charts")) == len(re.findall("<canvas", page.read_text()))


CHART = "document.querySelectorAll('canvas')[{}]"
KINDS = {"report": ["lines", "dots", "heat"], "many": ["histogram"], "local": ["bars"]}


@pytest.mark.parametrize("width", [1280, 390])
def test_hovering_shows_values(pages, browser, width):
    for name, kinds in KINDS.items():
        browser.open(pages[name], width)
        figures = browser.run("[...document.querySelectorAll('script[data-chart]')].map(s => JSON.parse(s.text).kind)")
        for kind in kinds:
            canvas = CHART.format(figures.index(kind))
            assert browser.run(f"Chart.getChart({canvas}).tooltip.opacity") == 0
            browser.move(*browser.point(canvas, 0.6, 0.55))
            shown = f"(t => [t.opacity, ...t.title, ...t.body.flatMap(b => b.lines)])(Chart.getChart({canvas}).tooltip)"
            opacity, title, *lines = browser.run(shown)
            assert opacity == 1, (name, kind)
            assert title
            assert any(re.search(r"\d", line) for line in lines), (name, kind, lines)


def pixels_of(browser: Browser, canvas: str, color: str) -> int:
    """How many pixels of a canvas have a colour of the style sheet."""
    return browser.run(
        f"(c => {{ const hex = getComputedStyle(document.documentElement).getPropertyValue('--{color}').trim();"
        " const want = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));"
        " const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let found = 0;"
        " for (let i = 0; i < data.length; i += 4)"
        " found += want.every((v, k) => data[i + k] === v) && data[i + 3] > 200;"
        f" return found; }})({canvas})"
    )


@pytest.mark.parametrize("dark", [False, True])
def test_the_legend_hides_and_shows_a_line_in_all_charts_of_its_section(make_run, browser, dark):
    browser.open(report.write(make_run()), dark=dark)
    button = "document.querySelector('#rounds .legend [data-series=\"Each silo alone\"]')"
    charts = [f"document.querySelectorAll('#rounds canvas')[{k}]" for k in range(4)]
    before = [pixels_of(browser, chart, "orange") for chart in charts]
    assert min(before) > 50
    browser.click(*browser.point(button))
    assert browser.run(f"{button}.getAttribute('aria-pressed')") == "false"
    assert [pixels_of(browser, chart, "orange") for chart in charts] == [0] * 4
    assert min(pixels_of(browser, chart, "accent") for chart in charts) > 50
    browser.click(*browser.point(button))
    assert [pixels_of(browser, chart, "orange") for chart in charts] == before


def test_a_reader_can_pick_one_of_many_silos(pages, browser):
    browser.open(pages["many"])
    canvas = "document.querySelector('.choose').closest('figure').querySelector('canvas')"
    assert pixels_of(browser, canvas, "orange") == 0
    browser.run(
        "(s => { s.value = 'silo 17'; s.dispatchEvent(new Event('change')); })(document.querySelector('select'))"
    )
    assert pixels_of(browser, canvas, "orange") > 50


def test_the_data_of_every_chart_can_be_opened_as_a_table(pages, browser):
    for name in ("report", "many", "local", "survey", "sweep"):
        browser.open(pages[name])
        browser.run("document.querySelectorAll('details.data').forEach(d => { d.open = true; })")
        browser.run("new Promise(done => setTimeout(done, 100))")
        sizes = browser.run(
            "[...document.querySelectorAll('details.data')].map(d => [d.querySelectorAll('tbody tr').length,"
            " d.querySelectorAll('td').length])"
        )
        assert sizes, name
        assert all(rows and cells for rows, cells in sizes), (name, sizes)


def test_rounds_have_whole_ticks_each_once(make_run, browser):
    browser.open(report.write(make_run(rounds=2)))
    ticks = browser.run("Chart.getChart(document.querySelector('#rounds canvas')).scales.x.ticks.map(t => t.label)")
    assert ticks == ["0", "1", "2"]


def test_a_dark_system_makes_a_dark_page_and_dark_charts(pages, browser):
    background = "getComputedStyle(document.body).backgroundColor"
    line = "Chart.getChart(document.querySelector('#rounds canvas')).data.datasets.at(-1).borderColor"
    browser.open(pages["report"])
    light = browser.run(background), browser.run(line)
    browser.open(pages["report"], dark=True)
    assert (browser.run(background), browser.run(line)) == ("rgb(20, 25, 30)", "#6cb2f0")
    assert light == ("rgb(255, 255, 255)", "#0b5c9e")


def test_a_dark_page_is_light_on_paper_and_fits_it(pages, browser):
    line = "Chart.getChart(document.querySelector('#rounds canvas')).data.datasets.at(-1).borderColor"
    browser.open(pages["report"], dark=True)
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.run(line) == "#0b5c9e"
    assert max(browser.run("[...document.querySelectorAll('canvas')].map(c => c.offsetWidth)")) <= 660
    assert browser.run("[...document.querySelectorAll('details:not(.data)')].every(d => d.open)")
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert browser.run(line) == "#6cb2f0"
    assert max(browser.run("[...document.querySelectorAll('canvas')].map(c => c.offsetWidth)")) > 660
