"""Small pieces of HTML. Every text is escaped unless it already is :class:`Html`."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


@dataclass(frozen=True)
class Column:
    """A column of a table; numbers stand right."""

    title: str
    numeric: bool = False


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


def section(title: str, *children: object, name: str | None = None) -> Html:
    """A part of the page under its own heading; nothing if it has no content."""
    body = join(children)
    return tag("section", tag("h2", title), body, id=name) if body else Html("")


def paragraph(*children: object, class_: str | None = None) -> Html:
    return tag("p", *children, class_=class_)


def bullets(items: Iterable[object], class_: str | None = None) -> Html:
    return tag("ul", *(tag("li", item) for item in items), class_=class_)


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """Names and values, in two columns; pairs without a value are left out."""
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value not in (None, "")]
    return tag("dl", *rows, class_="facts") if rows else Html("")


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[object]],
    caption: str,
    *,
    stacked: bool = False,
    tall: bool = False,
) -> Html:
    """A table whose first cell of each row is that row's header.

    stacked   on a narrow screen each row becomes a card instead of a line to scroll along
    tall      many rows: on a screen it scrolls in a box, on paper it is complete
    """
    head = tag("tr", *(tag("th", c.title, scope="col", class_=_kind(c)) for c in columns))
    body = [_row(columns, row) for row in rows]
    inner = tag("table", tag("thead", head), tag("tbody", *body), aria_label=caption)
    classes = "table" + (" stacked" if stacked else "") + (" tall" if tall else "")
    # the caption stands outside the part that scrolls, so that a narrow screen shows all of it
    scrolled = tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)
    return tag("div", paragraph(caption, class_="table-caption"), scrolled, class_=classes)


def _row(columns: Sequence[Column], cells: Sequence[object]) -> Html:
    first, *rest = zip(columns, cells, strict=True)
    return tag(
        "tr",
        tag("th", first[1], scope="row"),
        *(tag("td", cell, class_=_kind(column), data_label=column.title) for column, cell in rest),
    )


def _kind(column: Column) -> str | None:
    return "number" if column.numeric else None


def json_script(value: Any, **attributes: object) -> Html:
    """JSON inside a script element. Angle brackets and ampersands are written as escapes that mean the same in JSON, so
    no text in it can end the element."""
    written = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return tag("script", Html(written), type="application/json", **attributes)
