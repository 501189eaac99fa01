"""A table and its declaration as :class:`Raw`, for user tables and for named tabular sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from tacit.data.cells import as_name, as_written, gaps, match_names, numbers_in, texts
from tacit.data.encode import Columns, FeatureEncoder, Part
from tacit.data.holdout_and_caps import mixed
from tacit.data.labels import read_labels
from tacit.data.options import DataOptions, SurvivalLabel
from tacit.data.raw import Built, Raw
from tacit.data.records import Labels
from tacit.data.table_files import Table
from tacit.errors import UserError, nearest

SUBJECTS = "data.subjects.column"


@dataclass(frozen=True)
class Declaration:
    """The public facts about a table: its feature columns, its label, and who and where its rows are.

    ``silo_names`` fixes the order of the silos where it is known beforehand. ``split`` names a column that is 1 in
    held-out rows.
    """

    columns: Columns
    label: str | SurvivalLabel | None
    labels: Labels
    subject: str | None = None
    silo: str | None = None
    silo_names: tuple[str, ...] = ()
    split: str | None = None
    split_is_drawn: bool = False


@dataclass(frozen=True)
class TableFeatures:
    """Features from declared columns of a table."""

    table: Table
    encoder: FeatureEncoder

    def build(self, train: Part, test: Part, silo_names: tuple[str, ...]) -> Built:
        encoder = replace(self.encoder, silo_names=silo_names).fitted(self.table, train)
        unpaid = UnpaidColumns(self.table, encoder, train, test) if encoder.standardize == "paid" else None
        return replace(_built(self.table, encoder, train, test), unpaid=unpaid)


@dataclass(frozen=True)
class UnpaidColumns:
    """The numeric columns of a table's training rows, of which noisy constants have still to be released."""

    table: Table
    encoder: FeatureEncoder
    train: Part
    test: Part

    @property
    def low(self) -> tuple[float, ...]:
        return self.encoder.columns.bounds()[0]

    @property
    def high(self) -> tuple[float, ...]:
        return self.encoder.columns.bounds()[1]

    def values(self) -> np.ndarray:
        return self.encoder.numbers(self.table, self.train)

    def built(self, means: Sequence[float], scales: Sequence[float]) -> Built:
        return _built(self.table, self.encoder.with_constants(means, scales), self.train, self.test)

    def taken(self, train: np.ndarray, test: np.ndarray) -> UnpaidColumns:
        return replace(self, train=self.train.take(train), test=self.test.take(test))


def _built(table: Table, encoder: FeatureEncoder, train: Part, test: Part) -> Built:
    train_features, test_features = encoder.encode_parts(table, [train, test])
    return Built(train_features, test_features, encoder.feature_names, encoder)


def read_raw(table: Table, declared: Declaration, options: DataOptions) -> Raw:
    """Labels, ids and features of a table; columns that the experiment names win over declared ones."""
    _refuse_leaks(declared, options)
    subject = silo = None
    silo_names: tuple[str, ...] = ()
    subject_column = None if options.subjects.assign else options.subjects.column or declared.subject
    silo_column = None if options.silos.assign else options.silos.column or declared.silo
    if subject_column is not None:
        subject = _numbered(table.identifiers(subject_column, SUBJECTS), subject_column, SUBJECTS)
    if silo_column is not None:
        known = declared.silo_names if silo_column == declared.silo else ()
        silo, silo_names = _silos(table, silo_column, known)
    test = None if declared.split is None else numbers_in(table.column(declared.split, "data.path")) == 1
    columns = declared.columns.checked()
    if options.standardize == "paid":
        columns = columns.scaled_by_bounds()
    encoder = FeatureEncoder(columns, options.standardize, options.missing, silo_column)
    return Raw(
        declared.labels,
        read_labels(table, declared.label, declared.labels),
        TableFeatures(table, encoder),
        subject,
        silo,
        silo_names,
        test,
        declared.split_is_drawn,
        keys=partial(_keys, table, subject_column),
        record_keys=partial(_keys, table, None),
    )


