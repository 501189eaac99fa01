"""A BERT-like model on a text task and a ViT-like model on an image task, with low rank, at a proved epsilon of 4."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

import tacit

MISSING = [name for name in ("torch", "torchax", "transformers") if find_spec(name) is None]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} is not installed")]

PEOPLE = 100


def texts():
    """Eight tokens of each person; the label says which of two groups of tokens is more frequent."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, PEOPLE)
    tokens = rng.integers(0, 15, (PEOPLE, 8)) + 15 * (rng.random((PEOPLE, 8)) < 0.1 + 0.8 * label[:, None])
    return tokens.astype(np.float32), label


def images():
    """Images of 8 x 8 with a bright half, upper or lower."""
    rng = np.random.default_rng(1)
    label = rng.integers(0, 2, PEOPLE)
    pixels = rng.normal(size=(PEOPLE, 8, 8))
    pixels[label == 1, :4] += 1
    pixels[label == 0, 4:] += 1
    return pixels.reshape(PEOPLE, 64).astype(np.float32), label


CASES = [
    ("text", texts, ["*query.weight", "*value.weight"]),
    ("image", images, ["*q_proj.weight", "*v_proj.weight"]),
]


@pytest.mark.parametrize(("kind", "data", "layers"), CASES)
def test_a_hugging_face_model_is_trained_with_low_rank_at_epsilon_four(kind, data, layers, tmp_path):
    import torch

    features, label = data()
    names = [f"x{i}" for i in range(features.shape[1])]
    table = pd.DataFrame(features, columns=names).assign(person=np.arange(PEOPLE), y=label)
    experiment = {
        "seed": 1,
        "data": {
            "label": "y",
            "numeric": names,
            "standardize": "none",
            "subjects": {"column": "person", "count": PEOPLE},
            "silos": {"assign": "uniform", "count": 2},
        },
        "model": {
            "name": f"tests.models.modules.hugging:{kind}",
            "low_rank": {"layers": layers, "rank": 4},
            "train": ["*classifier*"],
        },
        "method": {"name": "subject-sgd", "target_epsilon": 4.0, "clip": 1.0},
        "train": {"rounds": 2},
        "privacy": {"max_records_per_subject_and_silo": 1, "max_silos_per_subject": 1, "delta": 1e-3},
    }
    run = tacit.run(experiment, table, out=tmp_path / "run")
    epsilons = {one["view"]: one["epsilon"] for one in run.guarantees()}
    assert 0 < epsilons["public"] <= epsilons["server"] <= 4
    module, before = run.module(), {name: value.numpy() for name, value in run.state_dict().items()}
    with torch.no_grad():
        outputs = torch.sigmoid(module(torch.tensor(features))).numpy().reshape(-1)
    np.testing.assert_allclose(outputs, run.predict(table)["probability"], atol=1e-5)
    assert not any(name.startswith("low_rank") for name in before)
    assert run.result["model"]["parameters"] < sum(value.size for value in before.values()) / 5
