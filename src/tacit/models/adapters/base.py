"""What an adapter makes of a module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

# arguments by which modules are told whether they are trained, and the value for "not"
MODES = {"train": False, "training": False, "is_training": False, "deterministic": True}


class Adapted(NamedTuple):
    """A module as functions.

    params    its values now, by name
    init      ``key -> params``: of a module that the factory makes again, with a seed from the key
    call      ``(params, x) -> outputs`` in evaluation mode, without dropout
    module    ``params -> module``: the module of the framework with these values
    fixed     names of what is never trained: buffers, running statistics, parameters without a gradient
    training  as ``call``, in the mode in which the factory returned the module, without dropout; None where the
              framework has no modes
    dropping  ``(params, x, key) -> outputs`` with dropout, for one record ``x [1, ...]``; None where that is not
              possible
    """

    params: dict[str, Any]
    init: Callable[[jax.Array], dict[str, Any]]
    call: Callable[[Mapping[str, Any], Any], Any]
    module: Callable[[Mapping[str, Any]], Any]
    fixed: frozenset[str] = frozenset()
    training: Callable[[Mapping[str, Any], Any], Any] | None = None
    dropping: Callable[[Mapping[str, Any], Any, jax.Array], Any] | None = None


def modes(function: Any, *, training: bool) -> dict[str, bool]:
    """The arguments that put a call into a mode, of those that ``function`` has."""
    known = inspect.signature(function).parameters
    return {name: value != training for name, value in MODES.items() if name in known}
