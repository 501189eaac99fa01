"""What a worker is: a round's local work of the silos that are here, in one of the forms that exchanges carry.

The work of a method names its worker (``LocalWork.worker``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np

from tacit.engine.kernel import Summed, Worked
from tacit.exchange import Grid
from tacit.kernels import Arrays
from tacit.models import Params


class Given(NamedTuple):
    """What a round's work begins with: the server's broadcast, frozen layers, records, and what silos keep."""

    broadcast: Any
    frozen: Params
    arrays: Arrays
    states: Any


@dataclass
class WorkTally:
    """What is known about work when it is done, which may be after the exchange has taken the last part of it.

    not_finite  how much of what is clipped was not finite and counted as zero
    seconds     spent on parts that were computed when the exchange asked for them
    """

    not_finite: int | jax.Array = 0
    seconds: float = 0.0


class Contributed(NamedTuple):
    """What silos that are here hand to an exchange, one entry for each; what they keep; and the tally of the work."""

    parts: Sequence[Any] | np.ndarray
    states: Any
    tally: WorkTally


class Worker:
    """A round's local work: who takes part and what they look at is drawn first, then it is done.

    ``do``, ``integers``, ``subjects`` and ``reports`` are the same work in the form that an exchange carries; a worker
    has those that its methods can use.

    works_by   whose clipped contributions a sum has; None where they are neither those of silos nor of subjects
    is_shared  whether ``do`` can be shared among processes
    from_disk  whether features may be in a file
    """

    works_by: ClassVar[Literal["silo", "subject"] | None] = None
    is_shared: ClassVar[bool] = False
    from_disk: ClassVar[bool] = False
    method: Any  # with the parts that its worker knows

    def draw(self, number: int) -> Any:
        """Who takes part in a round, and which records they look at."""
        raise NotImplementedError

    def participants(self, drawn: Any) -> int:
        """How many take part, as far as that is public."""
        raise NotImplementedError

    def numbers(self, given: Given) -> int:
        """How many numbers a contribution has."""
        raise NotImplementedError

    def members(self) -> Sequence[Any]:
        """Of each silo that is here, what its side of the exchange must know about its subjects."""
        return ()

    def do(self, drawn: Any, given: Given) -> Worked:
        """The sums of all that is contributed."""
        raise NotImplementedError

    def integers(self, drawn: Any, given: Given, form: Grid) -> Contributed:
        """Of each silo its contribution ``[numbers]`` in steps of the grid."""
        raise NotImplementedError

    def subjects(self, drawn: Any, given: Given, form: Grid) -> Contributed:
        """Of each silo what each of its subjects adds: groups of ``PersonVectors``, each computed when asked for."""
        raise NotImplementedError

    def reports(self, drawn: Any, given: Given, form: Callable[[], Any]) -> Contributed:
        """Of each silo what its people report, in pieces that ``form`` makes."""
        raise NotImplementedError

    def own(self, given: Given) -> Params:
        """The own models of the silos that are here, stacked ``[silos, …]``."""
        raise NotImplementedError

    def messages(self, drawn: Any, given: Given) -> np.ndarray:
        """What every person of a round sends, ``[people, numbers]``, where people protect what they send."""
        raise NotImplementedError

    def nothing(self, given: Given) -> Summed:
        """The sum before any silo contributed: zeros, the same in every round."""
        raise NotImplementedError

    @property
    def draws_all_always(self) -> bool:
        """Whether every round has the same people with the same records."""
        return False
