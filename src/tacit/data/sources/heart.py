"""Heart disease at four hospitals (UCI; FLamby's fed_heart_disease recipe and split): is a coronary artery narrowed?

One record is one patient, so every record is its own subject unless subjects are assigned. Silos are the hospitals.

Rule for gaps: the hospitals wrote 0 where serum cholesterol (all of Switzerland, a quarter of Long Beach) or resting
blood pressure (one row) was not measured. No living person has either, so 0 means missing and is replaced by the
declared mean. ``standardize = "per-silo"`` comes after that; it is then FLamby's preprocessing but for these zeros.
"""

from __future__ import annotations

import numpy as np

from tacit.data.encode import Columns
from tacit.data.options import DataOptions, NumericColumn
from tacit.data.records import Labels
from tacit.data.sources.base import Folder, table_source
from tacit.data.table_files import Table, from_arrays
from tacit.data.tabular import Declaration

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
ORIGIN = "the UCI heart disease files with FLamby's recipe (fed_heart_disease), as heart_flamby.npz"
FOLDER = Folder("heart_disease", ORIGIN)

# Declared constants: typical of adults sent to coronary angiography, as in the description of the Cleveland cohort.
NUMERIC = {
    "age": NumericColumn(mean=54, scale=9),
    "sex": NumericColumn(),  # 1: male
    "trestbps": NumericColumn(mean=132, scale=18, missing=132),  # resting blood pressure, mm Hg
    "chol": NumericColumn(mean=240, scale=55, missing=240),  # serum cholesterol, mg/dl
    "fbs": NumericColumn(),  # 1: fasting blood sugar above 120 mg/dl
    "thalach": NumericColumn(mean=140, scale=25),  # highest heart rate
    "exang": NumericColumn(),  # 1: angina under exercise
    "oldpeak": NumericColumn(mean=1, scale=1),  # ST depression under exercise
    "cp_2.0": NumericColumn(),  # chest pain: atypical angina
    "cp_3.0": NumericColumn(),  # non-anginal
    "cp_4.0": NumericColumn(),  # none
    "restecg_1.0": NumericColumn(),  # ST-T wave abnormality at rest
    "restecg_2.0": NumericColumn(),  # hypertrophy
}
ZERO_IS_MISSING = ("trestbps", "chol")

DECLARATION = Declaration(
    Columns(NUMERIC),
    label="y",
    labels=Labels("binary", ("0", "1")),
    silo="hospital",
    silo_names=HOSPITALS,
    split="split",
)


def read_rows(options: DataOptions, rng: np.random.Generator) -> Table:
    """FLamby's 740 complete rows with hospital names; zeros that mean missing become NaN."""
    with np.load(FOLDER.file(options, "heart_flamby.npz")) as file:
        columns = {str(name): file["X"][:, j] for j, name in enumerate(file["feature_names"])}
        columns |= {name: file[name] for name in ("y", "num", "split")}
        columns["hospital"] = file["center_names"][file["center"]]
    for name in ZERO_IS_MISSING:
        columns[name] = np.where(columns[name] == 0, np.nan, columns[name])
    return from_arrays(columns)


SOURCE = table_source(
    "heart",
    "740 patients of four hospitals: is a coronary artery narrowed?",
    ORIGIN,
    DECLARATION,
    read_rows,
    subject_count=740,
)
