"""Assigned subjects and silos, for studies on data that have none.

Records per person (``subjects.assign``) and a person's spread over silos (``silos.assign``) are two draws. A record's
lot comes from what the record says (its key), a person's order of silos from the person's key: they do not
depend on other people. The draws that look at all labels, or at the sizes of fixed silos, depend on all records;
guarantees then say that data are assigned once.

``uniform``  every record to every person, or silo, with equal probability.
``zipf``     person k with probability proportional to k^-alpha; within a person, the silo that is r-th in that
             person's own random order with probability proportional to r^-alpha (ULDP-FL, section 5.1).
             Where silos are fixed, 80 % of a person's records lie in one silo and the rest in the others.
``power``    x in [0, 1] with density alpha x^(alpha - 1), cut into equal slots: persons, or the silos in that person's
             own random order (subject-level paper, section 4.2; alpha = 1 is uniform).

Silos can also differ by their labels, independently of subjects; held-out rows then follow the training rows:

``labels``     silos of about equal size with at most ``labels`` different labels each.
``dirichlet``  silos of about equal size, the shares of labels in each drawn from a Dirichlet law with parameter alpha:
               all alike as alpha grows, one label each as it goes to 0 (Hsu, Qi, Brown 2019).
"""

from __future__ import annotations

import numpy as np

from tacit.data.options import SiloOptions, SubjectOptions
from tacit.data.sources import lots, mixed
from tacit.errors import UserError

HOME_SHARE = 0.8  # ULDP-FL, section 5.1: the share of a person's records in one silo where silos are fixed


def assign_subjects(
    spec: SubjectOptions,
    labels: np.ndarray,
    keys: np.ndarray,
    seed: int,
    *,
    labels_per_subject: int | None = None,
    silo: np.ndarray | None = None,
) -> np.ndarray:
    """A person 0 .. count-1 for every record; ``labels``, ``keys`` and fixed ``silo`` are ``[records]``."""
    count = _count(spec)
    if labels_per_subject is not None and silo is not None and spec.assign == "zipf":
        problem = "it cannot be joined with zipf subjects where silos are fixed"
        fix = 'use subjects.assign = "uniform" or "power", or assign the silos'
        raise UserError("conflict", "data.labels_per_subject", problem, fix)
    subject = _slots(spec.assign, spec.alpha, count, lots(keys, seed, "subjects"))
    rng = _generator(seed, "subjects")
    if labels_per_subject is not None:
        return _with_few_labels(np.bincount(subject, minlength=count), labels, labels_per_subject, rng)
    if spec.assign == "zipf" and silo is not None:
        return _mostly_at_home(np.bincount(subject, minlength=count), silo, rng)
    return subject.astype(np.int32)


def assign_silos(spec: SiloOptions, subject: np.ndarray, keys: np.ndarray, seed: int) -> np.ndarray:
    """A silo 0 .. count-1 for every record ``[records]``, given the record's key and that of its person."""
    count = _count(spec)
    place = _slots(spec.assign, spec.alpha, count, lots(keys, seed, "silos"))
    if spec.assign == "uniform":
        return place.astype(np.int32)
    people, who = np.unique(subject, return_inverse=True)
    seats = mixed(people.astype(np.uint64))[:, None] ^ np.arange(count, dtype=np.uint64)
    order = np.argsort(lots(seats, seed, "order"), axis=1)  # each person's own order of silos
    silo: np.ndarray = order[who, place].astype(np.int32)
    return silo


def assign_silos_by_label(spec: SiloOptions, labels: np.ndarray, seed: int) -> np.ndarray:
    """A silo 0 .. count-1 for every record ``[records]``, given all labels."""
    rng = _generator(seed, "silos")
    count = _count(spec)
    if labels.dtype.kind != "i":
        problem = f"'{spec.assign}' is for classes as labels"
        raise UserError("not-supported", "data.silos.assign", problem, "use another assignment")
    if spec.assign == "dirichlet":
        return _with_drawn_shares(count, spec.alpha, labels, rng)
    if count * spec.labels < len(np.unique(labels)):
        problem = f"{count} silos with {spec.labels} labels each cannot hold {len(np.unique(labels))} labels"
        raise UserError("too-few", "data.silos.labels", problem, "raise it, or data.silos.count")
    return _with_few_labels(np.full(count, len(labels) / count), labels, spec.labels, rng)


def follow(labels: np.ndarray, train_labels: np.ndarray, silo: np.ndarray, keys: np.ndarray, seed: int) -> np.ndarray:
    """Held-out rows ``[rows]`` over silos as the training rows of the same label are, by lot."""
    silos, classes = int(silo.max()) + 1, int(max(labels.max(), train_labels.max())) + 1
    counts = np.bincount(train_labels * silos + silo, minlength=classes * silos).reshape(classes, silos)
    # a label without training records goes anywhere
    shares = np.where(counts.sum(axis=1, keepdims=True) > 0, counts, 1).cumsum(axis=1)
    draw = lots(keys, seed, "held-out") * shares[labels, -1]
    return (draw[:, None] >= shares[labels]).sum(axis=1).astype(np.int32)


def spread(keys: np.ndarray, silos: int, seed: int) -> np.ndarray:
    """Held-out rows ``[rows]`` over assigned silos, evenly by lot: they serve metrics only."""
    return _slots("uniform", 1.0, silos, lots(keys, seed, "held-out")).astype(np.int32)


