"""Tables from csv, csv.gz, parquet, npz or a pandas frame, as named columns that are read one at a time.

A column at a time keeps memory low: a million rows of thirty columns never exist as one wide table of doubles next to
the float32 features that are made from it.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from tacit.data.cells import cells, identifiers
from tacit.errors import UserError, nearest


@dataclass(frozen=True)
class Table:
    """Named columns of equal length; ``read`` gives one of them ``[rows]``: numbers or texts, see ``data.cells``.

    ``unread``: the number of lines of the file that cannot be read.
    """

    names: tuple[str, ...]
    rows: int
    read: Callable[[str], np.ndarray]
    unread: int = 0

    def column(self, name: str, field: str) -> np.ndarray:
        """The values of column ``name`` ``[rows]``; ``field`` is the setting to blame where there is none."""
        if name not in self.names:
            raise UserError("unknown-name", field, f"the table has no column '{name}'", nearest(name, self.names))
        return self.read(name)

    def identifiers(self, name: str, field: str) -> np.ndarray:
        """Column ``name`` as text ``[rows]``, None where a cell is empty."""
        return identifiers(self.column(name, field))

    def renamed(self, names: Mapping[str, str]) -> Table:
        """The same rows with columns ``names``: new name to name here."""
        return Table(tuple(names), self.rows, lambda name: self.read(names[name]))

    def take(self, which: np.ndarray) -> Table:
        """Some of the rows, by a mask."""
        return Table(self.names, int(which.sum()), lambda name: self.read(name)[which])


def read_file(path: str | Path, field: str = "data.path", *, leave_out: bool = False) -> Table:
    """The table in a file, by its ending; lines that cannot be read are refused, or left out."""
    path = Path(path)
    if not path.is_file():
        problem = f"there is no file '{path}'"
        raise UserError("file-not-found", field, problem, "give the path of a csv, csv.gz, parquet or npz file")
    reader = next((read for endings, read in _READERS.items() if path.name.lower().endswith(endings)), None)
    if reader is None:
        problem = f"'{path.name}' has an unknown ending"
        raise UserError("wrong-file", field, problem, "use .csv, .csv.gz, .parquet or .npz")
    try:
        table = reader(path)
    except _CORRUPT as error:
        problem = f"'{path.name}' cannot be read ({_first_line(error)})"
        raise UserError("file-damaged", field, problem, "check that the file is complete") from error
    if table.unread and not leave_out:
        fix = f"give every line {len(table.names)} cells of text in UTF-8, none of which goes on in the next line"
        raise UserError("file-damaged", field, f"'{path.name}' has malformed lines ({table.unread})", fix)
    return _not_empty(table, field, path.name)


def from_frame(frame: pd.DataFrame, field: str = "frame", called: str = "the frame") -> Table:
    """A pandas frame as a table, without copying it."""
    names = [str(name) for name in frame.columns]
    _refuse_twins(names, field)
    by_name = dict(zip(names, frame.columns, strict=True))
    table = Table(tuple(names), len(frame), lambda name: cells(frame[by_name[name]]))
    return _not_empty(table, field, called)


def _refuse_twins(names: Sequence[str], field: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError("duplicate", field, f"two columns are called '{twice[0]}'", "rename one of them")


def _read_csv(path: Path) -> Table:
    """Every cell as it is written. One line is one row, whatever the lines around it are: no cell goes on in the next
    line, and a line that cannot be read is left out."""
    with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
        content = file.read().removeprefix(codecs.BOM_UTF8)
    header, *lines = [line for line in content.replace(b"\r\n", b"\n").split(b"\n") if line] or [b""]
    cells_of = next(csv.reader([header.decode()], strict=True), [])
    _refuse_twins([name for name in cells_of if name], "data.path")
    names = tuple(name or f"Unnamed: {j}" for j, name in enumerate(cells_of))
    rows = [line for line in lines if _is_row(line, len(names))]
    if not rows:
        return Table(names, 0, lambda name: np.empty(0, object), len(lines))
    found = pa_csv.read_csv(
        pa.BufferReader(b"\n".join(rows)),
        pa_csv.ReadOptions(column_names=names, block_size=max(1 << 20, 2 * max(map(len, rows)))),
        pa_csv.ParseOptions(),
        pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=_GAPS
        ),
    )
    return Table(
        names, len(rows), lambda name: found.column(name).to_numpy(zero_copy_only=False), len(lines) - len(rows)
    )


def _is_row(line: bytes, width: int) -> bool:
    """Whether a line of a csv file holds ``width`` cells that can be read."""
    if b"\r" in line:
        return False
    try:
        text = line.decode()
        return (len(next(csv.reader([text], strict=True))) if '"' in text else text.count(",") + 1) == width
    except (UnicodeDecodeError, csv.Error):
        return False


def _read_parquet(path: Path) -> Table:
    file = pq.ParquetFile(path)
    names = tuple(name for name in file.schema_arrow.names if not name.startswith("__index_level_"))
    _refuse_twins(names, "data.path")

    def read(name: str) -> np.ndarray:
        try:
            return cells(file.read(columns=[name]).column(name).to_pandas(integer_object_nulls=True))
        except (pa.ArrowException, OSError) as error:
            problem = f"column '{name}' of '{path.name}' cannot be read"
            raise UserError("file-damaged", "data.path", problem, "check that the file is complete") from error

    return Table(names, file.metadata.num_rows, read)


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
        return cells(columns[name] if name in columns else wide[:, place[name]])

    return Table((*place, *columns), rows, read)


def _wide_names(arrays: dict[str, np.ndarray], width: int) -> Sequence[str]:
    names = arrays.get("feature_names")
    if names is None or len(names) != width:
        return [f"X{j}" for j in range(width)]
    return [str(name) for name in names]


def _not_empty(table: Table, field: str, name: str) -> Table:
    if table.rows == 0 or not table.names:
        raise UserError("empty", field, f"{name} has no rows", "give a table with at least one row per silo")
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

# ValueError covers pandas' parser and empty-file errors, wrong encodings and arrays that would need unpickling;
# TypeError an .npy under the name .npz, which has no members
_CORRUPT = (
    pa.ArrowException,
    csv.Error,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
)
