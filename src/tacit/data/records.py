"""Records, subjects, silos: the shape in which all data reaches the rest of Tacit.

Three parallel views of one set of arrays, never copies: ``Records`` (rows with their subject and silo), ``Silo`` (a
contiguous range of rows, grouped by subject) and ``Federation`` (training rows, held-out rows and the public facts
about them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tacit.data.encode import FeatureEncoder
    from tacit.data.raw import Unpaid


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
        built = self.unpaid.built(means, scales)
        return replace(
            self,
            train=replace(self.train, features=built.train),
            test=replace(self.test, features=built.test),
            encoder=built.encoder,
            unpaid=None,
        )

    def alone(self, k: int) -> Federation:
        """What silo ``k`` holds by itself: its training and held-out rows, as the only silo."""
        here = [rows.silo == k for rows in (self.train, self.test)]
        train, test = (
            replace(rows.take(mine), silo=np.zeros(int(mine.sum()), np.int32))
            for rows, mine in zip((self.train, self.test), here, strict=True)
        )
        unpaid = None if self.unpaid is None else self.unpaid.taken(*here)
        return replace(self, train=train, test=test, silo_names=(self.silo_names[k],), unpaid=unpaid)

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


@dataclass(frozen=True)
class Labels:
    """What a label is: ``kind`` is binary, multiclass, real or survival; ``classes`` are the public class names."""

    kind: str
    classes: tuple[str, ...] = ()

    KINDS = ("binary", "multiclass", "real", "survival")
