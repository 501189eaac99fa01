"""Without a server: nodes average with their neighbours (gossip), or pass a model from one to the next (a walk).

A node is a silo, or a place for subjects with all their records, wherever they are held (``nodes``). Subjects get
places by the hash of their identifiers, independently of other subjects, so some places have several subjects and some
none; the guarantee is that of the worst place, and protects subjects from nodes other than their own. Every node keeps
a model of its own: all of them are one array ``[nodes, parameters]``, and a round is their local work, perhaps noise,
and exchanges with neighbours (``graphs``). No party sees everything, so guarantees are against *nodes*: one of them
(``neighbour``), one that is some steps away (``neighbour:3``), some together (``coalition:[0,4]``), and the public, who
see the models that a run keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.flatten_util import ravel_pytree

from tacit.errors import UserError
from tacit.families.gossip.graphs import (
    MOST_PAIRS,
    Acceleration,
    GraphChoice,
    Mixing,
    NoSuchGraph,
    Topology,
    WeightRule,
    mixing,
)
from tacit.families.gossip.proofs import (
    as_published_gossip,
    as_published_random_walk_rdp,
    gaussian_event,
    gossip_exposure,
    published_exposure,
)
from tacit.kernels import ServerStep, Work, descend
from tacit.kernels import clipped as clipped_vector
from tacit.methods import option_keys as keys
from tacit.methods.averaging import Training, training, training_numbers
from tacit.methods.base import (
    Claim,
    Divisors,
    Drawing,
    Facts,
    Info,
    LocalResult,
    LocalWork,
    Method,
    Options,
    ServerRule,
    ServerState,
    like,
    part,
)
from tacit.methods.clips import Clip, Shift
from tacit.models import Params
from tacit.privacy import (
    AsPublished,
    Event,
    Exposure,
    Gaussian,
    Noise,
    RandomWalk,
    Relation,
    Repeated,
    Unit,
    Unprotected,
    View,
)

OWN_PLACE = (
    "subjects have places by the hash of their identifiers, and may share one: they are protected from nodes at other"
    " places; a subject that is replaced by another keeps its place"
)
# The node whose value all take over.
ADOPTED = 0


def node_count(nodes: str, facts: Facts) -> int:
    """How many nodes there are, by what is declared."""
    return (facts.subjects or 0) if nodes == "subjects" else facts.silos


def node_info(info: Info, nodes: str) -> Info:
    """What is declared about nodes of this kind: subjects are gathered, and the first to be protected."""
    return info if nodes == "silos" else replace(info, units=("subject", "silo", "record"), gathers="subjects")


def check_nodes(nodes: str, facts: Facts) -> None:
    if node_count(nodes, facts) == 1:
        problem = "there must be at least two nodes"
        raise UserError("too-few", "method.nodes", problem, "use more silos, or subjects")


def node_assumptions(nodes: str, facts: Facts) -> tuple[str, ...]:
    count = node_count(nodes, facts)
    known = f"{count} nodes follow the protocol; the graph and who goes next do not depend on data"
    return (known, OWN_PLACE) if nodes == "subjects" else (known,)


@part
class NodeClip(Clip):
    """A node's whole update is clipped.

    nodes  ``silos``, or ``subjects``: places for subjects, which may share one
    apart  subjects who share a place are clipped apart from each other: each moves it by at most one clip
    """

    of = "node"

    nodes: Literal["silos", "subjects"] = "silos"
    apart: bool = False

    def nodes_moved(self, unit: Unit, relation: Relation, facts: Facts) -> int:
        """How many nodes change with one unit."""
        if unit == "record" and relation == "replace":
            together = self.nodes == "subjects" and self.apart
            return 1 if together else min(2, node_count(self.nodes, facts))
        if self.nodes == "silos" and unit == "subject":
            return facts.silos_moved(relation == "replace")
        return 1

    def sensitivity(self, unit: Unit, relation: Relation, facts: Facts) -> Shift | None:
        """By how much each node moves that changes (``nodes_moved``); None where nothing bounds their number.

        A node that is zeroed out sends noise alone, and so does a subject who is clipped apart from others in the same
        place; anything else in a node may turn its clipped update around. The subject who comes under replacement may
        be in another place: one clip in each of two nodes is no more than two in the worse of them. A record that is
        replaced may come to another subject: two nodes turn around, or two subjects in one place.
        """
        whole = 2.0 if relation == "replace" else 1.0
        if unit == "record" and relation == "replace":
            return Shift(4.0 if self.nodes == "subjects" and self.apart else 2.0)
        if self.nodes == "subjects":
            alone = unit == "subject" and self.apart
            return None if unit == "silo" else Shift(whole if alone else 2.0)
        return Shift(whole if unit == "silo" else 2.0)


@part
class KeptModel(ServerRule):
    """No server aggregates: ``total`` is the model that a run keeps of the nodes."""

    def update(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        return ServerState(like(total, server.params), server.optimizer)


def noisy_nodes(work: LocalWork, claim: GossipClaim | WalkClaim) -> Method:
    """Every node clips what it adds, and adds noise itself."""
    clip = claim.clip
    return Method(claim.info, work, KeptModel(), claim, clip, Noise(clip.sigma * clip.norm, "inside"), bound=clip.norm)


def moved_nodes(claim: GossipClaim | WalkClaim, exposure: Exposure) -> tuple[float, int] | Unprotected:
    """By how many clips each node moves that changes with a unit, and how many nodes change."""
    clip, unit, relation = claim.clip, exposure.unit, exposure.relation
    shift = clip.sensitivity(unit, relation, claim.facts)
    if shift is None:
        return Unprotected("a silo may be any number of nodes: only people are bounded here")
    if clip.sigma == 0:
        return Unprotected(f"{claim.info.name} with noise_multiplier 0 adds no noise")
    return shift.moved, clip.nodes_moved(unit, relation, claim.facts)


# -- gossip ------------------------------------------------------------------------------------------------------------


@part
class Graph(GraphChoice):
    """Who averages with whom, and how often.

    adopt     after the exchanges of a round all take over the value of one node, which is public from then on
    """

    rule: WeightRule
    steps: int
    acceleration: Acceleration
    adopt: bool = False

    def network(self, number: int = 1) -> Mixing:
        """The weights of round ``number``; NoSuchGraph where there are none."""
        return mixing(self, self.rule, number if self.changing else 1)

    def kept(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """The one model that a run keeps of ``values [nodes, parameters]``: their mean, or the one that all adopt."""
        return np.asarray(values[ADOPTED]) if self.adopt else np.asarray(values.mean(axis=0))

    def published(self) -> npt.NDArray[np.float64]:
        """The model that a round makes public, as weights of the nodes' noisy values: one node's, or the mean."""
        if self.adopt:
            return self.network().row(ADOPTED, self.steps, self.acceleration)
        return np.full(self.nodes, 1 / self.nodes)


@part
class GossipWork(LocalWork):
    """Local training from a node's own model.

    clip  where something is guaranteed: a node's update is clipped, and gets noise
    """

    worker = "tacit.families.gossip.worker:NodeWork"

    training: Training
    graph: Graph
    clip: NodeClip | None = None

    def schedule(self, facts: Facts) -> Drawing:
        return self.training.schedule

    def state(self, params: Params) -> Any:
        return ravel_pytree(params)[0]

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        """A node's own model after its local steps; or, in the place of the state, its clipped update, not yet added to
        the model, which would round it."""
        trained = ravel_pytree(descend(work, like(state, broadcast), self.training.learning_rate))[0]
        if self.clip is None:
            return LocalResult(jnp.zeros(0), trained)
        update, here = trained - state, work.records > 0
        moved = jnp.where(here, clipped_vector(update, self.clip.norm), 0.0)
        return LocalResult(jnp.zeros(0), moved, here & ~jnp.isfinite(update).all())


@dataclass(frozen=True)
class Gossip(Options):
    """Keys of local training from a node's own model, then exchanges with neighbours.

    topology      ring, torus, hypercube, exponential, erdos-renyi, small-world, complete
    degree        small-world: neighbours before rewiring
    edge_rate     erdos-renyi: probability of an edge; small-world: of rewiring one
    graph_seed    of random graphs; public
    changing      the graph is drawn again every round
    mixing        weights: metropolis, or maximum-degree
    gossip_steps  exchanges in a round
    acceleration  chebyshev: fewer exchanges for the same closeness to the mean
    """

    nodes: keys.Nodes = "silos"
    batch_size: keys.BatchSize = None
    silo_sample_rate: keys.SiloRate = 1.0
    local_epochs: keys.LocalEpochs = 1
    batches_per_round: keys.BatchesPerRound = None
    local_learning_rate: keys.LearningRate = 0.1
    topology: Topology = "ring"
    degree: keys.Count = 4
    edge_rate: keys.Rate = 0.1
    graph_seed: keys.Natural = 0
    changing: bool = False
    mixing: WeightRule = "metropolis"
    gossip_steps: keys.Count = 1
    acceleration: Acceleration = "none"

    @property
    def declared(self) -> Info:
        return node_info(self.info, self.nodes)

    def resolve(self, facts: Facts) -> Facts:
        check_nodes(self.nodes, facts)
        if not node_count(self.nodes, facts):  # not declared: then nothing is guaranteed, and the data will say
            return facts
        try:
            self.graph(facts).network()
        except NoSuchGraph as error:
            fix = "choose another topology, degree or edge_rate"
            raise UserError("invalid-value", "method.topology", str(error), fix) from None
        return facts

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return training_numbers(self)

    def graph(self, facts: Facts, adopt: bool = False) -> Graph:
        return Graph(
            self.topology,
            node_count(self.nodes, facts),
            self.degree,
            self.edge_rate,
            self.graph_seed,
            self.changing,
            rule=self.mixing,
            steps=self.gossip_steps,
            acceleration=self.acceleration,
            adopt=adopt,
        )


@dataclass(frozen=True)
class GossipSGD(Gossip):
    """Every node trains and averages with its neighbours. On the complete graph this is FedAvg with equal weights."""

    info = Info(
        "gossip-sgd",
        "no server: nodes train and average with their neighbours (no privacy)",
        "Lian et al. 2017; [Slides]",
        units=("silo", "subject", "record"),
        sends=("neighbours",),
    )

    def build(self, facts: Facts) -> Method:
        work = GossipWork(rate=self.silo_sample_rate, training=training(self), graph=self.graph(facts))
        return Method(self.declared, work, KeptModel(), Claim(self.declared, facts))


@dataclass(frozen=True)
class MuffliatoSGD(Gossip):
    """Private gossip SGD: every node clips its update and adds noise before the first exchange.

    adopt  after the exchanges of a round all take over the value of one node, which is public from then on
    """

    info = Info(
        "muffliato-sgd",
        "no server: nodes clip and noise their updates, then average with their neighbours (Muffliato)",
        "Cyffers, Even, Bellet, Massoulié 2022; [Slides]",
        units=("silo", "subject", "record"),
        clips="a node's whole update",
        adds="every node, before the first exchange",
        place="inside",
        sends=("neighbours",),
    )
    noise_key = "noise_multiplier"

    target_epsilon: keys.Target = None
    clip: keys.ClipKey = 1.0
    noise_multiplier: keys.Multiplier = None
    adopt: bool = False

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return (self.nodes,)

    def build(self, facts: Facts) -> Method:
        clip = NodeClip(norm=self.clip, sigma=self.noise_value, nodes=self.nodes, apart=True)
        graph = self.graph(facts, self.adopt)
        work = GossipWork(rate=self.silo_sample_rate, training=training(self), graph=graph, clip=clip)
        return noisy_nodes(work, GossipClaim(self.declared, facts, clip, graph))


@dataclass(frozen=True)
class GossipClaim(Claim):
    """Formal guarantee (specification 6.3; Delta is one clip where a node is zeroed out, two where it is replaced).

    Every node adds N(0, (sigma C)^2) to its clipped update before anything leaves it. Where nodes go on from models of
    their own, what one of them has done is in all that follows, and only local privacy is proved: each round a Gaussian
    with mu = Delta / sigma, against every view. Where after every round all take over one node's value (``adopt``),
    rounds begin with what is public, and compose; in each, the view sees linear combinations of the noises, and
    mu = (Delta / sigma) sqrt([Pi]_uu), Pi the projector on their rows. A neighbour sees the message itself, so that
    [Pi]_uu = 1 for it: the gain is with those further away, and with the public, whose row is at best 1/nodes
    everywhere: central privacy. A single round is exact without that: what is public then is the mean.
    """

    clip: NodeClip
    graph: Graph

    def event(self, exposure: Exposure) -> Event:
        moved = moved_nodes(self, exposure)
        if isinstance(moved, Unprotected):
            return moved
        clips, nodes = moved
        seen = self._exposed(exposure.view)
        if seen is None:
            return Unprotected(f"there is no such view of {self.graph.nodes} nodes")
        # of changes in several nodes a view sees at most what the parts come to, and at most all of them
        share = min(float(nodes), nodes**2 * seen)
        return gaussian_event(clips * math.sqrt(share) / self.clip.sigma)

    def _exposed(self, view: View) -> float | None:
        """The largest [Pi]_uu of a round over all nodes u that a view is promised something about; None where there is
        no such view, or no such node."""
        graph = self.graph
        members = _members(view, graph.nodes)
        if view.kind == "coalition" and (not members or len(members) == graph.nodes):
            return None
        if view.kind == "public":
            one_row = self._starts_public and not graph.changing
            return float(published_exposure(graph.published()).max()) if one_row else 1.0
        if not self._is_exact:
            return 1.0
        if view.kind == "coalition":
            others = [node for node in range(graph.nodes) if node not in members]
            weights = np.asarray(graph.network().weights.toarray())
            return float(gossip_exposure(weights, graph.steps, members, graph.published())[others].max())
        if view.count == 1:
            return 1.0  # a neighbour is sent the message itself
        far = graph.network().distances >= view.count
        return float(self._exposures[far].max()) if far.any() else None

    @property
    def _exposures(self) -> npt.NDArray[np.float64]:
        """[Pi]_uu of a round for node u (first) and observer v, every pair: ``[nodes, nodes]``; 1 for u = v."""
        return _exposures(self.graph) if self._is_exact else np.ones((self.graph.nodes, self.graph.nodes))

    @property
    def _is_exact(self) -> bool:
        """Whether rounds compose pair by pair: they begin with what is public, and the graph stays as it is."""
        return self._starts_public and not self.graph.changing and self.graph.nodes <= MOST_PAIRS

    @property
    def _starts_public(self) -> bool:
        return self.graph.adopt or self.facts.rounds == 1

    def between_nodes(self, unit: Unit, relation: Relation) -> npt.NDArray[np.float64] | None:
        """mu from node u (row) to observer v over all rounds, every pair; None where there is no such number."""
        shift = self.clip.sensitivity(unit, relation, self.facts)
        if not self.clip.sigma or shift is None or self.graph.changing:
            return None
        if self.clip.nodes_moved(unit, relation, self.facts) > 1:
            return None
        return shift.moved / self.clip.sigma * np.sqrt(self.facts.rounds * self._exposures)

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        public = "after every round the model of one node is public, and all go on from it"
        return (*node_assumptions(self.clip.nodes, self.facts), *((public,) if self.graph.adopt else ()))

    def as_published(self, exposure: Exposure, delta: float) -> AsPublished | None:
        """The authors' sum of divergences over messages, for the pair that loses most, by their conversion."""
        graph, moved = self.graph, moved_nodes(self, exposure)
        if exposure.view.kind != "neighbour" or isinstance(moved, Unprotected) or moved[1] > 1:
            return None
        if graph.changing or graph.nodes > MOST_PAIRS:
            return None
        published = _published_pairs(graph)
        far = graph.network().distances >= exposure.view.count
        if not far.any():
            return None
        loss = self.facts.rounds * (moved[0] / self.clip.sigma) ** 2 * float(published[far].max())
        # min over alpha of alpha loss / 2 + ln(1/delta) / (alpha - 1)
        epsilon = loss / 2 + math.sqrt(2 * loss * math.log(1 / delta))
        rounds = "leaves out the value that all adopt" if graph.adopt else "rounds whose states are hidden"
        return AsPublished(epsilon, "no", f"it adds divergences of messages that share the same noise, and {rounds}")


