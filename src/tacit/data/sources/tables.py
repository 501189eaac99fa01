"""The named tables: their public facts, declared constants and the way from their files to rows.

Constants for standardising are round numbers close to published summaries; nothing is computed from records.
"""

from __future__ import annotations

import math

import numpy as np

from tacit.data.options import BINARY, Columns, DataOptions, Labels, NumericColumn, SurvivalLabel
from tacit.data.sources import Declaration, Folder, read_builtin, table_source
from tacit.data.table import Table, from_arrays, from_frame, numbers_in, read_file
from tacit.errors import UserError

YES_OR_NO = Labels("binary", BINARY)

# --- randhie ---
#
# RAND Health Insurance Experiment (1974-1982), built in: 20,190 person-years of 5,912 people at six sites. Who sees a
# doctor in a year (``mdvis > 0``)? One record is one person-year, one subject a person (1 to 5 years), one silo a
# site; no person lives in two. Features are what was known without the outcome: the randomised insurance plan, family
# and person, and health at enrolment. No spending, visit, admission or episode column is used. The public file has site
# numbers without a key, so silos keep their numbers. ``tools/make_randhie.py`` made the compact copy from it.

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
RANDHIE_NUMERIC = {
    name: column.model_copy(update=dict(zip(("low", "high"), _BOUNDS.get(name, (0, 1)), strict=True)))
    for name, column in _CONSTANTS.items()
}

RANDHIE = table_source(
    "randhie",
    "RAND Health Insurance Experiment, public domain, through statsmodels (datasets/randhie)",
    Declaration(Columns(RANDHIE_NUMERIC), "any_visit", YES_OR_NO, "person", 5912, "site", SITES),
    read_builtin,
)


# --- heart ---
#
# Heart disease of 740 patients at four hospitals (UCI; FLamby's fed_heart_disease recipe and split): is a coronary
# artery narrowed? One record is one patient, so every record is its own subject unless subjects are assigned.
#
# Rule for gaps: the hospitals wrote 0 where serum cholesterol (all of Switzerland, a quarter of Long Beach) or resting
# blood pressure (one row) was not measured. No living person has either, so 0 means missing and is replaced by the
# declared mean. ``standardize = "per-silo"`` comes after that; it is then FLamby's preprocessing but for these zeros.

