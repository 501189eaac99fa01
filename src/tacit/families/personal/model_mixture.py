"""Several models of which every silo has its own mixture (Marfoq, Neglia, Bellet, Kameni, Vidal 2021, "FedEM").

A silo's records are taken to come from one of M sources each, source m with the silo's own probability ``weights[m]``.
A model's loss is minus the log-likelihood of a label, so that the probability that record i comes from source m is

    r[i, m]  proportional to  weights[m] exp(-loss of component m on record i)             (E-step)

and the weights become the mean of r over the silo's records, while component m descends along the gradient of its
losses weighted by r (M-step). Neither step lowers the likelihood of the records, given small enough descents.

``components`` are the parameters of all M models, every leaf ``[M, …]``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tacit.kernels.training import Objective, Work, mean_in_passes, rows, stepped
from tacit.models import Params, Task


def component_losses(
    objective: Objective, components: Params, frozen: Params, features: jax.Array, labels: jax.Array
) -> jax.Array:
    """The loss of every record under every component: ``[records, M]``."""
    losses = objective.task.losses
    assert losses is not None, "a mixture needs the losses of single records"
    of_one = jax.vmap(lambda component: losses(objective.apply({**component, **frozen}, features), labels), out_axes=1)
    return of_one(components)


def responsibilities(losses: jax.Array, weights: jax.Array) -> jax.Array:
    """The E-step: how likely each record ``[records, M]`` comes from each component."""
    return jax.nn.softmax(jnp.log(weights) - losses, axis=1)


def log_likelihood(losses: jax.Array, weights: jax.Array) -> jax.Array:
    """Of each record ``[records]`` under the mixture, up to the constant of its loss."""
    return jax.nn.logsumexp(jnp.log(weights) - losses, axis=1)


def em_descend(work: Work, components: Params, weights: jax.Array, rate: float) -> tuple[Params, jax.Array]:
    """One silo's round: its batches as one loop. Returns the components after their steps, and the new weights.

    Responsibilities are those of the components and weights at the start of the round, as in the paper.
    """
    objective, frozen = work.objective, work.frozen

    def step(t: jax.Array, state: tuple[Params, jax.Array, jax.Array]) -> tuple[Params, jax.Array, jax.Array]:
        own, summed, count = state
        index, size = work.batch(t)

        def means(index: jax.Array, mask: jax.Array) -> tuple[Params, jax.Array]:
            x, y = rows(work.arrays.features, index), work.arrays.labels[index]
            shares = responsibilities(component_losses(objective, components, frozen, x, y), weights)
            shares = jnp.where(mask[:, None], shares, 0.0) / jnp.maximum(mask.sum(), 1)

            def loss(own: Params) -> jax.Array:
                return jnp.where(shares > 0, shares * component_losses(objective, own, frozen, x, y), 0.0).sum()

            return jax.grad(loss)(own), shares.sum(axis=0)

        gradient, mean = mean_in_passes(means, index, size)
        return stepped(own, gradient, rate), summed + size * mean, count + size

    start = (components, jnp.zeros_like(weights), jnp.int32(0))
    own, summed, count = jax.lax.fori_loop(0, work.batches.steps, step, start)
    return own, _weights(summed, count, weights)


def fitted_weights(work: Work, components: Params, weights: jax.Array, steps: int) -> jax.Array:
    """A silo's weights after ``steps`` EM steps on its first batch, with fixed components."""
    index, size = work.batch(0)

    def step(_: jax.Array, weights: jax.Array) -> jax.Array:
        def mean(index: jax.Array, mask: jax.Array) -> jax.Array:
            x, y = rows(work.arrays.features, index), work.arrays.labels[index]
            losses = component_losses(work.objective, components, work.frozen, x, y)
            shares = jnp.where(mask[:, None], responsibilities(losses, weights), 0.0)
            return shares.sum(axis=0) / jnp.maximum(mask.sum(), 1)

        return _weights(mean_in_passes(mean, index, size), size, weights)

    return jax.lax.fori_loop(0, steps, step, weights)


def _weights(summed: jax.Array, count: jax.Array, before: jax.Array) -> jax.Array:
    """Sums of responsibilities as probabilities, never quite zero; those ``before`` where there was no record."""
    kept = jnp.maximum(summed, 1e-6 * jnp.maximum(summed.sum(), 1e-6))
    return jnp.where(count > 0, kept / kept.sum(), before)


def mixed_outputs(task: Task, outputs: jax.Array, weights: jax.Array) -> jax.Array:
    """What the mixture says: ``outputs [M, records, k]`` of the components as one ``[records, k]``.

    Probabilities are mixed, not logits; of numbers it is the mean.
    """
    logs = jnp.log(weights)[:, None]
    if task.name == "multiclass":
        return jax.nn.logsumexp(jax.nn.log_softmax(outputs, axis=2) + logs[:, :, None], axis=0)
    if task.name == "binary":
        positive, negative = (jax.nn.logsumexp(jax.nn.log_sigmoid(z) + logs, axis=0) for z in _both(outputs))
        return (positive - negative)[:, None]
    return jnp.tensordot(weights, outputs, 1)


def _both(outputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits ``[M, records]`` of the second class and of the first."""
    return outputs[:, :, 0], -outputs[:, :, 0]
