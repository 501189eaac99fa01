"""Named sources: one small module each, this list, and those that installed packages add (``tacit.names``)."""

from __future__ import annotations

from tacit.data.options import DataOptions
from tacit.data.sources import (
    creditcard,
    diabetes130,
    heart,
    insteval,
    mnist,
    randhie,
    shakespeare,
    tcga_brca,
    user_table,
)
from tacit.data.sources.base import Source, SourceFacts
from tacit.names import find

__all__ = ["SOURCES", "Source", "SourceFacts", "find_source", "source_facts"]

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        randhie.SOURCE,
        user_table.SOURCE,
        mnist.SOURCE,
        shakespeare.SOURCE,
        heart.SOURCE,
        tcga_brca.SOURCE,
        creditcard.SOURCE,
        insteval.SOURCE,
        diabetes130.SOURCE,
    )
}


def find_source(name: str) -> Source:
    """The source called ``name``."""
    return find("tacit.sources", SOURCES, name, "data.source", Source)


def source_facts(options: DataOptions) -> SourceFacts:
    """What is publicly known about the data of an experiment, without reading a record."""
    return find_source(options.source).facts(options)
