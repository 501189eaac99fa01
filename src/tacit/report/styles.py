"""Colours, dashes and marks: every series differs by colour *and* by dash or marker, and colours keep apart for
colour-blind readers."""

from __future__ import annotations

from dataclasses import dataclass

INK, SOFT, GRID = "#1d2733", "#586471", "#e3e7eb"
ACCENT, PALE, DANGER = "#0b5c9e", "#c3cbd4", "#9b2a22"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
BLUES = [[0, "#f3f7fb"], [0.5, "#7fb0d6"], [1, "#08457a"]]


@dataclass(frozen=True)
class Style:
    """How one series looks, in the chart and in the legend beside it."""

    color: str
    dash: str = "solid"
    symbol: str = "circle"


STYLES = {
    "federated": Style(ACCENT),
    "silo-only": Style("#c2570c", "dash", "diamond"),
    "pooled": Style("#4a4f57", "dot", "square"),
    "fedavg": Style("#00795a", "dashdot", "triangle-up"),
    "local-record": Style("#a8487e", "longdash", "cross"),
    "shared": Style("#4a4f57", "dot", "square"),
}
AUDIT = {
    "at least": Style(ACCENT),
    "curve": Style("#00795a", "dot", "diamond"),
    "estimate": Style("#b98a00", "dash", "triangle-up"),
    "proved": Style(INK, "solid", "square"),
    "published": Style("#a8487e", "dashdot", "triangle-down"),
}
RUN_STYLES = [
    Style("#0b5c9e"),
    Style("#c2570c", "dash", "diamond"),
    Style("#00795a", "dot", "square"),
    Style("#a8487e", "dashdot", "triangle-up"),
    Style("#4a4f57", "longdash", "cross"),
    Style("#2f9bd6", "longdashdot", "triangle-down"),
    Style("#b98a00", "dash", "star"),
    Style("#000000", "dot", "x"),
]
