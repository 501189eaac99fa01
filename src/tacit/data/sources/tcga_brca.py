"""Breast cancer survival in six regions (TCGA-BRCA; FLamby's fed_tcga_brca recipe and split).

One record is one patient: 39 features at diagnosis, the days until death or the end of follow-up, and which it was.

Rule for times: twelve patients have a follow-up of 0 days. They count as half a day, which keeps every order of times
that the Cox model looks at.
"""

from __future__ import annotations

import numpy as np

from tacit.data.encode import Columns
from tacit.data.options import DataOptions, NumericColumn, SurvivalLabel
from tacit.data.records import Labels
from tacit.data.sources.base import Folder, table_source
from tacit.data.table_files import Table, from_arrays
from tacit.data.tabular import Declaration

REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
ORIGIN = "the open-access TCGA-BRCA table of FLamby (fed_tcga_brca), as tcga_brca_flamby.npz"
FOLDER = Folder("tcga_brca", ORIGIN)
LEAST_DAYS = 0.5

# 0/1 indicators stay as they are; age has declared constants.
INDICATORS = {
    "ethnicity": ("not hispanic or latino", "not reported"),
    "race": ("asian", "black or african american", "not reported", "white"),
    "ajcc_pathologic_m": ("MX",),
    "ajcc_pathologic_n": ("N0 (i-)", "N1", "N1a", "N2", "N2a"),
    "ajcc_pathologic_stage": ("Stage IA", "Stage IIA", "Stage IIB", "Stage IIIA", "Stage IIIC"),
    "ajcc_pathologic_t": ("T1c", "T2", "T3"),
    "ajcc_staging_system_edition": ("5th", "6th", "7th"),
    "icd_10_code": ("C50.9",),
    "morphology": ("8500/3", "8520/3"),
    "primary_diagnosis": ("Infiltrating duct carcinoma, NOS", "Lobular carcinoma, NOS"),
    "prior_malignancy": ("yes",),
    "synchronous_malignancy": ("Not Reported",),
    "treatment_or_therapy": ("not reported", "yes"),
    "tumor_stage": ("stage i", "stage ia", "stage iia", "stage iib", "stage iiia", "stage iiic"),
}
NUMERIC = {"age_at_index": NumericColumn(mean=58, scale=13)} | {
    f"{name}_{value}": NumericColumn() for name, values in INDICATORS.items() for value in values
}

DECLARATION = Declaration(
    Columns(NUMERIC),
    label=SurvivalLabel(time="days", event="death"),
    labels=Labels("survival"),
    subject="pid",
    silo="region",
    silo_names=REGIONS,
    split="split",
)


def read_rows(options: DataOptions, rng: np.random.Generator) -> Table:
    """FLamby's 1,088 patients with region names (``tss`` holds the 37 finer sites)."""
    with np.load(FOLDER.file(options, "tcga_brca_flamby.npz")) as file:
        columns = {str(name): file["X"][:, j] for j, name in enumerate(file["feature_names"])}
        columns |= {name: file[name] for name in ("pid", "tss", "split")}
        columns |= {"days": np.maximum(file["T"], LEAST_DAYS), "death": file["E"]}
        columns["region"] = file["region_names"][file["center"]]
    return from_arrays(columns)


SOURCE = table_source(
    "tcga-brca",
    "1,088 breast cancer patients in six regions: how long do they live?",
    ORIGIN,
    DECLARATION,
    read_rows,
    subject_count=1088,
)
