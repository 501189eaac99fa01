"""Pictures for documents: everything that can be drawn is, nothing else, and nothing needs a script."""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest

from research import plots
from research.plots import Curve, Mark, Marks, Panel, Track, curves, png
from tacit.report.page import DANGER, RUN_STYLES

NAMESPACE = "{http://www.w3.org/2000/svg}"


def line(y, **others):
    return Curve("uldp-avg", RUN_STYLES[0], list(range(len(y))), y, **others)


def paths(text: str, colour: str = RUN_STYLES[0].color) -> list[str]:
    """The shapes of one colour inside the panels, without the legend's sample."""
    root = ElementTree.fromstring(text)
    found = [path for path in root.iter(f"{NAMESPACE}path") if colour in (path.get("stroke"), path.get("fill"))]
    return [path.get("d") for path in found if not path.get("d").startswith("M56 25")]


def words(text: str) -> list[str]:
    return ["".join(found.itertext()) for found in ElementTree.fromstring(text).iter(f"{NAMESPACE}text")]


def test_a_drawing_is_well_formed_and_says_what_it_shows():
    text = curves([Panel("AUC & more", "round", [line([0.5, 0.7, 0.9])])], "AUC <rises>")
    assert ElementTree.fromstring(text).get("aria-label") == "AUC <rises>"
    assert {"AUC & more", "round", "uldp-avg"} <= set(words(text))
    assert "<script" not in text


