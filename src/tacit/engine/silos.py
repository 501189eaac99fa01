"""The silos' half of a run: their records, what they keep between rounds, and a round's local work.

The simulator has all silos in one :class:`LocalSilos`; a silo on a federation is alone in its own. Both do the same
work with the same code, and with one seed they draw the same numbers: every draw is named by the number of its silo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from tacit.data import Federation
from tacit.engine.kernel import Kernels, kernels, prepared
from tacit.engine.learner import Learner
from tacit.engine.worker import Contributed, Site, Worker
from tacit.exchange import Exchange, Plain, SumFacts
from tacit.kernels import Arrays, key_words
from tacit.methods import Facts
from tacit.names import load
from tacit.planning.plan import Plan, sum_facts
from tacit.privacy import Noise, Randomness

# Room for at least so many records: small silos share one compiled shape, whatever their size.
FEWEST_ROWS = 256


class LocalSilos:
    """Silos at work: all of them, or those that are ``here``. Rounds are numbered from 1.

    ``noise`` is what these kernels add to a sum: the whole of it in the simulator, a silo's share on a federation.
    """

    def __init__(
        self,
        plan: Plan,
        facts: Facts,
        federation: Federation,
        learner: Learner,
        randomness: Randomness,
        *,
        noise: Noise | None,
        here: Sequence[int] | None = None,
        common: Randomness | None = None,
        totals: np.ndarray | None = None,
    ) -> None:
        """``common`` and ``totals``: see :class:`~tacit.engine.worker.Site`."""
        self.method, self.exchange, self.facts = plan.options.build(facts), plan.exchange, facts
        self.federation = federation
        self.learner, self.frozen = learner, learner.frozen
        self.randomness, self.noise = randomness, noise
        if self.method.info.serverless:  # now that the data have said how many nodes there are
            plan.options.resolve(facts)
        self.method.claim.check_size(learner.parameters)
        self.grid = sum_grid(plan, facts)
        self.arrays = self._arrays()
        self.kernels: Kernels = kernels(
            self.method, plan.server_step, learner.objective, facts, noise, adding(plan.exchange), self.grid
        )
        self.work: Worker = load(self.method.work.worker)(self._site(here, common, totals))
        self.states = self._first_states(here)
        # over all rounds: how much of what is clipped was not finite and counted as zero; private, like the records
        self.not_finite: jax.Array = jnp.int32(0)

    def feed(self, federation: Federation) -> None:
        """Other features of the same rows, under constants that have been released meanwhile."""
        self.federation = federation
        self.arrays = self._arrays()

    def _arrays(self) -> Arrays:
        """Features as the model wants them, and labels. No index refers to the rows after the last record."""
        train = self.federation.train
        features = prepared(self.learner.objective, _at_least(1, train.features))
        return Arrays(*(jnp.asarray(_at_least(FEWEST_ROWS, array)) for array in (features, train.labels)))

    def _site(self, here: Sequence[int] | None, common: Randomness | None, totals: np.ndarray | None) -> Site:
        return Site(
            self.method,
            self.exchange,
            self.facts,
            self.federation,
            self.learner.objective,
            self.learner.params,
            self.kernels,
            self.arrays,
            self.randomness,
            self.sum_facts().people,
            self.grid,
            here,
            common,
            totals,
        )

    def _first_states(self, here: Sequence[int] | None) -> Any:
        """What the silos that are here keep, stacked: every leaf ``[silos, …]``."""
        everywhere = self.method.work.states(self.learner.params, self.federation.silo_count)
        return everywhere if here is None else jax.tree.map(lambda leaf: leaf[np.asarray(here, int)], everywhere)

    def sum_facts(self) -> SumFacts:
        """What is public about the sum over all silos."""
        return sum_facts(self.method, self.facts)

    def numbers(self, broadcast: Any) -> int:
        """How many numbers a silo's contribution has."""
        return self.work.numbers(broadcast, self.frozen, self.arrays)

    def contributed(self, drawn: Any, broadcast: Any, form: Any) -> Contributed:
        """What the silos that are here hand to an exchange with parties of its own, in the ``form`` it has for it."""
        works: dict[str, Callable[..., Contributed]] = {
            "integers": self.work.integers,
            "subjects": self.work.subjects,
            "reports": self.work.reports,
        }
        return works[self.exchange.carries](drawn, broadcast, self.frozen, self.arrays, self.states, form)

    def done(self, states: Any, not_finite: Any) -> None:
        """Keep what a round leaves with the silos."""
        self.states = states
        if self.method.private:  # the others clip nothing
            self.not_finite = self.not_finite + not_finite


def sum_noise(plan: Plan, facts: Facts, place: str | None = None) -> Noise | None:
    """The noise that the compiled round adds to a sum (in that ``place`` only), if there is any; exchanges other than
    the plain one add their own to the integers that they carry."""
    noise = plan.options.build(facts).added_noise if plan.exchange.carries == "sum" else None
    return None if noise is None or noise.std == 0 or place not in (None, noise.place) else noise


def sum_grid(plan: Plan, facts: Facts) -> float | None:
    """The step of the grid on which the compiled round takes sums that get noise; other exchanges have their own, and
    other sums are in floating point."""
    if sum_noise(plan, facts) is None:
        return None
    return adding(plan.exchange).step(sum_facts(plan.options.build(facts), facts))


def adding(exchange: Exchange) -> Plain:
    """How sums inside the compiled round are taken; what other exchanges have summed is not changed any more."""
    return cast(Plain, exchange) if exchange.carries == "sum" else Plain()


def noise_keys(noise: Noise | None, number: int, randomness: Randomness, places: Sequence[int]) -> Any:
    """What the noise of some parties on a round's sum is drawn from; nothing without noise.

    Keys ``[rounds, places, 8]`` of this round and of those before it as far as the noise reaches back, and the weights
    ``[rounds]`` of their normals: 0 before the first round.
    """
    if noise is None:
        return ()
    rounds = range(number, number - len(noise.weights), -1)
    keys = [[key_words(randomness.stream("noise", t, place)) for place in places] for t in rounds]
    begun = [weight if t >= 1 else 0.0 for weight, t in zip(noise.weights, rounds, strict=True)]
    return np.array(keys), np.array(begun, np.float32)


def _at_least(count: int, rows: np.ndarray) -> np.ndarray:
    """``rows``, and zeros after them where there are fewer."""
    missing = np.zeros((max(0, count - len(rows)), *rows.shape[1:]), rows.dtype)
    return np.concatenate([rows, missing]) if len(missing) else rows
