"""A look at a table for the one who holds it: what its columns are, and which of them should be no features.

Everything here is exact and private. It is printed on the screen of the data holder, and ``tacit init`` proposes
settings from it, each of which is marked as read from the table.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tacit.data.encode import FEWEST_TO_JUDGE, looks_like_identifier
from tacit.data.table import Table, TextFormat, as_name, gaps, is_date, numbers_in, opened_text, read_file, texts

Kind = Literal["number", "category", "date", "text", "empty"]

# a text column of more values than this is no category
MOST_CATEGORIES = 30
# a share of gaps from which a column is not worth its parameters
MOSTLY_MISSING = 0.95
# a column that tells the label this well repeats it; one that is called like a prediction needs to tell less
REPEATS, PREDICTS = 0.98, 0.7
_PREDICTION = re.compile(r"pred(?:ict)?|prob(?:a|ability)?(?:$|_)|y_?hat|logit|forecast|score|risk", re.IGNORECASE)
_DATE = re.compile(r"^\s*(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(?:[ T].*)?$")
_CODE = re.compile(r"\s*0[0-9]")  # 01, 02, …: names, not numbers
_COMMA = re.compile(r"^\s*[+-]?\d*,\d+(?:[eE][+-]?\d+)?\s*$")
# rows that are looked at where a sample is enough
_SAMPLE = 2000


@dataclass(frozen=True)
class ColumnLook:
    """One column: the share of gaps, the range of its numbers or dates, its categories, and why it is suspect."""

    name: str
    kind: Kind
    missing: float
    distinct: int
    low: float | str | None = None
    high: float | str | None = None
    categories: tuple[str, ...] = ()
    suspect: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"categories": list(self.categories)}


def open_table(path: str | Path, field: str = "TABLE") -> tuple[Table, TextFormat]:
    """A table, and how its text is written: the encoding and the sign of decimals are found in the file."""
    text = TextFormat(_encoding(Path(path)))
    table = read_file(path, field, text=text)
    if _has_decimal_commas(table):
        text = TextFormat(text.encoding, ",")
        table = read_file(path, field, text=text)
    return table, text


def _encoding(path: Path) -> str:
    content = opened_text(path)
    if content is None:
        return TextFormat.encoding
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    for encoding in ("utf-8", "cp1252"):
        try:
            content.decode(encoding)
            return encoding
        except UnicodeDecodeError:
            pass
    return "latin-1"


def _has_decimal_commas(table: Table) -> bool:
    """Whether some column holds nothing but numbers if a comma may stand before decimals."""
    for name in table.names:
        values = table.read(name)
        known = texts(values)[~gaps(values)][:_SAMPLE]
        commas = sum(bool(_COMMA.match(text)) for text in known)
        if commas and commas + np.isfinite(numbers_in(known)).sum() == len(known):
            return True
    return False


def look(
    table: Table, label: str | None = None, subject: str | None = None, silo: str | None = None
) -> tuple[ColumnLook, ...]:
    """All columns. With a label, columns that repeat or predict it are suspect; with a subject, other identifiers."""
    who = None if subject is None else texts(table.column(subject, "--subject"))
    truth = None if label is None else texts(table.column(label, "--label"))
    return tuple(_look(name, table.read(name), truth, who, name in (label, subject, silo)) for name in table.names)


def _look(name: str, values: np.ndarray, truth: Any, who: Any, has_role: bool) -> ColumnLook:
    missing = gaps(values)
    known = texts(values)[~missing]
    share, found = float(missing.mean()), set(known)
    if not len(known):
        return ColumnLook(name, "empty", share, 0, suspect=None if has_role else "no values")
    numbers = numbers_in(known)
    numeric = np.isfinite(numbers)
    low: float | str | None = None
    high: float | str | None = None
    categories: tuple[str, ...] = ()
    if numeric.all() and not any(map(_CODE.match, found)):
        kind: Kind = "number"
        low, high = float(numbers.min()), float(numbers.max())
    elif all(_DATE.match(text) or is_date(text) for text in known[:_SAMPLE]):
        kind, low, high = "date", min(found), max(found)
    elif len(found) <= MOST_CATEGORIES:
        kind, categories = "category", tuple(sorted({str(as_name(text)) for text in found}))
    else:
        kind = "text"
    made = ColumnLook(name, kind, share, len(found), low, high, categories)
    reason = None if has_role else _suspect(made, values, missing, numeric, truth, who)
    return ColumnLook(name, kind, share, len(found), low, high, categories, reason)


def _suspect(
    made: ColumnLook, values: np.ndarray, missing: np.ndarray, numeric: np.ndarray, truth: Any, who: Any
) -> str | None:
    """Why a column should be no feature, in words that hold no value of the table."""
    if made.distinct == 1 and not made.missing:
        return "one value in all rows"
    if made.missing > MOSTLY_MISSING:
        return "almost always missing"
    if looks_like_identifier(made.name, values) or (who is not None and _names_subjects(made, values, missing, who)):
        return "looks like an identifier"
    if made.kind == "date":
        return "a date"
    if made.kind == "text":
        return "numbers mixed with text" if numeric.mean() > 0.5 else f"free text, or over {MOST_CATEGORIES} categories"
    if truth is None:
        return None
    power = _power(values, missing, truth)
    if power >= REPEATS:
        return "nearly repeats the label"
    if _PREDICTION.search(made.name) and power >= PREDICTS:
        return "looks like a prediction of another model"
    return None


def _names_subjects(made: ColumnLook, values: np.ndarray, missing: np.ndarray, who: np.ndarray) -> bool:
    """Whether a column has one value for each subject, and another one for almost every other subject."""
    known = texts(values)[~missing]
    pairs, people = set(zip(who[~missing], known, strict=True)), len(set(who[~missing]))
    numbers = numbers_in(known[:_SAMPLE])
    whole = made.kind != "number" or bool((numbers == np.floor(numbers)).all())
    return whole and people >= FEWEST_TO_JUDGE and len(pairs) <= 1.02 * people and made.distinct >= 0.9 * people


def _power(values: np.ndarray, missing: np.ndarray, truth: np.ndarray) -> float:
    """How well a column alone tells the label: the AUC of two classes, the correlation of numbers, or else the share of
    right guesses, from 0.5 or 0 to 1."""
    import pandas as pd

    use = ~missing & ~gaps(truth)
    labels, cells = truth[use], values[use]
    if len(labels) < 20:
        return 0.0
    codes, classes = pd.factorize(labels)
    numbers, goals = numbers_in(cells), numbers_in(labels)
    numeric = np.isfinite(numbers).all()
    if len(classes) == 2:
        if not numeric:  # a category is as good as the share of the second class in it
            named = pd.Series(texts(cells))
            numbers = pd.Series(codes).groupby(named).transform("mean").to_numpy()
        ranks = pd.Series(numbers).rank().to_numpy()
        positive = codes == 1
        count = int(positive.sum())
        area = (ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(codes) - count))
        return float(max(area, 1 - area))
    if len(classes) > MOST_CATEGORIES:
        if not numeric or not np.isfinite(goals).all() or np.ptp(numbers) == 0:
            return 0.0
        return float(abs(np.corrcoef(numbers, goals)[0, 1]))
    guessed = pd.Series(codes).groupby(texts(cells)).agg(lambda some: some.value_counts().iloc[0])
    return float(guessed.sum() / len(codes)) if len(guessed) <= 0.5 * len(codes) else 0.0
