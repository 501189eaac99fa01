"""Section about the network of a run without a server: epsilon from node to node, and by distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.report import figures, words
from tacit.report.page import Html, paragraph, section, table


def part(network: Mapping[str, Any]) -> Html:
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
    rows = [
        {
            "Steps away": str(line["distance"]),
            "Pairs": words.count(line["pairs"]),
            "Largest epsilon": words.epsilon(line["largest"]),
            "Mean": words.epsilon(line["mean"]),
        }
        for line in at
    ]
    return section(
        "The network",
        paragraph(about, " ", lead),
        _pairs(network),
        table(rows, "Epsilon by distance"),
        name="network",
    )


def _pairs(network: Mapping[str, Any]) -> Html:
    values = network.get("epsilons") or []
    if not values:
        return Html("")
    names = [f"node {k}" for k in range(len(values))]
    shown = [[value if isinstance(value, int | float) else None for value in row] for row in values]
    return figures.heatmap(names, names, shown, "Epsilon from node to node (rows: from, columns: to)", "epsilon")
