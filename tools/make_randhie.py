"""Make the built-in table from the public file: ``python tools/make_randhie.py randhie.csv[.gz] randhie.parquet``.

The input is ``statsmodels/datasets/randhie/src/randhie.csv`` of the statsmodels package (20,190 rows, 45 columns).
Columns are renamed to plain words and rounded to the precision that a model can use; people are renumbered. Missing
values stay missing: the source declares what stands in for them.
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

# new name: (column of the public file, decimals to keep)
RENAMED = {
    "coinsurance": ("coins", 0),
    "individual_deductible": ("idp", 0),
    "log_incentive": ("lpi", 2),
    "log_max_expenditure": ("fmde", 2),
    "enrolment_exam": ("tookphys", 0),
    "year": ("year", 0),
    "age": ("xage", 1),
    "female": ("female", 0),
    "child": ("child", 0),
    "girl": ("fchild", 0),
    "black": ("black", 2),
    "education": ("educdec", 0),
    "log_income": ("linc", 2),
    "log_family_size": ("lfam", 2),
    "chronic_diseases": ("disea", 1),
    "physical_limitation": ("physlm", 2),
    "mental_health": ("mhi", 0),
    "general_health": ("xghindx", 0),
    "health_good": ("hlthg", 0),
    "health_fair": ("hlthf", 0),
    "health_poor": ("hlthp", 0),
}


def compact(public: pd.DataFrame) -> pd.DataFrame:
    """The built-in table from the public one."""
    table = pd.DataFrame({"person": pd.factorize(public["zper"])[0].astype(np.int16)})
    table["site"] = "site " + public["site"].astype(str)
    table["any_visit"] = (public["mdvis"] > 0).astype(np.int8)
    for name, (column, decimals) in RENAMED.items():
        values = public[column].round(decimals)
        whole = decimals == 0 and values.notna().all()
        table[name] = values.astype(np.int8 if whole else np.float32)
    table["infant"] = (public["xage"] < 3).astype(np.int8)
    return table


if __name__ == "__main__":
    source, target = sys.argv[1:]
    compact(pd.read_csv(source)).to_parquet(target, compression="zstd", compression_level=19, index=False)
