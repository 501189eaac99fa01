"""Tables from text files (csv, tsv), parquet, Excel, feather, npz or a frame, as named columns of cells.

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
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from pyarrow import feather

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


@dataclass(frozen=True)
class TextFormat:
    """How a text file is written; the separator follows from its first line."""

    encoding: str = "utf-8"
    decimal: str = "."

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            problem = f"'{self.encoding}' is no encoding that is known here"
            raise UserError("unknown-name", "data.encoding", problem, 'use "utf-8", "latin-1" or "cp1252"') from None


def read_file(
    path: str | Path, field: str = "data.path", *, leave_out: bool = False, text: TextFormat | None = None
) -> Table:
    """The table in a file, by its ending; lines that cannot be read are refused, or left out."""
    path = Path(path)
    table = _read(path, field, _READERS, text or TextFormat())
    if table.unread and not leave_out:
        raise malformed_lines(table, field, path.name)
    return _not_empty(table, field, path.name)


def malformed_lines(table: Table, field: str, name: str) -> UserError:
    """The error about lines of a text file that cannot be read."""
    fix = f"give every line {len(table.names)} cells, none of which goes on in the next line; is data.encoding right?"
    return UserError("file-damaged", field, f"'{name}' has malformed lines ({table.unread})", fix)


def read_names(path: str | Path, field: str = "data.path", text: TextFormat | None = None) -> tuple[str, ...]:
    """The names of a file's columns. Of a text file, only the first line is read."""
    return _read(Path(path), field, {**_READERS, _TEXT: _read_text_header}, text or TextFormat()).names


_Readers = Mapping[tuple[str, ...], Callable[[Path, TextFormat], "Table"]]


def _read(path: Path, field: str, readers: _Readers, text: TextFormat) -> Table:
    known = ".csv, .tsv, .txt (also .gz), .parquet, .xlsx, .feather, .arrow or .npz"
    if not path.is_file():
        raise UserError("file-not-found", field, f"there is no file '{path}'", f"give the path of a {known} file")
    reader = next((read for endings, read in readers.items() if path.name.lower().endswith(endings)), None)
    if reader is None:
        raise UserError("wrong-file", field, f"'{path.name}' has an unknown ending", f"use {known}")
    if text != TextFormat() and not path.name.lower().endswith(_TEXT):
        name = "encoding" if text.encoding != TextFormat.encoding else "decimal"
        raise UserError("no-effect", f"data.{name}", f"'{path.name}' is not a text file", "leave it out")
    try:
        return reader(path, text)
    except _CORRUPT as error:
        problem = f"'{path.name}' cannot be read ({_first_line(error)})"
        raise UserError("file-damaged", field, problem, "check that the file is complete") from error


