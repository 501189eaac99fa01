"""Race 1: many small silos, few per round. Tacit, pfl and a plain PyTorch loop.

``python -m benchmarks.race_cross_device --data FOLDER [--peers-python PYTHON] [--repeats 5] [--out FOLDER]``
"""

from __future__ import annotations

from benchmarks.commands import run_race
from benchmarks.contest import Contestant
from benchmarks.work import CROSS_DEVICE

CONTESTANTS = (
    Contestant("tacit", "logistic_tacit", is_peer=False),
    Contestant(
        "pfl",
        "logistic_pfl",
        (
            {"threads": 1, "sgd_loop": "plain", "workers": 1},
            {"threads": 1, "sgd_loop": "foreach", "workers": 1},
            {"threads": 2, "sgd_loop": "plain", "workers": 1},
            {"threads": 1, "sgd_loop": "plain", "workers": 2},
        ),
    ),
    Contestant("torch", "logistic_torch", ({"threads": 1}, {"threads": 2})),
)

if __name__ == "__main__":
    run_race(CROSS_DEVICE, CONTESTANTS)
