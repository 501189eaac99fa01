"""How long a round without a server takes: 2,000 nodes with 10,000 parameters each, by graph.

``python -m benchmarks.gossip_round [--nodes 2000] [--parameters 10000] [--repeats 5] [--out benchmarks/results]``

A round is what nodes do together: noise (where there is any) and one exchange with neighbours; local training is theirs
alone and depends on their records. ``exchange`` is the product of weights and values, ``noise`` the drawing of
cryptographic normals for all nodes. Weights are made once and not counted; the table says how long that takes.
Processor seconds are those of all threads: other work on the machine touches them less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.families.gossip.graphs import GraphChoice, mixing
from tacit.families.gossip.kernels import noised
from tacit.kernels import key_words
from tacit.privacy import Randomness

NAME = "gossip_round"
GRAPHS = {
    "ring": {},
    "torus": {},
    "exponential": {},
    "small-world": {"degree": 8},
    "erdos-renyi": {"edge_rate": 0.008},
    "complete": {},
}


def timed(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds, and processor seconds of all threads: medians of several goes, after one that does not count."""
    jax.block_until_ready(work())
    found = []
    for _ in range(repeats):
        begun = time.perf_counter(), time.process_time()
        jax.block_until_ready(work())
        found.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    seconds, processor = zip(*found, strict=True)
    return statistics.median(seconds), statistics.median(processor)


def measure(nodes: int, parameters: int, repeats: int) -> list[dict[str, Any]]:
    values = np.random.default_rng(0).normal(size=(nodes, parameters)).astype(np.float32)
    key = key_words(Randomness.from_seed(0).stream("noise"))
    held = jnp.asarray(values)
    noise = timed(lambda: noised(held, 1.0, key), repeats)
    rows = []
    for topology, numbers in GRAPHS.items():
        begun = time.perf_counter()
        network = mixing(GraphChoice(topology, nodes, **numbers))
        made = time.perf_counter() - begun
        exchange = timed(lambda network=network: jnp.asarray(network.step(values)), repeats)
        edges = (network.weights.nnz - nodes) // 2
        rows.append({"graph": topology, "edges": edges, "exchange": exchange, "noise": noise, "made": made})
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _row(row: dict[str, Any]) -> str:
    exchange, noise = np.array(row["exchange"]), np.array(row["noise"])
    (wall, processor), (whole, whole_processor) = exchange, exchange + noise
    numbers = f"{wall:.3f} | {whole:.3f} | {processor:.3f} | {whole_processor:.3f} | {row['made']:.2f}"
    return f"| {row['graph']} | {row['edges']:,} | {numbers} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--parameters", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = measure(options.nodes, options.parameters, options.repeats)
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {"nodes": options.nodes, "parameters": options.parameters, "load_before": load, "cores": os.cpu_count()}
    (options.out / f"{NAME}.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    lines = [
        f"# A round without a server: {options.nodes:,} nodes, {options.parameters:,} parameters each",
        "",
        f"Seconds, the median of {options.repeats}; {os.cpu_count()} cores, load before the start {load:.1f}.",
        "",
        "| graph | edges | exchange | with noise | exchange, processor | with noise, processor | weights, once |",
        "|---|---|---|---|---|---|---|",
        *(_row(row) for row in rows),
    ]
    (options.out / f"{NAME}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
