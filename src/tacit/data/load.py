"""From options to a :class:`Federation`, and exact counts of one.

Read, hold out, assign, cap, order, and only then build features: what decides *which* rows are used and in what order
works on small integer arrays; features are built last, once, straight into their final place. All chance comes from one
seed and a purpose, so that (say) another number of silos does not change who is held out, and from the key of each
record or person, so that other people do not either.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacit.data import assignment
from tacit.data.encode import Federation, Part, Records
from tacit.data.options import DataOptions, Labels
from tacit.data.sources import SILOS, Raw, find_source, mixed, record_keys, subject_keys
from tacit.data.table import match_names
from tacit.errors import UserError, nearest
from tacit.kernels.stored import Room, in_memory

if TYPE_CHECKING:
    import pandas as pd


# what is done with a subject who is in more silos than the cap allows
OverCap = Literal["drop", "refuse"]


def load(
    options: DataOptions,
    *,
    frame: pd.DataFrame | None = None,
    seed: int = 0,
    hold_out: bool = True,
    max_records_per_subject_and_silo: int | None = None,
    max_silos_per_subject: int | None = None,
    over_silo_cap: OverCap = "drop",
    room: Room = in_memory,
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
    del keys, is_test  # of a large table, nothing stays in memory that is not needed any more
    silo, test_silo, silo_names = _silos(raw, options, train, test, subject, seed)

    if over_silo_cap == "refuse":
        check_silo_cap(np.append(subject, test_subject), np.append(silo, test_silo), max_silos_per_subject)
    kept = within_caps(subject, silo, records=max_records_per_subject_and_silo, silos=max_silos_per_subject)
    if not kept.all():
        train, subject, silo = train[kept], subject[kept], silo[kept]
    _check_silos(silo, silo_names, options)
    order = np.lexsort((subject, silo))
    train = train[order]
    subject = subject[order]
    silo = silo[order]
    del kept, order
    _check_subjects(subject, options)

    count = len(np.union1d(subject, test_subject))
    parts = Part(train, silo, subject), Part(test, test_silo, test_subject)
    return raw.federation(*parts, silo_names, how, count, room)


def check_silo_cap(subject: np.ndarray, silo: np.ndarray, most: int | None) -> None:
    """Refuse data that break the promise about a subject's silos, held-out rows included: their metrics count, too."""
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
    if count == 1:
        return np.zeros(len(train), np.int32), np.zeros(len(test), np.int32), ("silo 1",)
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
    if len(names) < 2 and promised is None:
        problem = f"there is only 1 silo ('{names[0]}')"
        fix = "a federation needs at least two; for one data holder, set data.silos.count = 1"
        raise UserError("too-few", "data.silos", problem, fix)
    records = np.bincount(silo, minlength=len(names))
    if (records == 0).any():
        fix = "drop its rows, merge it with another silo, or lower data.silos.count or data.test_fraction"
        empty = [names[k] for k in np.flatnonzero(records == 0)]
        listed = ", ".join(f"'{name}'" for name in empty[:5]) + (", …" if len(empty) > 5 else "")
        raise UserError("empty", "data.silos", f"{len(empty)} silos have no training record ({listed})", fix)


def _check_subjects(subject: np.ndarray, options: DataOptions) -> None:
    """Refuse data with more training subjects than are promised."""
    promised, found = options.subjects.count, len(np.unique(subject))
    if promised is not None and found > promised:
        problem = f"{promised} subjects are promised and {found} have training records"
        raise UserError("mismatch", "data.subjects.count", problem, f"set it to at least {found}")


# --- hold-out and caps: rules on plain arrays of subjects and silos ---


