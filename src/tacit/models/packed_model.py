"""Packed models: a model of one's own as data, which a silo can check and run without code of the requester.

Nothing in a model couples records, so a model is a function of one record and its parameters. A packed model is the
list of its operations (:mod:`tacit.models.operations`), its initial parameters and its constants. The format:

``TACITMP1``                   8 bytes
length of the structure        4 bytes, little-endian
the structure                  JSON: sorted keys, no spaces; every text that differs from its canonical form is refused
the arrays                     a safetensors file: names in order, without gaps

The structure has the shape and dtype of one record, the number of outputs, and ``equations``, a list of ``[operation,
arguments, parameters]``. A value is a number: 0 is the record, then follow the arrays in the order of their names
(``c/…`` constants, ``p/layer/name`` parameters), then the results of the equations, one each. Arguments are earlier
values, so there is no recursion and no loop: every equation is computed once.

:func:`load` checks everything before anything is evaluated. It reads the sizes of all values from the shapes of record
and arrays, and refuses a model above its :class:`Limits`. A UserError about ``model.path`` has one of these codes:
``wrong-file``, ``file-damaged``, ``invalid-model``, ``not-supported`` (an operation), ``not-finite``, ``too-many``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.errors import UserError
from tacit.models.model import Model, ModelKind, Params
from tacit.models.operations import MOST_RANK, OPERATIONS, ArrayForm, UnfitArguments, shape_of
from tacit.models.rewriting import rewritten

MAGIC = b"TACITMP1"
PACKED = "packed"  # the name of such a model in an experiment
FIELD = "model.path"
_FIX = "pack it with `tacit model pack`"
_KEYS = {"equations", "name", "outputs", "record", "result", "version"}
_STORED = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4"), "BOOL": np.dtype("bool")}
_NAMES = {"float32": "F32", "int32": "I32", "bool": "BOOL"}
_MOST_LAYERS_DEEP = 8


class Limits(NamedTuple):
    """What a packed model may need at most.

    bytes       of the file
    structure   of its JSON parts, together
    equations   operations in its list
    operations  arithmetic operations for one record, forward
    memory      bytes of all values that one record leaves on the way, forward
    """

    bytes: int = 64 << 20
    structure: int = 4 << 20
    equations: int = 10_000
    operations: int = 10**10
    memory: int = 1 << 28


LIMITS = Limits()


@dataclass(frozen=True, eq=False)
class Packed:
    """A checked packed model.

    operations, memory  for one record: arithmetic operations, and bytes of all values
    """

    name: str
    sha256: str
    content: bytes
    record: ArrayForm
    outputs: int
    arrays: Mapping[str, np.ndarray]
    equations: Sequence[tuple[str, Sequence[int], Mapping[str, Any]]]
    result: int
    operations: int
    memory: int

    @property
    def params(self) -> Params:
        """The initial parameters as a tree of layers."""
        tree: Params = {}
        for name, array in self.arrays.items():
            if name.startswith("p/"):
                *folders, last = name[2:].split("/")
                place = tree
                for folder in folders:
                    place = place.setdefault(folder, {})
                place[last] = array
        return tree

    def check(self, limits: Limits) -> None:
        """A UserError where the model needs more than that."""
        found = {"bytes": len(self.content), "equations": len(self.equations)}
        for key, count in {**found, "operations": self.operations, "memory": self.memory}.items():
            _limit(key, count, getattr(limits, key))

    def model(self) -> Model:
        """The pure functions that the file describes."""
        constants = {name: array for name, array in self.arrays.items() if name.startswith("c/")}

        def init(key: jax.Array) -> Params:
            del key
            return jax.tree.map(jnp.asarray, self.params)

        def of_one(params: Params, record: jax.Array) -> jax.Array:
            values = [record.astype(self.record.dtype)]
            values += [jnp.asarray(constants[n]) if n in constants else _leaf(params, n) for n in self.arrays]
            for name, arguments, numbers in self.equations:
                values.append(OPERATIONS[name].run([values[k] for k in arguments], numbers))
            return values[self.result].reshape(self.outputs)

        def apply(params: Params, x: jax.Array) -> jax.Array:
            return jax.vmap(of_one, in_axes=(None, 0))(params, x)

        return Model(self.name, init, rewritten(apply))


def _leaf(params: Params, name: str) -> jax.Array:
    found: Any = params
    for key in name[2:].split("/"):
        found = found[key]
    leaf: jax.Array = found
    return leaf


# -- the file


def load(content: bytes, limits: Limits = LIMITS) -> Packed:
    """The packed model in these bytes; a UserError where it is invalid or above the limits."""
    _limit("bytes", len(content), limits.bytes)
    if content[:8] != MAGIC:
        raise UserError("wrong-file", FIELD, "is no packed model of this version of Tacit", _FIX)
    length = int.from_bytes(content[8:12], "little")
    _limit("structure", length, limits.structure)
    if len(content) < 12 + length:
        raise _damaged("is cut")
    structure = _canonical(content[12 : 12 + length])
    arrays = _read_arrays(content[12 + length :], limits)
    return _checked(structure, arrays, content, limits)


def dump(
    name: str, record: ArrayForm, outputs: int, arrays: Mapping[str, np.ndarray], equations: Any, result: int
) -> bytes:
    """The bytes of a packed model, which are the same for the same model."""
    structure = {
        "version": 1,
        "name": name,
        "record": [record.dtype, list(record.shape)],
        "outputs": outputs,
        "equations": equations,
        "result": result,
    }
    text = _text(structure)
    return MAGIC + len(text).to_bytes(4, "little") + text + _write_arrays(arrays)


def _text(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _canonical(text: bytes) -> Any:
    """The content of a JSON text in its canonical form: another order, a duplicate key, a space, NaN are refused."""
    try:
        content = json.loads(text)
        if _text(content) == text:
            return content
    except (ValueError, RecursionError, OverflowError):
        pass
    raise _damaged("its structure is not canonical JSON")


def _write_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    header: dict[str, Any] = {}
    parts, end = [], 0
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        stored = _NAMES[str(array.dtype)]
        parts.append(np.ascontiguousarray(array, _STORED[stored]).tobytes())
        header[name] = {"dtype": stored, "shape": list(array.shape), "data_offsets": [end, end + len(parts[-1])]}
        end += len(parts[-1])
    text = _text(header)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def _read_arrays(content: bytes, limits: Limits) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file of exactly the form that :func:`_write_arrays` gives."""
    length = int.from_bytes(content[:8], "little")
    _limit("structure", length, limits.structure)
    if len(content) < 8 + length:
        raise _damaged("its arrays are cut")
    header, data = _canonical(content[8 : 8 + length]), memoryview(content)[8 + length :]
    if not isinstance(header, dict):
        raise _damaged("its arrays have no header")
    arrays, end = {}, 0
    for name, about in header.items():
        if not isinstance(about, dict) or set(about) != {"dtype", "shape", "data_offsets"}:
            raise _damaged(f"array {name[:80]!r} has no dtype, shape and place")
        shape, dtype = about["shape"], about["dtype"]
        if not isinstance(dtype, str) or dtype not in _STORED or not _is_shape(shape):
            raise _damaged(f"array {name[:80]!r} has no known form")
        size = math.prod(shape) * _STORED[dtype].itemsize
        if about["data_offsets"] != [end, end + size] or end + size > len(data):
            raise _damaged(f"array {name[:80]!r} is not where it belongs")
        raw = data[end : end + size]
        if dtype == "BOOL" and np.frombuffer(raw, np.uint8).max(initial=0) > 1:
            raise _damaged(f"array {name[:80]!r} holds no booleans")
        arrays[name] = np.frombuffer(raw, _STORED[dtype]).reshape(shape)
        end += size
    if end != len(data):
        raise _damaged("has bytes that belong to no array")
    return arrays


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list) and len(shape) <= MOST_RANK and all(type(s) is int and 1 <= s < 1 << 31 for s in shape)
    )


