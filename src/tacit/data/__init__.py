"""Records with their subjects and silos.

``load`` turns the ``[data]`` section of an experiment into a :class:`Federation`; ``source_facts`` says what is
publicly known about it without reading a record; ``describe`` counts it exactly, for those who hold it.
"""

from tacit.data.encode import FeatureEncoder, Federation, Records, Silo
from tacit.data.load import OverCap, check_silo_cap, describe, load, load_evaluation
from tacit.data.options import DataOptions, Labels, NumericColumn, SiloOptions, SubjectOptions, SurvivalLabel
from tacit.data.sources import SOURCES, SourceFacts, source_facts

__all__ = [
    "SOURCES",
    "DataOptions",
    "FeatureEncoder",
    "Federation",
    "Labels",
    "NumericColumn",
    "OverCap",
    "Records",
    "Silo",
    "SiloOptions",
    "SourceFacts",
    "SubjectOptions",
    "SurvivalLabel",
    "check_silo_cap",
    "describe",
    "load",
    "load_evaluation",
    "source_facts",
]