def _members(view: View, nodes: int) -> tuple[int, ...]:
    """The numbers of a coalition's nodes, from 0; empty where one of them is none."""
    if not all(name.isdigit() and int(name) < nodes for name in view.members):
        return ()
    return tuple(sorted({int(name) for name in view.members}))


@lru_cache(maxsize=16)
def _exposures(graph: Graph) -> npt.NDArray[np.float64]:
    weights, published = graph.network().weights.toarray(), graph.published()
    return np.stack([gossip_exposure(weights, graph.steps, (v,), published) for v in range(graph.nodes)], axis=1)


@lru_cache(maxsize=16)
def _published_pairs(graph: Graph) -> npt.NDArray[np.float64]:
    weights = graph.network().weights.toarray()
    return np.stack([as_published_gossip(weights, graph.steps, v) for v in range(graph.nodes)], axis=1)


# -- a walk ------------------------------------------------------------------------------------------------------------


@part
class TokenWalk(LocalWork):
    """A model goes from node to random node, and takes one noisy step at each. The gradient of a node is the mean over
    its records of their weighted losses' gradients, clipped as a whole, which changes nothing where weights have
    done it already."""

    worker = "tacit.families.gossip.worker:WalkWork"

    steps: int
    learning_rate: float
    clip: NodeClip