def _generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed % 2**64, {"subjects": 2, "silos": 3}[purpose]])  # negative seeds are seeds too


def _slots(assign: str | None, alpha: float, count: int, uniform: np.ndarray) -> np.ndarray:
    """Places 0 .. count-1 by the named law, by inverting its distribution function at ``uniform`` lots."""
    if assign == "zipf":
        weights = np.arange(1, count + 1, dtype=np.float64) ** -alpha
        cumulated = np.cumsum(weights) / weights.sum()
        slots = np.searchsorted(cumulated, uniform, side="right")
    elif assign == "power":
        slots = np.floor(count * uniform ** (1 / alpha)).astype(np.int64)
    else:
        slots = np.floor(count * uniform).astype(np.int64)
    return np.minimum(slots, count - 1)  # rounding may reach the upper end


def _mostly_at_home(counts: np.ndarray, silo: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Persons with ``counts`` records, 80 % of them in the person's home silo, within the silos' fixed sizes.

    Homes are drawn in proportion to silo sizes: with equal chances a small silo would be asked for more than it holds.
    What a full silo cannot take goes to silos with room, by lot.
    """
    sizes = np.bincount(silo)
    silos = len(sizes)
    owner = np.repeat(np.arange(len(counts)), counts)
    home = rng.choice(silos, size=len(counts), p=sizes / sizes.sum())[owner]
    at_home = rng.random(len(owner)) < HOME_SHARE
    away = (home + rng.integers(1, max(silos, 2), size=len(owner))) % silos
    wanted = np.where(at_home, home, away)
    # homes first, then by lot: the first sizes[s] that want silo s get it
    order = np.lexsort((rng.random(len(owner)), ~at_home, wanted))
    rank = np.arange(len(owner)) - np.searchsorted(wanted[order], wanted[order])
    fits = rank < sizes[wanted[order]]
    room = sizes - np.bincount(wanted[order[fits]], minlength=silos)
    placed = wanted.copy()
    placed[order[~fits]] = rng.permutation(np.repeat(np.arange(silos), room))
    subject = np.empty(len(silo), np.int32)
    rows = np.lexsort((rng.random(len(silo)), silo))
    subject[rows] = owner[np.argsort(placed, kind="stable")]
    return subject


def _with_drawn_shares(silos: int, alpha: float, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A silo for every record: shares of labels from a Dirichlet law, fitted to the labels' and the silos' sizes by
    turns; what is left over after the last turn is in the silos' sizes."""
    classes, label_of = np.unique(labels, return_inverse=True)
    sizes = np.bincount(label_of)
    shares = np.maximum(rng.dirichlet(np.full(len(classes), alpha), silos), 1e-12)
    for _ in range(50):
        shares *= (len(labels) / silos) / shares.sum(axis=1, keepdims=True)
        shares *= sizes / shares.sum(axis=0)
    silo = np.empty(len(labels), np.int32)
    for k in range(len(classes)):
        rows = rng.permutation(np.flatnonzero(label_of == k))
        ends = np.cumsum(shares[:, k]) / shares[:, k].sum() * len(rows)
        silo[rows] = np.minimum(np.searchsorted(ends, np.arange(len(rows)) + 0.5), silos - 1)
    return silo


def _with_few_labels(counts: np.ndarray, labels: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Persons (or silos) with about ``counts`` records and at most ``most`` labels each (ULDP-FL's non-i.i.d. setting).

    Every person holds ``most`` shares of equal size; shares are shuffled and laid along the records sorted by label;
    each share belongs to the label under its middle and takes its part of that label's records.
    """
    classes, label_of = np.unique(labels, return_inverse=True)
    shares = np.repeat(np.arange(len(counts)), most)
    if len(shares) < len(classes):
        problem = f"{len(counts)} subjects with {most} labels each cannot hold {len(classes)} labels"
        fix = "raise data.subjects.count or labels_per_subject"
        raise UserError("too-few", "data.labels_per_subject", problem, fix)
    rng.shuffle(shares)
    sizes = np.maximum(counts[shares] / most, 1e-9)
    label_sizes = np.bincount(label_of)
    middle = (np.cumsum(sizes) - sizes / 2) * (label_sizes.sum() / sizes.sum())
    label_of_share = np.searchsorted(np.cumsum(label_sizes)[:-1], middle, side="right")
    _give_every_label_a_share(label_of_share, len(classes))
    subject = np.empty(len(labels), np.int32)
    for k in range(len(classes)):
        rows = rng.permutation(np.flatnonzero(label_of == k))
        mine = np.flatnonzero(label_of_share == k)
        cuts = np.cumsum(sizes[mine]) / sizes[mine].sum() * len(rows)
        position = np.searchsorted(cuts, np.arange(len(rows)) + 0.5)
        subject[rows] = shares[mine[np.minimum(position, len(mine) - 1)]]
    return subject


def _give_every_label_a_share(label_of_share: np.ndarray, labels: int) -> None:
    """Move shares from the label with most of them to labels under which no middle fell; in place."""
    for missing in np.setdiff1d(np.arange(labels), label_of_share):
        richest = np.bincount(label_of_share, minlength=labels).argmax()
        label_of_share[np.flatnonzero(label_of_share == richest)[-1]] = missing


def _count(spec: SubjectOptions | SiloOptions) -> int:
    assert spec.count is not None, "an assignment has a count"
    return spec.count
