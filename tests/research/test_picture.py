"""SVG pictures of documents: marks are where the axis says, and nothing needs a script."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from research.picture import Mark, dots

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(picture).iter(f"{SVG}text")]


def test_dots_stand_where_the_ticks_say():
    marks = [("one", Mark(0.5, 0.05)), ("two & three", Mark(0.9, 0.01, hollow=True))]
    picture = dots(marks, "Accuracy", "accuracy")
    root = ET.fromstring(picture)
    ticks = {e.text: float(e.get("x")) for e in root.iter(f"{SVG}text") if e.text.startswith("0.")}
    low, high = min(ticks), max(ticks)
    first, second = (float(e.get("cx")) for e in root.iter(f"{SVG}circle"))
    scale = (ticks[high] - ticks[low]) / (float(high) - float(low))
    assert first - ticks[low] == pytest.approx((0.5 - float(low)) * scale, abs=0.2)
    assert second - first == pytest.approx(0.4 * scale, abs=0.2)
    assert "two & three" in texts(picture)
    assert [e.get("fill") for e in root.iter(f"{SVG}circle")][1] == "#ffffff"
    assert "one: 0.500 ± 0.050" in root.get("aria-label")


def test_a_line_reaches_one_deviation_to_both_sides():
    root = ET.fromstring(dots([("one", Mark(0.5, 0.1)), ("two", Mark(0.4))], "Accuracy", "accuracy"))
    ticks = {e.text: float(e.get("x")) for e in root.iter(f"{SVG}text") if e.text.startswith("0.")}
    spread = next(e for e in root.iter(f"{SVG}path") if e.get("stroke-width") == "2").get("d")
    ends = [float(point.split()[0]) for point in spread.lstrip("M").split("L")]
    assert ends == pytest.approx([ticks["0.4"], ticks["0.6"]], abs=0.2)


def test_equal_values_still_have_an_axis():
    assert texts(dots([("one", Mark(0.0))], "Nothing", "auc"))