def label_columns(label: str | SurvivalLabel | None) -> tuple[str, ...]:
    """The names of the columns that hold the label."""
    if isinstance(label, SurvivalLabel):
        return (label.time, label.event)
    return () if label is None else (label,)


def _refuse_leaks(declared: Declaration, options: DataOptions) -> None:
    """A label or a person's id among the features is always a mistake."""
    ids = {options.subjects.column or declared.subject, *label_columns(declared.label)}
    for kind, columns in (("numeric", declared.columns.numeric), ("categorical", declared.columns.categorical)):
        for name in columns:
            if name in ids:
                problem = f"column '{name}' is the label or the subject"
                raise UserError("conflict", f"data.{kind}", problem, "leave it out")


def _silos(table: Table, column: str, known: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Silo numbers ``[rows]`` and silo names: in the ``known`` order, else sorted (numbers as numbers)."""
    values = texts(table.column(column, "data.silos.column"))
    _numbered(values, column, "data.silos.column")
    names = known or sorted_names(pd.unique(values))
    codes, unknown = match_names(values, names)
    if unknown is not None:
        problem = f"column '{column}' has the silo '{unknown}'"
        raise UserError("undeclared-value", "data.silos.column", problem, nearest(unknown, names))
    return codes, names


def sorted_names(values: np.ndarray) -> tuple[str, ...]:
    """Texts as distinct names, numbers in numeric order before text in alphabetic order."""
    numbers = np.nan_to_num(numbers_in(values), nan=np.inf)
    return tuple(dict.fromkeys(str(as_name(values[k])) for k in np.lexsort((values.astype(str), numbers))))


def _keys(table: Table, subject_column: str | None) -> np.ndarray:
    """Keys ``[rows]`` uint64 made from the person's identifier, or from everything that a row says and how many equal
    rows come before it: adding or removing a row changes no other key (of equal rows, the last one's goes)."""
    if subject_column is not None:
        return identifier_keys(table.identifiers(subject_column, SUBJECTS))
    keys = np.zeros(table.rows, np.uint64)
    for name in table.names:
        keys = mixed(keys ^ _cell_keys(table.read(name)))
    before = pd.Series(keys).groupby(keys, sort=False).cumcount().to_numpy(np.uint64)
    return mixed(keys ^ mixed(before))


def identifier_keys(identifiers: np.ndarray) -> np.ndarray:
    """Keys ``[rows]`` uint64 of identifiers (text): that of the integer where one is written, else that of the text."""
    codes, distinct = pd.factorize(identifiers)
    texts = pd.Series(distinct, dtype=object).astype(str)
    whole = texts.str.fullmatch(r"0|-?[1-9][0-9]{0,17}").to_numpy(bool)
    keys = pd.util.hash_array(texts.to_numpy(object))
    keys[whole] = pd.util.hash_array(texts[whole].to_numpy(np.int64))
    found: np.ndarray = keys[codes]
    return found


def _cell_keys(values: np.ndarray) -> np.ndarray:
    """Keys ``[rows]`` of cells, by what is written in them: cells of one key say the same in every use."""
    written, missing = as_written(values), gaps(values)
    written[missing] = ""
    keys = pd.util.hash_array(written, categorize=False)
    keys[missing] = 0
    return keys


def _numbered(values: np.ndarray, column: str, field: str) -> np.ndarray:
    """The distinct values of a column, numbered in order of appearance ``[rows]``; a gap is refused."""
    codes, _ = pd.factorize(values, use_na_sentinel=True)
    gaps = int((codes < 0).sum())
    if gaps:
        problem = f"column '{column}' is missing in {gaps} rows"
        raise UserError("missing-values", field, problem, "fill the gaps or drop the rows")
    return codes.astype(np.int32)
