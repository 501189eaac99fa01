"""Held-out records from a file of their own: ``[evaluation] data = "path"``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tacit.data.assignment import spread
from tacit.data.cells import match_names
from tacit.data.encode import Part
from tacit.data.options import DataOptions
from tacit.data.raw import record_keys, subject_keys
from tacit.data.records import Federation, Records
from tacit.data.sources import find_source
from tacit.data.tabular import TableFeatures
from tacit.errors import UserError, nearest


def load_evaluation(path: Path, options: DataOptions, federation: Federation) -> Records:
    """The rows of a table with the columns of the training table, encoded as the training rows were."""
    if options.source not in ("table", "randhie") or federation.encoder is None:
        problem = f"source '{options.source}' brings its own"
        raise UserError("conflict", "evaluation.data", problem, 'use data = "held-out"')
    try:
        return _read(path, options, federation)
    except UserError as error:  # settings of [data] are right where the training table could be read by them
        problem = error.problem if path.name in error.problem else f"'{path.name}': {error.problem}"
        raise UserError(error.code, "evaluation.data", problem, error.fix) from None


def _read(path: Path, options: DataOptions, federation: Federation) -> Records:
    assert federation.encoder is not None
    raw = find_source(options.source).read(
        options.model_copy(update={"path": str(path)}), None, np.random.default_rng(0)
    )
    assert isinstance(raw.features, TableFeatures)
    if raw.silo is None:
        silo = spread(record_keys(raw), len(federation.silo_names), options.seed or 0)  # as held-out rows are
    else:
        names = np.array(raw.silo_names, dtype=object)[raw.silo]
        silo, unknown = match_names(names, federation.silo_names)
        if unknown is not None:
            problem = f"silo '{unknown}' has no training data"
            raise UserError("undeclared-value", "data.silos.column", problem, nearest(unknown, federation.silo_names))
    features = federation.encoder.encode_parts(raw.features.table, [Part(slice(None), silo)])[0]
    return Records(features, raw.labels, subject_keys(raw), silo)
