"""Pages: small pieces of HTML, how series look, and the frame around the sections.

Every text is escaped unless it already is :class:`Html`. A page is one file with its style, its charts and the code
that draws them. Nothing is fetched: the page forbids it to the browser with a content security policy.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

MISSING = "–"
MOST_LISTED = 200  # silos in a table or a list of a page, which would be too large with thousands
TALL = 30  # rows of a table that scrolls in a box on a screen; on paper it is complete

INK, SOFT, GRID, WHITE = "#1d2733", "#586471", "#e3e7eb", "#ffffff"
ACCENT, PALE, DANGER = "#0b5c9e", "#c3cbd4", "#9b2a22"
FAINT, FULL = "#f3f7fb", "#08457a"  # shades of the smallest and of the largest number
# name of a colour in the style sheet -> on a light page, on a dark page
COLORS = {
    "ink": (INK, "#e6eaee"),
    "soft": (SOFT, "#a3afbb"),
    "line": (GRID, "#2f3842"),
    "rule": ("#aab4bf", "#56626e"),
    "paper": (WHITE, "#14191e"),
    "wash": ("#f6f8fa", "#1d242b"),
    "accent": (ACCENT, "#6cb2f0"),
    "pale": (PALE, "#4d5966"),
    "danger": (DANGER, "#ff8f84"),
    "danger-wash": ("#fbf3f2", "#351c1a"),
    "warning": ("#8a5a00", "#e6b450"),
    "warning-wash": ("#fdf8ec", "#2f2716"),
    "faint": (FAINT, "#1d2832"),
    "full": (FULL, "#8ecbff"),
    "orange": ("#c2570c", "#f39a52"),
    "green": ("#00795a", "#3fc79f"),
    "pink": ("#a8487e", "#e58fc0"),
    "grey": ("#4a4f57", "#b7bec7"),
    "sky": ("#1f86bd", "#58d6ea"),
    "gold": ("#a87b00", "#e6c34a"),
    "black": ("#000000", "#ffffff"),
}
_NAMES = {light: name for name, (light, _) in COLORS.items()}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DASHES = {"dash": "9 4", "dot": "2 4", "dashdot": "9 4 2 4", "longdash": "14 4", "longdashdot": "14 4 2 4"}
SYMBOLS = {
    "diamond": "0 -7 7 0 0 7 -7 0",
    "square": "-5.5 -5.5 5.5 -5.5 5.5 5.5 -5.5 5.5",
    "triangle-up": "0 -7 7 5 -7 5",
    "triangle-down": "0 7 7 -5 -7 -5",
    "cross": "-2 -6 2 -6 2 -2 6 -2 6 2 2 2 2 6 -2 6 -2 2 -6 2 -6 -2 -2 -2",
    "x": "0 -3 3 -6 6 -3 3 0 6 3 3 6 0 3 -3 6 -6 3 -3 0 -6 -3 -3 -6",
    "star": "0 -7 2 -2 7 -2 3 1 4 6 0 3 -4 6 -3 1 -7 -2 -2 -2",
}


@dataclass(frozen=True)
class Style:
    """How one series looks, in the chart and in the legend: series differ by colour *and* by dash or symbol, and
    colours keep apart for colour-blind readers."""

    color: str
    dash: str = "solid"
    symbol: str = "circle"


RUN_STYLES = [
    Style(ACCENT),
    Style("#c2570c", "dash", "diamond"),
    Style("#00795a", "dot", "square"),
    Style("#a8487e", "dashdot", "triangle-up"),
    Style("#4a4f57", "longdash", "cross"),
    Style("#1f86bd", "longdashdot", "triangle-down"),
    Style("#a87b00", "dash", "star"),
    Style("#000000", "dot", "x"),
]


def style_of(index: int) -> Style:
    """Look of the series with this number. From the ninth on colours repeat with other dashes and marks."""
    again, place = divmod(index, len(RUN_STYLES))
    other = RUN_STYLES[(place + 3 * again) % len(RUN_STYLES)]
    return Style(RUN_STYLES[place].color, other.dash, other.symbol)


def color_name(color: str) -> str:
    """The name of a colour in the style sheet, which knows its counterpart on a dark page."""
    return _NAMES[color]


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: object) -> Html:
    """The value as markup: escaped, unless it is markup already."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def join(parts: Iterable[object], between: str = "\n") -> Html:
    return Html(between.join(text(part) for part in parts if part))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """``<name attributes>children</name>``; ``class_`` is class, ``data_label`` is data-label."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>{join(children, '')}</{name}>")


# ---- sections, tables, lists: nothing if they have no content


def section(title: str, *children: object, name: str | None = None, class_: str | None = None) -> Html:
    """A part of the page under its own heading."""
    body = join(children)
    return tag("section", tag("h2", title), body, id=name, class_=class_) if body else Html("")


def paragraph(*children: object, class_: str | None = None) -> Html:
    return tag("p", *children, class_=class_) if any(children) else Html("")


def bullets(items: Iterable[object], class_: str | None = None) -> Html:
    listed = [tag("li", item) for item in items]
    return tag("ul", *listed, class_=class_) if listed else Html("")


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """Names and values, in two columns; pairs without a value are left out."""
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value not in (None, "")]
    return tag("dl", *rows, class_="facts") if rows else Html("")


def cards(items: Iterable[tuple[str, str, str | Html]]) -> Html:
    """Big numbers: name, value, a few words below. The first is the headline."""
    written = [
        tag("div", tag("dt", name), tag("dd", value, class_="value"), tag("dd", note, class_="note"), class_="card")
        for name, value, note in items
    ]
    return tag("dl", *written, class_="cards") if written else Html("")


def banner(kind: str, heading: str, *children: object) -> Html:
    """A coloured note: ``danger``, ``warning``, ``note`` or ``promise``."""
    return tag("div", paragraph(tag("strong", heading)), *children, class_=f"banner {kind}", role="note")


def table(
    rows: Iterable[Mapping[str, object]], caption: str, *, words: Sequence[str] = (), stacked: bool = False
) -> Html:
    """Rows as cells by the title of their column. The first cell is the row's header; all other columns are numbers,
    except those in ``words``. ``stacked``: on a narrow screen each row becomes a card."""
    rows = list(rows)
    if not rows:
        return Html("")
    titles = list(dict.fromkeys(title for row in rows for title in row))
    kind = {title: "words" if title in words else None for title in titles}
    head = tag("tr", *(tag("th", title, scope="col", class_=kind[title]) for title in titles))
    body = [
        tag(
            "tr",
            tag("th", row[titles[0]], scope="row"),
            *(
                tag("td", row.get(title, MISSING), class_=kind[title], data_label=title if stacked else None)
                for title in titles[1:]
            ),
        )
        for row in rows
    ]
    inner = tag("table", tag("thead", head), tag("tbody", *body), aria_label=caption)
    classes = "table" + " stacked" * stacked + " tall" * (len(rows) > TALL)
    # the caption stands outside the part that scrolls, so that a narrow screen shows all of it
    scrolled = tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)
    return tag("div", paragraph(caption, class_="table-caption"), scrolled, class_=classes)


def both_ends(order: Sequence[str]) -> list[str]:
    """All names; of very many, the first and the last."""
    half = MOST_LISTED // 2
    return list(order) if len(order) <= MOST_LISTED else [*order[:half], *order[-half:]]


# ---- charts and their legend


def grid(charts: Sequence[Html]) -> Html:
    """Charts in two columns; of an odd number the first takes a whole row."""
    wide = len(charts) % 2
    parts = [tag("div", chart, class_="wide" if index < wide else "half") for index, chart in enumerate(charts)]
    return tag("div", *parts, class_="charts") if parts else Html("")


def legend(styles: Mapping[str, Style], off: Collection[str] = ()) -> Html:
    """Names of the series with a stroke and a mark as in the charts. A button hides and shows its series in the figure,
    or in all charts of the section, that the legend is in. Those in ``off`` are hidden at first."""

    def button(name: str, style: Style) -> Html:
        pressed = "false" if name in off else "true"
        shown = (_swatch(style), tag("span", name))
        return tag("button", *shown, type="button", aria_pressed=pressed, data_series=name)

    return bullets((button(*pair) for pair in styles.items()), class_="legend")


def _swatch(style: Style) -> Html:
    color = f"var(--{color_name(style.color)})"
    shapes = [line([(0, 7), (28, 7)], color, 2.5, style.dash), mark(14, 7, style, color, scale=0.75)]
    return tag("svg", *shapes, width=28, height=14, aria_hidden="true")


def line(points: Sequence[tuple[float, float]], color: str = GRID, width: float = 1, dash: str = "solid") -> Html:
    """A line of an SVG picture."""
    return path([points], stroke=color, stroke_width=width, stroke_dasharray=DASHES.get(dash), fill="none")


def path(runs: Iterable[Sequence[tuple[float, float]]], *, closed: bool = False, **attributes: object) -> Html:
    """Lines through the points of each run; ``closed``: from the last back to the first."""
    drawn = "".join("M" + "L".join(f"{pixels(x)} {pixels(y)}" for x, y in run) + "Z" * closed for run in runs)
    return tag("path", d=drawn, **attributes)


def mark(x: float, y: float, style: Style, color: str = "", *, hollow: bool = False, scale: float = 1.0) -> Html:
    """The symbol of a style."""
    color = color or style.color
    look = {"fill": "#ffffff" if hollow else color, "stroke": color, "stroke_width": 2 if hollow else None}
    if style.symbol not in SYMBOLS:
        return tag("circle", cx=pixels(x), cy=pixels(y), r=pixels(6 * scale), **look)
    numbers = [scale * float(number) for number in SYMBOLS[style.symbol].split()]
    corners = zip(numbers[::2], numbers[1::2], strict=True)
    return path([[(x + dx, y + dy) for dx, dy in corners]], closed=True, **look)


def pixels(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def json_script(value: object, **attributes: object) -> Html:
    """JSON inside a script element. Angle brackets and ampersands are written as escapes that mean the same in JSON, so
    no text in it can end the element."""
    written = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Html(written), type="application/json", **attributes)


# ---- the page


@dataclass(frozen=True)
class Page:
    """Content of a page: title, kind of page, parts in order, banners, and the version of Tacit that made the run."""

    title: str
    kicker: str
    lead: str
    parts: Sequence[Html]
    banners: Sequence[Html] = ()
    version: object = ""

    def save(self, file: Path) -> Path:
        """Write the page atomically."""
        half = file.with_name(f".{file.name}.part")
        half.write_text(self.render(), encoding="utf-8")
        os.replace(half, file)
        return file

    def render(self) -> str:
        main = join(self.parts)
        drawn = "data-chart=" in main
        made_by = " ".join(filter(None, ("Made by Tacit", str(self.version or ""))))
        return Template(_asset("page.html")).substitute(
            title=text(self.title),
            kicker=text(self.kicker),
            lead=text(self.lead),
            banners=join(self.banners),
            main=main,
            footer=text(f"{made_by}. This page is one file and loads nothing from any network."),
            css=f"{_colors()}\n{_asset('page.css')}",
            without_charts=_WITHOUT_CHARTS if drawn else "",
            scripts=_scripts() if drawn else "",
        )


_WITHOUT_CHARTS = (
    '<noscript><div class="banner warning">'
    "<p>Charts need JavaScript. Final values are also in tables.</p></div></noscript>"
)


def _colors() -> str:
    """Variables of the style sheet. A page is dark if the reader's system is; on paper it is light."""
    light, dark = ("".join(f"--{name}:{pair[side]};" for name, pair in COLORS.items()) for side in (0, 1))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root:not(.on-paper){{{dark}}}}}"


def _scripts() -> str:
    """The chart libraries and the code that uses them, for pages with charts."""
    written = [_library(entry["script"]) for entry in json.loads(_asset("vendored.json"))]
    return "\n".join([*written, f"<script>\n{_asset('charts.js')}\n</script>"])


def _library(file: str) -> str:
    """A library as published, without the address of its source map: nothing is to be fetched."""
    code = re.sub(r"\n//# sourceMappingURL=.*\s*$", "", _asset(file))
    safe = code.replace("</script", "<\\/script")  # a script ends at the first "</script", even inside a string
    return f"<script data-library>{safe}</script>"


def _asset(name: str) -> str:
    return resources.files("tacit.report").joinpath("assets", name).read_text(encoding="utf-8")
