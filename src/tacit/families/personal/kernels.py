"""Kernels of personal models: tuned models, proximal steps between models, and mixtures.

**Tuned models** (Fallah, Mokhtari, Ozdaglar 2020, "Per-FedAvg"). The loss of a starting point is that of the model
after one step of rate alpha: ``F(theta - alpha grad F(theta))``. Its gradient is ``(I - alpha H(theta)) grad F(theta -
alpha grad F(theta))``, H the Hessian; the first-order variant leaves ``alpha H`` out. The Hessian is never formed: its
product with a vector is the derivative of the gradient along that vector, for about the price of a second gradient.

**Proximal steps** towards a centre, a mean, or the neighbours in a graph are implicit steps, the exact minimiser of a
quadratic penalty: they are stable for any strength and end, as the strength goes to infinity, exactly where the penalty
wants them.

**Mixtures** (Marfoq, Neglia, Bellet, Kameni, Vidal 2021, "FedEM"). A silo's records are taken to come from one of M
sources each, source m with the silo's own probability ``weights[m]``. A model's loss is minus the log-likelihood of a
label, so that the probability that record i comes from source m is

    r[i, m]  proportional to  weights[m] exp(-loss of component m on record i)             (E-step)

and the weights become the mean of r over the silo's records, while component m descends along the gradient of its
losses weighted by r (M-step). Neither step lowers the likelihood of the records, given small enough descents.
``components`` are the parameters of all M models, every leaf ``[M, …]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from tacit.kernels.training import Objective, Work, mean_in_passes, rows, stepped
from tacit.models import Params, Task

Gradient = Callable[[Params], Params]
Order = Literal["first-order", "hessian-vector"]


def meta_gradient(
    inner: Gradient, outer: Gradient, curvature: Gradient, params: Params, rate: float | jax.Array, order: Order
) -> Params:
    """The gradient of the loss after one step of ``rate``.

    The three gradients are of the same loss, on batches of their own: where the step goes (``inner``), how good its end
    is (``outer``), and the Hessian (``curvature``). Independent batches make the estimate unbiased, up to the step's
    own noise (Fallah et al., section 3).
    """
    found = outer(stepped(params, inner(params), rate))
    if order == "first-order":
        return found
    return stepped(found, jax.jvp(curvature, (params,), (found,))[1], rate)


def towards(params: Params, centre: Params, strength: float | jax.Array) -> Params:
    """``argmin_x |x - params|^2 + strength |x - centre|^2 = (params + strength centre) / (1 + strength)``."""
    share = strength / (1 + strength)
    return jax.tree.map(lambda p, c: p + share * (c - p), params, centre)


def proximal_point(
    gradient: Gradient,
    start: Params,
    centre: Params,
    weight: float | jax.Array,
    rate: float | jax.Array,
    steps: int,
) -> Params:
    """``argmin_x f(x) + weight/2 |x - centre|^2`` by ``steps`` proximal gradient steps from ``start`` (the inner
    problem of Dinh, Tran, Nguyen 2020, "pFedMe"): along ``gradient`` of f with ``rate``, then implicitly towards the
    centre."""

    def step(_: jax.Array, own: Params) -> Params:
        return towards(stepped(own, gradient(own), rate), centre, rate * weight)

    return jax.lax.fori_loop(0, steps, step, start)


def smoothing(relations: jax.Array, strength: float | jax.Array) -> jax.Array:
    """``(I + strength L)^-1 [n, n]``, L the Laplacian of ``relations [n, n]``: applied to rows X it gives
    ``argmin_Y |Y - X|^2 + strength sum_{k<l} W_kl |Y_k - Y_l|^2`` (Smith et al. 2017; Vanhaesebrouck et al. 2017).

    Its rows sum to 1 and no entry is negative: every row becomes an average of all rows, and with growing strength the
    mean of those that are connected. With all relations 1/n it is the pull towards the mean.
    """
    size = len(relations)
    linked = relations * (1 - jnp.eye(size))
    laplacian = jnp.diag(linked.sum(axis=1)) - linked
    return jnp.linalg.inv(jnp.eye(size) + strength * laplacian)


def learned_relations(rows: jax.Array, temperature: float | jax.Array) -> jax.Array:
    """Relations ``[n, n]`` of models ``[n, numbers]``: which are near each other.

    Row k minimises ``sum_l W_kl |x_k - x_l|^2 + T sum_l W_kl ln W_kl`` over probabilities, T the ``temperature`` times
    the mean squared distance: W_kl is proportional to exp(-distance^2 / T). Made symmetric at the end.
    """
    size = len(rows)
    squares = jnp.square(rows).sum(axis=1)
    distances = jnp.maximum(squares[:, None] + squares[None] - 2 * rows @ rows.T, 0.0)
    others = 1 - jnp.eye(size)
    mean = (distances * others).sum() / max(size * (size - 1), 1)
    logs = jnp.where(others > 0, -distances / jnp.maximum(temperature * mean, 1e-30), -jnp.inf)
    shares = jax.nn.softmax(logs, axis=1)
    return (shares + shares.T) / 2


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
    if task.name in ("binary", "multilabel"):
        each = logs[:, :, None]
        positive, negative = (jax.nn.logsumexp(jax.nn.log_sigmoid(z) + each, axis=0) for z in (outputs, -outputs))
        return positive - negative
    return jnp.tensordot(weights, outputs, 1)
