"""Lecture evaluations at ETH Zurich (InstEval of the lme4 package): does a student give a lecture 4 or 5 of 5?

One subject is a student, one silo a department; nearly every student rates lectures of several departments: real
people with records in several silos.

By default a record is the ages of student and lecturer and whether the lecture served another department. Most of what
can be predicted lies in *who* lectured: ``categorical = { lecturer = [] }`` adds the lecturers one-hot. The empty list
stands for all 1,128 of them (a university prints their names: the list is public), renumbered 1 .. 1128 by their id.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tacit.data.encode import Columns
from tacit.data.options import DataOptions, NumericColumn
from tacit.data.records import Labels
from tacit.data.sources.base import Folder, table_source
from tacit.data.table_files import Table, from_frame
from tacit.data.tabular import Declaration

ORIGIN = "InstEval of the R package lme4 (through Rdatasets), as insteval.csv.gz"
FOLDER = Folder("insteval", ORIGIN)
FILES = ("insteval.csv.gz", "insteval.csv", "InstEval.csv")
LECTURERS = tuple(str(k) for k in range(1, 1129))
DEPARTMENTS = tuple(str(k) for k in (*range(1, 13), 14, 15))

COLUMNS = Columns(
    {"service": NumericColumn()},  # 1: lecture for students of another department
    {
        "student_age": ("2", "4", "6", "8"),  # semester of study
        "lecturer_age": ("1", "2", "3", "4", "5", "6"),  # semesters since the lecture, 6: older
    },
)
RENAMED = {"s": "student", "d": "lecturer", "studage": "student_age", "lectage": "lecturer_age", "dept": "department"}

DECLARATION = Declaration(
    COLUMNS,
    label="satisfied",
    labels=Labels("binary", ("0", "1")),
    subject="student",
    silo="department",
    silo_names=DEPARTMENTS,
)


def read_rows(options: DataOptions, rng: np.random.Generator) -> Table:
    """All 73,421 ratings in plain words."""
    frame = pd.read_csv(FOLDER.file(options, *FILES)).rename(columns=RENAMED)
    frame["lecturer"] = pd.factorize(frame["lecturer"], sort=True)[0] + 1
    frame["satisfied"] = (frame["y"] >= 4).astype(np.int8)
    return from_frame(frame)


def with_lecturers(columns: Columns) -> Columns:
    """An empty list of lecturers means all of them; where no numeric column is chosen the default columns stay."""
    categorical = {name: values or LECTURERS for name, values in columns.categorical.items()}
    if columns.numeric:
        return Columns(columns.numeric, categorical)
    return Columns(COLUMNS.numeric, {**COLUMNS.categorical, **categorical})


SOURCE = table_source(
    "insteval",
    "73,421 lecture ratings by 2,972 students in 14 departments: is the rating 4 or 5 of 5?",
    ORIGIN,
    DECLARATION,
    read_rows,
    subject_count=2972,
    refine=with_lecturers,
)
