"""``source = "table"``: a file or frame of the user's own, with everything public said in the experiment file."""

from __future__ import annotations

import numpy as np

from tacit.data.encode import Columns, declared_columns, feature_columns
from tacit.data.labels import declared_labels
from tacit.data.options import DataOptions
from tacit.data.raw import Raw
from tacit.data.sources.base import Given, Source, SourceFacts, as_table
from tacit.data.table_files import read_file
from tacit.data.tabular import Declaration, label_columns, read_raw
from tacit.errors import UserError


def facts(options: DataOptions) -> SourceFacts:
    """From the options alone; the shape is known where the numeric columns are declared."""
    columns = declared_columns(options)
    complete = options.numeric is not None or options.schema_ is not None
    return SourceFacts(
        labels=declared_labels(options),
        silo_count=options.silos.count,
        subject_count=options.subjects.count,
        natural_subjects=options.subjects.column is not None,
        about="a table of your own",
        origin=options.path or "a data frame",
        feature_shape=(columns.width,) if columns is not None and complete else None,
        columns=columns or Columns(),
        holds_out_people=options.subjects.column is not None,
        subject_column=options.subjects.column,
        label=options.label,
    )


def read(options: DataOptions, frame: Given, rng: np.random.Generator) -> Raw:
    """The rows of ``frame``, or of the file at ``data.path``."""
    if frame is None and options.path is None:
        raise UserError("missing", "data.path", "no table is given", "set data.path to a file or pass a frame")
    table = read_file(options.path or "") if frame is None else as_table(frame)
    taken = {options.subjects.column or "", options.silos.column or "", *label_columns(options.label)}
    columns = feature_columns(table, options, taken)
    return read_raw(table, Declaration(columns, options.label, declared_labels(options)), options)


SOURCE = Source("table", facts, read)
