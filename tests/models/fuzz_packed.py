"""A fuzzer of packed models: ``python -m tests.models.fuzz_packed COUNT SEED`` prints what became of them as JSON.

Each mutated model must load within the limits, or be refused with a code. One that loads must have the shape that its
file says when JAX traces it, and some are computed. The process may take 512 MB more than after its start, and every
model has ten seconds; either limit ends the process with an error.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.errors import UserError
from tacit.models.operations import OPERATIONS, ArrayForm
from tacit.models.packed_model import FIELD, MAGIC, Limits, Packed, dump, load

LIMITS = Limits(bytes=1 << 20, structure=1 << 18, equations=400, operations=10**6, memory=10**6)
CODES = {"wrong-file", "file-damaged", "invalid-model", "not-supported", "not-finite", "too-many"}
ROOM, SECONDS = 512 << 20, 10
COMPUTED = 40  # at most, because each is compiled
NASTY: list[Any] = [
    *(-1, 0, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, True, False, None, ""),
    *("float32", "int32", "bool", "float64", "while", "custom_call", "pure_callback", "random_bits", "scan"),
    *([], {}, [[]], [1] * 30, [2**31] * 3, [0, 0], [[0], [0]], {"axes": [0]}, [[[[[[]]]]]]),
]


def seeds() -> list[bytes]:
    """Small models that use most operations."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    dense = {"p/a/w": array(6, 4), "p/a/b": array(4), "p/b/w": array(4, 2)}
    product = {"batch": [[], []]}
    mlp = [
        ["reshape", [0], {"shape": [1, 6]}],
        ["dot", [4, 2], {"contract": [[1], [0]], **product}],
        ["add", [5, 1], {}],
        ["relu", [6], {}],
        ["dot", [7, 3], {"contract": [[1], [0]], **product}],
    ]
    image = {"p/c/w": array(3, 3, 1, 2), "p/d/w": array(8, 2), "c/0": np.float32(0)}
    conv = [
        ["reshape", [0], {"shape": [1, 4, 4, 1]}],
        [
            "conv",
            [4, 2],
            {
                "of_x": [0, 3, 1, 2],
                "of_w": [3, 2, 0, 1],
                "of_result": [0, 3, 1, 2],
                "groups": 1,
                "stride": [1, 1],
                "dilate_x": [1, 1],
                "dilate_w": [1, 1],
                "padding": [[1, 1], [1, 1]],
            },
        ],
        ["window_max", [5], {"size": [1, 2, 2, 1], "stride": [1, 2, 2, 1], "padding": [[0, 0]] * 4}],
        ["max", [6, 1], {}],
        ["reshape", [7], {"shape": [8]}],
        ["dot", [8, 3], {"contract": [[0], [0]], **product}],
    ]
    table = {"p/e/w": array(5, 3), "c/0": np.arange(2, dtype=np.int32).reshape(2, 1)}
    mixed = [
        ["gather", [2, 1], {"sizes": [1, 3], "collapsed": [0], "places": [0], "offsets": [1], "mode": "clip"}],
        ["reduce_sum", [3], {"axes": [1]}],
        ["slice", [0], {"start": [1], "stop": [3], "step": [1]}],
        ["concatenate", [4, 5], {"axis": 0}],
        ["cumsum", [6], {"axis": 0, "reverse": True}],
        ["gt", [7, 6], {}],
        ["select", [8, 6, 7], {}],
        ["broadcast", [9], {"shape": [3, 4], "dims": [1]}],
        ["transpose", [10], {"order": [1, 0]}],
        ["reduce_max", [11], {"axes": [0]}],
        ["iota", [], {"shape": [3], "axis": 0, "dtype": "float32"}],
        ["integer_pow", [13], {"y": 2}],
        ["add", [12, 14], {}],
        ["rev", [15], {"axes": [0]}],
        ["tanh", [16], {}],
    ]
    return [
        dump("mlp", ArrayForm("float32", (6,)), 2, dense, mlp, 8),
        dump("conv", ArrayForm("float32", (16,)), 2, image, conv, 9),
        dump("mixed", ArrayForm("float32", (4,)), 3, table, mixed, 19 - 2),
    ]


