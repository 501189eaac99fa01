"""Rows that are not as an experiment declares them, found without an error.

An error about a row reveals something about that row. In a federation the requester may learn nothing about single
rows, so that rows which do not fit are left out, by a rule that looks at the row itself only. Only the data holder
learns how many.
"""

from __future__ import annotations

import numpy as np

from tacit.data.encode import column_numbers
from tacit.data.options import BINARY, Columns, DataOptions, NumericColumn, SurvivalLabel
from tacit.data.sources import SourceFacts
from tacit.data.table import Table, gaps, match_names, numbers_in
from tacit.privacy.mechanisms.spreads import LARGEST_VALUE

_LARGEST = float(np.finfo(np.float32).max)
# Constants that are released with noise come later. They are no finer than this part of a column's public range, so
# that a value within this many ranges has a place in single precision.
FINEST = 1e-9
_MOST_RANGES = 1e29
_FINEST_ON_GRID = 2.0**-70  # of the largest value on the grid; its smallest cell is 2^-64 of it wide


def column_limits(columns: Columns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least and the largest centre, and the least scale, that released constants of each column may have."""
    if columns.unbounded:
        ends = np.full(len(columns.numeric), LARGEST_VALUE)
        return -ends, ends, ends * _FINEST_ON_GRID
    low, high = np.array(columns.bounds())
    return low, high, FINEST * (high - low)


def misfits(table: Table, known: SourceFacts, options: DataOptions) -> dict[str, np.ndarray]:
    """By column the rows (a mask, ``[rows]``) in which it is missing or not as declared; only columns that have some.

    A column that is not there at all is an error, as everywhere: that says nothing about rows.
    """
    assert known.columns is not None, "only tables have rows"
    found = {}
    for name, column in known.columns.numeric.items():
        found[name] = ~_numbers_fit(table.column(name, "data.numeric"), column, options)
    for name, categories in known.columns.categorical.items():
        values = table.column(name, "data.categorical")
        filled = gaps(values) if options.missing != "refuse" else np.zeros(table.rows, bool)
        found[name] = (match_names(values, categories)[0] < 0) & ~filled
    if isinstance(known.label, SurvivalLabel):
        times, events = (table.column(name, "data.label") for name in (known.label.time, known.label.event))
        found[known.label.time] = ~(_finite(times) & (numbers_in(times).astype(np.float32) > 0))
        found[known.label.event] = match_names(events, BINARY)[0] < 0
    elif isinstance(known.label, tuple):
        for name in known.label:
            found[name] = match_names(table.column(name, "data.label"), BINARY)[0] < 0
    elif known.label is not None:
        labels = table.column(known.label, "data.label")
        is_real = known.labels.kind == "real"
        found[known.label] = ~_finite(labels) if is_real else match_names(labels, known.labels.classes)[0] < 0
    if known.subject_column is not None:
        found[known.subject_column] = gaps(table.identifiers(known.subject_column, "data.subjects.column"))
    return {name: rows for name, rows in found.items() if rows.any()}


def _numbers_fit(values: np.ndarray, column: NumericColumn, options: DataOptions) -> np.ndarray:
    """Which values are numbers that have a place in single precision, or gaps that may be filled."""
    numbers, missing = column_numbers(values, column.days_since), gaps(values)
    if column.missing is not None:
        numbers, missing = np.where(missing, column.missing, numbers), np.zeros(len(numbers), bool)
    if options.standardize == "paid":
        # without bounds, features end at a number of scales (`encode.FARTHEST`): every finite number has a place
        range_ = np.inf if column.low is None or column.high is None else column.high - column.low
        place, most = numbers, min(_MOST_RANGES * range_, float(np.finfo(np.float64).max))
    elif options.standardize == "declared":
        with np.errstate(over="ignore"):
            place, most = (numbers - column.mean) / column.scale, _LARGEST
    else:
        place, most = numbers, _LARGEST
    fits = np.abs(place) <= most  # False for what is no number
    return np.asarray(fits | missing if options.missing != "refuse" else fits)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(numbers_in(values)) <= _LARGEST)
