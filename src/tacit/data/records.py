"""Records, subjects, silos: the shape in which all data reaches the rest of Tacit.

Three parallel views of one set of arrays, never copies: ``Records`` (rows with their subject and silo), ``Silo`` (a
contiguous range of rows, grouped by subject) and ``Federation`` (training rows, held-out rows and the public facts
about them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tacit.data.encode import FeatureEncoder, Unpaid
from tacit.data.options import Labels


@dataclass(frozen=True)
class Records:
    """Rows with their owner and their home, as parallel arrays.

    features  ``[records, ...]`` float32 (int32 for text: character codes)
    labels    ``[records]`` int32 (classes) or float32 (real); ``[records, 2]`` float32 (time, event) for survival
    subject   ``[records]`` int64, the key of the person whose row it is: 64 bits of a hash of the identifier, which do
              not depend on who else is there. No number of a person, and no index
    silo      ``[records]`` int32, where it lives: 0 .. silos-1
    """

    features: np.ndarray
    labels: np.ndarray
    subject: np.ndarray
    silo: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: np.ndarray | slice) -> Records:
        """The rows at ``index`` (positions, a mask or a slice; a slice makes views)."""
        return Records(self.features[index], self.labels[index], self.subject[index], self.silo[index])

    def grouped(self) -> Records:
        """The same rows ordered by silo, then subject, then their original order."""
        order = np.lexsort((self.subject, self.silo))
        if np.array_equal(order, np.arange(len(order))):
            return self
        return self.take(order)


@dataclass(frozen=True)
class Silo:
    """One organisation's rows: ``start:stop`` of the federation's training arrays, grouped by subject.

    ``subjects[i]`` owns rows ``offsets[i]:offsets[i + 1]`` (absolute positions).
    """

    name: str
    start: int
    stop: int
    subjects: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Federation:
    """Everything an engine needs to know about the data of one run.

    ``train`` is grouped by silo and subject; ``subject_count`` subjects have training or held-out rows. ``labels`` says
    what kind of label the rows carry. ``held_out`` says how
    ``test`` was separated: whole ``subjects``, single ``records``, ``given`` by the source, or ``file``. Where columns
    are ``unpaid``, features are scaled by public bounds until :meth:`standardized` gets constants that were released.
    """

    train: Records
    test: Records
    labels: Labels
    silo_names: tuple[str, ...]
    subject_count: int
    feature_names: tuple[str, ...]
    held_out: str
    encoder: FeatureEncoder | None = field(default=None, repr=False)
    unpaid: Unpaid | None = field(default=None, repr=False)

    def standardized(self, means: Sequence[float], scales: Sequence[float]) -> Federation:
        """The same rows under released constants, one mean and one scale per numeric column."""
        assert self.unpaid is not None, "there is nothing to pay for"
        encoder, features = self.unpaid.encoded(means, scales)
        train, test = (replace(rows, features=x) for rows, x in zip((self.train, self.test), features, strict=True))
        return replace(self, train=train, test=test, encoder=encoder, unpaid=None)

    def among(self, names: Sequence[str], k: int) -> Federation:
        """The rows of one silo in its place ``k`` among others of whose rows it knows nothing."""
        train, test = (replace(rows, silo=np.full(len(rows), k, np.int32)) for rows in (self.train, self.test))
        return replace(self, train=train, test=test, silo_names=tuple(names))

    @property
    def silo_count(self) -> int:
        return len(self.silo_names)

    @cached_property
    def silos(self) -> tuple[Silo, ...]:
        """The silos as views of ``train``, in the order of ``silo_names``."""
        bounds = np.searchsorted(self.train.silo, np.arange(self.silo_count + 1))
        return tuple(self._silo(k, int(bounds[k]), int(bounds[k + 1])) for k in range(self.silo_count))

    def _silo(self, k: int, start: int, stop: int) -> Silo:
        subjects, first = np.unique(self.train.subject[start:stop], return_index=True)
        offsets = np.append(first + start, stop).astype(np.int64)
        return Silo(self.silo_names[k], start, stop, subjects, offsets)


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
    """Records of each class, in the order of the classes; the mean of numbers; the share of events for survival."""
    if kind.classes:
        return [int(count) for count in np.bincount(labels, minlength=len(kind.classes))]
    return float(labels[:, 1].mean() if kind.kind == "survival" else labels.mean())
