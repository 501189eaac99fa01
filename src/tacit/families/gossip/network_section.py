"""Section about the network of a run without a server: epsilon from node to node, and by distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.report import figures, words
from tacit.report.markup import Column, Html, paragraph, section, table
from tacit.report.page import ChartWriter

HOVER = "from %{customdata[0]} to %{customdata[1]}: epsilon %{z}"


def part(network: Mapping[str, Any], chart: ChartWriter) -> Html:
    """The section."""
    gap = words.number(network.get("gap"))
    about = f"{network.get('nodes')} nodes on a graph of kind '{network.get('topology')}', spectral gap {gap}."
    at = network.get("by_distance") or []
    if not at:
        return section("The network", paragraph(about), name="network")
    lead = (
        "The guarantee above is for the node with the largest privacy loss. The loss of a node to another node over "
        "all rounds depends on the distance between them."
    )
    columns = [Column("Steps away"), Column("Pairs", True), Column("Largest epsilon", True), Column("Mean", True)]
    rows = [
        [str(line["distance"]), words.count(line["pairs"]), words.epsilon(line["largest"]), words.epsilon(line["mean"])]
        for line in at
    ]
    return section(
        "The network",
        paragraph(about, " ", lead),
        chart(_pairs(network)),
        table(columns, rows, "Epsilon by distance"),
        name="network",
    )


def _pairs(network: Mapping[str, Any]) -> figures.Chart | None:
    values = network.get("epsilons") or []
    if not values:
        return None
    names = [f"node {k}" for k in range(len(values))]
    shown = [[value if isinstance(value, int | float) else None for value in row] for row in values]
    return figures.heatmap(names, names, shown, "Epsilon from node to node", HOVER)
