"""A run on a device that is not JAX's default one, as on a machine with accelerators."""

import json
import os
import subprocess
import sys

PROGRAM = """
import json, sys
import jax, tacit
from safetensors.numpy import load_file

def model(method, exchange, device):
    plan = {
        "title": "devices", "seed": 5,
        "data": {"source": "randhie", "records_per_silo": 2700},
        "model": {"name": "mlp", "hidden": [4]},
        "method": method,
        "train": {"rounds": 2},
        "privacy": {"max_records_per_subject_and_silo": 5},
        "exchange": {"name": exchange},
    }
    with jax.default_device(device):
        run = tacit.run(plan, out=f"{sys.argv[1]}/{method['name']}-{exchange}-{device.id}")
    return {name: array.tobytes() for name, array in load_file(run.path / "model.safetensors").items()}

first, second = jax.devices()
cases = [
    ({"name": "subject-sgd", "clip": 1.0, "noise_multiplier": 2.0}, "masked"),
    ({"name": "local-record", "clip": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.05}, "plain"),
]
print(json.dumps([model(*case, first) == model(*case, second) for case in cases]))
"""


def test_a_run_on_a_second_device_gives_the_same_model(tmp_path):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | flags,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [True, True]
