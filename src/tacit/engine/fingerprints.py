"""Hashes of the records of a run."""

from __future__ import annotations

import hashlib
import hmac

from tacit.data import Federation
from tacit.kernels.stored import in_pieces


def fingerprint(federation: Federation) -> str:
    """A hash of the training records, by which a resumed run knows that they are the same."""
    digest = hashlib.blake2b(digest_size=16)
    train = federation.train
    for array in (train.features, train.labels, train.subject, train.silo):
        for piece in in_pieces(array):
            digest.update(piece.data)
    return digest.hexdigest()


def data_fingerprint(federation: Federation, key: bytes) -> str:
    """HMAC-SHA-256 of all records, held-out ones included: a plain hash would let readers of a public page test guesses
    of the data, and this one tells nothing to those who lack the key."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for records in (federation.train, federation.test):
        for array in (records.features, records.labels, records.subject, records.silo):
            digest.update(f"{array.dtype.str} {array.shape} ".encode())
            for piece in in_pieces(array):
                digest.update(piece.data)
    return digest.hexdigest()
