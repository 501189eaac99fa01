"""Without a server: who loses how much to whom, and what it costs in accuracy. One command, one page, its pictures.

    TACIT_DATA=… python examples/decentralized/run.py docs/decentralized.md                everything
    python examples/decentralized/run.py docs/decentralized.md --only pairs --only gopa    some parts

parts: ``graphs``, ``pairs`` (epsilon from node to node and by distance), ``practices`` and ``people`` (accuracy against
epsilon on RAND HIE, with 64 silos or all people as nodes), ``digits`` (the same on MNIST, the only part that needs
TACIT_DATA), ``gopa`` (noise and AUC over the share of honest silos). Rates and clips are chosen on training people (or
images) with a seed of their own (research/study.py), once for each method and epsilon; results are of other seeds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))  # the folder of research/

from research.plots import Curve, Graph, Panel, Shades, curves, graph_grid, in_a_circle, shades
from research.study import Contender, Settings, judged, planned, trial, written_between
from tacit.data import Federation
from tacit.engine import load_federation
from tacit.families.gossip.exchange import network
from tacit.families.gossip.graphs import GraphChoice, mixing
from tacit.families.gossip.proofs import as_published_gossip
from tacit.families.pairwise.exchange import Pairwise
from tacit.planning.plan import Plan
from tacit.privacy import Randomness, View
from tacit.report.page import RUN_STYLES

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
CLEAN = (3, 4, 5)  # where settings were once changed after a look at results of SEEDS
DELTA = 1e-5


class Pictures:
    """A folder beside the page, and the lines that show what is in it."""

    def __init__(self, page: Path) -> None:
        self.folder = page.parent / page.stem
        self.folder.mkdir(exist_ok=True)

    def show(self, name: str, title: str, drawn: str) -> list[str]:
        (self.folder / f"{name}.svg").write_text(drawn, encoding="utf-8")
        return [f"![{title}]({self.folder.name}/{name}.svg)", ""]


# -- graphs and pairs


def graphs(pictures: Pictures) -> list[str]:
    """The seven graphs with 16 nodes, and what their gaps come to with 64."""
    random = {"erdos-renyi": {"edge_rate": 0.25}, "small-world": {"edge_rate": 0.2}}
    drawn, rows = [], []
    for name in ("ring", "torus", "hypercube", "exponential", "small-world", "erdos-renyi", "complete"):
        numbers = random.get(name, {})
        small = mixing(GraphChoice(name, 16, **numbers))
        large = mixing(GraphChoice(name, 64, **numbers))
        edges = [(int(u), int(v)) for u, v in np.argwhere(np.triu(small.distances == 1))]
        drawn.append(Graph(name, edges, in_a_circle(16), f"gap {small.gap:.3f}"))
        plain, quick = _exchanges(large.gap)
        degree = 2 * ((large.weights.nnz - 64) // 2) / 64
        rows.append(f"| {name} | {degree:.3g} | {int(large.distances.max())} | {large.gap:.4f} | {plain} | {quick} |")
    spoken = "Seven graphs of 16 nodes: " + ", ".join(f"{web.title}, {web.note}" for web in drawn)
    head = [
        "| graph, 64 nodes | mean degree | diameter | spectral gap | exchanges to 1 % | with Chebyshev |",
        "|---|---|---|---|---|---|",
    ]
    return [*pictures.show("graphs", "Seven graphs", graph_grid(drawn, spoken)), *head, *rows, ""]


def _exchanges(gap: float) -> tuple[int, int]:
    """After how many exchanges the distance to the mean is a hundredth: with powers, and with polynomials."""
    if gap >= 1:
        return 1, 1
    return math.ceil(math.log(100) / -math.log(1 - gap)), math.ceil(math.acosh(100) / math.acosh(1 / (1 - gap)))


PAIRS = {
    "ring": {"gossip_steps": 8},
    "torus": {"gossip_steps": 5},
    "hypercube": {"gossip_steps": 4},
    "small-world": {"gossip_steps": 4, "edge_rate": 0.2},
}


def pairs(pictures: Pictures) -> list[str]:
    """Epsilon from node to node of one round of private averaging, and by distance."""
    tables, exact, published, rows = [], [], [], []
    for style, (topology, numbers) in zip(RUN_STYLES, PAIRS.items(), strict=False):
        plan = _averaging(topology, numbers)
        found = network(plan.promise)
        assert found is not None
        tables.append(Shades(topology, found.epsilons, f"{numbers['gossip_steps']} exchanges"))
        at = [one.distance for one in found.by_distance]
        exact.append(Curve(topology, style, at, [one.largest for one in found.by_distance]))
        old = _as_published(plan, numbers["gossip_steps"])
        published.append(Curve(topology, style, at, [old[d] for d in at]))
        for one in found.by_distance[:10]:
            values = f"{one.largest:.3g} | {one.mean:.3g} | {old[one.distance]:.3g}"
            rows.append(f"| {topology} | {one.distance} | {one.pairs:,} | {values} |")
    spoken = "Epsilon from every node to every other on four graphs of 64 nodes; dark near the diagonal"
    lines = pictures.show("pairs", "Epsilon from node to node", shades(tables, spoken))
    panels = [
        Panel("exact, largest at that distance", "steps between two nodes", exact),
        Panel("as published, largest at that distance", "steps between two nodes", published),
    ]
    spoken = "Epsilon by distance on four graphs: exactly, and by the published formula"
    lines += pictures.show("distance", "Epsilon by distance", curves(panels, spoken))
    head = [
        "| graph | steps apart | pairs | largest epsilon | mean | largest, as published |",
        "|---|---|---|---|---|---|",
    ]
    return [*lines, *head, *rows, ""]


def _averaging(topology: str, numbers: dict) -> Plan:
    """One round of private averaging over 64 nodes at local epsilon 2 (noise multiplier 2.2)."""
    method = {"name": "muffliato-sgd", "noise_multiplier": 2.2, "topology": topology, **numbers}
    return planned(HERE / "gossip.toml", Contender(topology, method, {}, {"train.rounds": 1}), {}, 0)


def _as_published(plan: Plan, steps: int) -> dict[int, float]:
    """The largest epsilon of the published formula, by distance."""
    weights = plan.method.work.graph.network()
    dense = weights.weights.toarray()
    loss = np.stack([as_published_gossip(dense, steps, v) for v in range(64)], axis=1) / 2.2**2
    epsilon = loss / 2 + np.sqrt(2 * loss * math.log(1 / DELTA))
    distances = weights.distances
    return {d: float(epsilon[distances == d].max()) for d in range(1, int(distances.max()) + 1)}


# -- accuracy against epsilon


@dataclass(frozen=True)
class World:
    """Where methods are compared.

    file      the experiment whose data and model they share
    epsilons  at which
    metric    by which
    seeds     of the results
    load      makes the data of a plan
    """

    file: Path
    title: str
    epsilons: Sequence[float]
    contenders: Sequence[Contender]
    metric: str = "auc"
    seeds: Sequence[int] = CLEAN
    load: Callable[[Plan], Federation] = load_federation


def a_fifth(plan: Plan) -> Federation:
    """The data of a plan with a fifth of its training records, by lot: trials take a fifth of the time."""
    federation = load_federation(plan)
    kept = np.random.default_rng([plan.experiment.seed or 0, 6]).random(len(federation.train)) < 0.2
    return replace(federation, train=federation.train.take(kept))


CHANGES = {"privacy.relation": "zero-out"}


def public(label: str, method: dict, rates: Sequence[float], **changes: object) -> Contender:
    """A contender whose epsilon is about the public: a trusted server's, or all nodes' together."""
    grid = {"train.server_learning_rate": rates}
    return Contender(label, method, grid, {"privacy.against": ["public"], **CHANGES, **changes})


def nodes(label: str, method: dict, rates: Sequence[float], view: str, **changes: object) -> Contender:
    """A contender whose own steps are chosen, if there are any ``rates``, and whose epsilon is about ``view``."""
    grid = {"local_learning_rate": rates} if rates else {}
    return Contender(label, method, grid, {"privacy.against": [view], **CHANGES, **changes})


def clips(label: str, method: dict) -> Contender:
    """A contender whose clip is chosen, and whose epsilon is about the public."""
    return Contender(label, method, {"clip": (1.0, 3.0)}, {"privacy.against": ["public"], **CHANGES})


GOSSIP = {
    "name": "muffliato-sgd",
    "topology": "hypercube",
    "gossip_steps": 3,
    "acceleration": "chebyshev",
    "adopt": True,
}
# every node once on average in each round, as one gradient of each would be
WALK = {"walk_steps": 64}
PRACTICES = World(
    HERE / "gossip.toml",
    "RAND HIE, 64 silos as nodes: AUC against epsilon of a silo",
    (1.0, 4.0, 16.0),
    (
        nodes("central", {"name": "dp-fedavg", "clip": 0.3}, (3.0, 10.0), "public"),
        nodes("gossip, public", {**GOSSIP, "clip": 0.3}, (3.0, 10.0), "public"),
        nodes("gossip, 4 steps away", {**GOSSIP, "clip": 0.3}, (3.0, 10.0), "neighbour:4"),
        nodes("random walk", {"name": "random-walk", "clip": 1.0, **WALK}, (0.1, 0.3), "neighbour"),
        nodes("local walk", {"name": "local-walk", "clip": 1.0, **WALK}, (0.03, 0.1), "neighbour"),
        nodes(
            "local, all at once", {"name": "muffliato-sgd", "topology": "complete", "clip": 0.3}, (3.0, 10.0), "public"
        ),
    ),
)
# 20 rounds: three or four visits to everybody
PERSON = {"nodes": "subjects", "walk_steps": 1000}
PEOPLE = World(
    HERE / "walk.toml",
    "RAND HIE, 5,912 people as nodes: AUC against epsilon of a person",
    (1.0, 4.0, 16.0),
    (
        public(
            "central",
            {"name": "subject-sgd", "clip": 0.5},
            (2.0, 10.0),
            **{"privacy.max_silos_per_subject": 1, "privacy.max_records_per_subject_and_silo": 5},
        ),
        nodes("random walk", {"name": "random-walk", "clip": 1.0, **PERSON}, (0.03, 0.1), "neighbour"),
        nodes("local walk", {"name": "local-walk", "clip": 1.0, **PERSON}, (0.01, 0.03), "neighbour"),
    ),
)
# 2,890 parameters, and noise for each of them: many nodes are needed. Updates are longer than a clip, which is then the
# length of a step, and chosen; walks visit every node ten times on average, at a rate that is not chosen.
STEP = {"local_learning_rate": 10.0}
SHORT = {"clip": 1.0, "local_learning_rate": 0.01, "walk_steps": 1024}
DIGITS = World(
    HERE / "mnist.toml",
    "MNIST, 1,024 silos as nodes: accuracy against epsilon of a silo",
    (1.0, 4.0, 16.0),
    (
        clips("central", {"name": "dp-fedavg", **STEP}),
        clips("gossip, public", {**GOSSIP, "gossip_steps": 5, **STEP}),
        nodes("random walk", {"name": "random-walk", **SHORT}, (), "neighbour"),
        nodes("local walk", {"name": "local-walk", **SHORT}, (), "neighbour"),
        clips("local, all at once", {"name": "muffliato-sgd", "topology": "complete", **STEP}),
    ),
    metric="accuracy",
    seeds=(6, 7),
    load=a_fifth,
)


def utility(world: World, name: str) -> Callable[[Pictures], list[str]]:
    """A part of the page: a line for every contender, and a table."""

    def part(pictures: Pictures) -> list[str]:
        found = {
            contender.label: [at(contender, epsilon) for epsilon in world.epsilons] for contender in world.contenders
        }
        lines = [
            Curve(
                label,
                style,
                world.epsilons,
                [mean for mean, _ in row],
                [mean - deviation for mean, deviation in row],
                [mean + deviation for mean, deviation in row],
            )
            for style, (label, row) in zip(RUN_STYLES, found.items(), strict=False)
        ]
        what = {"auc": "AUC"}.get(world.metric, world.metric)
        panel = Panel(what, "epsilon", lines, log_x=True)
        spoken = (
            world.title
            + ". "
            + " ".join(f"{label}: {row[0][0]:.3f} to {row[-1][0]:.3f}." for label, row in found.items())
        )
        head = "| method | " + " | ".join(f"epsilon {epsilon:g}" for epsilon in world.epsilons) + " |"
        rows = [
            f"| {label} | " + " | ".join(f"{mean:.3f} ± {deviation:.3f}" for mean, deviation in row) + " |"
            for label, row in found.items()
        ]
        return [
            *pictures.show(name, world.title, curves([panel], spoken)),
            head,
            "|---" * (1 + len(world.epsilons)) + "|",
            *rows,
            "",
        ]

    def at(contender: Contender, epsilon: float) -> tuple[float, float]:
        """Mean and deviation over seeds at an epsilon, with the rate that training people chose."""
        begun = time.monotonic()
        method = {**contender.method, "target_epsilon": epsilon}
        noise = planned(world.file, replace(contender, method=method), _first(contender), world.seeds[0])
        given = {**contender.method, "noise_multiplier": noise.noise_multiplier}
        solved = replace(contender, method=given)
        chosen: Settings = {}
        if contender.grid:
            _, chosen = max(judged(world.file, solved, world.metric, load=world.load), key=lambda pair: pair[0])
        scores = []
        for seed in world.seeds:
            plan = planned(world.file, solved, chosen, seed)
            scores.append(trial(plan, world.load(plan))[world.metric])
        told = f"{contender.label} {epsilon:g}: {statistics.mean(scores):.3f} {dict(chosen)}"
        print(f"{name}, {told} {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        return statistics.mean(scores), statistics.stdev(scores)

    return part


def _first(contender: Contender) -> dict:
    return {key: values[0] for key, values in contender.grid.items()}


# -- pairwise noise


SILOS, EPSILON, PEERS = 40, 4.0, 8
SHARES = (0.25, 0.5, 0.75, 1.0)


def gopa(pictures: Pictures) -> list[str]:
    """Noise on the mean and AUC over the share of honest silos: a trusted server, GOPA, local; and peers needed."""
    central = _gopa_trial("central", 1.0)
    rows, noise, score = [], {}, {}
    for share in SHARES:
        for kind in ("central", "gopa", "local"):
            found = central if kind == "central" else _gopa_trial(kind, share)
            noise.setdefault(kind, []).append(found[0])
            score.setdefault(kind, []).append(found[1:])
        cells = " | ".join(
            f"{noise[kind][-1] ** 2:.3g} | {score[kind][-1][0]:.3f}" for kind in ("central", "gopa", "local")
        )
        rows.append(f"| {share:.0%} | {cells} |")
    names = {"central": "trusted server", "gopa": "GOPA", "local": "local"}
    shares = [100 * share for share in SHARES]
    styles = dict(zip(names, RUN_STYLES, strict=False))
    panels = [
        Panel(
            "variance of the noise on the mean, in clips squared",
            "honest silos, %",
            [Curve(names[kind], styles[kind], shares, [value**2 for value in noise[kind]]) for kind in names],
            log_y=True,
        ),
        Panel(
            "AUC",
            "honest silos, %",
            [
                Curve(
                    names[kind],
                    styles[kind],
                    shares,
                    [mean for mean, _ in score[kind]],
                    [mean - deviation for mean, deviation in score[kind]],
                    [mean + deviation for mean, deviation in score[kind]],
                )
                for kind in names
            ],
        ),
    ]
    spoken = "Noise and AUC over the share of honest silos, for a trusted server, GOPA and local privacy"
    head = [
        "| honest | variance, trusted server | AUC | variance, GOPA | AUC | variance, local | AUC |",
        "|---|---|---|---|---|---|---|",
    ]
    lines = [*pictures.show("gopa", "GOPA between central and local", curves(panels, spoken)), *head, *rows, ""]
    return [*lines, *_peers(pictures)]


def _coalition(share: float) -> list[int]:
    """Who colludes, drawn by lot before the graph is."""
    order = Randomness.from_seed(8).stream("coalition").permutation(SILOS)
    return sorted(int(silo) for silo in order[: SILOS - round(share * SILOS)])


def _gopa_trial(kind: str, share: float) -> tuple[float, float, float]:
    """Standard deviation of the noise on the mean in clips, and the mean and deviation of the AUC over seeds."""
    begun = time.monotonic()
    members = _coalition(share)
    view = f"coalition:[{','.join(map(str, members))}]" if members else "server"
    exchange: dict[str, object] = {"exchange.name": "plain"}
    if kind != "central":
        pairs = (
            {"exchange.peers": PEERS} if kind == "gopa" else {"exchange.peers": 1, "exchange.pairwise_multiplier": 0.0}
        )
        exchange = {"exchange.name": "pairwise", "exchange.graph": "k-out", "exchange.honest": share, **pairs}
    changes = {
        "data.silos": {"assign": "uniform", "count": SILOS},
        "privacy.against": ["public"] if kind == "central" else [view],
        **exchange,
    }
    method = {"name": "dp-fedavg", "clip": 0.5, "local_learning_rate": 1.0, "target_epsilon": EPSILON}
    contender = Contender(kind, method, {}, {**changes, "train.server_learning_rate": 4.0, "train.rounds": 5})
    scores = []
    for seed in SEEDS:
        plan = planned(HERE / "gossip.toml", contender, {}, seed)
        scores.append(trial(plan, load_federation(plan))["auc"])
    sigma, exchange_made = plan.noise_multiplier, plan.exchange
    assert sigma is not None
    more = math.sqrt(SILOS / exchange_made.counted(SILOS)) if isinstance(exchange_made, Pairwise) else 1.0
    print(
        f"gopa {kind} {share:g}: {statistics.mean(scores):.3f} {time.monotonic() - begun:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return sigma * more / SILOS, statistics.mean(scores), statistics.stdev(scores)


def _peers(pictures: Pictures) -> list[str]:
    """What messages tell beyond their sum, by the number of peers, for shares of honest silos."""
    peers = (1, 2, 3, 4, 6, 8, 12, 16, 24)
    lines = []
    for style, share in zip(RUN_STYLES, (1.0, 0.8, 0.6, 0.4), strict=False):
        members = _coalition(share)
        view = View("coalition", len(members), tuple(map(str, members))) if members else View("server")
        factors = [Pairwise(peers=m, pairwise_multiplier=10.0, honest=share).factor(view, SILOS) for m in peers]
        lines.append(Curve(f"{share:.0%} honest", style, peers, factors))
    panel = Panel(
        "what messages tell, over what their sum tells", "peers that each silo picks", lines, log_x=True, log_y=True
    )
    spoken = (
        "The more peers, the less messages tell beyond their sum; the fewer honest silos, the more peers are needed"
    )
    return pictures.show("peers", "Peers needed", curves([panel], spoken))


PARTS: dict[str, Callable[[Pictures], list[str]]] = {
    "graphs": graphs,
    "pairs": pairs,
    "practices": utility(PRACTICES, "practices"),
    "digits": utility(DIGITS, "digits"),
    "people": utility(PEOPLE, "people"),
    "gopa": gopa,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--only", action="append", choices=PARTS)
    options = parser.parse_args()
    begun = time.monotonic()
    for name in options.only or PARTS:
        lines = PARTS[name](Pictures(options.page))
        written_between(options.page, f"{name}: written by examples/decentralized/run.py", lines)
        print(f"{name}: {time.monotonic() - begun:.0f} s so far", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
