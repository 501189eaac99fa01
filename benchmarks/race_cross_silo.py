"""Race 2: a few silos with thousands of records each and a small CNN. Tacit and a plain PyTorch loop.

``python -m benchmarks.race_cross_silo --data FOLDER [--peers-python PYTHON] [--repeats 5] [--out FOLDER]``
"""

from __future__ import annotations

from benchmarks.commands import run_race
from benchmarks.contest import Contestant
from benchmarks.work import CROSS_SILO

CONTESTANTS = (
    Contestant("tacit", "cnn_tacit", is_peer=False),
    Contestant(
        "torch",
        "cnn_torch",
        tuple(
            {"threads": threads, "layout": layout} for threads in (2, 1) for layout in ("contiguous", "channels-last")
        ),
    ),
)

if __name__ == "__main__":
    run_race(CROSS_SILO, CONTESTANTS)
