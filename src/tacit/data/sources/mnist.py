"""MNIST: 60,000 + 10,000 handwritten digits, with the official held-out set.

Subjects and silos are assigned, or real: ``subjects = { column = "writer" }`` are the 539 people who wrote the training
digits (none of them wrote a held-out one), ``silos = { column = "hsf" }`` the two places where they wrote, a census
office and a school. Both need ``mnist_writers.npz``, the writer ids that QMNIST recovered.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tacit.data.options import DataOptions, Labels
from tacit.data.sources import Folder, Given, Raw, Source, SourceFacts, refuse_table_settings
from tacit.errors import UserError, nearest

ORIGIN = "MNIST as mnist.npz (x_train, y_train, x_test, y_test); writers from QMNIST as mnist_writers.npz"
FOLDER = Folder("mnist", ORIGIN)
LABELS = Labels("multiclass", tuple("0123456789"))
MEAN, SCALE = 0.1307, 0.3081  # of pixels / 255, as every description of MNIST quotes them
WRITERS = 539  # of training digits
TRAINING_IMAGES = 60_000  # each its own subject where none is named or assigned
PLACES = {0: "census office", 4: "high school"}


def facts(options: DataOptions) -> SourceFacts:
    writers = options.subjects.column == "writer"
    return SourceFacts(
        labels=LABELS,
        silo_count=options.silos.count or (len(PLACES) if options.silos.column == "hsf" else None),
        subject_count=options.subjects.count or (WRITERS if writers else TRAINING_IMAGES),
        origin=ORIGIN,
        feature_shape=(28, 28),
        own_test=True,
    )


def read(options: DataOptions, frame: Given, rng: np.random.Generator) -> Raw:
    refuse_table_settings(options, frame)
    with np.load(FOLDER.file(options, "mnist.npz")) as file:
        images = np.concatenate([file["x_train"], file["x_test"]])
        labels = np.concatenate([file["y_train"], file["y_test"]]).astype(np.int32)
        test = np.arange(len(labels)) >= len(file["y_train"])
    subject = _writer_column(options, options.subjects.column, "writer", "data.subjects.column")
    place = _writer_column(options, options.silos.column, "hsf", "data.silos.column")
    return Raw(
        LABELS,
        labels,
        lambda rows: scaled(images[rows]),
        None if subject is None else pd.factorize(subject)[0].astype(np.int32),
        None if place is None else np.searchsorted(sorted(PLACES), place).astype(np.int32),
        tuple(PLACES.values()) if place is not None else (),
        test,
    )


def scaled(images: np.ndarray) -> np.ndarray:
    """Bytes ``[n, 28, 28]`` as float32 with the public mean and deviation; in place after the first copy."""
    pixels = images.astype(np.float32)
    pixels /= np.float32(255 * SCALE)
    pixels -= np.float32(MEAN / SCALE)
    return pixels


def _writer_column(options: DataOptions, column: str | None, known: str, field: str) -> np.ndarray | None:
    """A column of the writers' file ``[70000]``, or None where it is not asked for."""
    if column is None:
        return None
    if column != known:
        raise UserError("unknown-name", field, f"mnist has no column '{column}'", nearest(column, [known]))
    with np.load(FOLDER.file(options, "mnist_writers.npz")) as file:
        return np.concatenate([file[f"{known}_train"], file[f"{known}_test"]])


SOURCE = Source("mnist", facts, read)
