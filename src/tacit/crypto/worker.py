"""Products of powers by several processes: multiplications of long integers do not run side by side in one.

A worker is a program that runs :func:`serve`: it gets one piece of work on its standard input, answers on its standard
output and ends. It is started as a new program, not forked: whoever calls may have threads of its own (JAX has).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from gmpy2 import mpz

from tacit.crypto.powers import products_of_packed_powers

# below so many numbers, starting a process takes longer than the work
_WORTH_A_PROCESS = 20_000


def shared_products(
    bases: Sequence[mpz], numbers: npt.NDArray[np.int64], slots: int, width: int, n: mpz, workers: int = 1
) -> list[mpz]:
    """:func:`products_of_packed_powers`, the bases shared between this process and ``workers - 1`` others."""
    pieces = max(1, min(workers, len(bases), numbers.size // _WORTH_A_PROCESS))
    if pieces == 1:
        return products_of_packed_powers(bases, numbers, slots, width, n)
    work = [
        (bases[piece::pieces], np.ascontiguousarray(numbers[:, piece::pieces]), slots, width, n)
        for piece in range(pieces)
    ]
    with ThreadPoolExecutor(pieces - 1) as pool:
        others = [pool.submit(_elsewhere, piece) for piece in work[1:]]
        results = [products_of_packed_powers(*work[0]), *(other.result() for other in others)]
    modulus = mpz(n) ** 2
    total = results[0]
    for result in results[1:]:
        total = [a * b % modulus for a, b in zip(total, result, strict=True)]
    return total


def _elsewhere(work: tuple[Sequence[mpz], npt.NDArray[np.int64], int, int, mpz]) -> list[mpz]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", "from tacit.crypto.worker import serve; serve()"],
        input=pickle.dumps(work),
        stdout=subprocess.PIPE,
        env=environment,
        check=True,
    )
    answer: list[mpz] = pickle.loads(done.stdout)
    return answer


def serve() -> None:
    """What the other process does."""
    sys.stdout.buffer.write(pickle.dumps(products_of_packed_powers(*pickle.load(sys.stdin.buffer))))