@dataclass(frozen=True)
class RandomWalkSGD(Options):
    """A model walks over all nodes, each next one drawn uniformly, and takes one noisy step at each.

    walk_steps           steps in a round
    local_learning_rate  constant: amplification by iteration needs that
    """

    info = Info(
        "random-walk",
        "no server: a model goes from node to random node, a noisy step at each",
        "Cyffers, Bellet 2022; [Slides]",
        units=("silo", "subject", "record"),
        clips="a node's gradient",
        adds="every node, in each step",
        place="inside",
        sends=("neighbours",),
        replaced=("silo", "subject", "record"),
        releases_last=True,
    )
    noise_key = "noise_multiplier"

    nodes: keys.Nodes = "silos"
    target_epsilon: keys.Target = None
    clip: keys.ClipKey = 1.0
    noise_multiplier: keys.Multiplier = None
    walk_steps: keys.Count = 100
    local_learning_rate: keys.LearningRate = 0.1

    @property
    def declared(self) -> Info:
        return node_info(self.info, self.nodes)

    @property
    def record_losses(self) -> str | None:
        return "name"

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return (self.nodes,)

    def resolve(self, facts: Facts) -> Facts:
        check_nodes(self.nodes, facts)
        return facts

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return {"batches_per_round": 1, "local_learning_rate": self.local_learning_rate}

    def build(self, facts: Facts) -> Method:
        clip = NodeClip(norm=self.clip, sigma=self.noise_value, nodes=self.nodes)
        work = TokenWalk(steps=self.walk_steps, learning_rate=self.local_learning_rate, clip=clip)
        return noisy_nodes(work, WalkClaim(self.declared, facts, clip, self.walk_steps))


