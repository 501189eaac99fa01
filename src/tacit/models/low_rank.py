"""Low-rank training: a matrix W becomes W + B A, and only the thin factors A and B are trained.

``B`` starts at 0, so that the model starts where W stands (Hu et al. 2022). W + B A is not multiplied out where W is a
factor of a product or the kernel of a convolution: ``x (W + B A)`` is ``x W + (x B) A``. So neither a weight nor its
gradient of the size of W exists for each person who is worked on.

An array of more than two axes, such as the kernel of a convolution, is a matrix with its axes in two groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from string import ascii_lowercase
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from tacit.errors import UserError, nearest
from tacit.models.model import Model, Params, shapes

FACTORS = "low_rank:"  # before the path of the array, in the name of its factors
_CALLS = ("jit", "pjit", "closed_call", "core_call")


def with_low_rank(model: Model, patterns: Sequence[str], rank: int) -> Model:
    """``model`` with the layers ``low_rank:<path>`` of factors ``{"a", "b"}``, for each array of two or more axes whose
    path or layer fits one of ``patterns``."""
    places = _places(model, patterns, rank)

    def init(key: jax.Array) -> Params:
        params = dict(model.init(key))
        for i, (path, (rows, columns)) in enumerate(places.items()):
            a = jax.random.normal(jax.random.fold_in(key, i), (rank, columns), jnp.float32) / math.sqrt(columns)
            params[FACTORS + path] = {"a": a, "b": jnp.zeros((rows, rank), jnp.float32)}
        return params

    def apply(params: Params, x: jax.Array) -> jax.Array:
        return _factored_call(model.apply, params, x)

    module = model.module
    return replace(
        model,
        init=init,
        apply=apply,
        training=None,
        module=None if module is None else lambda params: module(merged(params)),
    )


def merged(params: Params) -> Params:
    """The parameters of the model itself: factors multiplied out, and left out."""
    leaves = {path: leaf for path, leaf in _arrays(params) if not path.startswith(FACTORS)}
    for name, factors in params.items():
        if name.startswith(FACTORS):
            path = name.removeprefix(FACTORS)
            leaves[path] = leaves[path] + (factors["b"] @ factors["a"]).reshape(leaves[path].shape)
    own = _without_factors(params)
    return jax.tree.unflatten(jax.tree.structure(own), [leaves[path] for path, _ in _arrays(own)])


def is_factor(name: str) -> bool:
    """Whether a layer holds the factors of another."""
    return name.startswith(FACTORS)


def _without_factors(params: Params) -> Params:
    return {name: layer for name, layer in params.items() if not is_factor(name)}


def _arrays(params: Params) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def _places(model: Model, patterns: Sequence[str], rank: int) -> dict[str, tuple[int, int]]:
    """Which arrays get factors, and their rows and columns."""
    layers = {name: layer for name, layer in shapes(model).items() if name not in model.fixed}
    matrices = {
        path: leaf.shape
        for name, layer in layers.items()
        for path, leaf in _arrays({name: layer})
        if len(leaf.shape) >= 2 and min(_sides(leaf.shape)) > 1 and leaf.dtype == jnp.float32
    }
    tops = {path: next(name for name in layers if path == name or path.startswith(f"{name}/")) for path in matrices}

    def fits(path: str, pattern: str) -> bool:
        return fnmatchcase(path, pattern) or fnmatchcase(tops[path], pattern)

    for pattern in patterns:
        if not any(fits(path, pattern) for path in matrices):
            problem = f"'{pattern}' is no layer with a matrix"
            raise UserError("unknown-name", "model.low_rank.layers", problem, nearest(pattern, list(matrices)))
    found = {path: _sides(shape) for path, shape in matrices.items() if any(fits(path, one) for one in patterns)}
    for path, (rows, columns) in found.items():
        if rank >= min(rows, columns):
            problem = f"{rank} is not below the rank of '{path}' ({rows} x {columns})"
            fix = "use a smaller rank, or leave it out of layers and name it in model.train"
            raise UserError("out-of-range", "model.low_rank.rank", problem, fix)
    return found


def _split(shape: Sequence[int]) -> int:
    """How many of the first axes are the rows: as many as make the factors smallest."""
    return min(range(1, len(shape)), key=lambda k: math.prod(shape[:k]) + math.prod(shape[k:]))


def _sides(shape: Sequence[int]) -> tuple[int, int]:
    k = _split(shape)
    return math.prod(shape[:k]), math.prod(shape[k:])


# --- a call in which W + B A is not multiplied out ---


@dataclass(frozen=True)
class _Factored:
    """``weight + sum_r left[..., r] right[r, ...]``: ``rows`` and ``columns`` are the axes of ``weight`` that the axes
    of the factors stand for, in their order."""

    weight: Any
    left: Any
    right: Any
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @classmethod
    def of(cls, weight: Any, factors: Params) -> _Factored:
        k, axes = _split(weight.shape), tuple(range(weight.ndim))
        left, right = factors["b"].reshape(*weight.shape[:k], -1), factors["a"].reshape(-1, *weight.shape[k:])
        return cls(weight, left, right, axes[:k], axes[k:])

    def whole(self) -> Any:
        form = ",".join(self._letters()) + "->" + ascii_lowercase[: self.weight.ndim]
        return self.weight + jnp.einsum(form, *self.parts)

    @property
    def parts(self) -> tuple[Any, Any]:
        return self.left, self.right

    def _letters(self) -> tuple[str, str]:
        """The axes of the factors as letters, ``z`` that of the rank."""
        rows, columns = ("".join(ascii_lowercase[axis] for axis in axes) for axes in (self.rows, self.columns))
        return f"{rows}z", f"z{columns}"

    def transposed(self, order: Sequence[int]) -> _Factored:
        rows, columns = (tuple(list(order).index(axis) for axis in axes) for axes in (self.rows, self.columns))
        return replace(self, weight=jnp.transpose(self.weight, order), rows=rows, columns=columns)

    def reshaped(self, shape: Sequence[int]) -> _Factored | None:
        """None where the axes of the factors would mix."""
        axes = tuple(range(self.weight.ndim))
        if self.rows + self.columns != axes:
            return None
        before = math.prod(self.left.shape[:-1])
        k = next((k for k in range(1, len(shape)) if math.prod(shape[:k]) == before), None)
        if k is None:
            return None
        new = tuple(range(len(shape)))
        left, right = self.left.reshape(*shape[:k], -1), self.right.reshape(-1, *shape[k:])
        return _Factored(self.weight.reshape(shape), left, right, new[:k], new[k:])

    def product(self, other: Any, equation: JaxprEqn, first: bool) -> Any | None:
        """``dot_general`` with ``other``; ``first``: this is its first operand. None where the form is another."""
        contracted, batched = equation.params["dimension_numbers"]
        mine, theirs = contracted if first else contracted[::-1]
        on_left = set(mine) <= set(self.rows)
        if any(batched) or not mine or not (on_left or set(mine) <= set(self.columns)):
            return None
        own = ascii_lowercase[: self.weight.ndim]
        others = [ascii_lowercase[self.weight.ndim + axis] for axis in range(other.ndim)]
        for axis, its in zip(mine, theirs, strict=True):
            others[its] = own[axis]
        free = "".join(letter for letter in others if letter not in own)
        kept = "".join(letter for axis, letter in enumerate(own) if axis not in mine)
        near, far = self.parts if on_left else self.parts[::-1]
        names = self._letters() if on_left else self._letters()[::-1]
        thin = "".join(letter for letter in names[0] if letter in kept + "z")
        precision = equation.params["precision"]
        half = jnp.einsum(f"{''.join(others)},{names[0]}->{free}{thin}", other, near, precision=precision)
        out = kept + free if first else free + kept
        change = jnp.einsum(f"{free}{thin},{names[1]}->{out}", half, far, precision=precision)
        given = (self.weight, other) if first else (other, self.weight)
        return _bound(equation, given)[0] + change

    def convolution(self, x: Any, equation: JaxprEqn) -> Any | None:
        """``conv_general_dilated`` of ``x``; None where the form is another."""
        form, params = equation.params["dimension_numbers"], equation.params
        out = form.rhs_spec[0]
        if params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
            return None
        if self.rows == (out,):
            mixing, thin = self.left, jnp.moveaxis(self.right, 0, -1)
            axes = (*self.columns, out)
        elif self.columns == (out,):
            mixing, thin, axes = self.right.T, self.left, (*self.rows, out)
        else:
            return None
        kernel = jnp.transpose(thin, [axes.index(axis) for axis in range(len(axes))])
        half = _bound(equation, (x, kernel))[0]
        channels = form.out_spec[1]
        change = jnp.moveaxis(jnp.tensordot(half, mixing, axes=((channels,), (1,))), -1, channels)
        return _bound(equation, (x, self.weight))[0] + change


def _factored_call(apply: Callable[[Params, jax.Array], jax.Array], params: Params, x: jax.Array) -> jax.Array:
    own = _without_factors(params)
    traced = jax.make_jaxpr(apply)(own, x)
    values = [
        _Factored.of(leaf, params[FACTORS + path]) if FACTORS + path in params else leaf for path, leaf in _arrays(own)
    ]
    (found,) = _evaluated(traced.jaxpr, traced.consts, [*values, x])
    return _plain(found)


def _evaluated(jaxpr: Jaxpr, constants: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *given), strict=True))
    for equation in jaxpr.eqns:
        values = [one.val if isinstance(one, Literal) else known[one] for one in equation.invars]
        if any(isinstance(value, _Factored) for value in values):
            results = _with_factors(equation, values)
        else:
            results = _bound(equation, values)
        known.update(zip(equation.outvars, results, strict=True))
    return [one.val if isinstance(one, Literal) else known[one] for one in jaxpr.outvars]


def _with_factors(equation: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """One step with a factored operand: as it is for products and what leads to them, multiplied out for the rest."""
    name, first = equation.primitive.name, values[0]
    found: Any = None
    if name in _CALLS:
        inner: ClosedJaxpr = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
        return _evaluated(inner.jaxpr, inner.consts, values)
    if name == "transpose":
        found = first.transposed(equation.params["permutation"])
    elif name == "reshape":
        found = first.reshaped(equation.params["new_sizes"])
    elif name == "convert_element_type" and equation.params["new_dtype"] == first.weight.dtype:
        found = first
    elif name == "dot_general" and sum(isinstance(value, _Factored) for value in values) == 1:
        is_first = isinstance(first, _Factored)
        found = values[not is_first].product(values[is_first], equation, is_first)
    elif name == "conv_general_dilated" and not isinstance(first, _Factored):
        found = values[1].convolution(first, equation)
    return [found] if found is not None else _bound(equation, [_plain(value) for value in values])


def _bound(equation: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    given = equation.primitive.get_bind_params(equation.params)
    functions, options = given if isinstance(given, tuple) else ((), given)  # versions of JAX differ
    found = equation.primitive.bind(*functions, *values, **options)
    return list(found) if equation.primitive.multiple_results else [found]


def _plain(value: Any) -> Any:
    return value.whole() if isinstance(value, _Factored) else value
