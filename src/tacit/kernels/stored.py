"""Features that are kept in a file instead of memory, for tables that are larger than memory.

The file is a private one of this process (mode 0600) in the folder of temporary files. It has no name from the start,
so that nothing is left of it however the process ends. Columns lie one after the other: a table is read by columns.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

# Rows that are worked on at a time where an array is larger than memory.
ROWS_AT_ONCE = 1 << 18

# makes room for features [rows, features], zeros at first
Room = Callable[[int, int], np.ndarray]


def in_memory(rows: int, width: int) -> np.ndarray:
    return np.zeros((rows, width), np.float32)


def on_disk(rows: int, width: int) -> np.ndarray:
    """``[rows, width]`` float32 in a file that ends with the process."""
    with tempfile.TemporaryFile(prefix="tacit-") as file:
        file.truncate(max(1, 4 * rows * width))
        return np.memmap(file, np.float32, "r+", shape=(rows, width), order="F")


def is_on_disk(features: Any) -> bool:
    return isinstance(features, np.memmap)


def forget(features: Any) -> None:
    """Give back the memory that pages of the file take; what they hold stays in the file."""
    if isinstance(features, np.memmap) and isinstance(features.base, mmap.mmap):
        features.base.madvise(mmap.MADV_DONTNEED)


def in_pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of an array, as many at a time as fit into memory."""
    for first in range(0, len(array), ROWS_AT_ONCE):
        yield np.ascontiguousarray(array[first : first + ROWS_AT_ONCE])
        forget(array)
