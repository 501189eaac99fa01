"""What a contestant measures and prints: one JSON object, the last line of its standard output.

Standard library only: a contestant imports this before its heavy packages, so that ``imports`` counts them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

PHASES = ("imports", "load", "train", "evaluate")


@dataclass
class Record:
    """The measurements of one contestant in one process.

    contestant     its name in the race
    seconds        by phase, see ``PHASES``
                   imports   the contestant's packages, numpy included
                   load      from the file on disk to records in memory, dealt to silos, in the contestant's own form
                   train     from records in memory to the final parameters: building the model, compiling, warming up
                             and every round; no evaluation
                   evaluate  accuracy on the test set, once, after the last round
    round_seconds  one number per round, in order, the first rounds included; where several rounds run as one compiled
                   piece, that piece's seconds divided by its rounds, repeated
    round_processor_seconds
                   the same in processor seconds of all threads, where measured: other work on the machine touches them
                   less
    accuracy       on the 10,000 test images, 0..1
    answer         where there is nothing to be accurate about: a number on which all contestants must agree
    variants       seconds of rounds of other work, by name, timed in the same process
    parameters     how many numbers the model has
    settings       threads and whatever else was chosen for this contestant
    versions       of the packages that did the work
    notes          where its work differs from ``work.Race`` (sampling, shuffling), in a sentence each
    """

    contestant: str
    seconds: dict[str, float] = field(default_factory=dict)
    round_seconds: list[float] = field(default_factory=list)
    round_processor_seconds: list[float] = field(default_factory=list)
    accuracy: float = float("nan")
    answer: float = float("nan")
    variants: dict[str, list[float]] = field(default_factory=dict)
    parameters: int = 0
    settings: dict[str, object] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block and add it to that phase."""
        if name not in PHASES:
            raise ValueError(f"phase {name!r} is none of {PHASES}")
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def show(self) -> None:
        """Print the object that the harness reads."""
        missing = [name for name in PHASES if name not in self.seconds]
        if missing or not self.round_seconds:
            raise ValueError(f"incomplete record: {missing or 'round_seconds'}")
        sys.stdout.write(json.dumps(asdict(self)) + "\n")


def arguments(**settings: object) -> argparse.Namespace:
    """A contestant's command line: ``--data`` and one option per setting, with its default (which gives its type)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="folder with mnist.npz (default: the folder mnist of TACIT_DATA)")
    for name, default in settings.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, type=type(default))
    return parser.parse_args()
