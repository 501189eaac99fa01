"""RAND Health Insurance Experiment (1974-1982), built in: does a person see a doctor in a year?

One record is one person-year, one subject a person (1 to 5 years), one silo a site; no person lives in two. The label
is ``any_visit``: at least one outpatient visit to a physician in that year (``mdvis > 0``). Features are what was known
without the outcome: the randomised insurance plan, family and person, and health as recorded at enrolment. No spending,
visit, admission or episode column is used, nor anything derived from them.

The study ran in Dayton, Seattle, Fitchburg, Franklin County, Charleston and Georgetown County; the public file holds
site numbers without a key, so silos keep their numbers. ``tools/make_randhie.py`` made the compact copy from it.
"""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np

from tacit.data.encode import Columns
from tacit.data.options import DataOptions, NumericColumn
from tacit.data.records import Labels
from tacit.data.sources.base import table_source
from tacit.data.table_files import Table, read_file
from tacit.data.tabular import Declaration

SITES = tuple(f"site {k}" for k in range(1, 7))

# Declared constants: round numbers close to the summary statistics of this public file; nothing is computed at load.
# The one gap, years of schooling in 4 rows, is filled with the declared `missing`.
_CONSTANTS = {
    "coinsurance": NumericColumn(mean=25, scale=35),  # per cent that the family pays: 0, 25, 50, 95 or 100
    "individual_deductible": NumericColumn(mean=0.25, scale=0.45),  # 1: plan with a deductible per person
    "log_incentive": NumericColumn(mean=4.5, scale=2.5),  # log of the yearly participation incentive in dollars
    "log_max_expenditure": NumericColumn(mean=4, scale=3.5),  # log(MDE / coinsurance), 0 for individual deductibles
    "enrolment_exam": NumericColumn(mean=0.6, scale=0.5),  # 1: took the physical examination at enrolment
    "year": NumericColumn(mean=2.5, scale=1.2),  # year of the study, 1 to 5
    "age": NumericColumn(mean=25, scale=17),
    "infant": NumericColumn(mean=0, scale=0.25),  # 1: younger than three, when well-child visits are due
    "female": NumericColumn(mean=0.5, scale=0.5),
    "child": NumericColumn(mean=0.4, scale=0.5),  # 1: younger than eighteen
    "girl": NumericColumn(mean=0.2, scale=0.4),
    "black": NumericColumn(mean=0.2, scale=0.4),  # race of the head of the household
    "education": NumericColumn(mean=12, scale=3, missing=12),  # years of schooling of the head of the household
    "log_income": NumericColumn(mean=8.7, scale=1.2),  # log of the family's income in dollars
    "log_family_size": NumericColumn(mean=1.25, scale=0.5),
    "chronic_diseases": NumericColumn(mean=11, scale=7),  # index of chronic disease at enrolment
    "physical_limitation": NumericColumn(mean=0.12, scale=0.32),
    "mental_health": NumericColumn(mean=75, scale=12),  # index at enrolment, 0 to 100
    "general_health": NumericColumn(mean=73, scale=14),  # index at enrolment, 0 to 100, imputed by the study
    "health_good": NumericColumn(mean=0.36, scale=0.48),  # self-rated at enrolment; all three 0: excellent
    "health_fair": NumericColumn(mean=0.08, scale=0.27),
    "health_poor": NumericColumn(mean=0.015, scale=0.12),
}

# Public bounds for `standardize = "paid"`, from the questions: indices end at 100, participants were younger than 62.
_BOUNDS = {
    "coinsurance": (0, 100),
    "log_incentive": (0, 8),
    "log_max_expenditure": (0, 9),
    "year": (1, 5),
    "age": (0, 65),
    "education": (0, 25),
    "log_income": (0, 11),
    "log_family_size": (0, 3),
    "chronic_diseases": (0, 60),
    "mental_health": (0, 100),
    "general_health": (0, 100),
}  # all others are 0 or 1
NUMERIC = {
    name: column.model_copy(update=dict(zip(("low", "high"), _BOUNDS.get(name, (0, 1)), strict=True)))
    for name, column in _CONSTANTS.items()
}

DECLARATION = Declaration(
    Columns(NUMERIC),
    label="any_visit",
    labels=Labels("binary", ("0", "1")),
    subject="person",
    silo="site",
    silo_names=SITES,
)


def read_builtin(options: DataOptions, rng: np.random.Generator) -> Table:
    """The copy inside the package, or another file of the same columns at ``data.path``."""
    if options.path is not None:
        return read_file(options.path)
    with as_file(files("tacit.data") / "builtin" / "randhie.parquet") as path:
        return read_file(path)


SOURCE = table_source(
    "randhie",
    "20,190 person-years of 5,912 people at six sites: does a person see a doctor in a year?",
    "RAND Health Insurance Experiment, public domain, through statsmodels (datasets/randhie)",
    DECLARATION,
    read_builtin,
    subject_count=5912,
)
