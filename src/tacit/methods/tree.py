"""Frozen dataclasses that are trees of arrays to JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def part(kind: type[T]) -> type[T]:
    """A frozen dataclass that is a tree to JAX: counts, words, switches and None are structure, the rest are leaves."""
    made = dataclass(frozen=True, kw_only=True)(kind)
    jax.tree_util.register_pytree_node(made, _numbers, partial(_with_numbers, made))
    return made


def _numbers(one: Any) -> tuple[list[Any], tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]]:
    values = {field.name: getattr(one, field.name) for field in fields(one)}
    structure = tuple((name, value) for name, value in values.items() if value is None or isinstance(value, int | str))
    names = tuple(name for name in values if name not in dict(structure))
    return [values[name] for name in names], (names, structure)


def _with_numbers(
    kind: type[Any], structure: tuple[tuple[str, ...], tuple[tuple[str, Any], ...]], numbers: Sequence[Any]
) -> Any:
    """A part with other numbers, which may be traced: nothing is checked."""
    names, others = structure
    made = object.__new__(kind)
    for name, value in (*zip(names, numbers, strict=True), *others):
        object.__setattr__(made, name, value)
    return made
