"""Canaries: artificial units that are in an experiment or not, each with probability 1/2.

**Gradient canaries** move the model in a direction that no real record uses: the model gets one more layer with one
number for every canary (and a few unused ones), and the loss of a canary's records is a huge multiple of its number.
The code for real records draws, clips, averages, weights, sums, masks and noises such a record, and it has the full
norm of the clip: the worst case of a unit. White-box: the attacker sees the model.

**Input canaries** are held-out records with wrong labels: the easiest ones to find with the final model alone.
Black-box: the attacker sees outputs of the final model.

A canary subject has as many records as the plan allows, in as many silos as it allows; a canary record is the only one
of its subject; a canary silo is an additional silo with one record. What is proved about the plan is proved about the
plan with these units in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from tacit.data import Federation, Records
from tacit.engine.learner import Learner
from tacit.errors import UserError
from tacit.kernels import Objective
from tacit.models import Params, Task, mean_over_mask
from tacit.planning.plan import Plan
from tacit.privacy import Relation, Stream, Unit

LAYER = "canaries"
PULL = 1e6  # outweighs every clip
BLANKS = 256  # unused numbers of the layer: they show the noise
UNCAPPED = 5  # records of a subject in a silo if the plan has no cap


@dataclass(frozen=True)
class Planted:
    """An experiment with canaries in it."""

    plan: Plan
    federation: Federation
    learner: Learner
    unit: Unit
    relation: Relation
    coins: np.ndarray  # [canaries] whether each gradient canary is there
    homes: np.ndarray  # [canaries, silos of one] the silos in which each is, if it is
    inputs: Records  # of the input canaries, canary after canary, as the final model will be asked about them
    input_coins: np.ndarray  # [canaries] whether each input canary is there

    @property
    def records_each(self) -> int:
        """Records of one input canary."""
        return len(self.inputs) // max(1, len(self.input_coins))

    def pulls(self, layer: jax.Array | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A vector of the layer as (numbers of canaries, unused numbers)."""
        numbers = np.asarray(layer, np.float64)
        return numbers[..., : len(self.coins)], numbers[..., len(self.coins) :]