def text(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def parts(content: bytes) -> tuple[bytes, bytes, bytes]:
    """The structure, the header of the arrays, the data."""
    end = 12 + int.from_bytes(content[8:12], "little")
    length = int.from_bytes(content[end : end + 8], "little")
    return content[12:end], content[end + 8 : end + 8 + length], content[end + 8 + length :]


def joined(structure: bytes, header: bytes, data: bytes) -> bytes:
    around = MAGIC + len(structure).to_bytes(4, "little") + structure
    return around + len(header).to_bytes(8, "little") + header + data


def changed(content: Any, rng: random.Random) -> Any:
    """The content with one value, at a random place, replaced, doubled, moved or left out."""
    if isinstance(content, dict) and content and rng.random() < 0.85:
        key = rng.choice(sorted(content))
        what = rng.random()
        if what < 0.1:
            return {k: v for k, v in content.items() if k != key}
        if what < 0.15:
            return {**content, rng.choice(["x", "axes", "shape", "p/a", "p//", "c/1", "q/1"]): content[key]}
        return {**content, key: changed(content[key], rng)}
    if isinstance(content, list) and content and rng.random() < 0.85:
        place = rng.randrange(len(content))
        what = rng.random()
        if what < 0.08:
            return content[:place] + content[place + 1 :]
        if what < 0.16:
            return content[: place + 1] + content[place:]
        if what < 0.2:
            return rng.sample(content, len(content))
        return [*content[:place], changed(content[place], rng), *content[place + 1 :]]
    if type(content) is int and rng.random() < 0.6:
        return content + rng.choice([-2, -1, 1, 2, 5])
    if isinstance(content, str) and rng.random() < 0.7:
        return rng.choice(sorted(OPERATIONS))
    return rng.choice(NASTY)


def grown(structure: Any, rng: random.Random) -> Any:
    """With a chain of equations that makes values ever larger, or of very many equations."""
    last = structure["result"]
    chain = []
    for _ in range(rng.choice([3, 12, 60, 1000])):
        step = rng.randrange(4)
        if step == 0:
            chain.append(["concatenate", [last] * rng.choice([2, 64]), {"axis": 0}])
        elif step == 1:
            size = rng.choice([2, 10**3, 10**6, 2**31 - 1])
            chain.append(["broadcast", [0], {"shape": [size, structure["record"][1][0]], "dims": [1]}])
        elif step == 2:
            chain.append(["dot", [last, last], {"contract": [[], []], "batch": [[], []]}])
        else:
            chain.append(["exp", [last], {}])
        last = structure["result"] + len(chain)
    return {**structure, "equations": structure["equations"] + chain, "result": last}


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A malformed, huge or wrong variant of a packed model."""
    what = rng.random()
    if what < 0.2:  # bytes
        raw = bytearray(content)
        for _ in range(rng.choice([1, 1, 2, 8])):
            place = rng.randrange(len(raw))
            kind = rng.randrange(4)
            if kind == 0:
                raw[place] = rng.randrange(256)
            elif kind == 1:
                raw[place] ^= 1 << rng.randrange(8)
            elif kind == 2:
                del raw[place : place + rng.choice([1, 4, 1000])]
            else:
                raw[place:place] = rng.randbytes(rng.choice([1, 4, 100]))
            if not raw:
                return b""
        return bytes(raw)
    structure, header, data = parts(content)
    if what < 0.28:  # text that is JSON in some readers
        form = rng.randrange(5)
        if form == 0:
            structure = structure.replace(b'"version":1', b'"version":1,"version":1')
        elif form == 1:
            structure = structure.replace(b"[", b"[ ", 1)
        elif form == 2:
            structure = structure.replace(b'"outputs":', rng.choice([b'"outputs":NaN,"x":', b'"outputs":-']))
        elif form == 3:
            structure = b"[" * rng.choice([100, 10_000, 200_000]) + structure
        else:
            header = header.replace(b'"shape"', b'"shape":[1],"shape"', 1)
    elif what < 0.4:
        structure = text(grown(json.loads(structure), rng))
    elif what < 0.6:
        header = text(changed(json.loads(header), rng))
    elif what < 0.65:
        numbers = np.frombuffer(data[: len(data) // 4 * 4], np.float32).copy()
        numbers[rng.randrange(len(numbers))] = rng.choice([np.nan, np.inf, -np.inf, 3e38, 1e-45])
        data = numbers.tobytes()
    elif what < 0.7:
        found = json.loads(structure)
        rng.choice(found["equations"])[0] = rng.choice(["while", "scan", "pure_callback", "custom_call", "random_bits"])
        structure = text(found)
    else:
        found = json.loads(structure)
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            found = changed(found, rng) if isinstance(found, dict) else found
        structure = text(found)
    return joined(structure, header, data)


def outcome(content: bytes) -> tuple[str, Packed | None]:
    """``loaded`` or the code of the refusal; any other error ends the fuzzer."""
    try:
        found = load(content, LIMITS)
    except UserError as error:
        if error.code not in CODES or error.field != FIELD:
            raise
        return error.code, None
    assert found.operations <= LIMITS.operations
    assert found.memory <= LIMITS.memory
    return "loaded", found


def traced(found: Packed) -> None:
    """JAX gives the shape that the file says."""
    model = found.model()
    x = jax.ShapeDtypeStruct((2, *found.record.shape), found.record.dtype)
    form = jax.eval_shape(model.apply, jax.eval_shape(model.init, jax.random.key(0)), x)
    assert form.shape == (2, found.outputs)
    assert form.dtype == jnp.float32


def computed(found: Packed) -> None:
    """Outputs and gradients come to an end."""
    model = found.model()
    x = jnp.zeros((2, *found.record.shape), found.record.dtype)
    jax.block_until_ready(jax.jit(jax.grad(lambda p: model.apply(p, x).sum()))(model.init(jax.random.key(0))))


def fuzz(count: int, seed: int) -> dict[str, Any]:
    rng, known = random.Random(seed), seeds()
    for content in known:
        traced(load(content, LIMITS))
    address = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (address + ROOM, resource.RLIM_INFINITY))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found: Counter[str] = Counter()
    longest = runs = 0.0
    shapes: set[str] = set()
    began = time.perf_counter()
    for _ in range(count):
        content = mutated(rng.choice(known), rng)
        signal.alarm(SECONDS)
        start = time.perf_counter()
        code, model = outcome(content)
        longest = max(longest, time.perf_counter() - start)
        if model is not None and model.sha256 not in shapes:
            traced(model)
            if len(shapes) < COMPUTED:
                computed(model)
                runs += 1
            shapes.add(model.sha256)
        signal.alarm(0)
        found[code] += 1
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    seconds = {"longest_load_s": round(longest, 4), "total_s": round(time.perf_counter() - began, 1)}
    return {"models": count, "outcomes": dict(found), **seconds, "memory_mb": round(grown_mb), "computed": int(runs)}


if __name__ == "__main__":
    print(json.dumps(fuzz(int(sys.argv[1]), int(sys.argv[2]))))
