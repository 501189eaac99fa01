"""Packed models: what they compute, what is refused, and a fuzzer of the loader."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load as load_arrays

from tacit.models import Model, build
from tacit.models.packed_model import FIELD, LIMITS, Limits, find, keep, load
from tacit.models.packing import pack
from tests.models import fuzz_packed as fuzzer
from tests.refusals import refuses


def attention(features, outputs):
    """Attention over features, with normalisation: most operations of a transformer."""

    def init(key):
        keys = jax.random.split(key, 3)
        return {
            "embed": {"w": jax.random.normal(keys[0], (features, 4))},
            "mix": {"w": jax.random.normal(keys[1], (4, 12))},
            "out": {"w": jax.random.normal(keys[2], (4, outputs))},
        }

    def apply(params, x):
        h = x[:, :, None] * params["embed"]["w"]
        h = (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)
        q, k, v = jnp.split(h @ params["mix"]["w"], 3, -1)
        weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k))
        pooled = jnp.einsum("bts,bsd->btd", weights, v).mean(1)
        return jax.nn.gelu(pooled) @ params["out"]["w"] + jax.nn.softplus(x[:, :1])

    return Model("attention", init, apply)


def with_apply(apply):
    return Model("own", lambda key: {"a": {"w": jnp.ones((3, 2))}}, apply)


@pytest.fixture(scope="module")
def packed():
    return pack(attention(5, 2), (5,), 2, seed=4)


def test_a_packed_model_has_the_outputs_and_parameters_of_the_model(packed):
    model, again = attention(5, 2), load(packed.content).model()
    params, x = model.init(jax.random.key(4)), np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    jax.tree.map(np.testing.assert_array_equal, again.init(jax.random.key(0)), params)
    np.testing.assert_allclose(again.apply(params, x), model.apply(params, x), rtol=1e-5, atol=1e-5)


def test_what_a_model_never_trains_is_a_constant_of_the_file():
    own = Model(
        "own",
        lambda key: {"a": {"w": jnp.ones((3, 2))}, "scale": jnp.full(3, 2.0)},
        lambda params, x: (x * params["scale"]) @ params["a"]["w"],
        fixed=frozenset({"scale"}),
    )
    again = pack(own, (3,), 2).model()
    params = again.init(jax.random.key(0))
    assert set(params) == {"a"}
    np.testing.assert_allclose(again.apply(params, jnp.ones((2, 3))), np.full((2, 2), 6.0), rtol=1e-6)


def test_packing_twice_gives_the_same_bytes_and_arrays_are_safetensors(packed):
    assert pack(attention(5, 2), (5,), 2, seed=4).content == packed.content
    structure, _, _ = fuzzer.parts(packed.content)
    arrays = load_arrays(packed.content[12 + len(structure) :])
    assert set(arrays) == set(packed.arrays)


def test_pooling_convolutions_and_scans_are_packed():
    def apply(params, x):
        image = x.reshape(-1, 4, 4, 1)
        y = jax.lax.conv_general_dilated(
            image, params["c"]["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = jax.lax.reduce_window(jax.nn.relu(y), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        y = y.reshape(x.shape[0], -1)
        state, _ = jax.lax.scan(lambda s, column: (jnp.tanh(s + column), s), jnp.zeros_like(y[:, 0]), y.T)
        return y @ params["d"]["w"] + state[:, None]

    init = lambda key: {"c": {"w": jax.random.normal(key, (3, 3, 1, 2))}, "d": {"w": jnp.ones((8, 2))}}  # noqa: E731
    found = pack(Model("image", init, apply), (16,), 2)
    assert {"conv", "window_max", "relu", "tanh"} <= {name for name, _, _ in found.equations}


@pytest.mark.parametrize(
    "apply",
    [
        lambda p, x: jax.lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 1, x) @ p["a"]["w"],
        lambda p, x: x @ p["a"]["w"] + jax.random.normal(jax.random.key(x[0, 0].astype(int)), (1, 2)),
        lambda p, x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x) @ p["a"]["w"],
        lambda p, x: (x.astype(jnp.float16) @ p["a"]["w"].astype(jnp.float16)).astype(jnp.float32),
    ],
    ids=["while", "random", "callback", "half-precision"],
)
def test_what_a_packed_model_cannot_hold_is_refused_when_packing(apply):
    with refuses("not-supported", "model.name"):
        pack(with_apply(apply), (3,), 2)


def test_a_model_that_couples_records_is_found_out_when_packing():
    with refuses("invalid-model", "model.name"):
        pack(with_apply(lambda p, x: (x - x.mean(0) * (x.shape[0] > 1)) @ p["a"]["w"]), (3,), 2)


def test_a_derivative_of_its_own_is_found_out_when_packing():
    @jax.custom_jvp
    def straight(x):
        return jnp.round(x)

    straight.defjvp(lambda primals, tangents: (straight(*primals), tangents[0]))
    with refuses("invalid-model", "model.name"):
        pack(with_apply(lambda p, x: straight(x @ p["a"]["w"])), (3,), 2)


@pytest.mark.parametrize(
    ("limit", "code"),
    [("bytes", "too-many"), ("equations", "too-many"), ("operations", "too-many"), ("memory", "too-many")],
)
def test_a_model_above_a_limit_is_refused(packed, limit, code):
    needs = {"bytes": len(packed.content), "equations": len(packed.equations)}
    need = needs.get(limit) or getattr(packed, limit)
    assert load(packed.content, LIMITS._replace(**{limit: need})).sha256 == packed.sha256
    with refuses(code, FIELD):
        load(packed.content, LIMITS._replace(**{limit: need - 1}))


def test_a_packed_model_for_other_records_is_refused(packed):
    digest = keep(packed.content).sha256
    assert build("packed", (5,), 2, sha256=digest).name == "attention"
    with refuses("mismatch", FIELD):
        build("packed", (6,), 2, sha256=digest)
    with refuses("missing", FIELD):
        find(sha256="0" * 64)


def test_a_file_with_another_hash_than_the_experiment_says_is_refused(packed, tmp_path):
    file = tmp_path / "model.tacit"
    file.write_bytes(packed.content)
    with refuses("changed", FIELD):
        build("packed", (5,), 2, path=str(file), sha256="0" * 64)


def test_values_of_huge_sizes_are_refused_before_they_exist():
    structure, header, data = fuzzer.parts(fuzzer.seeds()[0])
    found = json.loads(structure)
    found["equations"] = [["broadcast", [0], {"shape": [2**31 - 1, 6], "dims": [1]}]]
    found["result"] = 4
    with refuses("invalid-model", FIELD):
        load(fuzzer.joined(fuzzer.text(found), header, data))
    found["equations"][0][2]["shape"] = [2**28, 6]
    with refuses("too-many", FIELD):
        load(fuzzer.joined(fuzzer.text(found), header, data), Limits())


def fuzzed(count, seed):
    command = [sys.executable, "-m", "tests.models.fuzz_packed", str(count), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_some_hundred_fuzzed_models_load_within_limits_or_are_refused():
    found = fuzzed(600, 2)
    assert sum(found["outcomes"].values()) == 600
    assert set(found["outcomes"]) - {"loaded"} <= fuzzer.CODES
    assert found["outcomes"]["loaded"] > 10
    assert found["longest_load_s"] < 5


@pytest.mark.slow
def test_a_hundred_thousand_fuzzed_models_load_within_limits_or_are_refused():
    found = fuzzed(100_000, 1)
    assert sum(found["outcomes"].values()) == 100_000
    assert set(found["outcomes"]) == fuzzer.CODES | {"loaded"}
