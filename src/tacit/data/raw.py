"""What a source returns: labels, ids and a way to build features, before records are held out or assigned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from tacit.data.encode import FeatureEncoder, Part, Unpaid, read_labels
from tacit.data.options import Columns, DataOptions, Labels, SurvivalLabel
from tacit.data.records import Federation, Records
from tacit.data.table import Table, as_name, as_written, gaps, match_names, numbers_in, refuse_rows, texts
from tacit.errors import UserError, nearest

SUBJECTS, SILOS = "data.subjects.column", "data.silos.column"


@dataclass(frozen=True)
class Raw:
    """All rows of a source as parallel arrays.

    labels        ``[rows]`` or ``[rows, 2]``, already checked and coded as ``kind`` says
    features      a table with its encoder, or a function of rows ``[part]`` that makes their features ``[part, ...]``:
                  built late, only for the rows that are kept, and already in their final order
    subject       ``[rows]`` person numbers, or None where every row would be its own person
    silo          ``[rows]`` numbers into ``silo_names``, or None
    test          ``[rows]`` mask of the source's own held-out rows, or None
    test_is_drawn whether the source drew that mask itself, by ``data.test_fraction``
    keys          gives ``[rows]`` keys of 64 bits, each made from its person's name alone, or, without names,
                  from what the row says; None: person numbers, or numbers of rows, are those of a public file
    record_keys   the same for single rows, made from what each says, whether a person is named or not
    """

    kind: Labels
    labels: np.ndarray
    features: tuple[Table, FeatureEncoder] | Callable[[np.ndarray], np.ndarray]
    subject: np.ndarray | None = None
    silo: np.ndarray | None = None
    silo_names: tuple[str, ...] = ()
    test: np.ndarray | None = None
    test_is_drawn: bool = False
    keys: Callable[[], np.ndarray] | None = None
    record_keys: Callable[[], np.ndarray] | None = None

    def federation(
        self, train: Part, test: Part, silo_names: tuple[str, ...], held_out: str, subject_count: int
    ) -> Federation:
        """The chosen rows with their features."""
        encoder = unpaid = None
        if isinstance(self.features, tuple):
            table, encoder = self.features
            encoder = replace(encoder, silo_names=silo_names).fitted(table, train)
            features = encoder.encode_parts(table, [train, test])
            if encoder.standardize == "paid":
                unpaid = Unpaid(table, encoder, train, test)
        else:
            features = [self.features(np.asarray(part.rows)) for part in (train, test)]
        return Federation(
            train=self._records(features[0], train),
            test=self._records(features[1], test),
            labels=self.kind,
            silo_names=silo_names,
            subject_count=subject_count,
            feature_names=() if encoder is None else encoder.feature_names,
            held_out=held_out,
            encoder=encoder,
            unpaid=unpaid,
        )

    def _records(self, features: np.ndarray, part: Part) -> Records:
        assert part.subject is not None
        assert part.silo is not None
        return Records(features, self.labels[part.rows], part.subject, part.silo)


def subject_keys(raw: Raw) -> np.ndarray:
    """The key of every row's person, ``[rows]`` int64; of every row, where there are no names."""
    if raw.keys is not None:
        keys: np.ndarray = raw.keys().view(np.int64)
        return keys
    return np.arange(len(raw.labels)) if raw.subject is None else raw.subject.astype(np.int64)


def record_keys(raw: Raw) -> np.ndarray:
    """The key of every row, ``[rows]`` int64."""
    if raw.record_keys is None:
        return np.arange(len(raw.labels))
    keys: np.ndarray = raw.record_keys().view(np.int64)
    return keys


# --- from a table ---


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
    subject_count: int | None = None
    silo: str | None = None
    silo_names: tuple[str, ...] = ()
    split: str | None = None
    split_is_drawn: bool = False


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
    return Raw(
        declared.labels,
        read_labels(table, declared.label, declared.labels),
        (table, FeatureEncoder(columns, options.standardize, options.missing, silo_column)),
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
    values = texts(table.column(column, SILOS))
    _numbered(values, column, SILOS)
    names = known or _sorted_names(pd.unique(values))
    codes, unknown = match_names(values, names)
    if unknown is not None:
        problem = f"column '{column}' has the silo '{unknown}'"
        raise UserError("undeclared-value", SILOS, problem, nearest(unknown, names))
    return codes, names


def _sorted_names(values: np.ndarray) -> tuple[str, ...]:
    """Texts as distinct names, numbers in numeric order before text in alphabetic order."""
    numbers = np.nan_to_num(numbers_in(values), nan=np.inf)
    return tuple(dict.fromkeys(str(as_name(values[k])) for k in np.lexsort((values.astype(str), numbers))))


def _numbered(values: np.ndarray, column: str, field: str) -> np.ndarray:
    """The distinct values of a column, numbered in order of appearance ``[rows]``; a gap is refused."""
    codes, _ = pd.factorize(values, use_na_sentinel=True)
    refuse_rows(codes < 0, column, "missing", "missing-values", field, "fill the gaps or drop the rows")
    return codes.astype(np.int32)


# --- keys and lots ---


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


def lots(keys: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """A pseudo-random number of [0, 1) for each key. It depends on key, seed and purpose only."""
    salt = np.frombuffer(hashlib.blake2b(f"{seed % 2**64} {purpose}".encode(), digest_size=8).digest(), np.uint64)
    return (mixed(mixed(keys.astype(np.uint64)) ^ salt) >> np.uint64(11)) * 2.0**-53


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Each of ``numbers`` (uint64) turned into one that looks random: the finaliser of SplitMix64 (Steele, Lea, Flood
    2014), a bijection."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: np.ndarray = z ^ (z >> np.uint64(31))
    return result