def _checked(structure: Any, arrays: dict[str, np.ndarray], content: bytes, limits: Limits) -> Packed:
    if not isinstance(structure, dict) or set(structure) != _KEYS or structure["version"] != 1:
        raise _invalid("the structure is not that of version 1")
    name, record, outputs = structure["name"], structure["record"], structure["outputs"]
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
        raise _invalid("it has no name")
    is_pair = isinstance(record, list) and len(record) == 2 and record[0] in ("float32", "int32")
    if not is_pair or not _is_shape(record[1]):
        raise _invalid("the form of a record is unknown")
    if type(outputs) is not int or not 1 <= outputs <= 1 << 20:
        raise _invalid("the number of outputs is out of range")
    _check_arrays(arrays)
    equations = structure["equations"]
    if not isinstance(equations, list):
        raise _invalid("there is no list of equations")
    _limit("equations", len(equations), limits.equations)
    _limit("equations", sum(map(_expanded, equations)), limits.equations)
    values = [ArrayForm(record[0], tuple(record[1])), *(ArrayForm(str(a.dtype), a.shape) for a in arrays.values())]
    operations, memory = 0, 4 * values[0].size
    _limit("memory", memory, limits.memory)
    for place, equation in enumerate(equations):
        form, cost = _checked_equation(place, equation, values)
        operations, memory = operations + cost, memory + 4 * form.size
        _limit("operations", operations, limits.operations)
        _limit("memory", memory, limits.memory)
        values.append(form)
    result = structure["result"]
    if type(result) is not int or not 0 <= result < len(values):
        raise _invalid("the result is no value")
    if values[result].dtype != "float32" or values[result].size != outputs:
        raise _invalid(f"the result is not {outputs} numbers of float32")
    made = [(operation, tuple(inputs), numbers) for operation, inputs, numbers in equations]
    digest = hashlib.sha256(content).hexdigest()
    return Packed(name, digest, content, values[0], outputs, arrays, made, result, operations, memory)


