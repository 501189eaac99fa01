"""Convolutions and pooling as slices and matrix products: the same outputs and gradients as the original."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from jax import lax

from tacit.models import build
from tacit.models.rewriting import MOST_SLICES, rewritten
from tests.models.test_adapters import ALL, factory

TOLERANCE = 1e-5
# every example is compiled: few, and no search for a smaller one
LOOKED_AT = settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
REPLACED = ("conv_general_dilated", "reduce_window", "select_and_")
LAYOUTS = {
    1: [("NHC", "HIO", "NHC"), ("NCH", "OIH", "NCH"), ("NCH", "HIO", "HNC")],
    2: [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWNC", "IHWO", "CNWH")],
}


def names(function, *inputs):
    """The operations of a trace, inner ones included."""

    def of(jaxpr):
        for equation in jaxpr.eqns:
            yield equation.primitive.name
            for part in equation.params.values():
                for one in part if isinstance(part, tuple | list) else (part,):
                    inner = getattr(one, "jaxpr", one)
                    if hasattr(inner, "eqns"):
                        yield from of(inner)

    return set(of(jax.make_jaxpr(function)(*inputs).jaxpr))


def is_replaced(function, *inputs):
    return not any(name.startswith(REPLACED) for name in names(function, *inputs))


def close(one, other):
    for mine, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        scale = max(1.0, float(jnp.abs(theirs).max(initial=0.0)))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=TOLERANCE * scale)


def agree(apply, params, x):
    """Outputs and gradients by weights and records, compiled, for two sets of weights side by side."""
    shape = jax.eval_shape(apply, params, x).shape
    mixed = jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 - leaf]), params)

    def both(function):
        def summed(params, x):
            outputs = function(params, x)
            return jnp.vdot(outputs, mixed), outputs

        return jax.vmap(jax.grad(summed, argnums=(0, 1), has_aux=True), (0, None))

    fast, slow = both(rewritten(apply)), both(apply)
    close(*jax.jit(lambda *inputs: (fast(*inputs), slow(*inputs)))(several, x))


def drawn(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def arranged(array, letters, wanted):
    return array.transpose([letters.index(letter) for letter in wanted])


@st.composite
def convolutions(draw):
    sides = draw(st.sampled_from((1, 2)))
    groups, depth, features = (draw(st.integers(1, 3)) for _ in range(3))

    def numbers(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(sides))

    kernel, lengths = numbers(1, 5), numbers(6, 11)
    padding = tuple(zip(numbers(-1, 3), numbers(-1, 3), strict=True))
    p = {
        "window_strides": numbers(1, 4),
        "padding": draw(st.sampled_from(("SAME", "VALID", padding))),
        "rhs_dilation": numbers(1, 2),
        "dimension_numbers": draw(st.sampled_from(LAYOUTS[sides])),
        "feature_group_count": groups,
    }
    if not isinstance(p["padding"], str):
        p["lhs_dilation"] = numbers(1, 2)
    return p, (2, groups * depth, *lengths), (groups * features, depth, *kernel)


@LOOKED_AT
@given(convolutions())
def test_a_convolution_of_any_form_is_replaced_by_an_equal_one(case):
    p, records, kernel = case
    of_x, of_w, _ = p["dimension_numbers"]
    x = arranged(drawn(0, *records), "NCHW"[: len(records)], of_x)
    params = {"w": arranged(drawn(1, *kernel), "OIHW"[: len(kernel)], of_w)}

    def apply(params, x):
        return lax.conv_general_dilated(x, params["w"], **p)

    assume(jax.eval_shape(apply, params, x).size > 0)
    assert is_replaced(rewritten(apply), params, x)
    agree(apply, params, x)


POOLING = {"max": (-jnp.inf, lax.max), "min": (jnp.inf, lax.min), "sum": (0.0, lax.add)}


@st.composite
def windows(draw):
    rank = draw(st.sampled_from((3, 4)))

    def numbers(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    padding = tuple(zip(numbers(0, 2), numbers(0, 2), strict=True))
    stretched = {"base_dilation": numbers(1, 2), "window_dilation": numbers(1, 2)}
    p = {"window_strides": numbers(1, 3), "padding": draw(st.sampled_from(("SAME", "VALID", padding)))}
    return numbers(1, 3), p | (stretched if draw(st.booleans()) else {}), numbers(5, 7)


@LOOKED_AT
@given(st.sampled_from(sorted(POOLING)), windows())
def test_pooling_of_any_form_is_replaced_by_an_equal_one(kind, case):
    size, p, shape = case
    start, join = POOLING[kind]
    x = drawn(0, *shape)

    def apply(params, x):
        return lax.reduce_window(params["w"] * x, start, join, size, **p)

    assume(jax.eval_shape(apply, {"w": jnp.float32(2.0)}, x).size > 0)
    assert is_replaced(rewritten(apply), {"w": jnp.float32(2.0)}, x)
    if "base_dilation" in p:  # the original has no gradient there
        close(*jax.jit(lambda x: (rewritten(apply)({"w": 2.0}, x), apply({"w": 2.0}, x)))(x))
    else:
        agree(apply, {"w": jnp.float32(2.0)}, x)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_of_equal_numbers_the_same_one_has_the_gradient_as_in_the_original(kind):
    x = jnp.asarray(np.random.default_rng(0).integers(0, 3, (4, 9, 9, 2)), jnp.float32)
    start, join = POOLING[kind]
    pooled = rewritten(lambda _, x: lax.reduce_window(x, start, join, (1, 3, 3, 1), (1, 2, 1, 1), "SAME"))

    def original(_, x):
        return lax.reduce_window(x, start, join, (1, 3, 3, 1), (1, 2, 1, 1), "SAME")

    mixed = drawn(1, *original({}, x).shape)
    of = [jax.grad(lambda x, f=f: jnp.vdot(f({}, x), mixed))(x) for f in (pooled, original)]
    np.testing.assert_allclose(*of, atol=1e-6)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_pooling_keeps_what_is_not_a_number(kind):
    x = drawn(0, 1, 6, 6, 1).at[0, 2, 3, 0].set(jnp.nan)
    start, join = POOLING[kind]

    def apply(_, x):
        return lax.reduce_window(x, start, join, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")

    np.testing.assert_array_equal(rewritten(apply)({}, x), apply({}, x))


def channels_first(params, x):
    """Two convolutions with everything between them that a module may have."""

    def convolved(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))

    x = convolved(x, params["one"]) + params["bias"][:, None, None]
    x = jax.nn.gelu(x) * 2 - jnp.maximum(x, 0.1)
    mean = x.mean((2, 3), keepdims=True)
    x = (x - mean) * lax.rsqrt(jnp.square(x - mean).mean((2, 3), keepdims=True) + 1e-5)
    x = jax.nn.relu(convolved(x, params["two"]))
    x = jnp.where(x > 0.5, x, jnp.clip(x, -1, 1)).swapaxes(1, 3)
    return jnp.concatenate([x.max((1, 2)), x.transpose(0, 3, 1, 2).reshape(len(x), -1)], axis=1)


def test_operations_between_convolutions_stay_equal():
    params = {"one": drawn(0, 3, 2, 3, 3), "two": drawn(1, 4, 3, 2, 2), "bias": drawn(2, 3)}
    assert is_replaced(rewritten(channels_first), params, drawn(3, 2, 2, 6, 5))
    agree(channels_first, params, drawn(3, 2, 2, 6, 5))


def test_a_model_with_channels_first_is_transposed_before_its_first_and_after_its_last_convolution():
    def apply(params, x):
        for w in params.values():
            x = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
            x = jax.nn.relu(x + 1)
        return x

    params = {name: drawn(0, 3, 3, 3, 3) for name in "abcd"}
    traced = jax.make_jaxpr(rewritten(apply))(params, drawn(1, 2, 3, 8, 8))
    moved = [e for e in traced.eqns if e.primitive.name == "transpose" and e.invars[0].aval.shape[0] == 2]
    assert len(moved) == 2


def nested(body):
    """A convolution within ``body`` of a trace."""

    def apply(params, x):
        def step(x):
            return lax.conv_general_dilated(x, params["w"], (1,), "SAME", dimension_numbers=("NCH", "OIH", "NCH"))

        return body(step, x)

    return apply


BODIES = {
    "jit": lambda step, x: jax.jit(step)(x),
    "remat": lambda step, x: jax.checkpoint(step)(x),
    "scan": lambda step, x: lax.scan(lambda x, _: (step(x), x.sum()), x, None, length=3)[0],
    "cond": lambda step, x: lax.cond(x[0, 0, 0] > 0, step, lambda x: -step(x), x),
}


@pytest.mark.parametrize("body", BODIES)
def test_convolutions_within_calls_loops_and_branches_are_replaced(body):
    params, x = {"w": drawn(0, 2, 2, 3)}, drawn(1, 2, 2, 7)
    apply = nested(BODIES[body])
    assert is_replaced(rewritten(apply), params, x)
    agree(apply, params, x)


def test_recomputation_is_kept():
    apply = rewritten(nested(BODIES["remat"]))
    assert names(apply, {"w": drawn(0, 2, 2, 3)}, drawn(1, 2, 2, 7)) & {"remat", "remat2", "checkpoint"}


def test_a_derivative_of_the_models_own_is_kept():
    @jax.custom_vjp
    def odd(x):
        return x**2

    odd.defvjp(lambda x: (x**2, x), lambda x, g: (7.0 * g,))

    def apply(params, x):
        return odd(params["w"] * lax.transpose(x, (1, 0)))

    agree(apply, {"w": drawn(0, 3, 2)}, drawn(1, 2, 3))
    made = jax.grad(lambda x: rewritten(apply)({"w": jnp.ones((3, 2))}, x).sum())(drawn(1, 2, 3))
    np.testing.assert_allclose(made, 7.0)


def test_a_relu_of_the_models_own_keeps_its_derivative():
    @jax.custom_jvp
    def relu(x):
        return jnp.maximum(x, 0)

    relu.defjvp(lambda x, t: (jnp.maximum(x[0], 0), 3.0 * t[0]))

    def apply(params, x):
        return relu(lax.transpose(params["w"] * x, (1, 0)))

    agree(apply, {"w": drawn(0, 2, 3)}, drawn(1, 2, 3))


def test_what_cannot_be_replaced_stays():
    def long(params, x):
        return lax.reduce_window(params["w"] * x, 0.0, lax.add, (1, MOST_SLICES + 1), (1, 1), "SAME")

    x, params = drawn(0, 2, 40), {"w": jnp.float32(1.0)}
    assert "reduce_window_sum" in names(rewritten(long), params, x)
    agree(long, params, x)

    def of_batch(params, x):
        return lax.conv_general_dilated(x, params["w"], (1,), "SAME", batch_group_count=2)

    params, x = {"w": drawn(1, 4, 3, 3)}, drawn(2, 4, 3, 8)
    assert "conv_general_dilated" in names(rewritten(of_batch), params, x)
    agree(of_batch, params, x)


def test_a_model_is_traced_once_for_each_shape():
    traced = []

    def apply(params, x):
        traced.append(x.shape)
        return x @ params["w"]

    fast = rewritten(apply)
    for rows in (2, 3, 2, 3, 2):
        fast({"w": drawn(0, 4, 1)}, drawn(1, rows, 4))
        jax.jit(jax.vmap(fast, (0, None)))({"w": drawn(0, 6, 4, 1)}, drawn(1, rows, 4))
    assert traced == [(2, 4), (3, 4)]


@ALL
def test_a_module_has_no_convolution_left(framework):
    model = build(factory(framework, "images"), (8, 8), 2)
    params = model.init(jax.random.key(0))
    floats = {name: leaf for name, leaf in params.items() if leaf.dtype == jnp.float32}
    rest = {name: leaf for name, leaf in params.items() if name not in floats}

    def gradient(floats, x):
        return jax.grad(lambda floats: model.apply(floats | rest, x).sum())(floats)

    assert is_replaced(gradient, floats, drawn(0, 3, 8, 8))
