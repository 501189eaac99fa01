"""Named sources: what a source is, where its files are found, and tables as sources.

``tables`` holds the named tables, ``mnist`` and ``shakespeare`` what is no table. Installed packages add others
(``tacit.names``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import pandas as pd

from tacit.data.encode import feature_columns
from tacit.data.options import Columns, DataOptions, Labels, SurvivalLabel, declared_columns, declared_labels
from tacit.data.raw import Declaration, Raw, label_columns, read_raw
from tacit.data.table import Table, from_frame, read_file
from tacit.errors import UserError
from tacit.names import BuiltIn, find

ENVIRONMENT = "TACIT_DATA"
Given = pd.DataFrame | Table | None  # what stands in for a file


@dataclass(frozen=True)
class SourceFacts:
    """What is publicly known about a source before any record is read.

    ``silo_count`` and ``subject_count`` are those of the data themselves, or of the assignment where one is asked for.
    ``feature_shape`` is the shape of one record. ``columns`` are the declared feature columns of a table, empty where
    it declares none, None for what is no table. ``holds_out_people``: whole people are held out, by lot.
    ``subject_column`` says whose a row of a table is, ``label`` which columns hold what is learned.
    """

    labels: Labels
    silo_count: int | None
    subject_count: int | None
    origin: str
    feature_shape: tuple[int, ...] | None
    columns: Columns | None = None
    holds_out_people: bool = False
    subject_column: str | None = None
    label: str | SurvivalLabel | None = None


@dataclass(frozen=True)
class Source:
    """A named origin of records: public ``facts`` and a way to ``read`` the rows."""

    name: str
    facts: Callable[[DataOptions], SourceFacts]
    read: Callable[[DataOptions, Given, np.random.Generator], Raw]


SOURCES: BuiltIn[Source] = BuiltIn(
    {
        "randhie": "tacit.data.sources.tables:RANDHIE",
        "table": "tacit.data.sources:USER_TABLE",
        "mnist": "tacit.data.sources.mnist:SOURCE",
        "shakespeare": "tacit.data.sources.shakespeare:SOURCE",
        "heart": "tacit.data.sources.tables:HEART",
        "tcga-brca": "tacit.data.sources.tables:TCGA_BRCA",
        "creditcard": "tacit.data.sources.tables:CREDITCARD",
        "insteval": "tacit.data.sources.tables:INSTEVAL",
        "diabetes130": "tacit.data.sources.tables:DIABETES130",
    }
)


def find_source(name: str) -> Source:
    """The source called ``name``."""
    return find("tacit.sources", SOURCES, name, "data.source", Source)


def source_facts(options: DataOptions) -> SourceFacts:
    """What is publicly known about the data of an experiment, without reading a record."""
    return find_source(options.source).facts(options)


@dataclass(frozen=True)
class Folder:
    """The folder of a source's public files: ``data.path``, or TACIT_DATA/``name``."""

    name: str
    origin: str

    def file(self, options: DataOptions, *names: str) -> Path:
        """The first of the files ``names`` that exists."""
        folder = self._path(options)
        for name in names:
            if (folder / name).is_file():
                return folder / name
        wanted = " or ".join(names)
        problem = f"'{folder}' has no file {wanted}" if folder.is_dir() else f"there is no folder '{folder}'"
        fix = f"get it from {self.origin}, then set data.path or {ENVIRONMENT}"
        raise UserError("file-not-found", "data.path", problem, fix)

    def _path(self, options: DataOptions) -> Path:
        if options.path is not None:
            return Path(options.path)
        root = os.environ.get(ENVIRONMENT)
        if not root:
            fix = f"set data.path, or {ENVIRONMENT} to the folder that holds '{self.name}' (from {self.origin})"
            raise UserError("missing", "data.path", f"source '{options.source}' needs the folder of its files", fix)
        return Path(root) / self.name


def read_builtin(options: DataOptions, rng: np.random.Generator) -> Table:
    """The table that is part of the package, or another file of the same columns at ``data.path``."""
    if options.path is not None:
        return read_file(options.path)
    with as_file(files("tacit.data") / "builtin" / "randhie.parquet") as path:
        return read_file(path)