def from_frame(frame: Any) -> Table:
    """A frame as a table, without copying it: of pandas, of Arrow or polars (``__arrow_c_stream__``), or of another
    library (``__dataframe__``)."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        return _not_empty(_from_arrow(_as_arrow(frame), "frame"), "frame", "the frame")
    names = [str(name) for name in frame.columns]
    _refuse_twins(names, "frame")
    by_name = dict(zip(names, frame.columns, strict=True))
    table = Table(tuple(names), len(frame), lambda name: cells(frame[by_name[name]]))
    return _not_empty(table, "frame", "the frame")


def _as_arrow(frame: Any) -> pa.Table:
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame)
    if hasattr(frame, "__dataframe__"):
        from pyarrow.interchange import from_dataframe

        return from_dataframe(frame)
    problem = f"a {type(frame).__name__} is no table"
    raise UserError("wrong-type", "frame", problem, "pass a data frame of pandas, polars or Arrow, or set data.path")


def _from_arrow(found: pa.Table, field: str) -> Table:
    names = tuple(name for name in found.column_names if not name.startswith("__index_level_"))
    _refuse_twins(names, field)
    return Table(names, found.num_rows, lambda name: _arrow_cells(found.column(name)))


def _arrow_cells(column: Any) -> np.ndarray:
    return cells(column.to_pandas(integer_object_nulls=True))


def _refuse_twins(names: Sequence[str], field: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError("duplicate", field, f"two columns are called '{twice[0]}'", "rename one of them")


def _read_text(path: Path, text: TextFormat) -> Table:
    """Every cell as it is written. One line is one row, whatever the lines around it are: no cell goes on in the next
    line, and a line that cannot be read is left out. The separator follows from the first line alone."""
    with _opened(path) as file:
        header, *lines = _lines(_decodable(file.read(), text)) or [b""]
    names, separator = _header(header, path, text)
    rows = [row for line in lines if (row := _row(line, len(names), separator, text)) is not None]
    if not rows:
        return Table(names, 0, lambda name: np.empty(0, object), len(lines))
    found = pa_csv.read_csv(
        pa.BufferReader(b"\n".join(rows)),
        pa_csv.ReadOptions(column_names=names, block_size=max(1 << 20, 2 * max(map(len, rows)))),
        pa_csv.ParseOptions(delimiter=separator),
        pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=_GAPS
        ),
    )

    def read(name: str) -> np.ndarray:
        column = found.column(name)
        if text.decimal == ",":
            column = pc.replace_substring_regex(column, _DECIMAL_COMMA, r"\1.\2")
        return np.asarray(column.to_numpy(zero_copy_only=False))

    return Table(names, len(rows), read, len(lines) - len(rows))


def _read_text_header(path: Path, text: TextFormat) -> Table:
    with _opened(path) as file:
        whole = file if _by_line(text) else [_decodable(file.read(), text)]
        header = next((found[0] for line in whole if (found := _lines(line))), b"")
    return Table(_header(header, path, text)[0], 0, lambda name: np.empty(0, object))


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


def opened_text(path: Path) -> bytes | None:
    """What a text file holds; None for other files and for what does not exist."""
    if not path.name.lower().endswith(_TEXT) or not path.is_file():
        return None
    with _opened(path) as file:
        return file.read()


def _by_line(text: TextFormat) -> bool:
    """Whether lines of this encoding can be told apart before they are decoded; of UTF-16, they cannot."""
    return ",;\t\n".encode(text.encoding) == b",;\t\n"


def _decodable(content: bytes, text: TextFormat) -> bytes:
    return content if _by_line(text) else content.decode(text.encoding).encode()


def _lines(content: bytes) -> list[bytes]:
    """The lines that are not empty."""
    return [line for line in content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").split(b"\n") if line]


def _decoded(line: bytes, text: TextFormat) -> str:
    return line.decode(text.encoding if _by_line(text) else "utf-8")


def _header(header: bytes, path: Path, text: TextFormat) -> tuple[tuple[str, ...], str]:
    """The names of the columns, and the separator: of those that the first line has, the most frequent one."""
    try:
        line = _decoded(header, text)
    except UnicodeDecodeError:
        fix = 'set data.encoding, for example to "latin-1" or "cp1252"'
        problem = f"the column names of '{path.name}' are not in {text.encoding}"
        raise UserError("file-damaged", "data.encoding", problem, fix) from None
    plain = re.sub(r'"[^"]*"', "", line)
    is_tabbed = path.name.lower().endswith((".tsv", ".tsv.gz"))
    separator = "\t" if is_tabbed else max(_SEPARATORS, key=plain.count)
    cells_of = next(csv.reader([line], strict=True, delimiter=separator), [])
    _refuse_twins([name for name in cells_of if name], "data.path")
    return tuple(name or f"Unnamed: {j}" for j, name in enumerate(cells_of)), separator


def _row(line: bytes, width: int, separator: str, text: TextFormat) -> bytes | None:
    """A line of a text file in UTF-8; None where it does not hold ``width`` cells that can be read."""
    if b"\r" in line:
        return None
    try:
        row = _decoded(line, text)
        if '"' in row:
            cells_of = len(next(csv.reader([row], strict=True, delimiter=separator)))
        else:
            cells_of = row.count(separator) + 1
    except (UnicodeDecodeError, csv.Error):
        return None
    return row.encode() if cells_of == width else None


def _read_parquet(path: Path, text: TextFormat) -> Table:
    file = pq.ParquetFile(path)
    names = tuple(name for name in file.schema_arrow.names if not name.startswith("__index_level_"))
    _refuse_twins(names, "data.path")

    def read(name: str) -> np.ndarray:
        try:
            return _arrow_cells(file.read(columns=[name]).column(name))
        except (pa.ArrowException, OSError) as error:
            problem = f"column '{name}' of '{path.name}' cannot be read"
            raise UserError("file-damaged", "data.path", problem, "check that the file is complete") from error

    return Table(names, file.metadata.num_rows, read)


def _read_arrow(path: Path, text: TextFormat) -> Table:
    """A file in Arrow's format for files (feather) or for streams."""
    try:
        found = feather.read_table(path)
    except pa.ArrowInvalid:
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            found = stream.read_all()
    return _from_arrow(found, "data.path")


