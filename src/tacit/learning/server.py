"""The server's step: what is done with an averaged update.

``sgd`` with rate 1 is FedAvg; the others treat the negated update as a gradient (Reddi et al. 2021, "Adaptive Federated
Optimization": FedAdam, FedYogi, FedAdagrad).
"""

from __future__ import annotations

from collections.abc import Callable

import optax

BETA1, BETA2, TAU = 0.9, 0.99, 1e-3  # Reddi et al. 2021, section 5 and appendix D

OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=BETA1),
    "adam": lambda rate: optax.adam(rate, b1=BETA1, b2=BETA2, eps=TAU),
    "yogi": lambda rate: optax.yogi(rate, b1=BETA1, b2=BETA2, eps=TAU),
    "adagrad": lambda rate: optax.adagrad(rate, initial_accumulator_value=TAU**2, eps=TAU),
}
