"""What a source is: public facts and a way to read rows; where its files are found; tables as sources.

``tables`` holds the named tables, ``mnist`` and ``shakespeare`` what is no table. Installed packages add others
(``tacit.names``). A source returns labels, ids and a way to build features, before records are held out or assigned.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tacit.data.encode import FeatureEncoder, Federation, Part, Records, Unpaid, feature_columns, read_labels
from tacit.data.options import Columns, DataOptions, Label, Labels, SurvivalLabel, declared_columns, declared_labels
from tacit.data.table import (
    Table,
    as_name,
    as_written,
    from_frame,
    gaps,
    identifiers,
    malformed_lines,
    match_names,
    numbers_in,
    read_file,
    refuse_rows,
    texts,
)
from tacit.errors import Problems, UserError, nearest
from tacit.kernels.stored import Room, in_memory, in_pieces
from tacit.names import BuiltIn, find

ENVIRONMENT = "TACIT_DATA"
MOST_DIGITS = 10**18  # integers below have keys of integers, larger ones those of their text
Given: TypeAlias = Any  # what stands in for a file: a frame, a Table, or None
SUBJECTS, SILOS = "data.subjects.column", "data.silos.column"


@dataclass(frozen=True)
class SourceFacts:
    """What is publicly known about a source before any record is read.

    ``silo_count`` and ``subject_count`` are those of the data themselves, or of the assignment where one is asked for.
    ``feature_shape`` is the shape of one record. ``columns`` are the declared feature columns of a table, empty where
    it declares none, None for what is no table. ``holds_out_people``: whole people are held out, by lot.
    ``subject_column`` says whose a row of a table is, ``label`` which columns hold what is learned. ``own_test``: the
    source brings its held-out records, the same under every seed.
    """

    labels: Labels
    silo_count: int | None
    subject_count: int | None
    origin: str
    feature_shape: tuple[int, ...] | None
    columns: Columns | None = None
    holds_out_people: bool = False
    subject_column: str | None = None
    label: Label = None
    own_test: bool = False


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
        self,
        train: Part,
        test: Part,
        silo_names: tuple[str, ...],
        held_out: str,
        subject_count: int,
        room: Room = in_memory,
    ) -> Federation:
        """The chosen rows with their features; ``room`` says where those of a table are kept."""
        encoder = unpaid = None
        if isinstance(self.features, tuple):
            table, encoder = self.features
            encoder = replace(encoder, silo_names=silo_names).fitted(table, train)
            features = encoder.encode_parts(table, [train, test], room)
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


# --- tables ---


@dataclass(frozen=True)
class Declaration:
    """The public facts about a table: its feature columns, its label, and who and where its rows are.

    ``silo_names`` fixes the order of the silos where it is known beforehand. ``split`` names a column that is 1 in
    held-out rows.
    """

    columns: Columns
    label: Label
    labels: Labels
    subject: str | None = None
    subject_count: int | None = None
    silo: str | None = None
    silo_names: tuple[str, ...] = ()
    split: str | None = None
    split_is_drawn: bool = False


def read_raw(table: Table, declared: Declaration, options: DataOptions) -> Raw:
    """Labels, ids and features of a table; columns that the experiment names win over declared ones. An error tells
    about all columns that are not as declared."""
    _refuse_leaks(declared, options)
    subject_column = None if options.subjects.assign else options.subjects.column or declared.subject
    silo_column = None if options.silos.assign else options.silos.column or declared.silo
    columns = declared.columns.checked()
    if options.standardize == "paid":
        columns = columns.scaled_by_bounds()
    encoder = FeatureEncoder(columns, options.standardize, options.missing, silo_column)
    if options.drop_missing:
        used = (*label_columns(declared.label), *(name for name in (subject_column, silo_column) if name))
        table = _complete(table, encoder, used)
    subject = silo = test = None
    labels, problems = np.empty(0), Problems()
    silo_names: tuple[str, ...] = ()
    if table.unread:
        problems.found.append(malformed_lines(table, "data.path", Path(options.path or "").name))
    with problems.noted():
        if subject_column is not None:
            subject = _numbered(_distinguished(table, subject_column), subject_column, SUBJECTS)
    with problems.noted():
        if silo_column is not None:
            known = declared.silo_names if silo_column == declared.silo else ()
            silo, silo_names = _silos(table, silo_column, known)
    with problems.noted():
        labels = read_labels(table, declared.label, declared.labels)
    with problems.noted():
        test = None if declared.split is None else numbers_in(table.column(declared.split, "data.path")) == 1
    if problems.found:  # otherwise features are checked when they are made
        encoder.check(table, problems)
        problems.check()
    return Raw(
        declared.labels,
        labels,
        (table, encoder),
        subject,
        silo,
        silo_names,
        test,
        declared.split_is_drawn,
        keys=partial(row_keys, table, subject_column),
        record_keys=partial(row_keys, table, None),
    )


def _complete(table: Table, encoder: FeatureEncoder, used: Sequence[str]) -> Table:
    """The rows with a label, a subject, a silo and all features that no rule fills: each row is judged by itself."""
    lacking = encoder.lacking(table)
    for name in used:
        lacking |= gaps(table.read(name)) if name in table.names else False
    if lacking.all():
        raise UserError("empty", "data.drop_missing", "every row has a gap", "fill the gaps, or leave columns out")
    return table.take(~lacking) if lacking.any() else table


def label_columns(label: Label) -> tuple[str, ...]:
    """The names of the columns that hold the label."""
    if isinstance(label, SurvivalLabel):
        return (label.time, label.event)
    return label if isinstance(label, tuple) else () if label is None else (label,)


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
    import pandas as pd

    values = table.column(column, SILOS)
    _numbered(values, column, SILOS)
    names = known or _sorted_names(texts(pd.unique(values)))
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
    import pandas as pd

    codes, _ = pd.factorize(values, use_na_sentinel=True)
    fix = "fill the gaps, or set data.drop_missing = true"
    refuse_rows("missing-values", field, codes < 0, column, "missing", fix)
    return codes.astype(np.int32)


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
    about_columns = "label numeric categorical schema_ standardize missing drop_missing encoding decimal task classes"
    defaults = DataOptions()
    given = ["frame"] if frame is not None else []
    given += [
        f"data.{key.rstrip('_')}" for key in about_columns.split() if getattr(options, key) != getattr(defaults, key)
    ]
    if given:
        problem = f"source '{options.source}' is not a table"
        raise UserError("no-effect", given[0], problem, 'leave it out, or use source = "table"')


def _as_table(frame: Any) -> Table:
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
        declared.split is not None and not declared.split_is_drawn,
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
    table = read_file(options.path or "", leave_out=True, text=options.text) if frame is None else _as_table(frame)
    taken = {options.subjects.column or "", options.silos.column or "", *label_columns(options.label)}
    columns = feature_columns(table, options, taken)
    return read_raw(table, Declaration(columns, options.label, declared_labels(options)), options)


USER_TABLE = Source("table", _user_facts, _read_user_table)


# --- keys and lots ---


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


def row_keys(table: Table, subject_column: str | None) -> np.ndarray:
    """Keys ``[rows]`` uint64 made from the person's identifier, or from everything that a row says and how many equal
    rows come before it: adding or removing a row changes no other key (of equal rows, the last one's goes)."""
    import pandas as pd

    if subject_column is not None:
        return identifier_keys(_distinguished(table, subject_column))
    keys = np.zeros(table.rows, np.uint64)
    for name in table.names:
        keys = mixed(keys ^ _cell_keys(table.read(name)))
    before = pd.Series(keys).groupby(keys, sort=False).cumcount().to_numpy(np.uint64)
    return mixed(keys ^ mixed(before))


def _distinguished(table: Table, column: str) -> np.ndarray:
    """Identifiers ``[rows]``: integers as they are, all else as text, of which a large table has no room."""
    values = table.column(column, SUBJECTS)
    return values if values.dtype.kind in "iu" else identifiers(values)


def identifier_keys(names: np.ndarray) -> np.ndarray:
    """Keys ``[rows]`` uint64 of identifiers (integers or text): that of the integer where one is written, else that of
    the text."""
    import pandas as pd

    is_short = names.dtype.kind in "iu" and -MOST_DIGITS < names.min(initial=0) <= names.max(initial=0) < MOST_DIGITS
    if is_short and len(names):
        return np.concatenate([pd.util.hash_array(piece.astype(np.int64)) for piece in in_pieces(names)])
    codes, distinct = pd.factorize(names)
    texts = pd.Series(distinct).astype(str).astype(object)
    whole = texts.str.fullmatch(r"0|-?[1-9][0-9]{0,17}").to_numpy(bool)
    keys = pd.util.hash_array(texts.to_numpy(object))
    keys[whole] = pd.util.hash_array(texts[whole].to_numpy(np.int64))
    found: np.ndarray = keys[codes]
    return found


def _cell_keys(values: np.ndarray) -> np.ndarray:
    """Keys ``[rows]`` of cells, by what is written in them: cells of one key say the same in every use."""
    import pandas as pd

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
