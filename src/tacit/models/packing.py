"""From the functions of a model to a packed model: the requester's side of :mod:`tacit.models.packed_model`.

``apply`` is traced on one record. Calls within the trace are inlined, loops of fixed length are unrolled, and what
depends on neither the record nor the parameters is computed now and becomes a constant. The result is loaded again
and compared with the model on random records: outputs, and gradients by all parameters. So a derivative of the
model's own, which a list of operations cannot hold, is either known (``relu``, ``logaddexp``) or found out here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from tacit.errors import UserError
from tacit.models.model import Model, Params
from tacit.models.operations import DTYPES, OPERATIONS, ArrayForm
from tacit.models.packed_model import LIMITS, Packed, dump, load

_TOLERANCE = 1e-4  # of outputs and gradients, by the largest of each: order of summation differs
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_vjp_call"}
_CALLS |= {"custom_jvp_call", "custom_vjp_call_jaxpr"}
_KNOWN_DERIVATIVES = {"relu": 1, "logaddexp": 2}
_PLAIN = {name: name for name, made in OPERATIONS.items() if not made.keys} | {"add_any": "add"}
_SAME = {"copy", "copy_p", "optimization_barrier", "reduce_precision", "sharding_constraint", "name"}


def pack(model: Model, input_shape: tuple[int, ...], outputs: int, seed: int = 0) -> Packed:
    """The model for records of this shape, with the initial parameters of this seed; a UserError where it has an
    operation that a packed model cannot hold, or is above the limits."""
    start = model.init(jax.random.key(seed))
    fixed = {name: start[name] for name in model.fixed}  # they are never trained: constants of the file
    trained = {name: layer for name, layer in start.items() if name not in fixed}
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), trained)
    of_all = model.apply
    model = replace(model, apply=lambda tree, x: of_all({**tree, **fixed}, x), fixed=frozenset())
    names = _names(params)

    def whole(tree: Params, record: jax.Array) -> jax.Array:
        x = record[None]
        return model.apply(tree, x if model.prepare is None else model.prepare(x))

    failed: Exception | None = None
    for dtype in ("float32", "int32"):  # texts are integer codes, which is not known from a shape
        record = jnp.zeros(input_shape, dtype)
        try:
            traced = jax.make_jaxpr(whole)(params, record)
        except TypeError as error:
            failed = failed or error
            continue
        found = load(_Packing(names, params, ArrayForm(dtype, tuple(input_shape)), traced).bytes(model.name, outputs))
        _compare(model, whole, found)
        return found
    raise _refused(f"apply raised {type(failed).__name__}: {failed}")


def _names(params: Params) -> list[str]:
    names = []
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        keys = [getattr(key, "key", None) for key in path]
        if not all(isinstance(key, str) and key and "/" not in key for key in keys):
            raise _refused("its parameters are no dictionary of layers with names without a slash")
        names.append("p/" + "/".join(map(str, keys)))
    return names


def _compare(model: Model, whole: Callable[[Params, jax.Array], jax.Array], found: Packed) -> None:
    """Refuse a packed model that computes something else than the model does, or has other gradients; and a model whose
    outputs for a record depend on the other records of a batch."""
    rng = np.random.default_rng(0)
    packed = found.model()
    start = packed.init(jax.random.key(0))
    moved = jax.tree.map(lambda leaf: leaf + jnp.asarray(rng.normal(0, 0.1, leaf.shape), jnp.float32), start)
    whole_number = found.record.dtype == "int32"
    mixed = jnp.asarray(rng.normal(size=found.outputs), jnp.float32)
    several = (
        rng.integers(0, 2, (3, *found.record.shape)) if whole_number else rng.normal(size=(3, *found.record.shape))
    )
    batch = jnp.asarray(several, found.record.dtype)
    together = model.apply(moved, batch if model.prepare is None else model.prepare(batch))
    apart = packed.apply(moved, batch)
    if together.shape != apart.shape or not _is_close(apart, together):
        problem = "its outputs for one record depend on the other records of a batch"
        raise UserError("invalid-model", "model.name", problem, "compute each record by itself")
    for params in (start, moved):
        drawn = rng.integers(0, 2, found.record.shape) if whole_number else rng.normal(size=found.record.shape)
        record = jnp.asarray(drawn, found.record.dtype)

        def of(function: Any, record: jax.Array = record, params: Params = params) -> Any:
            def summed(tree: Params) -> Any:
                outputs = function(tree, record).reshape(-1)
                return (outputs * mixed).sum(), outputs

            return jax.jit(jax.grad(summed, has_aux=True))(params)

        ours, theirs = of(lambda tree, x: packed.apply(tree, x[None])), of(whole)
        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            if not _is_close(one, other):
                problem = "the packed model has other outputs or gradients than apply"
                raise UserError("invalid-model", "model.name", problem, "leave out derivatives of its own")


def _is_close(one: jax.Array, other: jax.Array) -> bool:
    return bool(jnp.abs(one - other).max() <= _TOLERANCE * (1e-3 + jnp.abs(other).max()))


class _Packing:
    """The equations of a trace as they are added, each value by its number."""

    def __init__(self, names: Sequence[str], params: Params, record: ArrayForm, traced: ClosedJaxpr) -> None:
        self._record = record
        self._arrays = dict(zip(names, jax.tree.leaves(params), strict=True))
        self._equations: list[tuple[str, list[Any], dict[str, Any]]] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        inputs: list[Any] = [*names, 0]
        self._result = self._inlined(traced.jaxpr, [np.asarray(c) for c in traced.consts], inputs)[0]

    # A value is a numpy array (known now), the name of an array, 0 (the record), or -1 - k (equation k).

    def bytes(self, name: str, outputs: int) -> bytes:
        """What is needed for the result, as a packed model."""
        if isinstance(self._result, np.ndarray):
            raise _refused("its outputs do not depend on the record or the parameters")
        needed: set[int] = set()
        todo = [self._result]
        while todo:
            value = todo.pop()
            if isinstance(value, int) and value < 0 and value not in needed:
                needed.add(value)
                todo += self._equations[-1 - value][1]
        kept = sorted(needed, reverse=True)
        used = {one for value in kept for one in self._equations[-1 - value][1] if isinstance(one, str)}
        arrays = {n: a for n, a in self._arrays.items() if n.startswith("p/") or n in used or n == self._result}
        number: dict[Any, int] = {0: 0} | {n: k for k, n in enumerate(sorted(arrays), 1)}
        number |= {value: len(arrays) + 1 + k for k, value in enumerate(kept)}
        equations = []
        for value in kept:
            operation, inputs, numbers = self._equations[-1 - value]
            equations.append([operation, [number[one] for one in inputs], numbers])
        printable = "".join(letter for letter in name if letter.isprintable())[:200] or "model"
        return dump(printable, self._record, outputs, arrays, equations, number[self._result])

    def _add(self, operation: str, inputs: Sequence[Any], **numbers: Any) -> int:
        if len(self._equations) >= 4 * LIMITS.equations:
            raise UserError("too-many", "model.name", "it has too many operations", "use a smaller model")
        self._equations.append((operation, [self._stored(one) for one in inputs], _plain(numbers)))
        return -len(self._equations)

    def _stored(self, value: Any) -> Any:
        """A value that is known now becomes an array of the file; the same array is kept once."""
        if not isinstance(value, np.ndarray):
            return value
        if str(value.dtype) not in DTYPES:
            raise _refused(f"it computes with {value.dtype}; use float32")
        key = (str(value.dtype), value.shape, value.tobytes())
        if key not in self._constants:
            self._constants[key] = f"c/{len(self._constants):05d}"
            self._arrays[self._constants[key]] = value
        return self._constants[key]

    def _inlined(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= dict(zip(jaxpr.invars, inputs, strict=True))

        def value(atom: Any) -> Any:
            form: Any = atom.aval
            return np.asarray(atom.val, form.dtype) if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            results = self._converted(equation, [value(atom) for atom in equation.invars])
            values |= dict(zip(equation.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _converted(self, equation: Any, inputs: list[Any]) -> list[Any]:
        name, numbers = equation.primitive.name, equation.params
        if equation.effects:
            raise _refused(f"it has an effect ({name})")
        if name in _CALLS:
            return self._called(equation, inputs)
        if all(isinstance(one, np.ndarray) for one in inputs) and not _has_parts(equation) and name != "random_bits":
            made = equation.primitive.bind(*map(jnp.asarray, inputs), **numbers)
            return [np.asarray(one) for one in (made if equation.primitive.multiple_results else [made])]
        if name == "scan":
            return self._unrolled(equation, inputs)
        if name in _SAME:
            return inputs
        handler = getattr(self, f"_of_{name}", None)
        if handler is None and name in _PLAIN:
            return [self._add(_PLAIN[name], inputs)]
        if handler is None:
            raise _refused(f"a packed model has no operation for '{name}'")
        found = handler(equation, inputs, numbers)
        return found if isinstance(found, list) else [found]

    def _called(self, equation: Any, inputs: list[Any]) -> list[Any]:
        numbers = equation.params
        inner = next(numbers[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in numbers)
        name = str(getattr(getattr(inner, "jaxpr", inner).debug_info, "func_name", ""))
        is_known = equation.primitive.name == "custom_jvp_call" and _KNOWN_DERIVATIVES.get(name) == len(inputs)
        if is_known and str(equation.outvars[0].aval.dtype) == "float32":
            return [self._add(name, inputs)]
        if isinstance(inner, ClosedJaxpr):
            return self._inlined(inner.jaxpr, [np.asarray(c) for c in inner.consts], inputs)
        return self._inlined(inner, [], inputs)

    def _unrolled(self, equation: Any, inputs: list[Any]) -> list[Any]:
        numbers = equation.params
        fixed, carried = numbers["num_consts"], numbers["num_carry"]
        body, length = numbers["jaxpr"], numbers["length"]
        consts, state, rows = inputs[:fixed], inputs[fixed : fixed + carried], inputs[fixed + carried :]
        shapes = [atom.aval.shape for atom in equation.invars[fixed + carried :]]
        collected: list[Any] = [[None] * length for _ in body.out_avals[carried:]]
        order = reversed(range(length)) if numbers["reverse"] else range(length)
        for step in order:
            now = [self._row(row, shape, step) for row, shape in zip(rows, shapes, strict=True)]
            found = self._inlined(body.jaxpr, [np.asarray(c) for c in body.consts], [*consts, *state, *now])
            state = found[:carried]
            for place, one in zip(collected, found[carried:], strict=True):
                place[step] = one
        stacked = []
        for parts, aval in zip(collected, body.out_avals[carried:], strict=True):
            rows_ = [self._add("reshape", [part], shape=[1, *aval.shape]) for part in parts]
            stacked.append(self._add("concatenate", rows_, axis=0))
        return [*state, *stacked]

    def _row(self, value: Any, shape: Sequence[int], step: int) -> Any:
        if isinstance(value, np.ndarray):
            return value[step]
        stop = [step + 1, *shape[1:]]
        cut = self._add("slice", [value], start=[step] + [0] * (len(shape) - 1), stop=stop, step=[1] * len(shape))
        return self._add("reshape", [cut], shape=list(shape[1:]))

    # -- operations with parameters

    def _of_integer_pow(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        return self._add("integer_pow", inputs, y=p["y"])

    def _of_round(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        if int(p["rounding_method"]) != 1:
            raise _refused("it rounds away from zero; round to even")
        return self._add("round", inputs)

    def _of_select_n(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        if len(inputs) != 3:
            raise _refused("it selects among more than two arrays")
        return self._add("select", inputs)

    def _of_convert_element_type(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        if str(p["new_dtype"]) not in DTYPES:
            raise _refused(f"it computes with {p['new_dtype']}; use float32")
        if str(_aval(equation, 0).dtype) == str(p["new_dtype"]):
            return inputs[0]
        return self._add("convert", inputs, dtype=str(p["new_dtype"]))

    def _as_result(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        return self._add("reshape", inputs[:1], shape=list(equation.outvars[0].aval.shape))

    _of_reshape = _of_squeeze = _of_expand_dims = _as_result

    def _of_broadcast_in_dim(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        return self._add("broadcast", inputs[:1], shape=p["shape"], dims=p["broadcast_dimensions"])

    def _of_transpose(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        return self._add("transpose", inputs, order=p["permutation"])

    def _of_slice(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        step = p["strides"] or [1] * len(p["start_indices"])
        return self._add("slice", inputs, start=p["start_indices"], stop=p["limit_indices"], step=step)

    def _of_split(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        shape, axis, found, at = _aval(equation, 0).shape, p["axis"], [], 0
        for size in p["sizes"]:
            start, stop = [0] * len(shape), list(shape)
            start[axis], stop[axis] = at, at + size
            found.append(self._add("slice", inputs, start=start, stop=stop, step=[1] * len(shape)))
            at += size
        return found

    def _of_pad(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        low, high, between = ([part[k] for part in p["padding_config"]] for k in range(3))
        return self._add("pad", inputs, low=low, high=high, between=between)

    def _of_concatenate(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        return self._add("concatenate", inputs, axis=p["dimension"])

    def _of_rev(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        return self._add("rev", inputs, axes=p["dimensions"])

    def _of_dynamic_slice(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        return self._add("dynamic_slice", inputs, sizes=p["slice_sizes"])

    def _of_gather(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        dims = p["dimension_numbers"]
        if dims.operand_batching_dims or dims.start_indices_batching_dims:
            raise _refused("it gathers along dimensions of a batch; use take or a matrix product")
        is_filled = "FILL" in str(p["mode"]).upper()
        return self._add(
            "gather",
            inputs,
            sizes=p["slice_sizes"],
            collapsed=dims.collapsed_slice_dims,
            places=dims.start_index_map,
            offsets=dims.offset_dims,
            mode="fill" if is_filled else "clip",
        )

    def _reduced(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        return self._add(equation.primitive.name, inputs, axes=p["axes"])

    _of_reduce_sum = _of_reduce_prod = _of_reduce_max = _of_reduce_min = _of_reduce_and = _of_reduce_or = _reduced

    def _arg(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        return self._add(equation.primitive.name, inputs, axis=p["axes"][0])

    _of_argmax = _of_argmin = _arg

    def _along(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        return self._add(equation.primitive.name, inputs, axis=p["axis"], reverse=p["reverse"])

    _of_cumsum = _of_cumprod = _of_cummax = _of_cummin = _of_cumlogsumexp = _along

    def _of_dot_general(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        contract, batch = p["dimension_numbers"]
        return self._add("dot", inputs, contract=contract, batch=batch)

    def _of_conv_general_dilated(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        if p["batch_group_count"] != 1:
            raise _refused("its convolution has groups of records")
        of_x, of_w, of_result = p["dimension_numbers"]
        dilated = {"dilate_x": p["lhs_dilation"], "dilate_w": p["rhs_dilation"], "padding": p["padding"]}
        groups, stride = p["feature_group_count"], p["window_strides"]
        return self._add(
            "conv", inputs, of_x=of_x, of_w=of_w, of_result=of_result, groups=groups, stride=stride, **dilated
        )

    def _windowed(self, equation: Any, inputs: list[Any], p: Any) -> Any:
        if {*p["base_dilation"], *p["window_dilation"]} != {1}:
            raise _refused("its pooling is dilated")
        name = equation.primitive.name.replace("reduce_window", "window")
        size, stride = p["window_dimensions"], p["window_strides"]
        return self._add(name, inputs, size=size, stride=stride, padding=p["padding"])

    _of_reduce_window_sum = _of_reduce_window_max = _of_reduce_window_min = _windowed


def _aval(equation: Any, place: int) -> Any:
    return equation.invars[place].aval


def _has_parts(equation: Any) -> bool:
    """Whether the equation holds a jaxpr: a loop or a branch, which is not computed as one piece."""
    return any(key in equation.params for key in ("jaxpr", "body_jaxpr", "branches", "call_jaxpr"))


def _plain(value: Any) -> Any:
    """Tuples and numpy's numbers as JSON has them."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value if isinstance(value, bool | str) else int(value)


def _refused(problem: str) -> UserError:
    fix = "write it with arithmetic on arrays, as docs/training.md describes"
    return UserError("not-supported", "model.name", problem, fix)