def _read_excel(path: Path, text: TextFormat) -> Table:
    """The first sheet of a workbook: its first row has the names of the columns."""
    try:
        import openpyxl
    except ImportError:
        fix = 'install it (pip install "tacit[excel]"), or save the sheet as csv'
        raise UserError("not-installed", "data.path", "Excel files need the package openpyxl", fix) from None
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    header, *rows = list(book.worksheets[0].iter_rows(values_only=True)) or [()]
    book.close()
    names = tuple(f"Unnamed: {j}" if name is None else str(name) for j, name in enumerate(header))
    _refuse_twins(names, "data.path")
    rows = [row for row in rows if any(cell is not None for cell in row)]
    place = {name: j for j, name in enumerate(names)}

    def read(name: str) -> np.ndarray:
        values = (row[place[name]] for row in rows)
        return _column([None if value in _GAPS else _text(value) for value in values])

    return Table(names, len(rows), read)


def _read_npz(path: Path, text: TextFormat) -> Table:
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


_TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
_SEPARATORS = (",", ";", "\t", "|")
_DECIMAL_COMMA = r"^(\s*[+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?\s*)$"
_READERS: _Readers = {
    _TEXT: _read_text,
    (".parquet", ".pq"): _read_parquet,
    (".xlsx", ".xlsm"): _read_excel,
    (".feather", ".arrow", ".ipc"): _read_arrow,
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
    if values.dtype.kind in "mM":  # numpy has nanoseconds as plain integers
        values = pd.Series(values)
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


def days_in(values: np.ndarray, since: str) -> np.ndarray:
    """Dates ``[rows]`` as days after a date, NaN where a cell is missing or no date: ``2020-01-31``, with or without a
    time, or ``31.01.2020``."""
    start = datetime.fromisoformat(since)
    codes, distinct = _distinct(values)
    days = [_days(text, start) for text in distinct]
    return np.array([*days, np.nan])[codes]  # the last answers the sentinel -1


def _days(text: str, start: datetime) -> float:
    try:
        found = datetime.strptime(text, "%d.%m.%Y") if "." in text[:3] else datetime.fromisoformat(text)
    except ValueError:
        return np.nan
    if found.tzinfo is not None:
        found = found.astimezone(UTC).replace(tzinfo=None)
    return (found - start).total_seconds() / 86400


def is_date(text: str) -> bool:
    """Whether a text is a date as :func:`days_in` reads it; digits alone are a number."""
    return not text.isdigit() and not np.isnan(_days(text, datetime(1970, 1, 1)))


def match_names(values: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, str | None]:
    """Positions ``[rows]`` of the values in ``names`` (-1 where missing), and the first value that is not in it."""
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
