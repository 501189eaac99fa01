"""Cells of a table: from text to a number, a name or an identifier.

A column is an array ``[rows]``: of numbers, where the schema of a file or frame says so for all rows, and of texts
otherwise, None where a cell is empty. Each cell is read by itself, and a number says the same in both kinds of column.
The type that a reader finds for a whole column depends on every row: one gap makes floats of integers, one letter makes
text of numbers and of truth values. So nothing here looks at more than one cell, and one person's cell changes no
other row.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

_TRUTHS = {"1": ("True", "true", "TRUE", "1"), "0": ("False", "false", "FALSE", "0")}
_SPELLINGS = {text: texts for texts in _TRUTHS.values() for text in texts[:3]}

_NUMBER = r"^\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*$"
# a number that begins with a zero and a digit is a name, as in 01, 02, …
_NAMED = re.compile(r"\s*([+-]?)((?!0\d)\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,3}))?\s*", re.ASCII)
_EXACT = 2.0**53  # floats from here on are rounded


def cells(values: pd.Series | np.ndarray) -> np.ndarray:
    """Any column as numbers or as texts."""
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
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return None
    if isinstance(value, np.number | np.bool_):
        value = value.item()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _distinct(values: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """The number of each cell's text ``[rows]``, -1 where there is none, and the texts."""
    codes, distinct = pd.factorize(values, use_na_sentinel=True)
    return codes, list(texts(np.asarray(distinct)))


def _column(found: list[Any]) -> np.ndarray:
    column = np.empty(len(found), object)
    column[:] = found
    return column


def _mask(found: Any) -> np.ndarray:
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False))
