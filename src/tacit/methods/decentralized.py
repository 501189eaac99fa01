"""Without a server: nodes average with their neighbours (gossip), or hand a model on from one to the next (a walk).

A node is a silo, or a place for people with all their records, wherever they are held (``nodes``). People get places by
the hash of their identifiers, whoever else is there, so some places have several people and some none; what is promised
is that of the worst place, and protects people from nodes other than their own. Every node keeps a model of its own:
what the nodes hold together is one array ``[nodes, parameters]``, and a round is their local work, perhaps noise, and
exchanges with neighbours (:mod:`tacit.kernels.graphs`). There is nobody who sees everything, so what is promised is
promised against *nodes*: one of them (``neighbour``), one that is some steps away (``neighbour:3``), some together
(``coalition:[0,4]``), and the public, who see the models that a run keeps.

Formal guarantees (specification 6.2, 6.3; Delta is one clip where a node is zeroed out, two where it is replaced):

gossip       Every node adds N(0, (sigma C)^2) to its clipped update before anything leaves it. Where nodes go on from
             models of their own, what one of them has done is in all that follows, and only local privacy is proved:
             each round a Gaussian with mu = Delta / sigma, against everybody. Where after every round all take over
             one node's value (``adopt``), rounds begin with what is public, and compose; in each, the view sees linear
             combinations of the noises, and mu = (Delta / sigma) sqrt([Pi]_uu), Pi the projector on their rows. A
             neighbour sees the message itself, so that [Pi]_uu = 1 for it: the gain is with those further away, and
             with the public, whose row is at best 1/nodes everywhere: central privacy. A single round is exact
             without that: what is public then is the mean.
random walk  A token goes to a uniformly random node, which takes one noisy step. Against one other node and the public,
             who sees the last model, by amplification by iteration, if every step contracts: the loss must be convex
             and smooth, and the step short. Here a record's loss is weighted by the largest number that makes its
             gradient at most C and its step no longer than 2 / smoothness, whatever the model: checked by construction,
             for models that are linear in their parameters. Otherwise, and against coalitions, every visit counts in
             full, and what helps is that visits are rare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.flatten_util import ravel_pytree
from pydantic import Field

from tacit.errors import UserError
from tacit.kernels import ServerStep, Work, clipped, descend
from tacit.kernels.graphs import Acceleration, GraphChoice, Mixing, NoSuchGraph, Topology, WeightRule, mixing
from tacit.methods.averaging import like
from tacit.methods.method import (
    Count,
    Divisors,
    Drawing,
    Facts,
    LocalResult,
    LocalTraining,
    Method,
    Positive,
    Private,
    Rate,
    ServerState,
)
from tacit.models import Params
from tacit.privacy import (
    AsPublished,
    Event,
    Exposure,
    Gaussian,
    RandomWalk,
    Relation,
    Repeated,
    Unit,
    Unprotected,
    View,
)
from tacit.privacy.proofs.serverless import (
    as_published_gossip,
    as_published_random_walk_rdp,
    gaussian_event,
    gossip_exposure,
    published_exposure,
)

# Up to so many nodes the loss between all pairs is computed; beyond, local privacy is what is proved.
MOST_PAIRS = 128
OWN_PLACE = (
    "subjects have places by the hash of their identifiers, and may share one: they are protected from nodes at other"
    " places; a subject that is replaced by another keeps its place"
)
# The node whose value all take over.
ADOPTED = 0


@dataclass(frozen=True)
class Serverless(Method):
    """Methods of nodes that talk to each other.

    nodes  ``silos``, or ``subjects``: everybody with all records, wherever they are held, in as many places as there
           are declared subjects
    """

    serverless: ClassVar[bool] = True
    exchanges = ("direct",)
    units = ("silo", "subject", "record")

    nodes: Literal["silos", "subjects"] = "silos"
    clips_apart: ClassVar[bool] = False  # people who share a place each move it by at most one clip

    @property
    def first_unit(self) -> Unit:
        return "silo" if self.nodes == "silos" else "subject"

    @property
    def splits_by_subject(self) -> bool:
        return self.nodes == "subjects"

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return (self.nodes,) if self.private else ()

    def node_count(self, facts: Facts) -> int:
        """How many nodes there are, by what is declared."""
        return (facts.subjects or 0) if self.nodes == "subjects" else facts.silos

    def check_facts(self, facts: Facts) -> None:
        if self.node_count(facts) == 1:
            problem = "there must be at least two nodes"
            raise UserError("too-few", "method.nodes", problem, "use more silos, or subjects")

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        """Nobody aggregates: ``total`` is the model that a run keeps of the nodes."""
        return ServerState(like(total, server.params), server.optimizer)

    def moved(self, exposure: Exposure, facts: Facts) -> tuple[int, float] | None:
        """How many nodes change with one unit, and by how many clips each; None where nothing bounds their number.

        A node that is zeroed out sends noise alone, and so does a person who is clipped apart from others in the same
        place (``clips_apart``); anything else in a node may turn its clipped update around. The person who comes under
        replacement may be in another place: one clip in each of two nodes is no more than two in the worse of them. A
        record that is replaced may come to another subject: two nodes turn around, or two people in one place.
        """
        whole = 2.0 if exposure.replaces else 1.0
        if exposure.unit == "record" and exposure.replaces:
            together = self.nodes == "subjects" and self.clips_apart
            return (1, 4.0) if together else (min(2, self.node_count(facts)), 2.0)
        if self.nodes == "subjects":
            alone = exposure.unit == "subject" and self.clips_apart
            return None if exposure.unit == "silo" else (1, whole if alone else 2.0)
        if exposure.unit == "silo":
            return 1, whole
        return (facts.silos_moved(exposure.replaces) if exposure.unit == "subject" else 1), 2.0

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        nodes = f"{self.node_count(facts)} nodes follow the protocol; the graph and who goes next do not depend on data"
        return (nodes, OWN_PLACE) if self.nodes == "subjects" else (nodes,)


# -- gossip ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gossip(LocalTraining, Serverless):
    """Local training from a node's own model, then exchanges with neighbours.

    topology      ring, torus, hypercube, exponential, erdos-renyi, small-world, complete
    degree        small-world: neighbours before rewiring
    edge_rate     erdos-renyi: probability of an edge; small-world: of rewiring one
    graph_seed    of random graphs; public
    changing      the graph is drawn anew every round
    mixing        weights: metropolis, or maximum-degree
    gossip_steps  exchanges in a round
    acceleration  chebyshev: fewer exchanges for the same closeness to the mean
    """

    works_by = "node"

    topology: Topology = "ring"
    degree: Count = 4
    edge_rate: Rate = 0.1
    graph_seed: Annotated[int, Field(strict=True, ge=0)] = 0
    changing: bool = False
    mixing: WeightRule = "metropolis"
    gossip_steps: Count = 1
    acceleration: Acceleration = "none"

    def check_facts(self, facts: Facts) -> None:
        super().check_facts(facts)
        if not self.node_count(facts):  # not declared: then nothing is promised, and the data will say
            return
        try:
            self.network(facts, 1)
        except NoSuchGraph as error:
            fix = "choose another topology, degree or edge_rate"
            raise UserError(error.code, "method.topology", error.problem, fix) from None

    def network(self, facts: Facts, number: int) -> Mixing:
        """The weights of round ``number``; NoSuchGraph where there are none."""
        return mixing(self._choice(facts), self.mixing, number if self.changing else 1)

    def _choice(self, facts: Facts) -> GraphChoice:
        return GraphChoice(
            self.topology, self.node_count(facts), self.degree, self.edge_rate, self.graph_seed, self.changing
        )

    def silo_state(self, params: Params) -> Any:
        return ravel_pytree(params)[0]

    def trained(self, work: Work, broadcast: Any, state: jax.Array) -> jax.Array:
        """A node's own model after its local steps."""
        return ravel_pytree(descend(work, like(state, broadcast), self.local_learning_rate))[0]

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        return LocalResult(jnp.zeros(0), self.trained(work, broadcast, state))

    def kept(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """The one model that a run keeps of ``values [nodes, parameters]``: their mean."""
        return np.asarray(values.mean(axis=0))


@dataclass(frozen=True)
class GossipSGD(Gossip):
    """Every node trains and averages with its neighbours. On the complete graph this is FedAvg with equal weights."""

    name = "gossip-sgd"
    about = "no server: nodes train and average with their neighbours (no privacy)"
    paper = "Lian et al. 2017; [Slides]"


@dataclass(frozen=True)
class MuffliatoSGD(Gossip, Private):
    """Private gossip SGD: every node clips its update and adds noise before the first exchange.

    adopt  after the exchanges of a round all take over the value of one node, which is public from then on
    """

    name = "muffliato-sgd"
    about = "no server: nodes clip and noise their updates, then average with their neighbours (Muffliato)"
    paper = "Cyffers, Even, Bellet, Massoulié 2022; [Slides]"
    clips = "a node's whole update"
    noise_place = "every node, before the first exchange"
    clips_apart = True

    adopt: bool = False

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        """In the place of the state: the clipped update, not yet added to the model, which would round it."""
        update = self.trained(work, broadcast, state) - state
        here = work.records > 0
        moved = jnp.where(here, clipped(update, self.clip), 0.0)
        return LocalResult(jnp.zeros(0), moved, here & ~jnp.isfinite(update).all())

    def kept(self, values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        return np.asarray(values[ADOPTED]) if self.adopt else super().kept(values)

    # -- what is promised

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        found = self.moved(exposure, facts)
        if found is None:
            return Unprotected("a silo may be any number of nodes: only people are bounded here")
        if self.sigma == 0:
            return Unprotected(f"{self.name} with noise_multiplier 0 adds no noise")
        nodes, shift = found
        seen = self.exposed(exposure.view, facts)
        if seen is None:
            return Unprotected(f"there is no such view of {self.node_count(facts)} nodes")
        # of changes in several nodes a view sees at most what the parts come to, and at most all of them
        share = min(float(nodes), nodes**2 * seen)
        return gaussian_event(shift * math.sqrt(share) / self.sigma)

    def exposed(self, view: View, facts: Facts) -> float | None:
        """The largest [Pi]_uu of a round over all nodes u that a view is promised something about; None where there is
        no such view, or no such node."""
        count = self.node_count(facts)
        members = _members(view, count)
        if view.kind == "coalition" and (not members or len(members) == count):
            return None
        if view.kind == "public":
            one_row = self._begins_anew(facts) and not self.changing
            return float(published_exposure(self._published(facts)).max()) if one_row else 1.0
        if not self._is_exact(facts):
            return 1.0
        if view.kind == "coalition":
            others = [node for node in range(count) if node not in members]
            seen = gossip_exposure(self._weights(facts), self.gossip_steps, members, self._published(facts))
            return float(seen[others].max())
        if view.count == 1:
            return 1.0  # a neighbour is sent the message itself
        far = self._distances(facts) >= view.count
        return float(self.exposures(facts)[far].max()) if far.any() else None

    def exposures(self, facts: Facts) -> npt.NDArray[np.float64]:
        """[Pi]_uu of a round for node u (first) and observer v, every pair: ``[nodes, nodes]``; 1 for u = v."""
        nodes = self.node_count(facts)
        if not self._is_exact(facts):
            return np.ones((nodes, nodes))
        return _exposures(self._choice(facts), self.mixing, self.gossip_steps, self.acceleration, self.adopt)

    def _is_exact(self, facts: Facts) -> bool:
        """Whether rounds compose pair by pair: they begin with what is public, and the graph stays as it is."""
        return self._begins_anew(facts) and not self.changing and self.node_count(facts) <= MOST_PAIRS

    def _begins_anew(self, facts: Facts) -> bool:
        return self.adopt or facts.rounds == 1

    def _weights(self, facts: Facts) -> npt.NDArray[np.float64]:
        return np.asarray(self.network(facts, 1).weights.toarray())

    def _distances(self, facts: Facts) -> npt.NDArray[np.int64]:
        return self.network(facts, 1).distances

    def _published(self, facts: Facts) -> npt.NDArray[np.float64]:
        return _published_row(self.network(facts, 1), self.gossip_steps, self.acceleration, self.adopt)

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        public = ("after every round the model of one node is public, and all go on from it",) if self.adopt else ()
        return (*super().assumptions(exposure, facts), *public)

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        """The authors' sum of divergences over messages, for the pair that loses most, by their conversion."""
        found = self.moved(exposure, facts)
        nodes = self.node_count(facts)
        if exposure.view.kind != "neighbour" or found is None or found[0] > 1 or self.sigma == 0:
            return None
        if self.changing or nodes > MOST_PAIRS:
            return None
        published = _published_pairs(self._choice(facts), self.mixing, self.gossip_steps)
        far = self._distances(facts) >= exposure.view.count
        if not far.any():
            return None
        loss = facts.rounds * (found[1] / self.sigma) ** 2 * float(published[far].max())
        # min over alpha of alpha loss / 2 + ln(1/delta) / (alpha - 1)
        epsilon = loss / 2 + math.sqrt(2 * loss * math.log(1 / delta))
        rounds = "leaves out the value that all adopt" if self.adopt else "rounds whose states are hidden"
        return AsPublished(epsilon, "no", f"it adds divergences of messages that share the same noise, and {rounds}")


def _members(view: View, nodes: int) -> tuple[int, ...]:
    """The numbers of a coalition's nodes, from 0; empty where one of them is none."""
    if not all(name.isdigit() and int(name) < nodes for name in view.members):
        return ()
    return tuple(sorted({int(name) for name in view.members}))


def _published_row(network: Mixing, steps: int, acceleration: Acceleration, adopt: bool) -> npt.NDArray[np.float64]:
    """The model that a round makes public, as weights of the nodes' noisy values: one node's, or the mean."""
    if adopt:
        return network.row(ADOPTED, steps, acceleration)
    return np.full(network.nodes, 1 / network.nodes)


@lru_cache(maxsize=16)
def _exposures(
    choice: GraphChoice, rule: WeightRule, steps: int, acceleration: Acceleration, adopt: bool
) -> npt.NDArray[np.float64]:
    network = mixing(choice, rule)
    weights = network.weights.toarray()
    published = _published_row(network, steps, acceleration, adopt)
    return np.stack([gossip_exposure(weights, steps, (v,), published) for v in range(network.nodes)], axis=1)


@lru_cache(maxsize=16)
def _published_pairs(choice: GraphChoice, rule: WeightRule, steps: int) -> npt.NDArray[np.float64]:
    weights = mixing(choice, rule).weights.toarray()
    return np.stack([as_published_gossip(weights, steps, v) for v in range(choice.nodes)], axis=1)


# -- a walk ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomWalkSGD(Serverless, Private):
    """A model walks over all nodes, each next one drawn uniformly, and takes one noisy step at each.

    walk_steps           steps in a round
    local_learning_rate  constant: amplification by iteration needs that

    The gradient of a node is the mean over its records of their weighted losses' gradients, clipped as a whole, which
    changes nothing where weights have done it already.
    """

    name = "random-walk"
    about = "no server: a model goes from node to random node, a noisy step at each"
    paper = "Cyffers, Bellet 2022; [Slides]"
    clips = "a node's gradient"
    noise_place = "every node, in each step"
    releases_last = True
    works_by = "walk"

    walk_steps: Count = 100
    local_learning_rate: Positive = 0.1

    @property
    def record_losses(self) -> str | None:
        return "name"

    def schedule(self, facts: Facts) -> Drawing:
        raise NotImplementedError("a walk is drawn node by node, not silo by silo")

    def relation(self, unit: Unit) -> Relation:
        return "replace"

    @property
    def joint(self) -> bool:
        return True

    def contracts(self, exposure: Exposure, facts: Facts) -> bool:
        """Whether what comes after a step hides it from this view."""
        return facts.convex is not None and exposure.view.kind in ("public", "neighbour") and exposure.view.count == 1

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        found = self.moved(exposure, facts)
        if found is None:
            return Unprotected("a silo may be any number of nodes: only people are bounded here")
        if self.sigma == 0:
            return Unprotected(f"{self.name} with noise_multiplier 0 adds no noise")
        moved, shift = found
        steps, noise = facts.rounds * self.walk_steps, self.sigma / shift
        # visits of any of several nodes are at most as frequent as those of one among so many fewer
        nodes = self.node_count(facts) // moved
        if nodes < 2:
            return Repeated(Gaussian(noise), steps)
        return RandomWalk(nodes, steps, noise, contracts=moved == 1 and self.contracts(exposure, facts))

    def sampling(self, exposure: Exposure) -> str:
        return "random-walk"

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        lasts = "only the model at the end of the walk is released; nodes pass on nothing else"
        return (*super().assumptions(exposure, facts), lasts)

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        found = self.moved(exposure, facts)
        if exposure.view.kind != "neighbour" or found is None or found[0] > 1 or self.sigma == 0:
            return None
        steps = facts.rounds * self.walk_steps
        event = RandomWalk(self.node_count(facts), steps, self.sigma / found[1])
        orders = np.concatenate([np.arange(1.1, 12, 0.1), np.arange(12, 256)])
        losses = [as_published_random_walk_rdp(event, order, delta) for order in orders]
        epsilon = float(np.min(losses + math.log(1 / delta) / (orders - 1)))
        reason = "several steps of a node between two of the other add up coherently, which it leaves out"
        return AsPublished(epsilon, "no", reason)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return {"batches_per_round": 1, "local_learning_rate": self.local_learning_rate}


@dataclass(frozen=True)
class LocalWalkSGD(RandomWalkSGD):
    """The same walk where every step is public: local privacy, what the others are compared with."""

    name = "local-walk"
    about = "a random walk of which everybody sees every step: local privacy, to compare with"
    paper = "reference; [Slides]"
    releases_last = False

    def contracts(self, exposure: Exposure, facts: Facts) -> bool:
        return False

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        return Serverless.assumptions(self, exposure, facts)

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        return None
