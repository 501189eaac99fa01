from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tacit.report import still
from tacit.report.styles import RUN_STYLES

SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture: str) -> ET.Element:
    return ET.fromstring(picture)


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in parsed(picture).iter(f"{SVG}text")]


def test_dots_stand_where_the_ticks_say():
    rows = [still.Row("one", 0.5, 0.05), still.Row("two & three", 0.9, 0.01, hollow=True)]
    picture = still.dots(rows, "Accuracy", "accuracy")
    root = parsed(picture)
    ticks = {e.text: float(e.get("x")) for e in root.iter(f"{SVG}text") if e.text.startswith("0.")}
    low, high = min(ticks), max(ticks)
    first, second = (float(e.get("cx")) for e in root.iter(f"{SVG}circle"))
    scale = (ticks[high] - ticks[low]) / (float(high) - float(low))
    assert first - ticks[low] == pytest.approx((0.5 - float(low)) * scale, abs=0.2)
    assert second - first == pytest.approx(0.4 * scale, abs=0.2)
    assert "two & three" in texts(picture)
    assert [e.get("fill") for e in root.iter(f"{SVG}circle")][1] == "#ffffff"


def test_bars_are_as_high_as_their_values():
    root = parsed(still.bars(["1", "2", "3"], [10, 20, 0], "Groups", "largest group", "batches"))
    heights = [float(e.get("height")) for e in root.iter(f"{SVG}rect")][1:]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert heights[2] == 0


def test_lines_leave_out_what_is_not_there_and_say_what_they_show():
    tracks = [
        still.Track("a", RUN_STYLES[0], [0.1, None, 0.3], [0.0, 0.0, 0.01]),
        still.Track("b", RUN_STYLES[1], [0.2, 0.2, 0.2], [0.0, 0.0, 0.0]),
    ]
    picture = still.lines(["1", "2", "4"], tracks, "Skew", "a", "accuracy")
    root = parsed(picture)
    assert len(list(root.iter(f"{SVG}circle"))) == 1 + 2
    assert len(list(root.iter(f"{SVG}polygon"))) == 1 + 3
    assert "a: 0.100, none, 0.300" in root.find(f"{SVG}title").text


def test_equal_values_still_have_an_axis():
    assert texts(still.dots([still.Row("one", 0.0)], "Nothing", "auc"))


def test_long_names_of_lines_fit_beside_each_other_and_into_the_picture():
    names = ["subject-sgd", "higrad", "higrad (as published)", "local-group (as published)"]
    tracks = [still.Track(name, style, [0.1, 0.2], [0.0, 0.0]) for name, style in zip(names, RUN_STYLES, strict=False)]
    root = parsed(still.lines(["1", "2"], tracks, "Skew", "a", "accuracy"))
    placed = [(float(e.get("y")), float(e.get("x")), e.text) for e in root.iter(f"{SVG}text") if e.text in names]
    rows: dict[float, list[tuple[float, str]]] = {}
    for y, x, name in sorted(placed):
        rows.setdefault(y, []).append((x, name))
    ends = [other for row in rows.values() for other in ([*(x for x, _ in row[1:]), still.WIDTH])]
    for (_, x, name), end in zip(sorted(placed), ends, strict=True):
        assert x + 6.0 * len(name) <= end
