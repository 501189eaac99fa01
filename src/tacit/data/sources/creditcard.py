"""Credit-card fraud (Kaggle mlg-ulb/creditcardfraud), by the ULDP-FL recipe.

15 % of all 284,807 payments are held out, stratified on fraud; of the rest all frauds and 10 % of the others are kept:
24,584 training and 42,722 held-out rows. The file names neither people nor banks: assign them.
``data.test_fraction`` replaces the 15 % where it is given.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tacit.data.cells import numbers_in
from tacit.data.encode import Columns
from tacit.data.holdout_and_caps import hold_out_records
from tacit.data.options import DataOptions, NumericColumn
from tacit.data.records import Labels
from tacit.data.sources.base import Folder, table_source
from tacit.data.table_files import Table, from_frame, read_file
from tacit.data.tabular import Declaration

ORIGIN = "kaggle.com/datasets/mlg-ulb/creditcardfraud (creditcard.csv)"
FOLDER = Folder("creditcard", ORIGIN)
FILES = ("creditcard_f32.parquet", "creditcard.parquet", "creditcard.csv", "creditcard.csv.gz")
TEST_FRACTION = 0.15
KEPT_HONEST = 0.1

# Declared constants: V1 .. V28 are principal components (mean 0) with the deviations that the public file's description
# gives; Time is spread over two days; Amount is in euros.
COMPONENT_SCALES = (
    *(1.959, 1.651, 1.516, 1.416, 1.380, 1.332, 1.237, 1.194, 1.099, 1.089, 1.021, 0.999, 0.995, 0.959),
    *(0.915, 0.876, 0.849, 0.838, 0.814, 0.771, 0.735, 0.726, 0.624, 0.606, 0.521, 0.482, 0.404, 0.330),
)
NUMERIC = {
    "Time": NumericColumn(mean=94800, scale=47500),
    **{f"V{j}": NumericColumn(scale=scale) for j, scale in enumerate(COMPONENT_SCALES, start=1)},
    "Amount": NumericColumn(mean=88, scale=250),
}

DECLARATION = Declaration(
    Columns(NUMERIC),
    label="Class",
    labels=Labels("binary", ("0", "1")),
    split="held_out",
    split_is_drawn=True,
)


def read_rows(options: DataOptions, rng: np.random.Generator) -> Table:
    """The held-out payments, and the frauds and a tenth of the honest payments of the rest."""
    table = read_file(FOLDER.file(options, *FILES))
    fraud = numbers_in(table.column("Class", "data.path")).astype(np.int32)
    fraction = options.test_fraction if "test_fraction" in options.model_fields_set else TEST_FRACTION
    test = hold_out_records(fraud, fraction, rng)
    honest = np.flatnonzero(~test & (fraud == 0))
    kept = test | (fraud == 1)
    kept[rng.choice(honest, size=int(len(honest) * KEPT_HONEST), replace=False)] = True
    columns = {name: table.read(name)[kept] for name in (*NUMERIC, "Class")}
    return from_frame(pd.DataFrame({**columns, "held_out": test[kept]}))


SOURCE = table_source(
    "creditcard",
    "24,584 card payments, 418 of them frauds (all frauds and a tenth of the rest), and 42,722 held out",
    ORIGIN,
    DECLARATION,
    read_rows,
    natural_subjects=False,
)
