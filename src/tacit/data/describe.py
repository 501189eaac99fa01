"""Exact description of the data: for the data holder only, never for publication."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.data.records import Federation, Labels


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