def held_out(keys: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Mask ``[rows]`` of about a ``fraction`` of the rows, by lot (:func:`drawn`); refused where it is all of them, or
    none."""
    chosen = drawn(keys, fraction, seed)
    if chosen.all() or not chosen.any():
        problem = f"{fraction:g} leaves {'no row to train on' if chosen.all() else 'no row to test on'}, by lot"
        raise UserError("empty", "data.test_fraction", problem, "change it, or data.seed")
    return chosen


def drawn(keys: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Mask ``[rows]`` of about a ``fraction`` of the rows, by lot: each row's ``key`` and the seed decide alone.

    So one person does not change whether others are held out, and what is proved about training holds for adding and
    removing people, too. Rows of one person have one key. How many are held out is itself random.
    """
    lots = mixed(mixed(keys.astype(np.uint64)) ^ mixed(np.array([seed % 2**64], np.uint64)))
    chosen: np.ndarray = lots < np.uint64(min(fraction, 1 - 2**-53) * 2.0**64)
    return chosen


def within_caps(
    subject: np.ndarray, silo: np.ndarray, *, records: int | None = None, silos: int | None = None
) -> np.ndarray:
    """Mask ``[rows]`` of what is kept: per subject the ``silos`` fullest silos, in each the first ``records`` rows.

    Each subject's rows are judged by that subject's rows alone, so one person never changes what is kept of another.
    """
    kept = np.ones(len(subject), bool)
    if silos is not None and silo.max(initial=0) >= silos:
        kept &= _in_fullest_silos(subject, silo, silos)
    if records is not None:
        order = np.lexsort((subject, silo))
        group = np.stack([subject[order], silo[order]])
        starts = np.flatnonzero(np.r_[True, (group[:, 1:] != group[:, :-1]).any(axis=0)])
        sizes = np.diff(np.append(starts, len(order)))
        rank = np.arange(len(order)) - np.repeat(starts, sizes)
        kept[order[rank >= records]] = False
    return kept


def _in_fullest_silos(subject: np.ndarray, silo: np.ndarray, most: int) -> np.ndarray:
    silos = int(silo.max(initial=0)) + 1
    who = np.unique(subject, return_inverse=True)[1].astype(np.int64)
    pairs, pair_of, sizes = np.unique(who * silos + silo, return_inverse=True, return_counts=True)
    owner = pairs // silos
    order = np.lexsort((pairs, -sizes, owner))  # ties go to the lower silo number
    rank = np.arange(len(pairs)) - np.searchsorted(owner[order], owner[order])
    allowed = np.zeros(len(pairs), bool)
    allowed[order[rank < most]] = True
    kept: np.ndarray = allowed[pair_of]
    return kept


# --- held-out records from a file of their own: ``[evaluation] data = "path"`` ---


def load_evaluation(path: Path, options: DataOptions, federation: Federation) -> Records:
    """The rows of a table with the columns of the training table, encoded as the training rows were."""
    if options.source not in ("table", "randhie") or federation.encoder is None:
        problem = f"source '{options.source}' brings its own"
        raise UserError("conflict", "evaluation.data", problem, 'use data = "held-out"')
    try:
        return _evaluation_rows(path, options, federation)
    except UserError as error:  # settings of [data] are right where the training table could be read by them
        problem = error.problem if path.name in error.problem else f"'{path.name}': {error.problem}"
        raise UserError(error.code, "evaluation.data", problem, error.fix) from None


def _evaluation_rows(path: Path, options: DataOptions, federation: Federation) -> Records:
    assert federation.encoder is not None
    raw = find_source(options.source).read(
        options.model_copy(update={"path": str(path)}), None, np.random.default_rng(0)
    )
    assert isinstance(raw.features, tuple)
    if raw.silo is None:
        silo = assignment.spread(
            record_keys(raw), len(federation.silo_names), options.seed or 0
        )  # as held-out rows are
    else:
        names = np.array(raw.silo_names, dtype=object)[raw.silo]
        silo, unknown = match_names(names, federation.silo_names)
        if unknown is not None:
            problem = f"silo '{unknown}' has no training data"
            raise UserError("undeclared-value", SILOS, problem, nearest(unknown, federation.silo_names))
    features = federation.encoder.encode_parts(raw.features[0], [Part(slice(None), silo)])[0]
    return Records(features, raw.labels, subject_keys(raw), silo)


# --- exact counts, for the data holder ---


def describe(federation: Federation) -> dict[str, Any]:
    """Counts and pictures of a federation as plain values for JSON. Exact, therefore private."""
    train, test, silos = federation.train, federation.test, federation.silo_count
    people, who = np.unique(train.subject, return_inverse=True)
    pairs = np.unique(who.astype(np.int64) * silos + train.silo)
    owner, place = pairs // silos, pairs % silos
    test_records = np.bincount(test.silo, minlength=silos)
    return {
        "records": len(train),
        "test_records": len(test),
        "subjects": len(people),
        "held_out": federation.held_out,
        "classes": list(federation.labels.classes),
        "silos": [
            {
                "name": silo.name,
                "records": len(silo),
                "subjects": len(silo.subjects),
                "test_records": int(test_records[k]),
                "label": _label_summary(train.labels[silo.start : silo.stop], federation.labels),
            }
            for k, silo in enumerate(federation.silos)
        ],
        "records_per_subject": _histogram(np.unique(train.subject, return_counts=True)[1], "records"),
        "silos_per_subject": _histogram(np.unique(owner, return_counts=True)[1], "silos"),
        "overlap": _overlap(owner, place, silos),
    }


def _histogram(sizes: np.ndarray, name: str) -> dict[str, list[int]]:
    """How many subjects have each size that occurs."""
    values, subjects = np.unique(sizes, return_counts=True)
    return {name: values.tolist(), "subjects": subjects.tolist()}


def _overlap(owner: np.ndarray, place: np.ndarray, silos: int) -> list[list[int]]:
    """Subjects with training records in both silos ``[silos, silos]``, from distinct (owner, place) pairs."""
    people, who = np.unique(owner, return_inverse=True)
    present = np.zeros((len(people), silos), np.int32)
    present[who, place] = 1
    counts: list[list[int]] = (present.T @ present).tolist()
    return counts


def _label_summary(labels: np.ndarray, kind: Labels) -> float | list[int]:
    """Records of each class, in the order of the classes; of multilabel, records with each label; the mean of numbers;
    the share of events for survival."""
    if kind.kind == "multilabel":
        return [int(count) for count in labels.sum(axis=0)]
    if kind.classes:
        return [int(count) for count in np.bincount(labels, minlength=len(kind.classes))]
    return float(labels[:, 1].mean() if kind.kind == "survival" else labels.mean())
