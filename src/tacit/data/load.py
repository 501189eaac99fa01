"""From options to a :class:`Federation`: read, hold out, assign, cap, order, and only then build features.

Everything that decides *which* rows are used and in what order works on small integer arrays; features are built last,
once, straight into their final place. All chance comes from one seed and a purpose, so that (say) another number of
silos does not change who is held out, and from the key of each record or person, so that other people do not either.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tacit.data import assignment
from tacit.data.encode import Part
from tacit.data.holdout_and_caps import OverCap, held_out, mixed, within_caps
from tacit.data.options import DataOptions
from tacit.data.raw import Raw, record_keys, subject_keys
from tacit.data.records import Federation, Records
from tacit.data.sources import find_source
from tacit.errors import UserError


def load(
    options: DataOptions,
    *,
    frame: pd.DataFrame | None = None,
    seed: int = 0,
    hold_out: bool = True,
    max_records_per_subject_and_silo: int | None = None,
    max_silos_per_subject: int | None = None,
    over_silo_cap: OverCap = "drop",
) -> Federation:
    """The records of an experiment, grouped by silo and subject, with held-out rows apart.

    ``frame`` stands in for the file of a table. Without ``hold_out`` every row is for training. ``options.seed`` wins
    over ``seed``. The caps bound what one subject brings to training, by rules that look at its own rows only. With
    ``over_silo_cap`` "refuse", a subject in too many silos is an error, and no row depends on what other silos hold.
    """
    if "window_stride" in options.model_fields_set and options.source != "shakespeare":
        raise UserError("no-effect", "data.window_stride", f"source '{options.source}' has no windows", "leave it out")
    seed = options.seed if options.seed is not None else seed
    raw = find_source(options.source).read(options, frame, np.random.default_rng([seed % 2**64, 0]))
    keys = subject_keys(raw)
    how, is_test = _hold_out(raw, keys, options, seed, hold_out)
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    subject, test_subject = _subjects(raw, keys, options, train, test, seed)
    silo, test_silo, silo_names = _silos(raw, options, train, test, subject, seed)

    if over_silo_cap == "refuse":
        check_silo_cap(np.append(subject, test_subject), np.append(silo, test_silo), max_silos_per_subject)
    kept = within_caps(subject, silo, records=max_records_per_subject_and_silo, silos=max_silos_per_subject)
    train, subject, silo = train[kept], subject[kept], silo[kept]
    _check_silos(silo, silo_names, options)
    order = np.lexsort((subject, silo))
    train, subject, silo = train[order], subject[order], silo[order]
    _check_subjects(subject, options)

    built = raw.features.build(Part(train, silo), Part(test, test_silo), silo_names)
    return Federation(
        train=Records(built.train, raw.labels[train], subject, silo),
        test=Records(built.test, raw.labels[test], test_subject, test_silo),
        labels=raw.kind,
        silo_names=silo_names,
        subject_count=len(np.union1d(subject, test_subject)),
        feature_names=built.names,
        held_out=how,
        encoder=built.encoder,
        unpaid=built.unpaid,
    )


def check_silo_cap(subject: np.ndarray, silo: np.ndarray, most: int | None) -> None:
    """Refuse data that break the promise about a subject's silos, held-out rows included: they are paid for, too."""
    if not within_caps(subject, silo, silos=most).all():
        problem = f"a subject has records in more than {most} silos"
        fix = 'raise it, or use privacy.over_silo_cap = "drop": then views that hold records have no guarantee'
        raise UserError("mismatch", "privacy.max_silos_per_subject", problem, fix)


def _hold_out(raw: Raw, keys: np.ndarray, options: DataOptions, seed: int, wanted: bool) -> tuple[str, np.ndarray]:
    """How the held-out rows were chosen, and their mask ``[rows]``."""
    if not wanted:
        return "file", np.zeros(len(raw.labels), bool)
    if raw.test is not None:
        if "test_fraction" in options.model_fields_set and not raw.test_is_drawn:
            problem = f"source '{options.source}' comes with its own held-out records"
            raise UserError("no-effect", "data.test_fraction", problem, "leave it out")
        return "given", raw.test
    return "records" if raw.subject is None else "subjects", held_out(keys, options.test_fraction, seed)


def _subjects(
    raw: Raw, keys: np.ndarray, options: DataOptions, train: np.ndarray, test: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Whose the training and the held-out rows are, by key: the data's own people, assigned ones (whose keys are their
    numbers), or every row its own.

    Assigned people have training rows only; held-out rows are then people of their own.
    """
    if options.labels_per_subject is not None and not options.subjects.assign:
        problem = "it applies to assigned subjects only"
        raise UserError("no-effect", "data.labels_per_subject", problem, "set data.subjects.assign or leave it out")
    if raw.subject is not None or not options.subjects.assign:
        return keys[train], keys[test]
    labels = raw.labels[train]
    if options.labels_per_subject is not None and labels.dtype.kind != "i":
        problem = f"a {raw.kind.kind} task has no classes"
        raise UserError("not-supported", "data.labels_per_subject", problem, "leave it out")
    subject = assignment.assign_subjects(
        options.subjects,
        labels,
        keys[train],
        seed,
        labels_per_subject=options.labels_per_subject,
        silo=None if raw.silo is None else raw.silo[train],
    )
    return subject.astype(np.int64), mixed(keys[test].astype(np.uint64)).view(np.int64)


def _silos(
    raw: Raw,
    options: DataOptions,
    train: np.ndarray,
    test: np.ndarray,
    subject: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Where the training and the held-out rows live, and the silos' names."""
    if raw.silo is not None:
        return raw.silo[train], raw.silo[test], raw.silo_names
    count = options.silos.count
    if not options.silos.assign or count is None:
        fix = 'name a column (silos = { column = "..." }) or assign (silos = { assign = "uniform", count = 5 })'
        raise UserError("missing", "data.silos", "the data do not say where a row lives", fix)
    names = tuple(f"silo {k + 1}" for k in range(count))
    keys = record_keys(raw)
    if options.silos.by_label:
        labels = raw.labels[train]
        silo = assignment.assign_silos_by_label(options.silos, labels, seed)
        return silo, assignment.follow(raw.labels[test], labels, silo, keys[test], seed), names
    silo = assignment.assign_silos(options.silos, subject, keys[train], seed)
    return silo, assignment.spread(keys[test], count, seed), names


def _check_silos(silo: np.ndarray, names: tuple[str, ...], options: DataOptions) -> None:
    promised = options.silos.count
    if promised is not None and promised != len(names):
        problem = f"{promised} silos are promised and the data have {len(names)}"
        raise UserError("mismatch", "data.silos.count", problem, f"set it to {len(names)} or choose another column")
    if len(names) < 2:
        problem = f"there is only 1 silo ('{names[0]}')"
        raise UserError("too-few", "data.silos", problem, "a federation needs at least two")
    records = np.bincount(silo, minlength=len(names))
    if (records == 0).any():
        fix = "drop its rows, merge it with another silo, or lower data.silos.count or data.test_fraction"
        raise UserError("empty", "data.silos", f"silo '{names[int(np.argmin(records))]}' has no training record", fix)


def _check_subjects(subject: np.ndarray, options: DataOptions) -> None:
    """Refuse data with more training subjects than are promised."""
    promised, found = options.subjects.count, len(np.unique(subject))
    if promised is not None and found > promised:
        problem = f"{promised} subjects are promised and {found} have training records"
        raise UserError("mismatch", "data.subjects.count", problem, f"set it to at least {found}")
