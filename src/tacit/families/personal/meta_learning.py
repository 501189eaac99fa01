"""Learning a starting point from which one step goes far (Fallah, Mokhtari, Ozdaglar 2020, "Per-FedAvg").

The loss of a starting point is that of the model after one step of rate alpha: ``F(theta - alpha grad F(theta))``. Its
gradient is ``(I - alpha H(theta)) grad F(theta - alpha grad F(theta))``, H the Hessian; the first-order variant leaves
``alpha H`` out. The Hessian is never formed: its product with a vector is the derivative of the gradient along that
vector, which forward differentiation gives exactly for about the price of a second gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax

from tacit.kernels.training import stepped
from tacit.models import Params

Gradient = Callable[[Params], Params]
Order = Literal["first-order", "hessian-vector"]


def hessian_vector(gradient: Gradient, params: Params, vector: Params) -> Params:
    """``H(params) vector``, H the derivative of ``gradient``."""
    return jax.jvp(gradient, (params,), (vector,))[1]


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
    return stepped(found, hessian_vector(curvature, params, found), rate)
