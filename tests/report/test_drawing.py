"""Pictures for documents: everything that can be drawn is, nothing else, and nothing needs a script."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from tacit.report.drawing import Line, Panel, drawing
from tacit.report.styles import RUN_STYLES

NAMESPACE = "{http://www.w3.org/2000/svg}"


def line(y, **others):
    return Line("uldp-avg", RUN_STYLES[0], list(range(len(y))), y, **others)


def paths(text: str, colour: str = RUN_STYLES[0].color) -> list[str]:
    """The shapes of one colour inside the panels, without the legend's sample."""
    root = ElementTree.fromstring(text)
    found = [path for path in root.iter(f"{NAMESPACE}path") if colour in (path.get("stroke"), path.get("fill"))]
    return [path.get("d") for path in found if "h34" not in path.get("d")]


def words(text: str) -> list[str]:
    return ["".join(found.itertext()) for found in ElementTree.fromstring(text).iter(f"{NAMESPACE}text")]


def test_a_drawing_is_well_formed_and_says_what_it_shows():
    text = drawing([Panel("AUC & more", "round", [line([0.5, 0.7, 0.9])])], "AUC <rises>")
    assert ElementTree.fromstring(text).get("aria-label") == "AUC <rises>"
    assert {"AUC & more", "round", "uldp-avg"} <= set(words(text))
    assert "<script" not in text


def test_larger_values_are_drawn_higher_and_later_rounds_further_right():
    (path,) = paths(drawing([Panel("t", "x", [line([0.1, 0.2, 0.8])])], "s"))
    points = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path)]
    assert points == sorted(points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


@pytest.mark.parametrize("missing", [None, math.inf, math.nan])
def test_a_line_is_broken_where_a_value_is_missing_or_infinite(missing):
    (path,) = paths(drawing([Panel("t", "x", [line([1.0, 2.0, missing, 2.0, 1.0])])], "s"))
    assert path.count("M") == 2
    assert "nan" not in path


def test_what_is_not_positive_has_no_place_on_a_logarithmic_axis():
    text = drawing([Panel("t", "x", [line([0.0, 10.0, 100000.0])], log_y=True)], "s")
    (path,) = paths(text)
    assert path.count("L") == 1
    assert {"10", "100", "1,000"} <= set(words(text))


def test_a_band_is_one_closed_shape_around_its_line():
    made = line([1.0, 2.0, 3.0], low=[0.5, 1.5, 2.5], high=[1.5, 2.5, 3.5])
    band, curve = paths(drawing([Panel("t", "x", [made])], "s"))
    assert band.endswith("Z")
    assert band.count("L") == 5
    assert not curve.endswith("Z")


def test_nothing_to_draw_is_an_empty_panel_and_equal_values_have_an_axis():
    assert paths(drawing([Panel("t", "x", [line([math.inf] * 3)])], "s")) == []
    (path,) = paths(drawing([Panel("t", "x", [line([0.5, 0.5])])], "s"))
    assert "nan" not in path


def test_panels_share_one_legend():
    text = drawing([Panel("a", "x", [line([1.0, 2.0])]), Panel("b", "x", [line([3.0, 4.0])])], "s")
    assert words(text).count("uldp-avg") == 1
