"""Tables in: csv, csv.gz, parquet, npz or a pandas frame, seen as named columns that are read one at a time.

A column at a time keeps memory low: a million rows of thirty columns never exist as one wide table of doubles beside
the float32 features that are made from it.
"""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tacit.data.options import as_name
from tacit.errors import UserError, nearest


@dataclass(frozen=True)
class Table:
    """Named columns of equal length; ``read`` gives one of them as ``[rows]``, numeric, bool or object.

    ``written`` gives the cells of a column as the file has them, where ``read`` converts them to a common type.
    """

    names: tuple[str, ...]
    rows: int
    read: Callable[[str], np.ndarray]
    written: Callable[[str], np.ndarray] | None = None

    def column(self, name: str, field: str) -> np.ndarray:
        """The values of column ``name`` ``[rows]``; ``field`` is the setting to blame where there is none."""
        if name not in self.names:
            raise UserError(field, f"the table has no column '{name}'", nearest(name, self.names))
        return self.read(name)

    def identifiers(self, name: str, field: str) -> np.ndarray:
        """Column ``name`` as text ``[rows]``, None where a cell is empty; ``7``, ``7.0`` and ``"7"`` are the same.

        Each cell is read by itself. The type of a whole column depends on every row: one gap makes floats of integers,
        which rounds identifiers above 2^53, and one letter makes text of numbers.
        """
        values = self.column(name, field) if self.written is None or name not in self.names else self.written(name)
        codes, distinct = pd.factorize(values, use_na_sentinel=True)
        texts = np.array([*(str(as_name(as_python(value))) for value in distinct), None], dtype=object)
        found: np.ndarray = texts[codes]  # the last answers the sentinel -1
        return found


def as_python(value: Any) -> Any:
    """A numpy scalar as the Python value that it holds."""
    return value.item() if isinstance(value, np.generic) else value


def read_file(path: str | Path, field: str = "data.path") -> Table:
    """The table in a file, by its ending."""
    path = Path(path)
    if not path.is_file():
        raise UserError(field, f"there is no file '{path}'", "give the path of a csv, csv.gz, parquet or npz file")
    reader = next((read for endings, read in _READERS.items() if path.name.lower().endswith(endings)), None)
    if reader is None:
        raise UserError(field, f"'{path.name}' has an unknown ending", "use .csv, .csv.gz, .parquet or .npz")
    try:
        table = reader(path)
    except _CORRUPT as error:
        raise UserError(
            field, f"'{path.name}' cannot be read ({_first_line(error)})", "check that the file is complete"
        ) from error
    return _not_empty(table, field, path.name)


def from_frame(frame: pd.DataFrame, field: str = "frame", called: str = "the frame") -> Table:
    """A pandas frame as a table, without copying it."""
    names = [str(name) for name in frame.columns]
    _refuse_twins(names, field)
    by_name = dict(zip(names, frame.columns, strict=True))
    table = Table(tuple(names), len(frame), lambda name: series_values(frame[by_name[name]]))
    return _not_empty(table, field, called)


def _refuse_twins(names: Sequence[str], field: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(field, f"two columns are called '{twice[0]}'", "rename one of them")


def series_values(series: pd.Series) -> np.ndarray:
    """A pandas column as numpy values: numbers and bools as they are, everything else as objects."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf":
        return series.to_numpy()
    if pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_complex_dtype(series.dtype):
        # nullable integers, floats and bools: missing values become NaN
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    return series.to_numpy(dtype=object)


def _read_csv(path: Path) -> Table:
    """Numbers where every cell of a column is one; ``01`` is a name, and stays as it is written."""
    gaps: dict[str, Any] = {"keep_default_na": False, "na_values": _GAPS}
    header = pd.read_csv(path, header=None, nrows=1, dtype=str, **gaps)
    _refuse_twins([str(name) for name in header.iloc[0].dropna()], "data.path")
    frame = pd.read_csv(path, **gaps)
    if _has_padded(path):
        guessed = [name for name in frame.columns if frame[name].dtype.kind in "iuf"]
        texts = pd.read_csv(path, dtype=str, usecols=guessed, **gaps)
        padded = [name for name in guessed if texts[name].str.match(_PADDED, na=False).any()]
        frame = frame.assign(**{name: texts[name] for name in padded})
    table = from_frame(frame, "data.path", path.name)

    def written(name: str) -> np.ndarray:
        return pd.read_csv(path, dtype=str, usecols=[name], **gaps)[name].to_numpy(object)

    return replace(table, written=written)


def _has_padded(path: Path) -> bool:
    """Whether any cell of the file begins with a zero and goes on with a digit."""
    with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
        before = b"\n"
        while block := file.read(1 << 20):
            if _PADDED_CELL.search(before + block):
                return True
            before = block[-2:]
    return False


def _read_parquet(path: Path) -> Table:
    file = pq.ParquetFile(path)
    names = tuple(name for name in file.schema_arrow.names if not name.startswith("__index_level_"))
    _refuse_twins(names, "data.path")

    def read(name: str) -> np.ndarray:
        try:
            return series_values(file.read(columns=[name]).column(name).to_pandas())
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                "data.path", f"column '{name}' of '{path.name}' cannot be read", "check that the file is complete"
            ) from error

    def written(name: str) -> np.ndarray:
        column = file.read(columns=[name]).column(name)
        return column.to_pandas(integer_object_nulls=True).to_numpy(dtype=object)

    return Table(names, file.metadata.num_rows, read, written)


def _read_npz(path: Path) -> Table:
    """Every 1-D array of full length is a column; a 2-D array ``X`` is many, named by ``feature_names`` or X0, X1, …"""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return from_arrays(arrays)


def from_arrays(arrays: dict[str, np.ndarray]) -> Table:
    """Parallel arrays as a table; see :func:`_read_npz` for the rule."""
    wide = arrays["X"] if "X" in arrays and arrays["X"].ndim == 2 else np.empty((0, 0), np.float32)
    lengths = [len(array) for array in arrays.values() if array.ndim == 1]
    rows = len(wide) if wide.size else max(lengths, default=0)
    columns = {name: array for name, array in arrays.items() if array.ndim == 1 and len(array) == rows}
    place = {name: j for j, name in enumerate(_wide_names(arrays, wide.shape[1])) if name not in columns}

    def read(name: str) -> np.ndarray:
        values = columns[name] if name in columns else wide[:, place[name]]
        return values if values.dtype.kind in "biuf" else values.astype(object)

    return Table((*place, *columns), rows, read)


def _wide_names(arrays: dict[str, np.ndarray], width: int) -> Sequence[str]:
    names = arrays.get("feature_names")
    if names is None or len(names) != width:
        return [f"X{j}" for j in range(width)]
    return [str(name) for name in names]


def _not_empty(table: Table, field: str, name: str) -> Table:
    if table.rows == 0 or not table.names:
        raise UserError(field, f"{name} has no rows", "give a table with at least one row per silo")
    return table


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


_READERS: dict[tuple[str, ...], Callable[[Path], Table]] = {
    (".csv", ".csv.gz"): _read_csv,
    (".parquet",): _read_parquet,
    (".npz",): _read_npz,
}

# What a gap looks like in a csv file; "None" is left out, as it is a category in many tables
_GAPS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")

# Digits behind a zero, as in the names 01, 02, …
_PADDED = r"0\d+$"
_PADDED_CELL = re.compile(rb'[\n,"]0[0-9]')

# ValueError covers pandas' parser and empty-file errors, wrong encodings and arrays that would need unpickling;
# TypeError an .npy under the name .npz, which has no members
_CORRUPT = (pa.ArrowException, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, TypeError)
