"""Labels: classes, numbers, or time and event, checked against what is declared."""

from __future__ import annotations

import numpy as np

from tacit.data.cells import match_names
from tacit.data.encode import as_numbers
from tacit.data.options import DataOptions, SurvivalLabel
from tacit.data.records import Labels
from tacit.data.table_files import Table
from tacit.errors import UserError

BINARY = ("0", "1")


def declared_labels(options: DataOptions) -> Labels:
    """What kind of label the experiment declares; binary 0/1 where it says nothing."""
    kind = options.task or ("survival" if isinstance(options.label, SurvivalLabel) else "binary")
    classes = _class_names(options.classes)
    if kind == "multiclass" and not classes:
        problem = "a multiclass task has no classes"
        raise UserError("missing", "data.classes", problem, "give their number or their names")
    if kind == "binary":
        classes = classes or BINARY
        if len(classes) != 2:
            problem = f"a binary task has 2 classes, not {len(classes)}"
            raise UserError("conflict", "data.classes", problem, 'set data.task = "multiclass"')
    elif kind != "multiclass" and classes:
        raise UserError("no-effect", "data.classes", f"a {kind} task has no classes", "leave data.classes out")
    if len(set(classes)) < len(classes):
        problem = f"a class is named twice in {list(classes)}"
        raise UserError("duplicate", "data.classes", problem, "name every class once")
    return Labels(kind, classes)


def read_labels(table: Table, label: str | SurvivalLabel | None, labels: Labels) -> np.ndarray:
    """The label column as ``[rows]`` int32 classes or float32 numbers, or ``[rows, 2]`` float32 (time, event)."""
    if label is None:
        raise UserError("missing", "data.label", "no label column is named", "set data.label to the column to predict")
    if isinstance(label, SurvivalLabel) != (labels.kind == "survival"):
        wanted = "{ time = ..., event = ... }" if labels.kind == "survival" else "the name of one column"
        problem = f"a {labels.kind} task cannot use {label!r}"
        raise UserError("wrong-type", "data.label", problem, f"set data.label to {wanted}")
    if isinstance(label, SurvivalLabel):
        return _survival(table, label)
    values = table.column(label, "data.label")
    if labels.kind == "real":
        return _finite(as_label_numbers(values, label), label).astype(np.float32)
    return _classes(values, label, labels)


def as_label_numbers(values: np.ndarray, name: str) -> np.ndarray:
    """Label values ``[rows]`` as floats; text is refused in the label's own name."""
    try:
        return as_numbers(values, name)
    except UserError as error:
        fix = "name a numeric column, or set data.task and data.classes"
        raise UserError(error.code, "data.label", error.problem, fix) from error


def _classes(values: np.ndarray, name: str, labels: Labels) -> np.ndarray:
    codes, unknown = match_names(values, labels.classes)
    if unknown is not None:
        problem = f"column '{name}' has the label '{unknown}' outside the classes {_short(labels.classes)}"
        fix = "declare data.task and data.classes, or correct the table"
        raise UserError("undeclared-value", "data.label", problem, fix)
    if (codes < 0).any():
        gaps = int((codes < 0).sum())
        problem = f"column '{name}' is missing in {gaps} rows"
        raise UserError("missing-values", "data.label", problem, "drop the rows without a label")
    return codes


def _survival(table: Table, label: SurvivalLabel) -> np.ndarray:
    time = _finite(as_label_numbers(table.column(label.time, "data.label.time"), label.time), label.time)
    event = _classes(table.column(label.event, "data.label.event"), label.event, Labels("binary", BINARY))
    early = int((time <= 0).sum())
    if early:
        problem = f"column '{label.time}' is not positive in {early} rows"
        raise UserError("out-of-range", "data.label.time", problem, "give times above 0")
    return np.column_stack([time, event]).astype(np.float32)


def _finite(values: np.ndarray, name: str) -> np.ndarray:
    bad = int((~np.isfinite(values)).sum())
    if bad:
        problem = f"column '{name}' is missing or infinite in {bad} rows"
        raise UserError("missing-values", "data.label", problem, "drop the rows without a label")
    return values


def _class_names(classes: int | tuple[str, ...] | None) -> tuple[str, ...]:
    if isinstance(classes, int):
        return tuple(str(k) for k in range(classes))
    return classes or ()


def _short(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown}, … ({len(names)} in all)" if len(names) > 6 else shown
