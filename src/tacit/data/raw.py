"""What a source returns: labels, ids and a way to build features, before records are held out or assigned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tacit.data.encode import FeatureEncoder, Part
from tacit.data.records import Labels


class Features(Protocol):
    """Features that are built late: only for the rows that are kept, and already in their final order."""

    def build(self, train: Part, test: Part, silo_names: tuple[str, ...]) -> Built: ...


@dataclass(frozen=True)
class Built:
    """Features of the training and the held-out rows, ``[rows, ...]`` each, and how new rows would be encoded.

    ``unpaid``: the constants of these features are still to be paid for.
    """

    train: np.ndarray
    test: np.ndarray
    names: tuple[str, ...]
    encoder: FeatureEncoder | None = None
    unpaid: Unpaid | None = None


class Unpaid(Protocol):
    """Numeric columns whose constants have still to be released (``standardize = "paid"``).

    low, high  public bounds, one per column
    values     ``[training records, columns]`` as they are, NaN where missing: private
    built      the features under released constants
    taken      those of some of the training and the held-out records alone
    """

    @property
    def low(self) -> tuple[float, ...]: ...

    @property
    def high(self) -> tuple[float, ...]: ...

    def values(self) -> np.ndarray: ...

    def built(self, means: Sequence[float], scales: Sequence[float]) -> Built: ...

    def taken(self, train: np.ndarray, test: np.ndarray) -> Unpaid: ...


@dataclass(frozen=True)
class Raw:
    """All rows of a source as parallel arrays.

    labels        ``[rows]`` or ``[rows, 2]``, already checked and coded as ``kind`` says
    subject       ``[rows]`` person numbers, or None where every row would be its own person
    silo          ``[rows]`` numbers into ``silo_names``, or None
    test          ``[rows]`` mask of the source's own held-out rows, or None
    test_is_drawn whether the source drew that mask itself, by ``data.test_fraction``
    keys          gives ``[rows]`` keys of 64 bits, each made from its person's name alone, or, without names,
                  from what the row says; None: person numbers, or numbers of rows, are those of a public file
    record_keys   the same for single rows, made from what each says, whether a person is named or not
    """

    kind: Labels
    labels: np.ndarray
    features: Features
    subject: np.ndarray | None = None
    silo: np.ndarray | None = None
    silo_names: tuple[str, ...] = ()
    test: np.ndarray | None = None
    test_is_drawn: bool = False
    keys: Callable[[], np.ndarray] | None = None
    record_keys: Callable[[], np.ndarray] | None = None


def subject_keys(raw: Raw) -> np.ndarray:
    """The key of every row's person, ``[rows]`` int64; of every row, where there are no names."""
    if raw.keys is not None:
        keys: np.ndarray = raw.keys().view(np.int64)
        return keys
    return np.arange(len(raw.labels)) if raw.subject is None else raw.subject.astype(np.int64)


def record_keys(raw: Raw) -> np.ndarray:
    """The key of every row, ``[rows]`` int64."""
    if raw.record_keys is None:
        return np.arange(len(raw.labels))
    keys: np.ndarray = raw.record_keys().view(np.int64)
    return keys


@dataclass(frozen=True)
class GatheredFeatures:
    """Features that ``gather(rows)`` makes as ``[rows, ...]`` (images, windows of text): nothing to encode later."""

    gather: Callable[[np.ndarray], np.ndarray]
    names: tuple[str, ...] = ()

    def build(self, train: Part, test: Part, silo_names: tuple[str, ...]) -> Built:
        return Built(self.gather(np.asarray(train.rows)), self.gather(np.asarray(test.rows)), self.names)