@dataclass(frozen=True)
class LocalWalkSGD(RandomWalkSGD):
    """The same walk where every step is public: local privacy, what the others are compared with."""

    info = replace(
        RandomWalkSGD.info,
        name="local-walk",
        summary="a random walk of which every step is public: local privacy, to compare with",
        reference="reference; [Slides]",
        releases_last=False,
    )


@dataclass(frozen=True)
class WalkClaim(Claim):
    """Formal guarantee (specification 6.2; Delta is one clip where a node is zeroed out, two where it is replaced).

    A token goes to a uniformly random node, which takes one noisy step. Against one other node and the public, who sees
    the last model, by amplification by iteration, if every step contracts: the loss must be convex and smooth, and the
    step short. Here a record's loss is weighted by the largest number that makes its gradient at most C and its step no
    longer than 2 / smoothness, whatever the model: checked by construction, for models that are linear in their
    parameters. Otherwise, and against coalitions, every visit counts in full, and what helps is that visits are rare.
    Where every step is released (``local-walk``), nothing that comes later hides a step.
    """

    clip: NodeClip
    steps: int

    @property
    def joint(self) -> bool:
        return True

    def _contracts(self, exposure: Exposure) -> bool:
        """Whether what comes after a step hides it from this view."""
        sees_the_last = exposure.view.kind in ("public", "neighbour") and exposure.view.count == 1
        return self.info.releases_last and self.facts.convex is not None and sees_the_last

    def event(self, exposure: Exposure) -> Event:
        found = moved_nodes(self, exposure)
        if isinstance(found, Unprotected):
            return found
        clips, moved = found
        steps, noise = self.facts.rounds * self.steps, self.clip.sigma / clips
        # visits of any of several nodes are at most as frequent as those of one node among that many fewer
        nodes = node_count(self.clip.nodes, self.facts) // moved
        if nodes < 2:
            return Repeated(Gaussian(noise), steps)
        return RandomWalk(nodes, steps, noise, contracts=moved == 1 and self._contracts(exposure))

    def sampling(self, exposure: Exposure) -> str:
        return "random-walk"

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        lasts = "only the model at the end of the walk is released; nodes pass on nothing else"
        return (*node_assumptions(self.clip.nodes, self.facts), *((lasts,) if self.info.releases_last else ()))

    def as_published(self, exposure: Exposure, delta: float) -> AsPublished | None:
        facts, moved = self.facts, moved_nodes(self, exposure)
        if not self.info.releases_last or exposure.view.kind != "neighbour" or isinstance(moved, Unprotected):
            return None
        clips, changed = moved
        if changed > 1:
            return None
        event = RandomWalk(node_count(self.clip.nodes, facts), facts.rounds * self.steps, self.clip.sigma / clips)
        orders = np.concatenate([np.arange(1.1, 12, 0.1), np.arange(12, 256)])
        losses = [as_published_random_walk_rdp(event, order, delta) for order in orders]
        epsilon = float(np.min(losses + math.log(1 / delta) / (orders - 1)))
        reason = "several steps of a node between two of the other add up coherently, which it leaves out"
        return AsPublished(epsilon, "no", reason)
