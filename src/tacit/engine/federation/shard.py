"""A silo's own table as its part of a federation's records.

``DATA.toml`` says where the table lies and what its columns are called there::

    path = "visits.parquet"

    [columns]                  # the experiment's name = the name in this table, where they differ
    patient = "PATIENT_ID"
    age = "AGE_YEARS"

Everything else is the experiment's: label, features, constants, who is held out. Identifiers of people become
pseudonyms by a keyed hash (BLAKE2b, 64 bits) under a secret that the silos share and the server never sees: the same
person has the same pseudonym in every silo, and no list of people is exchanged. Two people with one pseudonym would
count as one, and removing one of them could turn their joint contribution around; among n people that has probability
n^2 / 2^65. Who is held out is drawn from the pseudonym, so that all silos hold out the same people.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from tacit.config import Plan
from tacit.crypto import Secret
from tacit.data import Federation, Records, Silos, source_facts
from tacit.data.arrange import drawn, within_caps
from tacit.data.encode import Part, as_python
from tacit.data.misfits import misfits
from tacit.data.options import Section, as_name
from tacit.data.sources import find_source
from tacit.data.table import Table, from_frame, read_file, series_values
from tacit.errors import UserError
from tacit.settings import read_section

_PERSON = b"tacit-pseudonym"  # at most 16 bytes: keeps these hashes apart from all others under the same key


class SiloData(Section):
    """``DATA.toml``.

    name        of the data set, by which the server knows its ledger again; by default the name of this file
    ledger      where everything is written down that was ever released of this table; beside this file by default
    pseudonyms  a file with the 32 secret bytes that all silos hash identifiers with; by default the kit's
    """

    path: str
    name: str = ""
    columns: dict[str, str] = Field(default_factory=dict)
    ledger: str | None = None
    pseudonyms: str | None = None


def read_silo_data(file: Path) -> SiloData:
    """``DATA.toml`` with absolute paths."""
    file = file.resolve()
    options = read_section(file, SiloData, "DATA.toml")
    paths = {"path": options.path, "ledger": options.ledger or f"{file.stem}.ledger.jsonl"}
    if options.pseudonyms is not None:
        paths["pseudonyms"] = options.pseudonyms
    absolute = {key: str(file.parent / Path(name).expanduser()) for key, name in paths.items()}
    return options.model_copy(update={"name": options.name or file.stem, **absolute})


class Shard(NamedTuple):
    """What a silo has for a run.

    federation  its records, alone
    rows        of its table
    fit         of these, how many are as the experiment declares them
    left_out    by column, how many are not, or have nothing there
    """

    federation: Federation
    rows: int
    fit: int
    left_out: dict[str, int]


def load_shard(plan: Plan, name: str, options: SiloData, secret: Secret) -> Shard:
    """The records of silo ``name``, alone: caps applied, held-out people apart, subjects by pseudonym.

    Rows that do not fit the experiment are left out. To refuse the run for them would tell the requester about them,
    who could ask for any property of single rows in that way.
    """
    frame = _renamed(options)
    data = plan.data
    known = source_facts(data)
    assert known.subject_column is not None, "checked when the request was read"
    if known.subject_column not in frame:
        problem = f"the table has no column '{known.subject_column}'"
        raise UserError("DATA.toml", problem, f'say which one it is: columns.{known.subject_column} = "…"')
    rows, unfit = len(frame), misfits(from_frame(frame), known, data)
    frame = frame[~np.any([np.zeros(rows, bool), *unfit.values()], axis=0)].reset_index(drop=True)
    keys = pseudonyms(frame[known.subject_column], secret)

    # all rows live here: no column says so
    alone = data.model_copy(update={"silos": Silos(assign="uniform", count=1)})
    table = Table(tuple(frame), len(frame), lambda column: series_values(frame[column]))  # which may have no rows
    raw = find_source(data.source).read(alone, table, np.random.default_rng(0))
    seed = data.seed if data.seed is not None else plan.experiment.seed or 0
    is_test = drawn(keys, data.test_fraction, seed) if raw.test is None else raw.test
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    here = np.zeros(len(keys), np.int32)
    train = train[within_caps(keys[train], here[train], records=plan.records_kept)]
    train = train[np.argsort(keys[train], kind="stable")]
    built = raw.features.build(Part(train, here[train]), Part(test, here[test]), (name,))
    federation = Federation(
        train=Records(built.train, raw.labels[train], keys[train], here[train]),
        test=Records(built.test, raw.labels[test], keys[test], here[test]),
        labels=raw.kind,
        silo_names=(name,),
        subject_count=len(np.unique(keys)),
        feature_names=built.names,
        held_out="subjects" if raw.test is None else "given",
        encoder=built.encoder,
        unpaid=built.unpaid,
    )
    return Shard(federation, rows, len(frame), {column: int(which.sum()) for column, which in unfit.items()})


def pseudonyms(identifiers: pd.Series, secret: Secret) -> np.ndarray:
    """Keys ``[rows]`` int64 that stand for identifiers; ``7``, ``7.0`` and ``"7"`` are the same one."""
    codes, distinct = pd.factorize(identifiers, use_na_sentinel=True)
    if (codes < 0).any():
        problem = f"column '{identifiers.name}' is missing in {int((codes < 0).sum())} rows"
        raise UserError("DATA.toml", problem, "fill the gaps or drop the rows")
    key = secret.expose()
    hashed = [_hashed(str(as_name(as_python(value))), key) for value in distinct]
    result: np.ndarray = np.array(hashed, np.int64)[codes]
    return result


def _hashed(text: str, key: memoryview) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=key, person=_PERSON)
    return int.from_bytes(digest.digest(), "big", signed=True)


def _renamed(options: SiloData) -> pd.DataFrame:
    """The silo's table under the experiment's names."""
    table = read_file(options.path, "DATA.toml")
    for ours in options.columns.values():
        if ours not in table.names:
            raise UserError("DATA.toml", f"the table has no column '{ours}'", "mend columns")
    names = {ours: theirs for theirs, ours in options.columns.items()}
    hidden = set(options.columns) - set(names)  # another column is called so in the experiment
    kept = [name for name in table.names if name in names or name not in hidden]
    return pd.DataFrame({names.get(name, name): table.read(name) for name in kept})