HEART_FILES = Folder(
    "heart_disease", "the UCI heart disease files with FLamby's recipe (fed_heart_disease), as heart_flamby.npz"
)
# Declared constants: typical of adults sent to coronary angiography, as in the description of the Cleveland cohort.
HEART_NUMERIC = {
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


def read_heart(options: DataOptions, rng: np.random.Generator) -> Table:
    """FLamby's 740 complete rows with hospital names; zeros that mean missing become NaN."""
    with np.load(HEART_FILES.file(options, "heart_flamby.npz")) as file:
        columns = {str(name): file["X"][:, j] for j, name in enumerate(file["feature_names"])}
        columns |= {name: file[name] for name in ("y", "num", "split")}
        columns["hospital"] = file["center_names"][file["center"]]
    for name in ("trestbps", "chol"):
        columns[name] = np.where(columns[name] == 0, np.nan, columns[name])
    return from_arrays(columns)


HEART = table_source(
    "heart",
    HEART_FILES.origin,
    Declaration(
        Columns(HEART_NUMERIC),
        "y",
        YES_OR_NO,
        subject_count=740,
        silo="hospital",
        silo_names=("cleveland", "hungarian", "switzerland", "va"),
        split="split",
    ),
    read_heart,
)


# --- tcga-brca ---
#
# Breast cancer survival of 1,088 patients in six regions (TCGA-BRCA; FLamby's fed_tcga_brca recipe and split). One
# record is one patient: 39 features at diagnosis, the days until death or the end of follow-up, and which it was.
# Rule for times: twelve patients have a follow-up of 0 days. They count as half a day, which keeps every order of times
# that the Cox model looks at.

TCGA_FILES = Folder("tcga_brca", "the open-access TCGA-BRCA table of FLamby (fed_tcga_brca), as tcga_brca_flamby.npz")
LEAST_DAYS = 0.5
# 0/1 indicators stay as they are; age has declared constants.
TCGA_INDICATORS = {
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
TCGA_NUMERIC = {"age_at_index": NumericColumn(mean=58, scale=13)} | {
    f"{name}_{value}": NumericColumn() for name, values in TCGA_INDICATORS.items() for value in values
}


def read_tcga(options: DataOptions, rng: np.random.Generator) -> Table:
    """FLamby's 1,088 patients with region names (``tss`` holds the 37 finer sites)."""
    with np.load(TCGA_FILES.file(options, "tcga_brca_flamby.npz")) as file:
        columns = {str(name): file["X"][:, j] for j, name in enumerate(file["feature_names"])}
        columns |= {name: file[name] for name in ("pid", "tss", "split")}
        columns |= {"days": np.maximum(file["T"], LEAST_DAYS), "death": file["E"]}
        columns["region"] = file["region_names"][file["center"]]
    return from_arrays(columns)


TCGA_BRCA = table_source(
    "tcga-brca",
    TCGA_FILES.origin,
    Declaration(
        Columns(TCGA_NUMERIC),
        SurvivalLabel(time="days", event="death"),
        Labels("survival"),
        "pid",
        1088,
        "region",
        ("Northeast", "South", "West", "Midwest", "Europe", "Canada"),
        "split",
    ),
    read_tcga,
)


# --- creditcard ---
#
# Credit-card fraud (Kaggle mlg-ulb/creditcardfraud), by the ULDP-FL recipe: 15 % of all 284,807 payments are held out
# (or ``data.test_fraction``), stratified on fraud; of the rest all frauds and 10 % of the others are kept: 24,584
# training and 42,722 held-out rows. The file names neither people nor banks: assign them.

CREDITCARD_FILES = Folder("creditcard", "kaggle.com/datasets/mlg-ulb/creditcardfraud (creditcard.csv)")
TEST_FRACTION = 0.15
KEPT_HONEST = 0.1
# Declared constants: V1 .. V28 are principal components (mean 0) with the deviations that the public file's description
# gives; Time is spread over two days; Amount is in euros.
COMPONENT_SCALES = (
    *(1.959, 1.651, 1.516, 1.416, 1.380, 1.332, 1.237, 1.194, 1.099, 1.089, 1.021, 0.999, 0.995, 0.959),
    *(0.915, 0.876, 0.849, 0.838, 0.814, 0.771, 0.735, 0.726, 0.624, 0.606, 0.521, 0.482, 0.404, 0.330),
)
CREDITCARD_NUMERIC = {
    "Time": NumericColumn(mean=94800, scale=47500),
    **{f"V{j}": NumericColumn(scale=scale) for j, scale in enumerate(COMPONENT_SCALES, start=1)},
    "Amount": NumericColumn(mean=88, scale=250),
}


def read_creditcard(options: DataOptions, rng: np.random.Generator) -> Table:
    """The held-out payments, and the frauds and a tenth of the honest payments of the rest."""
    import pandas as pd

    names = "creditcard_f32.parquet", "creditcard.parquet", "creditcard.csv", "creditcard.csv.gz"
    table = read_file(CREDITCARD_FILES.file(options, *names))
    fraud = numbers_in(table.column("Class", "data.path")).astype(np.int32)
    fraction = options.test_fraction if "test_fraction" in options.model_fields_set else TEST_FRACTION
    test = hold_out_records(fraud, fraction, rng)
    honest = np.flatnonzero(~test & (fraud == 0))
    kept = test | (fraud == 1)
    kept[rng.choice(honest, size=int(len(honest) * KEPT_HONEST), replace=False)] = True
    columns = {name: table.read(name)[kept] for name in (*CREDITCARD_NUMERIC, "Class")}
    return from_frame(pd.DataFrame({**columns, "held_out": test[kept]}))


def hold_out_records(classes: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Mask ``[records]`` of a random ``fraction`` of the records, in which classes keep their proportions.

    For making a data set, once: who is held out depends on who else is there.
    """
    count = len(classes)
    if count < 2:
        raise UserError("too-few", "data.test_fraction", f"there is only {count} record", "give at least two records")
    wanted = min(max(math.ceil(count * fraction - 1e-9), 1), count - 1)
    lot = rng.permutation(count)
    ordered = lot[np.argsort(classes[lot], kind="stable")]
    sizes = np.bincount(classes)
    exact = sizes * (wanted / count)
    shares = np.floor(exact).astype(np.int64)  # the largest remainders get one more
    shares[np.argsort(-(exact - shares), kind="stable")[: wanted - int(shares.sum())]] += 1
    rank = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    test = np.zeros(count, bool)
    test[ordered[rank < np.repeat(shares, sizes)]] = True
    return test


CREDITCARD = table_source(
    "creditcard",
    CREDITCARD_FILES.origin,
    Declaration(Columns(CREDITCARD_NUMERIC), "Class", YES_OR_NO, split="held_out", split_is_drawn=True),
    read_creditcard,
)


# --- insteval ---
#
# 73,421 lecture evaluations at ETH Zurich (InstEval of the lme4 package): is a lecture rated 4 or 5 of 5? One subject
# is a student, one silo a department; nearly every student has records in several silos. By default a record is
# the ages of student and lecturer and whether the lecture served another department. Most of what can be predicted lies
# in *who* lectured: ``categorical = { lecturer = [] }`` adds all 1,128 lecturers one-hot (a university prints their
# names: the list is public), renumbered 1 .. 1128 by their id.

INSTEVAL_FILES = Folder("insteval", "InstEval of the R package lme4 (through Rdatasets), as insteval.csv.gz")
LECTURERS = tuple(map(str, range(1, 1129)))
INSTEVAL_COLUMNS = Columns(
    {"service": NumericColumn()},  # 1: lecture for students of another department
    {
        "student_age": ("2", "4", "6", "8"),  # semester of study
        "lecturer_age": ("1", "2", "3", "4", "5", "6"),  # semesters since the lecture, 6: older
    },
)
RENAMED = {"s": "student", "d": "lecturer", "studage": "student_age", "lectage": "lecturer_age", "dept": "department"}


def read_insteval(options: DataOptions, rng: np.random.Generator) -> Table:
    """All 73,421 ratings in plain words."""
    import pandas as pd

    file = INSTEVAL_FILES.file(options, "insteval.csv.gz", "insteval.csv", "InstEval.csv")
    frame = pd.read_csv(file).rename(columns=RENAMED)
    frame["lecturer"] = pd.factorize(frame["lecturer"], sort=True)[0] + 1
    frame["satisfied"] = (frame["y"] >= 4).astype(np.int8)
    return from_frame(frame)


def with_lecturers(columns: Columns) -> Columns:
    """An empty list of lecturers means all of them; where no numeric column is chosen the default columns stay."""
    categorical = {name: values or LECTURERS for name, values in columns.categorical.items()}
    if columns.numeric:
        return Columns(columns.numeric, categorical)
    return Columns(INSTEVAL_COLUMNS.numeric, {**INSTEVAL_COLUMNS.categorical, **categorical})


INSTEVAL = table_source(
    "insteval",
    INSTEVAL_FILES.origin,
    Declaration(
        INSTEVAL_COLUMNS,
        "satisfied",
        YES_OR_NO,
        "student",
        2972,
        "department",
        tuple(map(str, (*range(1, 13), 14, 15))),
    ),
    read_insteval,
    refine=with_lecturers,
)


# --- diabetes130 ---
#
# Hospital stays of diabetes patients in 130 US hospitals (UCI 296): is the patient readmitted at all?
#
# One record is one stay, one subject a patient, one silo the specialty of the admitting physician (hospitals are not
# published). Stays that ended in death or hospice care are left out: they cannot be followed by another.

DIABETES_FILES = Folder(
    "diabetes130", "UCI 296, Diabetes 130-US hospitals for years 1999-2008, as diabetes130_ready.npz"
)
SPECIALTIES = (
    *("InternalMedicine", "Emergency/Trauma", "Family/GeneralPractice", "Cardiology"),
    *("Surgery+Ortho", "Nephrology", "OtherSpecialty", "Unknown"),
)
# Declared constants: round numbers close to the published summary of the data set; 0/1 indicators stay as they are.
STAY_COUNTS = {
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
STAY_INDICATORS = (
    "female",
    *(f"race_{race}" for race in ("Caucasian", "AfricanAmerican", "Hispanic", "Asian", "Other")),
    *("adm_type_1", "adm_type_2", "adm_type_3", "adm_src_er", "adm_src_referral", "disch_home", "disch_transfer"),
    *("A1C_Norm", "A1C_>7", "A1C_>8", "glu_Norm", "glu_>200", "glu_>300", "change", "diabetesMed"),
    *("metformin", "glimepiride", "glipizide", "glyburide", "pioglitazone", "rosiglitazone"),
    *("insulin", "insulin_Up", "insulin_Down"),
    *(f"d{rank}_{group}" for rank in (1, 2, 3) for group in DIAGNOSES),
)


def read_diabetes(options: DataOptions, rng: np.random.Generator) -> Table:
    """Stays after which a readmission was possible."""
    import pandas as pd

    with np.load(DIABETES_FILES.file(options, "diabetes130_ready.npz")) as file:
        kept = ~file["died_or_hospice"]
        frame = pd.DataFrame(file["X"][kept], columns=[str(name) for name in file["feature_names"]])
        frame["patient"] = file["patient"][kept]
        frame["specialty"] = file["silo_names"][file["silo"][kept]]
        frame["readmitted"] = (file["y"][kept] > 0).astype(np.int8)
    return from_frame(frame)


DIABETES130 = table_source(
    "diabetes130",
    DIABETES_FILES.origin,
    Declaration(
        Columns(STAY_COUNTS | {name: NumericColumn() for name in STAY_INDICATORS}),
        "readmitted",
        YES_OR_NO,
        "patient",
        69990,
        "specialty",
        SPECIALTIES,
    ),
    read_diabetes,
)
