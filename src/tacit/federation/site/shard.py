"""A silo's own table as its part of a federation's records.

``DATA.toml`` (:class:`SiloData`; an example is in docs/deploy.md) says where the table is and what its columns are
called.

Everything else is in the experiment: label, features, constants, who is held out. Identifiers of people become
pseudonyms by a keyed hash (BLAKE2b, 64 bits) under a secret that the silos share and the server never sees: the same
person has the same pseudonym in every silo, and no list of people is exchanged. Two people with one pseudonym would
count as one, and removing one of them could turn their joint contribution around; among n people that has probability
n^2 / 2^65. Who is held out is drawn from the pseudonym, so that all silos hold out the same people.

**Metrics without noise.** They show what they are computed on, and the requester of a run chooses its label, its
columns and its ``data.seed``. So they are computed on the silo's own ``[hold_out]`` alone: people who are drawn by the
identifier that the silo names and a secret that only it has, the same in every run. Their rows are in no other release
of any run with this file. A metric therefore depends on no row of other people, and the guarantees of all others stand.
For the people of the hold-out, metrics without noise have no guarantee.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field, PrivateAttr

from tacit.crypto import Secret
from tacit.data import Federation, SiloOptions, source_facts
from tacit.data.encode import Part
from tacit.data.invalid_rows import misfits
from tacit.data.load import drawn, within_caps
from tacit.data.options import Section, Share
from tacit.data.sources import find_source
from tacit.data.table import Table, TextFormat, cells, identifiers, read_file, read_names
from tacit.errors import UserError, in_file, nearest
from tacit.planning.plan import Plan
from tacit.planning.settings import read_section
from tacit.privacy.ledger import plain_file

# at most 16 bytes: they keep these hashes apart from all others under the same key
_PERSON, _LOT = b"tacit-pseudonym", b"tacit-hold-out"
_SECRET_BYTES = 32


class HoldOut(Section):
    """``[hold_out]``: the people on whom metrics without noise are computed.

    fraction  of the subjects, drawn by lot
    key       a file with the 32 secret bytes of that lot; next to the data file by default, made when it is missing
    """

    fraction: Share
    key: str | None = None


class SiloData(Section):
    """``DATA.toml``.

    subjects    the table's own column that identifies the subject of each row. An experiment that names another column
                is refused: with the number of a visit as the subject, it would protect visits and not people
    name        of the data set, for people; by default the name of this file
    encoding    of the text in the file, and the sign of decimals (``decimal``): "utf-8" and "." by default
    ledger      the file of all releases of this table; next to this file by default
    pseudonyms  a file with the 32 secret bytes that all silos hash identifiers with; by default the kit's
    hold_out    who is held out of every run, for metrics without noise; by default such metrics stay here
    """

    path: str
    subjects: str
    name: str = ""
    columns: dict[str, str] = Field(default_factory=dict)
    encoding: str = "utf-8"
    decimal: Literal[".", ","] = "."
    ledger: str | None = None
    pseudonyms: str | None = None
    hold_out: HoldOut | None = None
    _file: str = PrivateAttr("DATA.toml")

    @property
    def file(self) -> str:
        return self._file

    @property
    def text(self) -> TextFormat:
        return TextFormat(self.encoding, self.decimal)


def read_silo_data(file: Path) -> SiloData:
    named, file = str(file), file.resolve()
    options = read_section(Path(named), SiloData, "DATA.toml")
    options._file = named
    paths = {"path": options.path, "ledger": options.ledger or f"{file.stem}.ledger.jsonl"}
    if options.pseudonyms is not None:
        paths["pseudonyms"] = options.pseudonyms
    absolute: dict[str, Any] = {key: str(file.parent / Path(name).expanduser()) for key, name in paths.items()}
    if options.hold_out is not None:
        key = file.parent / Path(options.hold_out.key or f"{file.stem}.hold_out.key").expanduser()
        absolute["hold_out"] = options.hold_out.model_copy(update={"key": str(key)})
    return options.model_copy(update={"name": options.name or file.stem, **absolute})


class Shard(NamedTuple):
    """What a silo has for a run.

    federation  its records, alone
    rows        of its table that can be read
    fit         of these, how many are as the experiment declares them
    left_out    by column, how many are not, or have nothing there; "(unread)": lines that cannot be read
    held_out    of these, how many are the silo's own hold-out, whether they fit or not; None without one
    """

    federation: Federation
    rows: int
    fit: int
    left_out: dict[str, int]
    held_out: int | None = None


def load_shard(plan: Plan, name: str, options: SiloData, secret: Secret) -> Shard:
    """The records of silo ``name``, alone: caps applied, held-out people apart, subjects by pseudonym.

    Rows that do not fit the experiment are left out. To refuse the run for them would tell the requester about them,
    who could ask for any property of single rows in that way.
    """
    with in_file(options.file):
        own = read_file(options.path, "path", leave_out=True, text=options.text)
        _check_columns(options, own.names)
        here_alone = None if options.hold_out is None else _held_out_here(own, options.subjects, options.hold_out)
        table = _renamed(own, options)
    data = plan.data
    known = source_facts(data)
    assert known.subject_column is not None, "checked when the request was read"
    if known.subject_column not in table.names:
        problem = f"the table has no column '{known.subject_column}'"
        suggestion = nearest(known.subject_column, table.names)
        fix = f'{suggestion} Or name the column of this table: columns.{known.subject_column} = "…"'
        raise UserError("unknown-name", f"columns.{known.subject_column}", problem, fix, options.file)
    ours = options.columns.get(known.subject_column, known.subject_column)
    if ours != options.subjects:
        problem = f"the experiment's subjects are '{ours}', and those of this table are '{options.subjects}'"
        fix = "name in the experiment the column that identifies a person"
        raise UserError("mismatch", "subjects", problem, fix, options.file)
    unfit = misfits(table, known, data)
    fits = ~np.any([np.zeros(table.rows, bool), *unfit.values()], axis=0)
    table = table.take(fits)  # which may have no rows
    keys = pseudonyms(table.read(known.subject_column), secret)

    # all rows live here: no column says so
    alone = data.model_copy(update={"silos": SiloOptions(assign="uniform", count=1)})
    raw = find_source(data.source).read(alone, table, np.random.default_rng(0))
    seed = data.seed if data.seed is not None else plan.experiment.seed or 0
    is_test = drawn(keys, data.test_fraction, seed) if raw.test is None else raw.test
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if here_alone is not None:
        never = here_alone[fits]
        train, test = train[~never[train]], test[~never[test]]
        if plan.evaluation is None:  # metrics with noise are those of people whom all silos hold out
            test = np.flatnonzero(never)
    here = np.zeros(len(keys), np.int32)
    train = train[within_caps(keys[train], here[train], records=plan.records_kept)]
    train = train[np.argsort(keys[train], kind="stable")]
    trained, held_out = (Part(rows, here[rows], keys[rows]) for rows in (train, test))
    how = "subjects" if raw.test is None else "given"
    federation = raw.federation(trained, held_out, (name,), how, len(np.unique(keys)))
    left_out = {column: int(which.sum()) for column, which in unfit.items()}
    left_out |= {"(unread)": own.unread} if own.unread else {}
    return Shard(federation, own.rows, table.rows, left_out, None if here_alone is None else int(here_alone.sum()))


def _held_out_here(table: Table, column: str, options: HoldOut) -> np.ndarray:
    """Mask ``[rows]`` of the silo's own hold-out: decided for each row by its own identifier and the silo's secret."""
    assert options.key is not None, "read_silo_data says where it is"
    with _own_secret(Path(options.key)) as secret:
        codes, distinct = pd.factorize(table.identifiers(column, "subjects"), use_na_sentinel=False)
        key = secret.expose()
        lots = np.array([_hashed(str(value), key, _LOT) for value in distinct], np.uint64)
    return drawn(lots, options.fraction, 0)[codes] if len(distinct) else np.zeros(table.rows, bool)


def _own_secret(file: Path) -> Secret:
    """The secret of the silo's own lot; made once, and readable by its owner alone."""
    try:
        with os.fdopen(plain_file(file, os.O_RDWR), "r+b") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            content = opened.read()
            if not content:
                content = secrets.token_bytes(_SECRET_BYTES)
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
    except OSError as error:
        problem = f"'{file}' cannot be opened ({error.strerror})"
        raise UserError("file-access", "hold_out.key", problem, "correct the path") from None
    if len(content) != _SECRET_BYTES:
        problem = f"'{file}' does not hold {_SECRET_BYTES} bytes"
        raise UserError("file-damaged", "hold_out.key", problem, "restore it from a backup")
    return Secret(content)


