"""Hospital stays of diabetes patients in 130 US hospitals (UCI 296): is the patient readmitted at all?

One record is one stay, one subject a patient, one silo the specialty of the admitting physician (hospitals are not
published). Stays that ended in death or hospice care are left out: they cannot be followed by another.
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

SPECIALTIES = (
    *("InternalMedicine", "Emergency/Trauma", "Family/GeneralPractice", "Cardiology"),
    *("Surgery+Ortho", "Nephrology", "OtherSpecialty", "Unknown"),
)
ORIGIN = "UCI 296, Diabetes 130-US hospitals for years 1999-2008, as diabetes130_ready.npz"
FOLDER = Folder("diabetes130", ORIGIN)

# Declared constants: round numbers close to the published summary of the data set; 0/1 indicators stay as they are.
COUNTS = {
    "age": NumericColumn(mean=65, scale=16),
    "time_in_hospital": NumericColumn(mean=4.4, scale=3),  # days
    "num_lab_procedures": NumericColumn(mean=43, scale=20),
    "num_procedures": NumericColumn(mean=1.3, scale=1.7),
    "num_medications": NumericColumn(mean=16, scale=8),
    "number_outpatient": NumericColumn(mean=0.4, scale=1.3),  # visits in the year before
    "number_emergency": NumericColumn(mean=0.2, scale=1),
    "number_inpatient": NumericColumn(mean=0.6, scale=1.3),
    "number_diagnoses": NumericColumn(mean=7.4, scale=2),
}
DIAGNOSES = ("circ", "resp", "digest", "diab", "injury", "musc", "genit", "neopl")
INDICATORS = (
    "female",
    *(f"race_{race}" for race in ("Caucasian", "AfricanAmerican", "Hispanic", "Asian", "Other")),
    *("adm_type_1", "adm_type_2", "adm_type_3", "adm_src_er", "adm_src_referral", "disch_home", "disch_transfer"),
    *("A1C_Norm", "A1C_>7", "A1C_>8", "glu_Norm", "glu_>200", "glu_>300", "change", "diabetesMed"),
    *("metformin", "glimepiride", "glipizide", "glyburide", "pioglitazone", "rosiglitazone"),
    *("insulin", "insulin_Up", "insulin_Down"),
    *(f"d{rank}_{group}" for rank in (1, 2, 3) for group in DIAGNOSES),
)

DECLARATION = Declaration(
    Columns(COUNTS | {name: NumericColumn() for name in INDICATORS}),
    label="readmitted",
    labels=Labels("binary", ("0", "1")),
    subject="patient",
    silo="specialty",
    silo_names=SPECIALTIES,
)


def read_rows(options: DataOptions, rng: np.random.Generator) -> Table:
    """Stays after which a readmission was possible."""
    with np.load(FOLDER.file(options, "diabetes130_ready.npz")) as file:
        kept = ~file["died_or_hospice"]
        frame = pd.DataFrame(file["X"][kept], columns=[str(name) for name in file["feature_names"]])
        frame["patient"] = file["patient"][kept]
        frame["specialty"] = file["silo_names"][file["silo"][kept]]
        frame["readmitted"] = (file["y"][kept] > 0).astype(np.int8)
    return from_frame(frame)


SOURCE = table_source(
    "diabetes130",
    "99,343 hospital stays of 69,990 diabetes patients in eight specialties: is the patient readmitted?",
    ORIGIN,
    DECLARATION,
    read_rows,
    subject_count=69990,
)
