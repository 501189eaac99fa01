"""Clipping: the bound on one unit's influence that all noise is measured against."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def clipped(vector: jax.Array, bound: float | jax.Array) -> jax.Array:
    """``vector [numbers]`` scaled down to an l2 norm of at most ``bound``; zero where it is not finite.

    A unit whose local training blew up contributes nothing, so that the sensitivity holds for every data set. The
    largest entry is divided out before squaring, for good: norms beyond the square root of float32's range are clipped,
    not lost. At most 1e36 is divided out: a compiler may multiply by the inverse, and those of larger numbers are
    flushed to zero, which would leave a huge vector as it is.
    """
    finite = jnp.isfinite(vector).all()
    safe = jnp.where(finite, vector, 0.0)
    largest = jnp.clip(jnp.abs(safe).max(initial=0.0), 1e-30, 1e36)
    unit = safe / largest
    norm = jnp.sqrt(jnp.square(unit).sum())
    # half a part per million below the bound: rounding may not lift a clipped vector above it
    return jnp.where(largest * norm > bound, unit * ((1 - 5e-7) * bound / norm), safe)
