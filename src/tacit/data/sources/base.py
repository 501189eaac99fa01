"""What a source is, and where its files are found."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from tacit.data.encode import Columns, declared_columns
from tacit.data.options import DataOptions, SurvivalLabel
from tacit.data.raw import Raw
from tacit.data.records import Labels
from tacit.data.table_files import Table, from_frame
from tacit.data.tabular import Declaration, read_raw
from tacit.errors import UserError

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
    natural_subjects: bool
    about: str
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


def table_source(
    name: str,
    about: str,
    origin: str,
    declaration: Declaration,
    read_table: Callable[[DataOptions, np.random.Generator], Table],
    *,
    subject_count: int | None = None,
    natural_subjects: bool = True,
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
        own_silos = options.silos.column in (None, declaration.silo)
        own_people = options.subjects.column in (None, declaration.subject)
        columns = declared(options).columns
        subject = None if options.subjects.assign else options.subjects.column or declaration.subject
        return SourceFacts(
            declaration.labels,
            options.silos.count or (len(declaration.silo_names) if own_silos else 0) or None,
            options.subjects.count or (subject_count if own_people else None),
            natural_subjects and not options.subjects.assign,
            about,
            origin,
            (columns.width,),
            columns,
            subject is not None and declaration.split is None,
            subject,
            declaration.label,
        )

    def read(options: DataOptions, frame: Given, rng: np.random.Generator) -> Raw:
        table = read_table(options, rng) if frame is None else as_table(frame)
        chosen = declared(options)
        if chosen.split is not None and chosen.split not in table.names:
            chosen = replace(chosen, split=None)  # a frame in place of the file need not bring the official split
        return read_raw(table, chosen, options)

    return Source(name, facts, read)


def as_table(frame: pd.DataFrame | Table) -> Table:
    """What stands in for a file."""
    return frame if isinstance(frame, Table) else from_frame(frame)


def _refuse_other_label(options: DataOptions, declared: Declaration) -> None:
    if options.label is not None and options.label != declared.label:
        problem = f"source '{options.source}' predicts {declared.label!r}"
        raise UserError("conflict", "data.label", problem, 'leave data.label out, or use source = "table"')
    if options.classes is not None:
        problem = f"source '{options.source}' has its own classes"
        raise UserError("conflict", "data.classes", problem, "leave data.classes out")
    if options.task is not None and options.task != declared.labels.kind:
        problem = f"source '{options.source}' is a {declared.labels.kind} task"
        raise UserError("conflict", "data.task", problem, "leave data.task out")


def refuse_table_settings(options: DataOptions, frame: Given) -> None:
    """For sources that are no tables: settings about columns would be ignored, so they are refused."""
    given = {
        "frame": frame is not None,
        "data.label": options.label is not None,
        "data.numeric": options.numeric is not None,
        "data.categorical": bool(options.categorical),
        "data.schema": options.schema_ is not None,
        "data.standardize": options.standardize != "declared",
        "data.missing": options.missing != "refuse",
        "data.task": options.task is not None,
        "data.classes": options.classes is not None,
    }
    for field, is_given in given.items():
        if is_given:
            problem = f"source '{options.source}' is not a table"
            raise UserError("no-effect", field, problem, 'leave it out, or use source = "table"')
