"""Tables from csv, csv.gz, parquet, npz or a pandas frame, as named columns of cells.

A column is read at a time, which keeps memory low: a million rows of thirty columns never exist as one wide table of
doubles next to the float32 features that are made from it. A column is an array ``[rows]``: of numbers, where the
schema of a file or frame says so for all rows, and of texts otherwise, None where a cell is empty.

Each cell is read by itself, and a number says the same in both kinds of column. The type that a reader finds for a
whole column depends on every row: one gap makes floats of integers, one letter makes text of numbers and of truth
values. So nothing here looks at more than one cell, and one person's cell changes no other row.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zipfile
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from tacit.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """Named columns of equal length; ``read`` gives one of them ``[rows]``: numbers or texts.

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


def refuse_rows(code: str, field: str, which: np.ndarray, column: str, state: str, fix: str) -> None:
    """Refuse a table with rows ``which`` (a mask) whose cell of a column is in a ``state``, such as missing."""
    if which.any():
        raise UserError(code, field, f"column '{column}' is {state} in {int(which.sum())} rows", fix)


def read_file(path: str | Path, field: str = "data.path", *, leave_out: bool = False) -> Table:
    """The table in a file, by its ending; lines that cannot be read are refused, or left out."""
    path = Path(path)
    table = _read(path, field, _READERS)
    if table.unread and not leave_out:
        fix = f"give every line {len(table.names)} cells of text in UTF-8, none of which goes on in the next line"
        raise UserError("file-damaged", field, f"'{path.name}' has malformed lines ({table.unread})", fix)
    return _not_empty(table, field, path.name)


def read_names(path: str | Path, field: str = "data.path") -> tuple[str, ...]:
    """The names of a file's columns. Of a csv file, only the first line is read."""
    return _read(Path(path), field, {**_READERS, _CSV: _read_csv_header}).names


def _read(path: Path, field: str, readers: Mapping[tuple[str, ...], Callable[[Path], Table]]) -> Table:
    if not path.is_file():
        problem = f"there is no file '{path}'"
        raise UserError("file-not-found", field, problem, "give the path of a csv, csv.gz, parquet or npz file")
    reader = next((read for endings, read in readers.items() if path.name.lower().endswith(endings)), None)
    if reader is None:
        problem = f"'{path.name}' has an unknown ending"
        raise UserError("wrong-file", field, problem, "use .csv, .csv.gz, .parquet or .npz")
    try:
        return reader(path)
    except _CORRUPT as error:
        problem = f"'{path.name}' cannot be read ({_first_line(error)})"
        raise UserError("file-damaged", field, problem, "check that the file is complete") from error


def from_frame(frame: pd.DataFrame) -> Table:
    """A pandas frame as a table, without copying it."""
    names = [str(name) for name in frame.columns]
    _refuse_twins(names, "frame")
    by_name = dict(zip(names, frame.columns, strict=True))
    table = Table(tuple(names), len(frame), lambda name: cells(frame[by_name[name]]))
    return _not_empty(table, "frame", "the frame")