def _expanded(equation: Any) -> int:
    """How many operations a compiler makes of an equation, roughly: those along an axis become a tree of them."""
    if not isinstance(equation, list) or len(equation) != 3 or not isinstance(equation[1], list):
        return 1
    return 1 + len(equation[1]) // 4 + 200 * (isinstance(equation[0], str) and equation[0].startswith("cum"))


def _check_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    params = set()
    for name, array in arrays.items():
        kind, *keys = name.split("/")
        is_plain = name.isprintable() and ":" not in name
        if kind not in ("c", "p") or not 1 <= len(keys) <= _MOST_LAYERS_DEEP or not all(keys) or not is_plain:
            raise _invalid(f"array {name[:80]!r} is no constant and no parameter")
        if kind == "p":
            params.add(name)
            if str(array.dtype) != "float32":
                raise _invalid(f"parameter {name[:80]!r} is not float32")
            if not np.isfinite(array).all():
                problem = f"parameter {name[:80]!r} holds NaN or infinity"
                raise UserError("not-finite", FIELD, problem, "use finite numbers")
    if not params:
        raise _invalid("there are no parameters")
    for name in params:
        parts = name.split("/")
        if any("/".join(parts[:k]) in params for k in range(2, len(parts))):
            raise _invalid(f"parameter {name[:80]!r} is within another")


def _checked_equation(place: int, equation: Any, values: Sequence[ArrayForm]) -> tuple[ArrayForm, int]:
    if not isinstance(equation, list) or len(equation) != 3:
        raise _invalid(f"equation {place} is not [operation, arguments, parameters]")
    name, inputs, params = equation
    if not isinstance(name, str) or name not in OPERATIONS:
        problem = f"equation {place} uses {str(name)[:40]!r}, which is no operation of packed models"
        raise UserError("not-supported", FIELD, problem, f"known: {', '.join(sorted(OPERATIONS))}")
    if not isinstance(params, dict) or not isinstance(inputs, list):
        raise _invalid(f"equation {place} has no arguments and parameters")
    if not all(type(one) is int and 0 <= one < len(values) for one in inputs):
        raise _invalid(f"equation {place} uses a value that is not computed before it")
    try:
        return shape_of(name, [values[one] for one in inputs], params)
    except UnfitArguments as error:
        raise _invalid(f"equation {place} ({name}): {error}") from None


def _limit(key: str, found: int, most: int) -> None:
    if found > most:
        problem = f"needs more {key} than are accepted: {found}, and {most} are"
        raise UserError("too-many", FIELD, problem, "use a smaller model")


def _damaged(problem: str) -> UserError:
    return UserError("file-damaged", FIELD, problem, _FIX)


def _invalid(problem: str) -> UserError:
    return UserError("invalid-model", FIELD, problem, _FIX)


# -- as a model by name

_kept: dict[str, Packed] = {}


def keep(content: bytes) -> Packed:
    """The packed model in these bytes, which :func:`find` knows by its hash while this process runs."""
    found = _kept.get(hashlib.sha256(content).hexdigest()) or load(content)
    _kept[found.sha256] = found
    return found


def read(path: Path) -> Packed:
    """The packed model in a file, kept."""
    if not path.is_file():
        raise UserError("file-not-found", FIELD, f"'{path}' does not exist", _FIX)
    _limit("bytes", path.stat().st_size, LIMITS.bytes)
    return keep(path.read_bytes())


def find(path: Any = None, sha256: Any = None) -> Packed:
    """The packed model with this hash, if it was read before, or in this file; a UserError where they differ."""
    if isinstance(sha256, str) and sha256 in _kept:
        return _kept[sha256]
    if not isinstance(path, str):
        raise UserError("missing", FIELD, "is required: the file of the packed model", f"set it; {_FIX}")
    found = read(Path(path))
    if sha256 is not None and found.sha256 != sha256:
        problem = f"'{path}' has another hash than model.sha256"
        raise UserError("changed", FIELD, problem, "restore the file, or leave model.sha256 out")
    return found


def by_name(input_shape: tuple[int, ...], outputs: int, *, path: Any = None, sha256: Any = None) -> Model:
    """The packed model of a file or hash: ``x [b, ...] -> [b, outputs]``."""
    found = find(path, sha256)
    if found.record.shape != input_shape or found.outputs != outputs:
        problem = (
            f"is for records of shape {list(found.record.shape)} and {found.outputs} outputs,"
            f" and here they are {list(input_shape)} and {outputs}"
        )
        raise UserError("mismatch", FIELD, problem, "pack the model for this experiment")
    return found.model()


KIND = ModelKind(by_name, ("binary", "multiclass", "multilabel", "real", "survival"))
