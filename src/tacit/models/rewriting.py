"""Models of others, rewritten for speed: convolutions and pooling as slices and matrix products.

Training many people or silos at once means weights that differ per person. A convolution proper then falls back to a
slow path, and the gradient of pooling is slow in any case. A matrix product stays a matrix product. So ``apply`` is
traced once for each shape of its input, and the trace is evaluated with replacements:

- convolutions: patches and a matrix product, with channels last; all strides, paddings, dilations and groups;
- pooling: slices, and their sum, maximum or minimum. Of equal largest numbers of a window the first one, row by row,
  gets the gradient, as in the original;
- transpositions wait until an operation needs them. A model with channels first keeps its images with channels last
  from one convolution to the next.

Calls are inlined; loops and branches are rewritten within. What has a derivative of its own (``custom_jvp``,
``custom_vjp``) and every other operation stay as they are. Outputs and gradients differ from the original by rounding
only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from tacit.models.model import Params

Apply = Callable[[Params, jax.Array], jax.Array]

# pooling with more slices a side, which cumulative sums have, stays as it is; so do convolutions with more slices
MOST_SLICES = 32
MOST_PLACES = 1024

_INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
_NESTED = frozenset({"scan", "while", "cond", "remat", "remat2", "checkpoint"})
_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"})
_ENTRYWISE = frozenset(
    (
        *("abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2"),
        *("atanh", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "cos", "cosh", "div", "eq"),
        *("erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow"),
        *("is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne"),
        *("neg", "not", "or", "pow", "reduce_precision", "rem", "round", "rsqrt", "select_n", "sign"),
        *("sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor"),
    )
)


def rewritten(apply: Apply) -> Apply:
    """``apply`` with its convolutions and poolings replaced."""
    traces: dict[Any, tuple[ClosedJaxpr, Any]] = {}

    def fast(params: Params, x: jax.Array) -> jax.Array:
        leaves, tree = jax.tree.flatten((params, x))
        forms = [jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
        key = (tree, *((form.shape, form.dtype) for form in forms))
        if key not in traces:
            made, shape = jax.make_jaxpr(apply, return_shape=True)(*jax.tree.unflatten(tree, forms))
            traces[key] = made, jax.tree.structure(shape)
        traced, structure = traces[key]
        found: jax.Array = jax.tree.unflatten(structure, _evaluated(traced, leaves))
        return found

    return fast


class _Arranged(NamedTuple):
    """A value whose dimensions are kept in another order: ``transpose(array, order)`` is meant."""

    array: Any
    order: tuple[int, ...]

    @classmethod
    def plain(cls, array: Any) -> _Arranged:
        return cls(array, tuple(range(jnp.ndim(array))))

    @property
    def is_plain(self) -> bool:
        return self.order == tuple(range(len(self.order)))

    @property
    def kept(self) -> tuple[int, ...]:
        """The meant dimension of each dimension of the array."""
        return tuple(sorted(range(len(self.order)), key=self.order.__getitem__))

    def arranged(self, dimensions: Sequence[int]) -> Any:
        """The array with the meant ``dimensions`` in this order."""
        order = tuple(self.order[axis] for axis in dimensions)
        return self.array if order == tuple(range(len(order))) else lax.transpose(self.array, order)

    def meant(self) -> Any:
        return self.arranged(range(len(self.order)))


def _evaluated(traced: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
    given = [_Arranged.plain(one) for one in inputs]
    return [value.meant() for value in _inlined(traced.jaxpr, traced.consts, given)]


def _inlined(jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[_Arranged]) -> list[_Arranged]:
    values: dict[Any, _Arranged] = dict(zip(jaxpr.constvars, map(_Arranged.plain, consts), strict=True))
    values |= dict(zip(jaxpr.invars, inputs, strict=True))

    def value(atom: Any) -> _Arranged:
        return _Arranged.plain(atom.val) if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        results = _replaced(jaxpr, equation, [value(atom) for atom in equation.invars])
        values |= dict(zip(equation.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _replaced(within: Jaxpr, equation: Any, inputs: list[_Arranged]) -> list[_Arranged]:
    name, params = equation.primitive.name, equation.params
    if name in _INLINED:
        inner = params[_INLINED[name]]
        return _inlined(inner.jaxpr, inner.consts, inputs)
    if name in _REPLACEMENTS and _is_usual(equation):
        found = _REPLACEMENTS[name](params, *inputs)
        if found is not None:
            return [found]
    if name == "transpose":
        return [_Arranged(inputs[0].array, tuple(inputs[0].order[axis] for axis in params["permutation"]))]
    if not all(value.is_plain for value in inputs):
        if name in _ENTRYWISE:
            return [_entrywise(lambda *arrays: equation.primitive.bind(*arrays, **params), inputs)]
        if name == "custom_jvp_call" and _source(equation) == _source_of_relu():
            return [_entrywise(jax.nn.relu, inputs)]
        if name in _REDUCTIONS:
            return [_reduced(equation, inputs[0])]
        if name in ("reshape", "squeeze", "broadcast_in_dim"):
            same = _with_other_units(inputs[0], equation.outvars[0].aval.shape)
            if same is not None:
                return [same]
    return _as_it_is(within, equation, [value.meant() for value in inputs])


def _source(equation: Any) -> str:
    """Where the function of a call with a derivative of its own is from: its name alone would not do."""
    return str(equation.params["call_jaxpr"].jaxpr.debug_info.func_src_info)


@cache
def _source_of_relu() -> str:
    return _source(jax.make_jaxpr(jax.nn.relu)(0.0).eqns[0])


def _is_usual(equation: Any) -> bool:
    """Whether the equation is one of float32, and its result is not empty."""
    return all(a.aval.dtype == jnp.float32 for a in equation.invars) and 0 not in equation.outvars[0].aval.shape


def _as_it_is(within: Jaxpr, equation: Any, arrays: list[Any]) -> list[_Arranged]:
    """The equation as a function of its own, so that JAX evaluates it as it evaluates any trace."""
    if equation.primitive.name in _NESTED:
        equation = equation.replace(params={key: _rewritten_part(part) for key, part in equation.params.items()})
    given = {atom: array for atom, array in zip(equation.invars, arrays, strict=True) if not isinstance(atom, Literal)}
    alone = within.replace(
        constvars=[], invars=list(given), outvars=equation.outvars, eqns=[equation], effects=equation.effects
    )
    return [_Arranged.plain(one) for one in jaxpr_as_fun(ClosedJaxpr(alone, ()))(*given.values())]


def _rewritten_part(part: Any) -> Any:
    """The body of a loop, or the branches of a choice, rewritten; as it is, where that changes its form or gives it
    constants, and where it is something else."""
    if isinstance(part, tuple) and part and all(isinstance(one, ClosedJaxpr) for one in part):
        return tuple(map(_rewritten_part, part))
    if isinstance(part, Jaxpr) and not part.constvars:
        return _rewritten_part(ClosedJaxpr(part, ())).jaxpr
    if not isinstance(part, ClosedJaxpr):
        return part
    made = jax.make_jaxpr(lambda *inputs: _evaluated(part, inputs))(*part.in_avals)
    is_same = made.in_avals == part.in_avals and made.out_avals == part.out_avals
    return made if is_same and not made.consts else part


# -- operations on values in another order


def _entrywise(function: Callable[..., Any], inputs: Sequence[_Arranged]) -> _Arranged:
    """Of arrays of one rank, and of numbers."""
    like = next(value for value in inputs if not value.is_plain)
    arrays = [value.arranged(like.kept) if value.order else value.array for value in inputs]
    return _Arranged(function(*arrays), like.order)


def _reduced(equation: Any, x: _Arranged) -> _Arranged:
    axes = equation.params["axes"]
    array = equation.primitive.bind(x.array, **equation.params | {"axes": tuple(sorted(x.order[a] for a in axes))})
    places = [place for axis, place in enumerate(x.order) if axis not in axes]
    return _Arranged(array, tuple(sorted(places).index(place) for place in places))


def _with_other_units(x: _Arranged, shape: Sequence[int]) -> _Arranged | None:
    """``x`` with the meant ``shape`` where this only adds or removes dimensions of size 1; else None."""
    sizes = [x.array.shape[place] for place in x.order]
    if [size for size in sizes if size != 1] != [size for size in shape if size != 1]:
        return None
    places = [place for size, place in zip(sizes, x.order, strict=True) if size != 1]
    units = len(shape) - len(places)
    array = x.array.reshape((1,) * units + tuple(x.array.shape[place] for place in sorted(places)))
    unit, rest = iter(range(units)), iter(units + sorted(places).index(place) for place in places)
    return _Arranged(array, tuple(next(unit if size == 1 else rest) for size in shape))


# -- convolutions


def _convolution(p: dict[str, Any], x: _Arranged, w: _Arranged) -> _Arranged | None:
    of_x, of_w, of_result = p["dimension_numbers"]
    sides = [w.array.shape[w.order[axis]] for axis in of_w[2:]]
    if p["batch_group_count"] != 1 or math.prod(sides) > MOST_PLACES:
        return None
    records = x.arranged((of_x[0], *of_x[2:], of_x[1]))  # [records, sides, channels]
    kernel = w.arranged((of_w[0], *of_w[2:], of_w[1]))  # [features, sides, channels of a group]
    windows = _windows(p["window_strides"], p["rhs_dilation"], kernel.shape[1:-1])
    spread = [(low, high, wide - 1) for (low, high), wide in zip(p["padding"], p["lhs_dilation"], strict=True)]
    numbers = {"precision": p["precision"], "preferred_element_type": p["preferred_element_type"]}
    records = _padded(records, 0.0, [(0, 0, 0), *spread, (0, 0, 0)])
    groups = p["feature_group_count"]
    if groups == 1:
        rows = _patches(records, windows)
        made = lax.dot_general(rows, kernel.reshape(len(kernel), -1), (((rows.ndim - 1,), (1,)), ((), ())), **numbers)
    elif kernel.shape[-1] == 1:
        made = _each_channel(records, kernel, windows)
    else:
        made = _by_groups(_patches(records, windows), kernel, groups, numbers)
    last = made.ndim - 1
    place = {of_result[0]: 0, of_result[1]: last} | {axis: 1 + k for k, axis in enumerate(of_result[2:])}
    return _Arranged(made, tuple(place[axis] for axis in range(made.ndim)))


class _Window(NamedTuple):
    """Along one side: how many numbers a window has, how far they are apart, and how far windows are apart."""

    size: int
    stride: int
    apart: int

    def count(self, side: int) -> int:
        """How many windows there are."""
        return (side - (self.size - 1) * self.apart - 1) // self.stride + 1

    def taken(self, x: Any, axis: int, nth: int) -> Any:
        """The number at place ``nth`` of every window."""
        first = nth * self.apart
        past = first + (self.count(x.shape[axis]) - 1) * self.stride + 1
        return lax.slice_in_dim(x, first, past, self.stride, axis)


def _windows(strides: Sequence[int], apart: Sequence[int], sizes: Sequence[int]) -> list[_Window]:
    return [_Window(*numbers) for numbers in zip(sizes, strides, apart, strict=True)]


def _patches(x: Any, windows: Sequence[_Window]) -> Any:
    """Every patch as a row, ordered by side, then channel: ``[b, sides, c] -> [b, sides', sizes*c]``."""
    for axis in range(len(windows), 0, -1):
        window = windows[axis - 1]
        if window.apart == 1 and 1 < window.stride < window.size:
            x = _joined(x, axis, window)
        elif window != _Window(1, 1, window.apart):
            x = jnp.concatenate([window.taken(x, axis, nth) for nth in range(window.size)], axis=-1)
    return x


def _joined(x: Any, axis: int, window: _Window) -> Any:
    """Patches along one side from blocks of ``stride`` numbers: slices are few and contiguous."""
    count, step = window.count(x.shape[axis]), window.stride
    blocks = -(-window.size // step)
    missing = (count + blocks - 1) * step - x.shape[axis]
    x = _padded(x, 0.0, [(0, missing if k == axis else 0, 0) for k in range(x.ndim)])
    x = x.reshape(*x.shape[:axis], -1, step, *x.shape[axis + 1 :])
    x = jnp.moveaxis(x, axis + 1, -2)
    x = x.reshape(*x.shape[:-2], -1)
    per_number = x.shape[-1] // step
    parts = [lax.slice_in_dim(x, nth, nth + count, axis=axis) for nth in range(blocks)]
    parts[-1] = parts[-1][..., : (window.size - (blocks - 1) * step) * per_number]
    return jnp.concatenate(parts, axis=-1)


def _each_channel(x: Any, kernel: Any, windows: Sequence[_Window]) -> Any:
    """Every channel with kernels of its own: ``[b, sides, c]``, ``[c*m, sizes, 1] -> [b, sides', c*m]``."""
    weights = kernel.reshape(x.shape[-1], -1, math.prod(kernel.shape[1:-1]))
    slices = [x]
    for axis, window in enumerate(windows, 1):
        slices = [window.taken(part, axis, nth) for part in slices for nth in range(window.size)]
    made = sum(part[..., None] * weights[..., nth] for nth, part in enumerate(slices))
    return jnp.reshape(made, (*slices[0].shape[:-1], -1))


def _by_groups(rows: Any, kernel: Any, groups: int, numbers: dict[str, Any]) -> Any:
    rows = rows.reshape(*rows.shape[:-1], -1, groups, kernel.shape[-1])
    kernel = kernel.reshape(groups, len(kernel) // groups, -1, kernel.shape[-1])
    made = jnp.einsum("...kgc,gokc->...go", rows, kernel, **numbers)
    return made.reshape(*made.shape[:-2], -1)


def _padded(x: Any, value: float, config: Sequence[tuple[int, int, int]]) -> Any:
    return x if all(part == (0, 0, 0) for part in config) else lax.pad(x, np.float32(value), config)


# -- pooling


def _first_largest(one: Any, other: Any) -> Any:
    """The maximum; of two equal numbers, the first has the gradient."""
    return jnp.where((one >= other) | jnp.isnan(one), one, other)


def _first_smallest(one: Any, other: Any) -> Any:
    return jnp.where((one <= other) | jnp.isnan(one), one, other)


def _pooled(join: Callable[[Any, Any], Any], start: float) -> Callable[..., _Arranged | None]:
    def pool(p: dict[str, Any], x: _Arranged) -> _Arranged | None:
        windows = _windows(p["window_strides"], p["window_dilation"], p["window_dimensions"])
        if max(window.size for window in windows) > MOST_SLICES:
            return None
        spread = [(low, high, wide - 1) for (low, high), wide in zip(p["padding"], p["base_dilation"], strict=True)]
        array = _padded(x.array, start, [spread[axis] for axis in x.kept])
        for axis in reversed(range(len(windows))):  # of equal numbers, the first row by row comes first
            place, window = x.order[axis], windows[axis]
            if window != _Window(1, 1, window.apart):
                parts = (window.taken(array, place, nth) for nth in range(window.size))
                array = _folded(join, parts)
        return _Arranged(array, x.order)

    return pool


def _folded(join: Callable[[Any, Any], Any], parts: Any) -> Any:
    found = next(parts)
    for part in parts:
        found = join(found, part)
    return found


_REPLACEMENTS: dict[str, Callable[..., _Arranged | None]] = {
    "conv_general_dilated": _convolution,
    "reduce_window_sum": _pooled(lax.add, 0.0),
    "reduce_window_max": _pooled(_first_largest, -math.inf),
    "reduce_window_min": _pooled(_first_smallest, math.inf),
}