def table_source(
    name: str,
    origin: str,
    declaration: Declaration,
    read_table: Callable[[DataOptions, np.random.Generator], Table],
    *,
    refine: Callable[[Columns], Columns] = lambda columns: columns,
) -> Source:
    """A named source whose rows are a table with declared columns.

    The experiment may declare other feature columns of the same table; ``refine`` lets a source complete them.
    """

    def declared(options: DataOptions) -> Declaration:
        _refuse_other_label(options, declaration)
        chosen = declared_columns(options)
        return declaration if chosen is None else replace(declaration, columns=refine(chosen))

    def facts(options: DataOptions) -> SourceFacts:
        return _table_facts(options, declared(options), origin)

    def read(options: DataOptions, frame: Given, rng: np.random.Generator) -> Raw:
        table = read_table(options, rng) if frame is None else _as_table(frame)
        chosen = declared(options)
        if chosen.split is not None and chosen.split not in table.names:
            chosen = replace(chosen, split=None)  # a frame in place of the file need not bring the official split
        return read_raw(table, chosen, options)

    return Source(name, facts, read)


def refuse_table_settings(options: DataOptions, frame: Given) -> None:
    """For sources that are no tables: settings about columns would be ignored, so they are refused."""
    about_columns = ("label", "numeric", "categorical", "schema_", "standardize", "missing", "task", "classes")
    defaults = DataOptions()
    given = ["frame"] if frame is not None else []
    given += [f"data.{key.rstrip('_')}" for key in about_columns if getattr(options, key) != getattr(defaults, key)]
    if given:
        problem = f"source '{options.source}' is not a table"
        raise UserError("no-effect", given[0], problem, 'leave it out, or use source = "table"')


def _as_table(frame: pd.DataFrame | Table) -> Table:
    return frame if isinstance(frame, Table) else from_frame(frame)


def _table_facts(options: DataOptions, declared: Declaration, origin: str) -> SourceFacts:
    own_silos = options.silos.column in (None, declared.silo)
    own_people = options.subjects.column in (None, declared.subject)
    subject = None if options.subjects.assign else options.subjects.column or declared.subject
    return SourceFacts(
        declared.labels,
        options.silos.count or (len(declared.silo_names) if own_silos else 0) or None,
        options.subjects.count or (declared.subject_count if own_people else None),
        origin,
        (declared.columns.width,),
        declared.columns,
        subject is not None and declared.split is None,
        subject,
        declared.label,
    )


def _refuse_other_label(options: DataOptions, declared: Declaration) -> None:
    source, kind = options.source, declared.labels.kind
    for key, given, own, problem in (
        ("label", options.label, declared.label, f"source '{source}' predicts {declared.label!r}"),
        ("classes", options.classes, None, f"source '{source}' has its own classes"),
        ("task", options.task, kind, f"source '{source}' is a {kind} task"),
    ):
        if given not in (None, own):
            fix = f"leave data.{key} out" + (', or use source = "table"' if key == "label" else "")
            raise UserError("conflict", f"data.{key}", problem, fix)


# --- ``source = "table"``: a file or frame of the user's own, with everything public said in the experiment file ---


def _user_facts(options: DataOptions) -> SourceFacts:
    """From the options alone; the shape is known where the numeric columns are declared."""
    columns = declared_columns(options)
    declared = Declaration(columns or Columns(), options.label, declared_labels(options))
    known = _table_facts(options, declared, options.path or "a data frame")
    complete = columns is not None and (options.numeric is not None or options.schema_ is not None)
    return known if complete else replace(known, feature_shape=None)


def _read_user_table(options: DataOptions, frame: Given, rng: np.random.Generator) -> Raw:
    """The rows of ``frame``, or of the file at ``data.path``."""
    if frame is None and options.path is None:
        raise UserError("missing", "data.path", "no table is given", "set data.path to a file or pass a frame")
    table = read_file(options.path or "") if frame is None else _as_table(frame)
    taken = {options.subjects.column or "", options.silos.column or "", *label_columns(options.label)}
    columns = feature_columns(table, options, taken)
    return read_raw(table, Declaration(columns, options.label, declared_labels(options)), options)


USER_TABLE = Source("table", _user_facts, _read_user_table)
