"""Held-out people, and caps on the records of one person: rules on plain arrays of subjects and silos."""

from __future__ import annotations

import hashlib
import math
from typing import Literal

import numpy as np

from tacit.errors import UserError

# what is done with a subject who is in more silos than the cap allows
OverCap = Literal["drop", "refuse"]


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


def lots(keys: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """A pseudo-random number of [0, 1) for each key. It depends on key, seed and purpose only."""
    salt = np.frombuffer(hashlib.blake2b(f"{seed % 2**64} {purpose}".encode(), digest_size=8).digest(), np.uint64)
    return (mixed(mixed(keys.astype(np.uint64)) ^ salt) >> np.uint64(11)) * 2.0**-53


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Each of ``numbers`` (uint64) turned into one that looks random: the finaliser of SplitMix64 (Steele, Lea, Flood
    2014), a bijection."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: np.ndarray = z ^ (z >> np.uint64(31))
    return result


def hold_out_records(labels: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Mask ``[records]`` of a random ``fraction`` of the records; integer (class) labels keep their proportions.

    For making a data set, once: who is held out depends on who else is there.
    """
    wanted = _share(len(labels), fraction)
    lot = rng.permutation(len(labels))
    test = np.zeros(len(labels), bool)
    if labels.dtype.kind != "i":
        test[lot[:wanted]] = True
        return test
    ordered = lot[np.argsort(labels[lot], kind="stable")]
    sizes = np.bincount(labels)
    shares = _largest_remainder(sizes * (wanted / len(labels)), wanted)
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    test[ordered[rank < np.repeat(shares, sizes)]] = True
    return test


def within_caps(
    subject: np.ndarray, silo: np.ndarray, *, records: int | None = None, silos: int | None = None
) -> np.ndarray:
    """Mask ``[rows]`` of what is kept: per subject the ``silos`` fullest silos, in each the first ``records`` rows.

    Each subject's rows are judged by that subject's rows alone, so one person never changes what is kept of another.
    """
    kept = np.ones(len(subject), bool)
    if silos is not None:
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


def _share(count: int, fraction: float) -> int:
    if count < 2:
        raise UserError("too-few", "data.test_fraction", f"there is only {count} record", "give at least two records")
    return min(max(math.ceil(count * fraction - 1e-9), 1), count - 1)


def _largest_remainder(wanted: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers near ``wanted`` with the given ``total``."""
    floor: np.ndarray = np.floor(wanted).astype(np.int64)
    rest = total - int(floor.sum())
    floor[np.argsort(-(wanted - floor), kind="stable")[:rest]] += 1
    return floor