def _refuse_twins(names: Sequence[str], field: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError("duplicate", field, f"two columns are called '{twice[0]}'", "rename one of them")


def _read_csv(path: Path) -> Table:
    """Every cell as it is written. One line is one row, whatever the lines around it are: no cell goes on in the next
    line, and a line that cannot be read is left out."""
    with _opened_csv(path) as file:
        content = file.read()
    header, *lines = _csv_lines(content) or [b""]
    names = _csv_names(header)
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


def _read_csv_header(path: Path) -> Table:
    with _opened_csv(path) as file:
        header = next((found[0] for line in file if (found := _csv_lines(line))), b"")
    return Table(_csv_names(header), 0, lambda name: np.empty(0, object))


def _opened_csv(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


def _csv_lines(content: bytes) -> list[bytes]:
    """The lines that are not empty."""
    return [line for line in content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").split(b"\n") if line]


def _csv_names(header: bytes) -> tuple[str, ...]:
    cells_of = next(csv.reader([header.decode()], strict=True), [])
    _refuse_twins([name for name in cells_of if name], "data.path")
    return tuple(name or f"Unnamed: {j}" for j, name in enumerate(cells_of))


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


_CSV = (".csv", ".csv.gz")
_READERS: dict[tuple[str, ...], Callable[[Path], Table]] = {
    _CSV: _read_csv,
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


# --- cells ---

_TRUTHS = {"1": ("True", "true", "TRUE", "1"), "0": ("False", "false", "FALSE", "0")}
_SPELLINGS = {text: texts for texts in _TRUTHS.values() for text in texts[:3]}

_NUMBER = r"^\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*$"
# a number that begins with a zero and a digit is a name, as in 01, 02, …
_NAMED = re.compile(r"\s*([+-]?)((?!0\d)\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?\s*", re.ASCII)
_EXACT = 2.0**53  # floats from here on are rounded


def cells(values: pd.Series | np.ndarray) -> np.ndarray:
    """Any column as numbers or as texts."""
    import pandas as pd

    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iuf":
        return np.asarray(values)
    # no factorize: True, 1 and 1.0 are one value to it, and the first row would decide which
    objects = values.to_numpy(dtype=object) if isinstance(values, pd.Series) else values.astype(object)
    return _column([value if type(value) is str else _text(value) for value in objects])


def texts(values: np.ndarray) -> np.ndarray:
    """A column's cells as texts."""
    if values.dtype.kind == "O":
        return values
    if values.dtype.kind != "f":
        return _column(list(map(str, values.tolist())))
    wide = values.astype(np.float64)
    found, whole = _column(list(map(repr, wide.tolist()))), np.isfinite(wide) & (wide == np.floor(wide))
    found[whole] = [str(int(value)) for value in wide[whole].tolist()]
    found[np.isnan(wide)] = None
    return found


def gaps(values: np.ndarray) -> np.ndarray:
    """Mask ``[rows]`` of the cells that say nothing."""
    import pandas as pd

    return np.asarray(pd.isna(values))


def numbers_in(values: np.ndarray) -> np.ndarray:
    """Values ``[rows]`` as floats, NaN where they are missing or no numbers; true is 1, and false is 0."""
    if values.dtype.kind != "O":
        return values if values.dtype.kind == "f" else values.astype(np.float64)
    written = pa.array(values, pa.string())
    found = np.full(len(values), np.nan)
    for number, spellings in _TRUTHS.items():
        found[_mask(pc.is_in(written, pa.array(spellings)))] = float(number)
    plain = _mask(pc.match_substring_regex(written, _NUMBER))
    found[plain] = np.fromiter(map(float, values[plain]), np.float64, int(plain.sum()))
    return found


def match_names(values: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, str | None]:
    """Positions ``[rows]`` of the values in ``names`` (-1 where missing), and the first value that is none of them."""
    codes, distinct = _distinct(values)
    place = {name: k for k, name in enumerate(names)}
    found = [_as_named(text, place) for text in distinct]
    unknown = next((text for text in found if text not in place), None)
    table = np.array([*(place.get(text, -1) for text in found), -1], np.int32)  # the last answers the sentinel -1
    return table[codes], unknown


def identifiers(values: np.ndarray) -> np.ndarray:
    """Identifiers as text ``[rows]``, None where a cell is empty: as written, but ``7.0`` is ``7``.

    No other texts are equal: ``1.1`` and ``1.10`` may be two people. A float that may have been rounded is no
    identifier.
    """
    found = as_written(values)
    if values.dtype.kind == "f":
        found[~(np.abs(values) < _EXACT)] = None
    return found


def as_written(values: np.ndarray) -> np.ndarray:
    """A column's cells as texts, without a fraction that is zero: a gap elsewhere makes ``7.0`` of ``7``."""
    found = pc.replace_substring_regex(pa.array(texts(values), pa.string()), r"^(-?[0-9]+)\.0*$", r"\1")
    return np.array(found.to_numpy(zero_copy_only=False), object)


def as_name(value: Any) -> Any:
    """A class, category or silo as text: ``1``, ``1.0``, ``"1"``, ``"1.00"`` and ``"1e0"`` are the same name, and
    ``"01"`` is another."""
    text = value if isinstance(value, str) else _text(value) if isinstance(value, bool | int | float) else None
    if text is None or (number := _NAMED.fullmatch(text)) is None or not (number[2] or number[3]):
        return value if text is None else text
    sign, whole, fraction, exponent = number[1], number[2], number[3] or "", int(number[4] or 0)
    digits, point = whole + fraction, len(whole) + exponent
    digits = digits.ljust(point, "0") if point > 0 else "0" * (1 - point) + digits
    point = max(point, 1)
    whole, fraction = digits[:point].lstrip("0") or "0", digits[point:].rstrip("0")
    name = f"{whole}.{fraction}" if fraction else whole
    return f"-{name}" if sign == "-" and name != "0" else name


def _as_named(text: str, known: Container[str]) -> str:
    """A text as a name; a truth value as it is spelled in what is known: ``True``, ``true``, ``TRUE`` or ``1``."""
    name = str(as_name(text))
    return next((spelling for spelling in (name, *_SPELLINGS.get(name, ())) if spelling in known), name)


def _text(value: Any) -> str | None:
    """One value of any type as text; a float without a fraction is written as the integer that it is."""
    import pandas as pd

    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return None
    if isinstance(value, np.number | np.bool_):
        value = value.item()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _distinct(values: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """The number of each cell's text ``[rows]``, -1 where there is none, and the texts."""
    import pandas as pd

    codes, distinct = pd.factorize(values, use_na_sentinel=True)
    return codes, list(texts(np.asarray(distinct)))


def _column(found: list[Any]) -> np.ndarray:
    column = np.empty(len(found), object)
    column[:] = found
    return column


def _mask(found: Any) -> np.ndarray:
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False))