def pseudonyms(people: pd.Series | np.ndarray, secret: Secret) -> np.ndarray:
    """Keys ``[rows]`` int64 that stand for identifiers; ``7``, ``7.0`` and ``"7"`` are the same one."""
    codes, distinct = pd.factorize(identifiers(cells(people)), use_na_sentinel=True)
    assert (codes >= 0).all(), "rows without an identifier are left out"
    key = secret.expose()
    hashed = [_hashed(text, key, _PERSON) for text in distinct]
    result: np.ndarray = np.array(hashed, np.uint64).view(np.int64)[codes]
    return result


def _hashed(text: str, key: memoryview, person: bytes) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=key, person=person)
    return int.from_bytes(digest.digest(), "big")


def check_table(options: SiloData) -> None:
    """UserError where the table is missing, or lacks a column that the data file names. No row of a csv is read."""
    with in_file(options.file):
        _check_columns(options, read_names(options.path, "path", options.text))


def _check_columns(options: SiloData, names: Sequence[str]) -> None:
    for field, name in {
        "subjects": options.subjects,
        **{f"columns.{k}": v for k, v in options.columns.items()},
    }.items():
        if name not in names:
            raise UserError("unknown-name", field, f"the table has no column '{name}'", nearest(name, names))


def _renamed(table: Table, options: SiloData) -> Table:
    names = {ours: theirs for theirs, ours in options.columns.items()}
    hidden = set(options.columns) - set(names)  # another column is called so in the experiment
    kept = [name for name in table.names if name in names or name not in hidden]
    return table.renamed({names.get(name, name): name for name in kept})
