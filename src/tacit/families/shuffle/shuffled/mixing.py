"""What a shuffler decides: which messages of an over-full dimension go on, and how many are missing in the others."""

from __future__ import annotations

import numpy as np

from tacit.families.shuffle.shuffled.terms import Indices
from tacit.privacy.randomness import Stream


def places(index: Indices, dimensions: int, most: int, stream: Stream) -> Indices:
    """Which of the messages about ``index [messages]`` go on: all, or ``most`` of a dimension, uniformly chosen."""
    crowded = np.flatnonzero((np.bincount(index, minlength=dimensions) > most)[index])
    lot = crowded[np.lexsort((stream.words(crowded.size), index[crowded]))]
    dimension = index[lot]
    rank = np.arange(lot.size) - np.searchsorted(dimension, dimension)
    kept = np.ones(index.size, bool)
    kept[lot[rank >= most]] = False
    return np.flatnonzero(kept)


def missing(index: Indices, dimensions: int, padded: int) -> Indices:
    """How many messages every dimension lacks, ``[dimensions]``; those with more lack none."""
    return np.maximum(padded - np.bincount(index, minlength=dimensions), 0)


def dealt(lacking: Indices, width: int) -> Indices:
    """``lacking [dimensions]`` messages in lists of ``width``, none of which names a dimension twice: ``[lists,
    width]``. Where a list has room left it names the dimension after the last, which stands for none."""
    total = int(lacking.sum())
    lists = max(-(-total // width), int(lacking.max(initial=0)))
    filled = np.full((lists, width), lacking.size)
    order = np.arange(total)
    filled[order % max(lists, 1), order // max(lists, 1)] = np.repeat(np.arange(lacking.size), lacking)
    return filled