def test_larger_values_are_drawn_higher_and_later_rounds_further_right():
    (path,) = paths(curves([Panel("t", "x", [line([0.1, 0.2, 0.8])])], "s"))
    points = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path)]
    assert points == sorted(points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


@pytest.mark.parametrize("missing", [None, math.inf, math.nan])
def test_a_line_is_broken_where_a_value_is_missing_or_infinite(missing):
    (path,) = paths(curves([Panel("t", "x", [line([1.0, 2.0, missing, 2.0, 1.0])])], "s"))
    assert path.count("M") == 2
    assert "nan" not in path


def test_what_is_not_positive_has_no_place_on_a_logarithmic_axis():
    text = curves([Panel("t", "x", [line([0.0, 10.0, 100000.0])], log_y=True)], "s")
    (path,) = paths(text)
    assert path.count("L") == 1
    assert {"10", "100", "1,000"} <= set(words(text))


def test_a_band_is_one_closed_shape_around_its_line():
    made = line([1.0, 2.0, 3.0], low=[0.5, 1.5, 2.5], high=[1.5, 2.5, 3.5])
    band, curve = paths(curves([Panel("t", "x", [made])], "s"))
    assert band.endswith("Z")
    assert band.count("L") == 5
    assert not curve.endswith("Z")


def test_nothing_to_draw_is_an_empty_panel_and_equal_values_have_an_axis():
    assert paths(curves([Panel("t", "x", [line([math.inf] * 3)])], "s")) == []
    (path,) = paths(curves([Panel("t", "x", [line([0.5, 0.5])])], "s"))
    assert "nan" not in path


def test_panels_share_one_legend():
    text = curves([Panel("a", "x", [line([1.0, 2.0])]), Panel("b", "x", [line([3.0, 4.0])])], "s")
    assert words(text).count("uldp-avg") == 1


def test_bars_are_as_high_as_their_values():
    drawn = paths(plots.bars(["1", "2", "3"], [10, 20, 0], "Groups", "largest group", "batches"))
    corners = [[float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", path)] for path in drawn]
    heights = [max(ys) - min(ys) for ys in corners]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert heights[2] == 0


def test_lines_leave_out_what_is_not_there_and_say_what_they_show():
    tracks = [
        Track("a", RUN_STYLES[0], [0.1, None, 0.3], [0.0, 0.0, 0.01]),
        Track("b", RUN_STYLES[1], [0.2, 0.2, 0.2], [0.0, 0.0, 0.0]),
    ]
    root = ElementTree.fromstring(plots.lines(["1", "2", "4"], tracks, "Skew", "a", "accuracy"))
    assert len(list(root.iter(f"{NAMESPACE}circle"))) == 1 + 2
    diamonds = [path for path in root.iter(f"{NAMESPACE}path") if path.get("fill") == RUN_STYLES[1].color]
    assert len(diamonds) == 1 + 3
    assert "a: 0.100, none, 0.300" in root.get("aria-label")


def test_long_names_of_lines_fit_next_to_each_other_and_into_the_picture():
    names = ["subject-sgd", "higrad", "higrad (as published)", "local-group (as published)"]
    tracks = [Track(name, style, [0.1, 0.2], [0.0, 0.0]) for name, style in zip(names, RUN_STYLES, strict=False)]
    root = ElementTree.fromstring(plots.lines(["1", "2"], tracks, "Skew", "a", "accuracy"))
    placed = [(float(e.get("y")), float(e.get("x")), e.text) for e in root.iter(f"{NAMESPACE}text") if e.text in names]
    rows: dict[float, list[tuple[float, str]]] = {}
    for y, x, name in sorted(placed):
        rows.setdefault(y, []).append((x, name))
    ends = [other for row in rows.values() for other in ([*(x for x, _ in row[1:]), plots.WIDTH])]
    for (_, x, name), end in zip(sorted(placed), ends, strict=True):
        assert x + 6.0 * len(name) <= end


def test_an_image_is_kept_pixel_by_pixel():
    image = np.linspace(0, 1, 12).reshape(3, 4)
    grey = np.round(255 * (1 - image)).astype(np.uint8)
    found = png(grey)
    width, height = struct.unpack(">II", found[16:24])
    size = struct.unpack(">I", found[33:37])[0]
    raw = np.frombuffer(zlib.decompress(found[41 : 41 + size]), np.uint8).reshape(height, width + 1)
    np.testing.assert_array_equal(raw[:, 1:], grey)
    picture = plots.images(["before", "after\nnoise"], [[image, image]])
    sources = [node.get("href") for node in ElementTree.fromstring(picture).iter(f"{NAMESPACE}image")]
    assert [base64.b64decode(source.split(",")[1]) for source in sources] == [found, found]


def test_coloured_pixels_are_kept_in_their_order():
    pixels = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    found = png(pixels)
    assert struct.unpack(">IIBB", found[16:26]) == (3, 2, 8, 2)
    size = struct.unpack(">I", found[33:37])[0]
    raw = np.frombuffer(zlib.decompress(found[41 : 41 + size]), np.uint8).reshape(2, 10)
    np.testing.assert_array_equal(raw[:, 1:].reshape(2, 3, 3), pixels)


def test_a_graph_has_all_its_edges_and_infinite_shades_are_white():
    graph = plots.Graph("ring", [(0, 1), (1, 2), (2, 0)], plots.in_a_circle(3))
    root = ElementTree.fromstring(plots.graph_grid([graph], "a ring"))
    assert len(list(root.iter(f"{NAMESPACE}circle"))) == 3
    assert len(list(root.iter(f"{NAMESPACE}path"))) == 3
    table = plots.Shades("t", [[math.inf, 1.0], [10.0, math.inf]])
    source = next(ElementTree.fromstring(plots.shades([table], "s")).iter(f"{NAMESPACE}image")).get("href")
    data = base64.b64decode(source.split(",")[1])
    size = struct.unpack(">I", data[33:37])[0]
    raw = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8).reshape(2, 7)[:, 1:].reshape(2, 2, 3)
    assert (raw[[0, 1], [0, 1]] == 255).all()
    assert (raw[0, 1] == plots.LIGHT).all()
    assert (raw[1, 0] == plots.DARK).all()


def test_marks_stand_in_the_order_of_their_values_and_what_is_wrong_is_red():
    series = {
        "at least": Marks(RUN_STYLES[0], [Mark(2.0), Mark(5.0, wrong=True)]),
        "proved": Marks(RUN_STYLES[2], [Mark(4.0), Mark(math.inf)]),
        "published": Marks(RUN_STYLES[1], [None, Mark(1.0)]),
    }
    root = ElementTree.fromstring(plots.rows(["a <b>", "c"], series, "epsilon", from_zero=True))
    found = {text.text for text in root.iter(f"{NAMESPACE}text")}
    assert found >= {"a <b>", "c", "epsilon", "∞", "0", "at least", "proved", "published"}
    circles = [c for c in root.iter(f"{NAMESPACE}circle") if float(c.get("cy")) > 30]
    assert float(circles[0].get("cx")) < float(circles[1].get("cx"))
    assert [c.get("fill") == DANGER for c in circles] == [False, True]
    assert ElementTree.fromstring(plots.rows(["a", "c"], series, "epsilon", log=True)) is not None
