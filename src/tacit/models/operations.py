"""The operations of a packed model: what each accepts, the shape that it gives, what it costs, how it is computed.

Nothing here evaluates an array while a model is checked. ``shape_of`` finds the form of a result and the number of
arithmetic operations from the forms of the arguments and from parameters whose types and ranges it checks first. So a
model that is too large is refused before anything of its size exists. All operations end after a number of steps that
their shapes fix; none draws random bits, calls back or has an effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

DTYPES = ("float32", "int32", "bool")
MOST_RANK, MOST_SIZE = 12, 1 << 31  # dimensions of an array; entries of one
Params = Mapping[str, Any]


class ArrayForm(NamedTuple):
    """The type and shape of a value."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class UnfitArguments(Exception):
    """Arguments or parameters that an operation does not accept."""


class Operation(NamedTuple):
    """``form(arguments, parameters) -> (form of the result, cost)``, and ``run(arrays, parameters)``."""

    arguments: tuple[int, int]  # at least and at most how many
    keys: frozenset[str]
    form: Callable[[Sequence[ArrayForm], Params], tuple[ArrayForm, int]]
    run: Callable[[Any, Params], Any]


def shape_of(name: str, arguments: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    """The form of the result and the cost; UnfitArguments where the operation ``name`` does not accept them."""
    made = OPERATIONS[name]
    low, high = made.arguments
    _need(low <= len(arguments) <= high, f"{len(arguments)} arguments")
    _need(set(params) == made.keys, f"parameters {sorted(params)}, and {sorted(made.keys)} are expected")
    form, cost = made.form(arguments, params)
    _need(len(form.shape) <= MOST_RANK, f"more than {MOST_RANK} dimensions")
    _need(all(side >= 1 for side in form.shape), "an empty result")
    _need(form.size <= MOST_SIZE, "a result of more than 2^31 entries")
    # the gradient has the size of the arguments, however few of their numbers are used
    return form, cost + form.size + sum(argument.size for argument in arguments)


# -- checks


def _need(is_met: bool, problem: str) -> None:
    if not is_met:
        raise UnfitArguments(problem)


def _ints(params: Params, key: str, length: int | None = None, low: int = 0, high: int = MOST_SIZE) -> tuple[int, ...]:
    found = params[key]
    is_list = isinstance(found, list) and len(found) <= 2 * MOST_RANK
    _need(is_list and all(type(one) is int and low <= one <= high for one in found), f"{key} is no list of sizes")
    _need(length is None or len(found) == length, f"{key} has another length than {length}")
    return tuple(found)


def _int(params: Params, key: str, low: int, high: int) -> int:
    found = params[key]
    _need(type(found) is int and low <= found <= high, f"{key} is not between {low} and {high}")
    return int(found)


def _axes(params: Params, key: str, rank: int) -> tuple[int, ...]:
    found = _ints(params, key, high=rank - 1)
    _need(len(set(found)) == len(found), f"{key} names a dimension twice")
    return found


def _pairs(params: Params, key: str, length: int, low: int = 0) -> list[tuple[int, int]]:
    found = params[key]
    _need(isinstance(found, list) and len(found) == length, f"{key} has another length than {length}")
    _need(all(isinstance(one, list) and len(one) == 2 for one in found), f"{key} is no list of pairs")
    pairs = [(a, b) for a, b in found]
    _need(all(type(v) is int and low <= v <= MOST_SIZE for pair in pairs for v in pair), f"{key} is out of range")
    return pairs


def _is(form: ArrayForm, *dtypes: str) -> None:
    _need(form.dtype in dtypes, f"{form.dtype} where {' or '.join(dtypes)} is expected")


# -- operations entry by entry

_FLOAT = ("float32",)
_NUMBER = ("float32", "int32")


def _unary(function: Callable[[Any], Any], dtypes: tuple[str, ...], gives: str = "") -> Operation:
    def form(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
        _is(args[0], *dtypes)
        return ArrayForm(gives or args[0].dtype, args[0].shape), args[0].size

    return Operation((1, 1), frozenset(), form, lambda arrays, _: function(arrays[0]))


def _binary(function: Callable[[Any, Any], Any], dtypes: tuple[str, ...], gives: str = "") -> Operation:
    """Of two arrays, whose shapes are broadcast as numpy does it."""

    def form(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
        left, right = args
        _need(left.dtype == right.dtype, f"{left.dtype} and {right.dtype} together")
        _is(left, *dtypes)
        shape = _together(left.shape, right.shape)
        return ArrayForm(gives or left.dtype, shape), math.prod(shape)

    return Operation((2, 2), frozenset(), form, lambda arrays, _: function(*jnp.broadcast_arrays(*arrays)))


def _together(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(one), len(other))
    sides = zip((1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other, strict=True)
    pairs = list(sides)
    _need(all(a == b or 1 in (a, b) for a, b in pairs), "arguments of different shapes")
    return tuple(map(max, pairs))


def _integer_pow(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    _is(args[0], "float32")
    return args[0], args[0].size * max(1, abs(_int(params, "y", -64, 64)).bit_length() * 2)


def _select(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    which, zero, one = args
    _is(which, "bool")
    _need(zero == one and which.shape in (zero.shape, ()), "cases of different forms")
    return zero, zero.size


def _clamp(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    low, x, high = args
    _is(x, *_NUMBER)
    _need(all(end.dtype == x.dtype and end.shape in (x.shape, ()) for end in (low, high)), "ends of another form")
    return x, 2 * x.size


def _convert(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    _need(params["dtype"] in DTYPES, "unknown dtype")
    return ArrayForm(params["dtype"], args[0].shape), args[0].size


# -- arrangements


def _reshape(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    shape = _ints(params, "shape", low=1)
    _need(math.prod(shape) == args[0].size, "another number of entries")
    return ArrayForm(args[0].dtype, shape), 0


def _broadcast(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    shape = _ints(params, "shape", low=1)
    _need(len(shape) <= MOST_RANK, "too many dimensions")
    dims = _axes(params, "dims", len(shape))
    _need(len(dims) == len(args[0].shape) and list(dims) == sorted(dims), "dims do not fit")
    _need(all(own in (1, shape[d]) for own, d in zip(args[0].shape, dims, strict=True)), "sizes do not fit")
    return ArrayForm(args[0].dtype, shape), 0


def _transpose(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    order = _axes(params, "order", len(args[0].shape))
    _need(len(order) == len(args[0].shape), "an order of another length")
    return ArrayForm(args[0].dtype, tuple(args[0].shape[axis] for axis in order)), 0


def _slice(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    rank = len(args[0].shape)
    start, stop = _ints(params, "start", rank), _ints(params, "stop", rank)
    step = _ints(params, "step", rank, low=1)
    _need(all(a < b <= side for a, b, side in zip(start, stop, args[0].shape, strict=True)), "out of bounds")
    return ArrayForm(args[0].dtype, tuple(-((a - b) // s) for a, b, s in zip(start, stop, step, strict=True))), 0


def _pad(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    x, value = args
    _need(value == ArrayForm(x.dtype, ()), "the value is no number of the same type")
    low, high = (_ints(params, key, len(x.shape), low=-MOST_SIZE) for key in ("low", "high"))
    between = _ints(params, "between", len(x.shape))
    sides = list(zip(x.shape, low, high, between, strict=True))
    spread = math.prod(side + max(a, 0) + max(b, 0) + (side - 1) * gap for side, a, b, gap in sides)
    return ArrayForm(x.dtype, tuple(side + a + b + max(side - 1, 0) * gap for side, a, b, gap in sides)), spread


def _concatenate(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    rank = len(args[0].shape)
    axis = _int(params, "axis", 0, rank - 1)

    def rest(form: ArrayForm) -> tuple[str, int, tuple[int, ...]]:
        return form.dtype, len(form.shape), form.shape[:axis] + form.shape[axis + 1 :]

    _need(len({rest(form) for form in args}) == 1, "parts of different forms")
    total = sum(form.shape[axis] for form in args)
    return ArrayForm(args[0].dtype, (*args[0].shape[:axis], total, *args[0].shape[axis + 1 :])), 0


def _rev(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    _axes(params, "axes", len(args[0].shape))
    return args[0], 0


def _iota(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    shape = _ints(params, "shape", low=1)
    _int(params, "axis", 0, len(shape) - 1)
    _need(params["dtype"] in _NUMBER, "unknown dtype")
    return ArrayForm(params["dtype"], shape), 0


def _dynamic_slice(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    x, *starts = args
    sizes = _ints(params, "sizes", len(x.shape), low=1)
    _need(len(starts) == len(x.shape) and all(one == ArrayForm("int32", ()) for one in starts), "starts do not fit")
    _need(all(size <= side for size, side in zip(sizes, x.shape, strict=True)), "out of bounds")
    return ArrayForm(x.dtype, sizes), 0


def _gather(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    x, indices = args
    _is(indices, "int32")
    rank = len(x.shape)
    sizes, collapsed = _ints(params, "sizes", rank, low=1), _axes(params, "collapsed", rank)
    places = _axes(params, "places", rank)
    _need(params["mode"] in ("clip", "fill"), "unknown mode")
    _need(len(indices.shape) >= 1 and indices.shape[-1] == len(places), "indices do not fit")
    _need(all(size <= side for size, side in zip(sizes, x.shape, strict=True)), "out of bounds")
    _need(all(sizes[axis] == 1 for axis in collapsed) and list(collapsed) == sorted(collapsed), "collapsed")
    window = [size for axis, size in enumerate(sizes) if axis not in collapsed]
    total = len(window) + len(indices.shape) - 1
    offsets = _axes(params, "offsets", total)
    _need(len(offsets) == len(window) and list(offsets) == sorted(offsets), "offsets do not fit")
    inner, outer = iter(window), iter(indices.shape[:-1])
    return ArrayForm(x.dtype, tuple(next(inner) if axis in offsets else next(outer) for axis in range(total))), 0


def _run_gather(arrays: Any, params: Params) -> Any:
    dims = lax.GatherDimensionNumbers(
        offset_dims=tuple(params["offsets"]),
        collapsed_slice_dims=tuple(params["collapsed"]),
        start_index_map=tuple(params["places"]),
    )
    fill = 0 if params["mode"] == "fill" else None
    return lax.gather(arrays[0], arrays[1], dims, tuple(params["sizes"]), mode=params["mode"], fill_value=fill)


# -- reductions, products and windows


def _reduce(function: Callable[..., Any], dtypes: tuple[str, ...]) -> Operation:
    def form(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
        _is(args[0], *dtypes)
        axes = _axes(params, "axes", len(args[0].shape))
        kept = tuple(side for axis, side in enumerate(args[0].shape) if axis not in axes)
        return ArrayForm(args[0].dtype, kept), args[0].size

    return Operation((1, 1), frozenset({"axes"}), form, lambda arrays, p: function(arrays[0], axis=tuple(p["axes"])))


def _arg(function: Callable[..., Any]) -> Operation:
    def form(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
        _is(args[0], *_NUMBER)
        axis = _int(params, "axis", 0, len(args[0].shape) - 1)
        return ArrayForm("int32", args[0].shape[:axis] + args[0].shape[axis + 1 :]), args[0].size

    return Operation((1, 1), frozenset({"axis"}), form, lambda arrays, p: function(arrays[0], p["axis"], jnp.int32))


def _along(function: Callable[..., Any]) -> Operation:
    def form(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
        _is(args[0], *_NUMBER)
        axis = _int(params, "axis", 0, len(args[0].shape) - 1)
        _need(type(params["reverse"]) is bool, "reverse is no boolean")
        return args[0], args[0].size * args[0].shape[axis].bit_length()

    keys = frozenset({"axis", "reverse"})
    return Operation((1, 1), keys, form, lambda arrays, p: function(arrays[0], axis=p["axis"], reverse=p["reverse"]))


def _dot(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    left, right = args
    _need(left.dtype == right.dtype == "float32", "products are of float32")
    inner: list[tuple[int, ...]] = []
    batch: list[tuple[int, ...]] = []
    for key, found in (("contract", inner), ("batch", batch)):
        pair = params[key]
        _need(isinstance(pair, list) and len(pair) == 2, f"{key} is no pair of lists")
        found += [_axes({key: one}, key, len(form.shape)) for one, form in zip(pair, args, strict=True)]
        _need(len(found[0]) == len(found[1]), f"{key} does not fit")
        sides = zip(found[0], found[1], strict=True)
        _need(all(left.shape[a] == right.shape[b] for a, b in sides), f"sizes of {key} do not fit")
    _need(not set(inner[0]) & set(batch[0]) and not set(inner[1]) & set(batch[1]), "a dimension is named twice")
    shape = [left.shape[axis] for axis in batch[0]]
    for k, form in enumerate(args):
        shape += [side for axis, side in enumerate(form.shape) if axis not in (*inner[k], *batch[k])]
    return ArrayForm("float32", tuple(shape)), 2 * math.prod(shape) * math.prod(left.shape[axis] for axis in inner[0])


def _run_dot(arrays: Any, params: Params) -> Any:
    (left, right), (first, second) = params["contract"], params["batch"]
    return lax.dot_general(arrays[0], arrays[1], ((left, right), (first, second)))


def _windows(
    sides: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Any, base: Any, gap: Any
) -> list[int]:
    found = []
    for side, size, step, (low, high), wide, apart in zip(sides, kernel, stride, padding, base, gap, strict=True):
        whole = (side - 1) * wide + 1 + low + high
        reach = (size - 1) * apart + 1
        _need(reach <= whole, "a window is larger than what it looks at")
        found.append((whole - reach) // step + 1)
    return found


def _window(function: Callable[..., Any], start: float) -> Operation:
    def form(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
        x = args[0]
        _is(x, "float32")
        rank = len(x.shape)
        _need(rank >= 1, "no dimensions")
        size, stride = (_ints(params, key, rank, low=1) for key in ("size", "stride"))
        padding = _pairs(params, "padding", rank)
        ones = (1,) * rank
        shape = tuple(_windows(x.shape, size, stride, padding, ones, ones))
        spread = math.prod(side + low + high for side, (low, high) in zip(x.shape, padding, strict=True))
        return ArrayForm("float32", shape), math.prod(shape) * math.prod(size) + spread

    def run(arrays: Any, p: Params) -> Any:
        padding = tuple(tuple(pair) for pair in p["padding"])
        return lax.reduce_window(arrays[0], start, function, tuple(p["size"]), tuple(p["stride"]), padding)

    return Operation((1, 1), frozenset({"size", "stride", "padding"}), form, run)


def _conv(args: Sequence[ArrayForm], params: Params) -> tuple[ArrayForm, int]:
    x, w = args
    rank = len(x.shape)
    _need(x.dtype == w.dtype == "float32" and len(w.shape) == rank >= 2, "arguments of different forms")
    specs = [_axes(params, key, rank) for key in ("of_x", "of_w", "of_result")]
    _need(all(len(spec) == rank for spec in specs), "dimension numbers of another length")
    groups = _int(params, "groups", 1, MOST_SIZE)
    stride, wide, apart = (_ints(params, key, rank - 2, low=1) for key in ("stride", "dilate_x", "dilate_w"))
    padding = _pairs(params, "padding", rank - 2)
    records, channels, *sides = (x.shape[axis] for axis in specs[0])
    features, depth, *kernel = (w.shape[axis] for axis in specs[1])
    _need(depth * groups == channels and features % groups == 0, "channels do not fit")
    made = [records, features, *_windows(sides, kernel, stride, padding, wide, apart)]
    shape = [0] * rank
    for side, axis in zip(made, specs[2], strict=True):
        shape[axis] = side
    spread = math.prod((a - 1) * wide_a + 1 + sum(pair) for a, wide_a, pair in zip(sides, wide, padding, strict=True))
    products = math.prod(made) * depth * math.prod(kernel)
    return ArrayForm("float32", tuple(shape)), 2 * products + records * channels * spread


def _run_conv(arrays: Any, p: Params) -> Any:
    return lax.conv_general_dilated(
        arrays[0],
        arrays[1],
        window_strides=p["stride"],
        padding=[tuple(pair) for pair in p["padding"]],
        lhs_dilation=p["dilate_x"],
        rhs_dilation=p["dilate_w"],
        dimension_numbers=lax.ConvDimensionNumbers(*(tuple(p[key]) for key in ("of_x", "of_w", "of_result"))),
        feature_group_count=p["groups"],
    )


_SLICED = frozenset({"start", "stop", "step"})
_CONV = frozenset({"of_x", "of_w", "of_result", "groups", "stride", "dilate_x", "dilate_w", "padding"})
# Many small parts may be joined; other operations have a few arguments.
_MOST_PARTS = 4096

_CURVES = (
    *("exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("logistic", "sqrt", "rsqrt", "cbrt", "erf", "erfc", "floor", "ceil"),
)

OPERATIONS: Mapping[str, Operation] = {
    **{name: _unary(getattr(lax, name), _FLOAT) for name in _CURVES},
    **{name: _unary(getattr(lax, name), _NUMBER) for name in ("neg", "abs", "sign", "square", "stop_gradient")},
    "round": _unary(lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), _FLOAT),
    "relu": _unary(jax.nn.relu, _FLOAT),
    "is_finite": _unary(lax.is_finite, _FLOAT, "bool"),
    "not": _unary(lax.bitwise_not, ("int32", "bool")),
    **{name: _binary(getattr(lax, name), _NUMBER) for name in ("add", "sub", "mul", "div", "rem", "max", "min")},
    **{name: _binary(getattr(lax, name), _FLOAT) for name in ("pow", "atan2")},
    "logaddexp": _binary(jnp.logaddexp, _FLOAT),
    **{name: _binary(getattr(lax, name), (*_NUMBER, "bool"), "bool") for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: _binary(getattr(lax, f"bitwise_{name}"), ("int32", "bool")) for name in ("and", "or", "xor")},
    "integer_pow": Operation((1, 1), frozenset({"y"}), _integer_pow, lambda a, p: lax.integer_pow(a[0], p["y"])),
    "select": Operation((3, 3), frozenset(), _select, lambda a, p: lax.select_n(*a)),
    "clamp": Operation((3, 3), frozenset(), _clamp, lambda a, p: lax.clamp(*a)),
    "convert": Operation((1, 1), frozenset({"dtype"}), _convert, lambda a, p: a[0].astype(p["dtype"])),
    "reshape": Operation((1, 1), frozenset({"shape"}), _reshape, lambda a, p: lax.reshape(a[0], p["shape"])),
    "broadcast": Operation(
        (1, 1), frozenset({"shape", "dims"}), _broadcast, lambda a, p: lax.broadcast_in_dim(a[0], p["shape"], p["dims"])
    ),
    "transpose": Operation((1, 1), frozenset({"order"}), _transpose, lambda a, p: lax.transpose(a[0], p["order"])),
    "slice": Operation((1, 1), _SLICED, _slice, lambda a, p: lax.slice(a[0], p["start"], p["stop"], p["step"])),
    "pad": Operation(
        (2, 2),
        frozenset({"low", "high", "between"}),
        _pad,
        lambda a, p: lax.pad(a[0], a[1], list(zip(p["low"], p["high"], p["between"], strict=True))),
    ),
    "concatenate": Operation(
        (1, _MOST_PARTS), frozenset({"axis"}), _concatenate, lambda a, p: lax.concatenate(a, p["axis"])
    ),
    "rev": Operation((1, 1), frozenset({"axes"}), _rev, lambda a, p: lax.rev(a[0], p["axes"])),
    "iota": Operation(
        (0, 0),
        frozenset({"shape", "axis", "dtype"}),
        _iota,
        lambda a, p: lax.broadcasted_iota(p["dtype"], p["shape"], p["axis"]),
    ),
    "dynamic_slice": Operation(
        (1, 1 + MOST_RANK),
        frozenset({"sizes"}),
        _dynamic_slice,
        lambda a, p: lax.dynamic_slice(a[0], a[1:], p["sizes"]),
    ),
    "gather": Operation((2, 2), frozenset({"sizes", "collapsed", "places", "offsets", "mode"}), _gather, _run_gather),
    "reduce_sum": _reduce(jnp.sum, _NUMBER),
    "reduce_prod": _reduce(jnp.prod, _NUMBER),
    "reduce_max": _reduce(jnp.max, _NUMBER),
    "reduce_min": _reduce(jnp.min, _NUMBER),
    "reduce_and": _reduce(jnp.all, ("bool",)),
    "reduce_or": _reduce(jnp.any, ("bool",)),
    "argmax": _arg(lax.argmax),
    "argmin": _arg(lax.argmin),
    **{name: _along(getattr(lax, name)) for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    "dot": Operation((2, 2), frozenset({"contract", "batch"}), _dot, _run_dot),
    "conv": Operation((2, 2), _CONV, _conv, _run_conv),
    "window_sum": _window(lax.add, 0.0),
    "window_max": _window(lax.max, -math.inf),
    "window_min": _window(lax.min, math.inf),
}