def plant(
    plan: Plan, federation: Federation, learner: Learner, canaries: int, input_canaries: int, stream: Stream
) -> Planted:
    """``plan`` on ``federation``, with canaries of the plan's unit in it, each there with probability 1/2."""
    unit, relation = plan.promise.unit, plan.promise.relation
    if learner.task.losses is None:
        problem = f"canaries need losses of single records, which a {learner.task.name} task does not have"
        raise UserError("not-supported", "data.task", problem, "audit the same method on another task")
    if unit == "silo" and isinstance(getattr(plan.options, "sample_rate", None), tuple):
        problem = "lists a rate for each silo, and silo canaries are silos of their own"
        fix = "give one rate for all, as --set method.sample_rate=0.05 does"
        raise UserError("not-supported", "method.sample_rate", problem, fix)
    coins, input_coins = stream.coins(0.5, canaries), stream.coins(0.5, input_canaries)
    facts, kept = plan.promise.facts, plan.records_kept or UNCAPPED
    homes = _homes(unit, canaries, facts.silos, facts.silos_of_a_subject)
    first = max(federation.subject_count, facts.subjects or 0)  # keys that hashes do not meet, and places of their own
    marked = _marked(relation, coins, homes, kept if unit == "subject" else 1, first, federation.train)
    wrong = _wrong(federation, unit, input_canaries, facts.silos_of_a_subject, kept, stream)
    inputs = replace(wrong, subject=wrong.subject + first + canaries)
    present = inputs.take(np.repeat(input_coins, len(wrong) // max(1, input_canaries)))
    units = canaries + input_canaries
    parts = (_extended(federation.train), marked, _extended(present))
    columns = ("features", "labels", "subject", "silo")
    train = Records(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))
    more_silos = canaries if unit == "silo" else 0
    made = replace(
        federation,
        train=train.grouped(),
        test=_extended(federation.test),
        silo_names=(*federation.silo_names, *(f"canary {i + 1}" for i in range(more_silos))),
        subject_count=federation.subject_count + units,
        encoder=None,
        unpaid=None,
    )
    watched = _watched(learner, federation.train.features, canaries + BLANKS)
    changed = replace(
        facts,
        parameters=watched.parameters,
        subjects=None if facts.subjects is None else facts.subjects + units,
        silos=facts.silos + more_silos,
        records_per_silo=None if facts.records_per_silo is None else facts.records_per_silo + (1,) * more_silos,
    )
    run = replace(plan, promise=replace(plan.promise, facts=changed))
    return Planted(run, made, watched, unit, relation, coins, homes, inputs, input_coins)


# -- rows


def _homes(unit: Unit, canaries: int, silos: int, most: int) -> np.ndarray:
    """Silos of canaries, ``[canaries, silos of one]``: a canary silo is its own, others go round the silos."""
    own = np.arange(canaries)[:, None]
    return silos + own if unit == "silo" else (own + np.arange(most if unit == "subject" else 1)) % silos


def _marked(relation: Relation, coins: np.ndarray, homes: np.ndarray, count: int, first: int, like: Records) -> Records:
    """The canaries that are there, with ``count`` records in every home, as subjects with keys from ``first`` on. The
    mark of a record is the canary's number from 1. With replacement all canaries are there, and the coin decides the
    sign of the mark: the direction."""
    there = np.arange(len(coins)) if relation == "replace" else np.flatnonzero(coins)
    canary = np.repeat(there, homes.shape[1] * count)
    silo = np.repeat(homes[there].ravel(), count).astype(np.int32)
    features, labels = (np.zeros((len(canary), *part.shape[1:]), part.dtype) for part in (like.features, like.labels))
    return _extended(Records(features, labels, first + canary, silo), np.where(coins[canary], 1, -1) * (canary + 1))


def _wrong(federation: Federation, unit: Unit, canaries: int, most: int, records: int, stream: Stream) -> Records:
    """Records of ``canaries`` input canaries: held-out ones (or training ones, where none is), with wrong labels."""
    source = federation.test if len(federation.test) else federation.train
    of_each = records if unit == "subject" else 1
    # also for canary silos: one record in an existing silo
    silo = np.repeat(_homes("record" if unit == "silo" else unit, canaries, federation.silo_count, most), of_each)
    canary = np.repeat(np.arange(canaries), silo.size // max(1, canaries))
    rows = source.take(stream.integers(len(source), silo.size))
    return Records(rows.features, _other_labels(federation, rows.labels), canary, silo.astype(np.int32))


def _other_labels(federation: Federation, labels: np.ndarray) -> np.ndarray:
    if federation.labels.classes:
        return ((labels + 1) % len(federation.labels.classes)).astype(labels.dtype)
    spread = float(np.std(federation.train.labels)) or 1.0
    return (labels + 10 * spread).astype(labels.dtype)


def _extended(records: Records, mark: np.ndarray | None = None) -> Records:
    """Features as flat rows with one more number: the mark of a canary, 0 for real records."""
    width = math.prod(records.features.shape[1:])
    flat = records.features.reshape(len(records), width).astype(np.float32)
    column = np.zeros(len(records), np.float32) if mark is None else mark.astype(np.float32)
    return replace(records, features=np.concatenate([flat, column[:, None]], axis=1))


# -- the model with its layer of canaries


def _watched(learner: Learner, features: np.ndarray, numbers: int) -> Learner:
    """The same learner with a layer of ``numbers`` numbers at zero, one for each canary and some unused."""
    objective = _with_layer(learner.objective, features.shape[1:], features.dtype, numbers)
    return replace(learner, objective=objective, params={**learner.params, LAYER: {"w": jnp.zeros(numbers)}})


def _with_layer(base: Objective, shape: tuple[int, ...], dtype: np.dtype, numbers: int) -> Objective:
    """``base`` on flat rows that end in a mark: the loss of a marked record is its own number's alone."""
    prepare = base.prepare
    prepared = shape if prepare is None else jax.eval_shape(prepare, jax.ShapeDtypeStruct((1, *shape), dtype)).shape[1:]
    seen_as = dtype if prepare is None else jnp.float32
    outputs, losses = base.task.outputs, base.task.losses
    assert losses is not None

    def apply(params: Params, x: jax.Array) -> jax.Array:
        rest = {name: layer for name, layer in params.items() if name != LAYER}
        own = base.apply(rest, x[:, :-1].reshape(-1, *prepared).astype(seen_as))
        mark = x[:, -1:]
        # comparing instead of indexing: see softmax_cross_entropy
        at = (jnp.abs(mark) == jnp.arange(1, numbers + 1)).astype(jnp.float32)
        return jnp.concatenate([own, jnp.sign(mark) * (at @ params[LAYER]["w"])[:, None], mark], axis=1)

    def marked_losses(found: jax.Array, labels: jax.Array) -> jax.Array:
        marked = found[:, -1] != 0
        harmless = jnp.where(marked[:, None], 0.0, found[:, :outputs])
        return jnp.where(marked, -PULL * found[:, -2], losses(harmless, labels))

    def flat_prepare(x: jax.Array) -> jax.Array:
        assert prepare is not None
        made = prepare(x[:, :-1].reshape(-1, *shape).astype(dtype))
        return jnp.concatenate([made.reshape(len(x), -1), x[:, -1:]], axis=1)

    task = Task(
        base.task.name,
        outputs + 2,
        marked_losses,
        mean_over_mask(marked_losses),
        base.task.metrics,
        base.task.headline,
    )
    return Objective(apply, task, None if prepare is None else flat_prepare)
