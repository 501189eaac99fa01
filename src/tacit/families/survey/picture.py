"""A survey as a picture: a row per answer, with its error bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.report.svg import Mark, dots

PLACES = {"central": "noise by a trusted server", "local": "every person randomises"}


def picture(survey: Mapping[str, Any]) -> str:
    """The SVG of what ``Survey.as_dict`` says; lines reach over the 95 % intervals."""
    rows = [
        (answer["answer"], Mark(answer["estimate"], answer["estimate"] - answer["low"])) for answer in survey["answers"]
    ]
    unit = "share of people, and 95 % interval" if survey["kind"] == "shares" else "mean over people, and 95 % interval"
    title = f"{survey['column']}: {survey['people']:,} people, epsilon {survey['epsilon']:g}, {PLACES[survey['place']]}"
    return dots(rows, title, unit)
