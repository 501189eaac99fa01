"""Paillier keys for tests of everything but their strength: quick to make and to use, and accepted by tests alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

# Anyone could find the factors of so short a key. What is encrypted is the same, and so is the sum.
SHORT_KEY = 512


@contextmanager
def short_keys() -> Iterator[None]:
    """Inside, keys of SHORT_KEY bits are allowed."""
    with (
        patch("tacit.families.weighting.paillier.LEAST_BITS", SHORT_KEY),
        patch("tacit.families.weighting.exchange.LEAST_BITS", SHORT_KEY),
    ):
        yield


def shortened(exchange: str, **options: Any) -> dict[str, Any]:
    """``options`` of ``[exchange]``, with a short key where the exchange has one."""
    return options | ({"protocol": "paillier", "key_bits": SHORT_KEY} if exchange == "weighted" else {})
