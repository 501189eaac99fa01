"""Pictures are SVG that any reader can parse, and show what they were given."""

from __future__ import annotations

import base64
import math
import re
import struct
import xml.etree.ElementTree as ET
import zlib

import numpy as np

from tacit.report.marks import Mark, lines, pictures, png, rows
from tacit.report.styles import DANGER, RUN_STYLES

SPACE = "{http://www.w3.org/2000/svg}"


def test_marks_stand_in_the_order_of_their_values_and_what_is_wrong_is_red():
    series = {
        "at least": (RUN_STYLES[0], [Mark(2.0), Mark(5.0, wrong=True)]),
        "proved": (RUN_STYLES[2], [Mark(4.0), Mark(math.inf)]),
    }
    picture = rows(["a <b>", "c"], series, "epsilon")
    root = ET.fromstring(picture)
    assert {text.text for text in root.iter(f"{SPACE}text")} >= {"a <b>", "c", "epsilon", "∞"}
    circles = [c for c in root.iter(f"{SPACE}circle") if float(c.get("cy")) > 30]
    assert float(circles[0].get("cx")) < float(circles[1].get("cx"))
    assert [c.get("fill") == DANGER for c in circles] == [False, True]
    assert ET.fromstring(rows(["a", "c"], series, "epsilon", log=True)) is not None


def test_curves_go_through_their_points():
    picture = lines({"one": (RUN_STYLES[0], [0.0, 1.0, 2.0], [0.5, 0.7, 0.9])}, "noise", "share")
    points = re.search(r'points="([^"]+)"', picture).group(1).split()
    heights = [float(point.split(",")[1]) for point in points]
    assert heights == sorted(heights, reverse=True)


def test_an_image_is_kept_pixel_by_pixel():
    image = np.linspace(0, 1, 12).reshape(3, 4)
    grey = np.round(255 * (1 - image)).astype(np.uint8)
    found = png(grey)
    width, height = struct.unpack(">II", found[16:24])
    size = struct.unpack(">I", found[33:37])[0]
    raw = np.frombuffer(zlib.decompress(found[41 : 41 + size]), np.uint8).reshape(height, width + 1)
    np.testing.assert_array_equal(raw[:, 1:], grey)
    picture = pictures(["before", "after\nnoise"], [[image, image]])
    sources = [node.get("href") for node in ET.fromstring(picture).iter(f"{SPACE}image")]
    assert [base64.b64decode(source.split(",")[1]) for source in sources] == [found, found]


def test_coloured_pixels_are_kept_in_their_order():
    pixels = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    found = png(pixels)
    assert struct.unpack(">IIBB", found[16:26]) == (3, 2, 8, 2)
    size = struct.unpack(">I", found[33:37])[0]
    raw = np.frombuffer(zlib.decompress(found[41 : 41 + size]), np.uint8).reshape(2, 10)
    np.testing.assert_array_equal(raw[:, 1:].reshape(2, 3, 3), pixels)
