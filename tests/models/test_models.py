"""The built-in models: their sizes, what they compute, and that they compute it the same way twice."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tacit.models import MODELS, build, parameter_count, task_for
from tacit.models.images import max_pool, patches
from tests.refusals import refuses

SHAPES = {
    "logistic": (12,),
    "linear": (12,),
    "mlp": (12,),
    "cnn": (28, 28),
    "edges": (28, 28),
    "resnet": (16, 20),
    "scattering": (28, 28),
    "lstm": (9,),
    "gru": (9,),
    "transformer": (12,),
    "cox": (12,),
}
BUILT_IN = [name for name in MODELS if name != "packed"]  # a packed model is read from a file
RECURRENT = {"hidden": 5, "embedding": 3, "dense_units": 4}
SMALL = {
    "lstm": RECURRENT,
    "gru": RECURRENT,
    "mlp": {"hidden": [7, 6]},
    "resnet": {"channels": [4, 6], "groups": 2, "blocks": 2},
    "transformer": {"width": 8, "heads": 2, "hidden": 6},
}
LEARNED = ["mlp", "cnn", "resnet", "lstm", "gru", "transformer"]  # start at random
OUTPUTS = {"linear": 1, "cox": 1}
ROWS = 5


@functools.cache
def made(name):
    """A small model, its parameters and a batch."""
    outputs = OUTPUTS.get(name, 10)
    model = build(name, SHAPES[name], outputs, **SMALL.get(name, {}))
    rng = np.random.default_rng(0)
    if MODELS[name].codes:
        x = rng.integers(0, outputs, (ROWS, *SHAPES[name])).astype(np.int32)
    else:
        x = rng.normal(size=(ROWS, *SHAPES[name])).astype(np.float32)
    x = jnp.asarray(x) if model.prepare is None else model.prepare(jnp.asarray(x))
    return model, model.init(jax.random.key(3)), x, jax.jit(model.apply)


def numpy_lstm_layer(layer, x):
    """One LSTM layer, step by step: ``x [b, time, in] -> [b, time, units]``."""
    units = layer["b"].shape[0] // 4
    h = c = np.zeros((len(x), units))
    states = []
    for t in range(x.shape[1]):
        gates = np.concatenate([x[:, t], h], axis=1) @ layer["w"] + layer["b"]
        i, f, g, o = (gates[:, k * units : (k + 1) * units] for k in range(4))
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        states.append(h)
    return np.stack(states, axis=1)


def test_default_sizes():
    sizes = {
        "logistic": ((784,), 10, 7850),  # as in [FLAME]
        "linear": ((30,), 1, 31),
        "cox": ((39,), 1, 39),
        "mlp": ((30,), 1, 30 * 64 + 64 + 64 + 1),
        "cnn": ((28, 28), 10, 26_010),
        "edges": ((28, 28), 10, 2_890),
        "resnet": ((28, 28), 10, 77_562),
        "scattering": ((28, 28), 10, 39_700),
        "lstm": ((80,), 80, 57_072),
        "gru": ((80,), 80, 44_144),
        "transformer": ((10,), 1, 17_569),
    }
    assert set(sizes) == set(BUILT_IN)
    for name, (shape, outputs, size) in sizes.items():
        assert parameter_count(build(name, shape, outputs)) == size, name


def test_layers_have_names_by_which_they_can_be_frozen():
    key = jax.random.key(0)
    assert set(build("lstm", (80,), 80).init(key)) == {"embedding", "layer0", "layer1", "layer2", "layer3"}
    assert set(build("mlp", (3,), 1, hidden=[2] * 11).init(key)) == {f"layer{i}" for i in range(12)}


@pytest.mark.parametrize("name", BUILT_IN)
def test_outputs_have_one_row_per_record_in_float32(name):
    _, params, x, apply = made(name)
    outputs = apply(params, x)
    assert outputs.shape == (ROWS, OUTPUTS.get(name, 10))
    assert {leaf.dtype for leaf in jax.tree.leaves((params, outputs))} == {jnp.dtype("float32")}
    assert all(isinstance(layer, dict) for layer in params.values())


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_same_key_gives_the_same_model_and_a_record_does_not_depend_on_its_neighbours(name):
    model, params, x, apply = made(name)
    jax.tree.map(np.testing.assert_array_equal, params, model.init(jax.random.key(3)))
    whole, turned = apply(params, x), apply(params, x[::-1])
    np.testing.assert_allclose(whole, turned[::-1], atol=1e-6)


@pytest.mark.parametrize("name", ["logistic", "linear", "cox"])
def test_convex_models_start_at_zero(name):
    _, params, _, _ = made(name)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", LEARNED)
def test_other_models_start_with_different_rows_and_signals_of_ordinary_size(name):
    _, params, x, apply = made(name)
    assert 0.01 < float(jnp.std(apply(params, x))) < 10
    other = build(name, SHAPES[name], 10, **SMALL.get(name, {})).init(jax.random.key(4))
    assert not np.array_equal(*(jax.flatten_util.ravel_pytree(each)[0] for each in (params, other)))


@pytest.mark.parametrize("name", LEARNED)
def test_models_vectorise_over_sets_of_weights(name):
    model, params, x, apply = made(name)
    doubled = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), params)
    both = jax.jit(jax.vmap(model.apply, (0, None)))(doubled, x)
    np.testing.assert_allclose(both[0], apply(params, x), atol=1e-5)
    np.testing.assert_allclose(both[1], apply(jax.tree.map(lambda leaf: 0.5 * leaf, params), x), atol=1e-5)


def test_gradient_steps_lower_the_loss_of_every_classifier():
    labels = jnp.arange(ROWS)
    task = task_for("multiclass", 10)
    for name in ("logistic", "scattering", *LEARNED):
        model, params, x, _ = made(name)

        @jax.jit
        def step(params, x, model=model):
            loss, gradient = jax.value_and_grad(lambda p: task.loss(model.apply(p, x), labels, jnp.ones(ROWS)))(params)
            return loss, jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient)

        losses = []
        for _ in range(10):
            loss, params = step(params, x)
            losses.append(float(loss))
        assert losses[-1] < losses[0], name


@pytest.mark.parametrize(("side", "size", "depth"), [(34, 8, 1), (13, 4, 3)])
def test_patches_and_matmul_are_a_convolution(side, size, depth):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, side, side + 2, depth)).astype(np.float32)
    w = (rng.normal(size=(size, size, depth, 5)) / size).astype(np.float32)
    expected = lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(patches(jnp.asarray(x), size) @ w.reshape(-1, 5), expected, atol=1e-5)


def test_pooling_takes_the_largest_of_four_neighbours():
    x = np.random.default_rng(2).normal(size=(2, 6, 5, 3)).astype(np.float32)
    expected = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
    np.testing.assert_array_equal(max_pool(jnp.asarray(x)), expected)


def test_the_cnn_equals_the_network_of_lax_convolutions():
    _, params, x, apply = made("cnn")
    h = x[..., None]
    for layer, size, padding in (("layer0", 8, (3, 3)), ("layer1", 4, (0, 0))):
        w = params[layer]["w"].reshape(size, size, h.shape[-1], -1)
        h = lax.conv_general_dilated(h, w, (2, 2), (padding, padding), dimension_numbers=("NHWC", "HWIO", "NHWC"))
        h = jnp.maximum(h + params[layer]["b"], 0)
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
    h = jnp.maximum(h.reshape(ROWS, -1) @ params["layer2"]["w"] + params["layer2"]["b"], 0)
    expected = h @ params["layer3"]["w"] + params["layer3"]["b"]
    np.testing.assert_allclose(apply(params, x), expected, atol=1e-5)


def test_the_cnn_takes_an_image_with_or_without_a_channel_axis():
    _, params, x, apply = made("cnn")
    explicit = build("cnn", (28, 28, 1), 10)
    np.testing.assert_allclose(jax.jit(explicit.apply)(params, x[..., None]), apply(params, x), atol=1e-6)
    assert parameter_count(build("cnn", (17, 32, 3), 10)) > 0


def test_the_lstm_equals_a_plain_loop_over_characters():
    _, params, x, apply = made("lstm")
    params = jax.tree.map(np.asarray, params)
    h = params["embedding"]["w"][np.asarray(x)]
    for name in ("layer0", "layer1"):
        h = numpy_lstm_layer(params[name], h)
    h = np.maximum(h[:, -1] @ params["layer2"]["w"] + params["layer2"]["b"], 0)
    expected = h @ params["layer3"]["w"] + params["layer3"]["b"]
    np.testing.assert_allclose(apply(params, x), expected, atol=1e-5)


def test_the_vocabulary_of_the_lstm_is_what_it_predicts_unless_told_otherwise():
    assert build("lstm", (80,), 80).init(jax.random.key(0))["embedding"]["w"].shape == (80, 8)
    assert build("lstm", (80,), 2, vocabulary=90).init(jax.random.key(0))["embedding"]["w"].shape == (90, 8)


def test_a_code_beyond_the_vocabulary_counts_as_its_last():
    _, params, x, apply = made("lstm")
    beyond, last = x.at[:, 4].set(99), x.at[:, 4].set(9)
    np.testing.assert_array_equal(apply(params, beyond), apply(params, last))


def test_edges_do_not_see_brightness_and_see_where_it_changes():
    prepare = build("edges", (28, 28), 10).prepare
    flat_image = prepare(jnp.full((1, 28, 28), 3.0))
    assert jnp.allclose(flat_image[:, :], flat_image * (jnp.abs(flat_image) > 1e-6), atol=1e-6)
    image = np.zeros((1, 28, 28), np.float32)
    image[0, 8:20, 14:] = 1.0
    brighter = prepare(jnp.asarray(image + 5.0))
    assert jnp.allclose(prepare(jnp.asarray(image))[:, 100:180], brighter[:, 100:180], atol=1e-4)
    assert float(jnp.abs(brighter).max()) > 0.01


def numpy_gru_layer(layer, x):
    """One GRU layer, step by step: ``x [b, time, in] -> [b, time, units]``."""
    units = layer["b"].shape[0] // 3
    of_input, of_state = np.split(layer["w"], [x.shape[-1]])
    h, states = np.zeros((len(x), units)), []
    for t in range(x.shape[1]):
        given, kept = x[:, t] @ of_input + layer["b"], h @ of_state
        z = 1 / (1 + np.exp(-given[:, :units] - kept[:, :units]))
        r = 1 / (1 + np.exp(-given[:, units : 2 * units] - kept[:, units : 2 * units]))
        h = (1 - z) * np.tanh(given[:, 2 * units :] + r * kept[:, 2 * units :]) + z * h
        states.append(h)
    return np.stack(states, axis=1)


def test_the_gru_equals_a_plain_loop_over_characters():
    _, params, x, apply = made("gru")
    params = jax.tree.map(np.asarray, params)
    h = params["embedding"]["w"][np.asarray(x)]
    for name in ("layer0", "layer1"):
        h = numpy_gru_layer(params[name], h)
    h = np.maximum(h[:, -1] @ params["layer2"]["w"] + params["layer2"]["b"], 0)
    expected = h @ params["layer3"]["w"] + params["layer3"]["b"]
    np.testing.assert_allclose(apply(params, x), expected, atol=1e-5)


def normal(x, axes):
    return (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(x.var(axis=axes, keepdims=True) + 1e-5)


def test_the_resnet_equals_the_network_of_lax_convolutions():
    _, params, x, apply = made("resnet")

    def convolution(w, h, stride=1):
        w = w - w.mean(axis=0)
        w = (w / np.sqrt(np.square(w).sum(axis=0) + 1e-5)).reshape(3, 3, h.shape[-1], -1)
        sides = ((1, 1), (1, 1))
        return lax.conv_general_dilated(h, w, (stride, stride), sides, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def activated(h, gain, shift):
        parts = np.asarray(h).reshape(*h.shape[:3], 2, -1)
        return np.maximum(normal(parts, (1, 2, 4)).reshape(h.shape) * gain + shift, 0)

    params = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.1, params)
    h = convolution(params["stem"]["w"], x[..., None])
    for name, stride in (("block0_0", 1), ("block0_1", 1), ("block1_0", 2), ("block1_1", 1)):
        layer = params[name]
        first = activated(h, layer["gain0"], layer["shift0"])
        past = first[:, ::stride, ::stride] @ layer["across"] if "across" in layer else h
        second = activated(convolution(layer["w0"], first, stride), layer["gain1"], layer["shift1"])
        h = past + convolution(layer["w1"], second)
    h = activated(h, params["last"]["gain"], params["last"]["shift"]).mean(axis=(1, 2))
    expected = h @ params["dense"]["w"] + params["dense"]["b"]
    np.testing.assert_allclose(apply(params, x), expected, atol=1e-4)


def test_the_transformer_equals_attention_head_by_head():
    _, params, x, apply = made("transformer")
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.1, params)
    h = np.asarray(x)[..., None] * params["columns"]["w"] + params["columns"]["b"]
    for i in range(2):
        layer = params[f"layer{i}_attention"]
        tokens = (normal(h, -1) * layer["gain"] + layer["shift"]) @ layer["w"]
        heads = []
        for head in np.split(tokens, 2, axis=-1):
            asked, keys, values = np.split(head, 3, axis=-1)
            weights = np.exp(asked @ keys.transpose(0, 2, 1) / 2)
            heads.append(weights / weights.sum(axis=-1, keepdims=True) @ values)
        h = h + np.concatenate(heads, axis=-1) @ layer["out"]
        first, second = params[f"layer{i}_dense0"], params[f"layer{i}_dense1"]
        inner = np.maximum((normal(h, -1) * first["gain"] + first["shift"]) @ first["w"] + first["b"], 0)
        h = h + inner @ second["w"] + second["b"]
    h = (normal(h, -1) * params["last"]["gain"] + params["last"]["shift"]).mean(axis=1)
    expected = h @ params["dense"]["w"] + params["dense"]["b"]
    np.testing.assert_allclose(apply(params, x), expected, atol=1e-4)


def test_a_transformer_with_a_vocabulary_reads_codes_and_their_order():
    model = build("transformer", (6,), 3, vocabulary=5, width=8, heads=2, hidden=6)
    params = model.init(jax.random.key(0))
    text = jnp.asarray([[0, 1, 2, 3, 4, 0], [1, 0, 2, 3, 4, 0], [0, 1, 2, 3, 99, 0]])
    first, swapped, beyond = model.apply(params, text)
    assert not np.allclose(first, swapped, atol=1e-4)
    np.testing.assert_array_equal(first, beyond)


def test_codes_without_a_vocabulary_and_numbers_that_do_not_divide_are_refused():
    model = build("transformer", (6,), 3)
    params = model.init(jax.random.key(0))
    with refuses("missing", "model.vocabulary"):
        model.apply(params, jnp.zeros((2, 6), jnp.int32))
    for name, shape, numbers in (
        ("transformer", (6,), {"heads": 5}),
        ("resnet", (28, 28), {"groups": 5}),
        ("scattering", (12, 12), {"scales": 4}),
    ):
        with refuses("out-of-range", f"model.{next(iter(numbers))}"):
            build(name, shape, 3, **numbers)


def test_scattering_is_moduli_of_wavelets_of_mean_zero_averaged():
    """Against sums over pixels, without Fourier transforms: a part of the first and one of the second order."""
    side, cell = 36, 4
    image = np.random.default_rng(3).normal(size=(28, 28))
    padded = np.pad(image, cell, mode="symmetric")

    def wavelet(scale, turn):
        u, v = np.meshgrid(*(np.arange(-54, 54),) * 2, indexing="ij")
        angle, width = np.pi * turn / 8, 0.8 * 2**scale
        along, across = u * np.cos(angle) + v * np.sin(angle), v * np.cos(angle) - u * np.sin(angle)
        bell = np.exp(-(along**2 + (0.5 * across) ** 2) / (2 * width**2)) * 0.5 / (2 * np.pi * width**2)
        wave = bell * np.exp(1j * along * 0.75 * np.pi / 2**scale)
        return folded(wave - bell * wave.sum() / bell.sum())

    def folded(values):  # a periodic image of `side` pixels; place 0 of `values` is -54
        total = np.zeros((side, side), values.dtype)
        for i, j in np.ndindex(3, 3):
            total += values[i * side : (i + 1) * side, j * side : (j + 1) * side]
        return np.roll(total, (-54 % side, -54 % side), axis=(0, 1))

    def around(values, kernel):
        places = np.arange(side)
        apart = (places[:, None] - places) % side
        return np.einsum("apbq,pq->ab", kernel[apart[:, :, None, None], apart[None, None]], values)

    u, v = np.meshgrid(*(np.arange(-54, 54),) * 2, indexing="ij")
    mean = folded(np.exp(-(u**2 + v**2) / (2 * 1.6**2)) / (2 * np.pi * 1.6**2))
    first = np.abs([around(padded, wavelet(0, turn)) for turn in range(8)])
    second = np.abs([around(first[2], wavelet(1, turn)) for turn in range(8)])
    described = np.asarray(build("scattering", (28, 28), 10).prepare(jnp.asarray(image[None], jnp.float32)))[0]
    blocks = described.reshape(81, 7, 7) * np.sqrt(described.size) / 4
    # order of channels: the mean; the first scale and what follows it; the second scale
    for expected, start in ((first, 1), (second, 1 + 8 + 2 * 8)):
        averaged = np.array([around(part, mean)[cell:-cell:cell, cell:-cell:cell] for part in expected])
        np.testing.assert_allclose(blocks[start : start + 8], normal(averaged, None), atol=2e-3)
