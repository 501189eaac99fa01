"""The page around the sections: one HTML file that carries its style, its charts and the code that draws them.

Nothing is fetched: the page forbids it to the browser with a content security policy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import count
from pathlib import Path
from string import Template

from tacit.report.figures import Chart
from tacit.report.markup import Html, bullets, join, json_script, paragraph, tag, text
from tacit.report.styles import Style
from tacit.report.svg import line, mark


@dataclass(frozen=True)
class Sections:
    """Content of a page: title, kind of page, banners, and its parts in order."""

    title: str
    kicker: str
    lead: str
    parts: Sequence[Html]
    banners: Sequence[Html] = ()
    footer: str = ""


def save(file: Path, sections: Sections) -> Path:
    """Write the page atomically."""
    half = file.with_name(f".{file.name}.part")
    half.write_text(render(sections), encoding="utf-8")
    os.replace(half, file)
    return file


def render(sections: Sections) -> str:
    main = join(sections.parts)
    drawn = "data-chart=" in main
    return Template(_asset("page.html")).substitute(
        title=text(sections.title),
        kicker=text(sections.kicker),
        lead=text(sections.lead),
        banners=join(sections.banners),
        main=main,
        footer=text(sections.footer),
        css=_asset("page.css"),
        without_charts=Html(_WITHOUT_CHARTS) if drawn else "",
        scripts=_scripts() if drawn else "",
    )


_WITHOUT_CHARTS = (
    '<noscript><div class="banner warning">'
    "<p>Charts need JavaScript. Every number is also in a table.</p></div></noscript>"
)


def _scripts() -> Html:
    """The chart library and the code that uses it, for pages with charts."""
    from plotly.offline import get_plotlyjs

    # a script ends at the first "</script", even inside a string
    library = get_plotlyjs().replace("</script", "<\\/script")
    return Html(f"<script>{library}</script>\n<script>\n{_asset('charts.js')}\n</script>")


def _asset(name: str) -> str:
    return resources.files("tacit.report").joinpath("assets", name).read_text(encoding="utf-8")


@dataclass
class ChartWriter:
    """Turns charts into numbered figures of the page."""

    _numbers: Iterable[int] = field(default_factory=lambda: count(1))

    def __call__(self, chart: Chart | None, *, wide: bool = True) -> Html:
        if chart is None:
            return Html("")
        note = tag("span", chart.note, class_="note") if chart.note else ""
        name = f"chart-{next(iter(self._numbers))}"
        return tag(
            "figure",
            tag("figcaption", tag("span", chart.caption, class_="caption"), note),
            tag("div", id=name, class_="chart", role="img", aria_label=chart.spoken, style=f"height:{chart.height}px"),
            json_script(chart.figure, data_chart=name),
            class_="wide" if wide else None,
        )


def grid(charts: Sequence[Chart], write: ChartWriter) -> Html:
    """Charts in two columns; of an odd number the first takes a whole row."""
    drawn = [write(chart, wide=index == 0 and len(charts) % 2 == 1) for index, chart in enumerate(charts)]
    return tag("div", *drawn, class_="charts")


def legend(entries: Iterable[tuple[str, Style]]) -> Html:
    """Names of the series with a stroke and a marker as in the charts."""
    return bullets((join([_swatch(style), tag("span", name)], "") for name, style in entries), class_="legend")


def _swatch(style: Style) -> Html:
    shapes = [line([(0, 7), (28, 7)], style.color, 2.5, style.dash), mark(14, 7, style, scale=0.75)]
    return tag("svg", *shapes, width=28, height=14, aria_hidden="true")


def banner(kind: str, heading: str, *children: object) -> Html:
    """A coloured note: ``danger``, ``warning``, ``note`` or ``promise``."""
    return tag("div", paragraph(tag("strong", heading)), *children, class_=f"banner {kind}", role="note")


def cards(items: Iterable[tuple[str, str, str | Html]]) -> Html:
    """Big numbers: name, value, a few words below. The first is the headline."""
    written = [
        tag("div", tag("dt", name), tag("dd", value, class_="value"), tag("dd", note, class_="note"), class_="card")
        for name, value, note in items
    ]
    return tag("dl", *written, class_="cards") if written else Html("")


def footer(environment: object) -> str:
    version = f" {environment}" if environment else ""
    return f"Made by Tacit{version}. This page is one file and loads nothing from any network."
