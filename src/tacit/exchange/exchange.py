"""What an exchange is: how contributions become a sum, what each view gets to see of them, and who adds noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from tacit.exchange.grid import Grid, Integers
from tacit.privacy import Noise, Reveals, Stream, View


class Exchange(Protocol):
    """A frozen value of public numbers.

    reveals  for each kind of view that the exchange speaks of, what it sees

    In the plain exchange the sum and its noise are part of the compiled round; in the others, silos hand their vectors,
    as integers on a grid, to a :class:`Session`.
    """

    name: ClassVar[str]
    about: ClassVar[str]

    @property
    def reveals(self) -> Mapping[str, Reveals]: ...

    def __hash__(self) -> int: ...

    def reveals_to(self, view: View) -> Reveals | None:
        """What a view sees; None where the exchange knows no such view."""

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        """What must be true for a guarantee to hold, as far as the exchange is concerned."""

    def check(self, silos: int, bound: float, noise: Noise | None) -> None:
        """Refuse (UserError) what cannot be done for ``silos``, with sums of entries up to ``bound`` before noise."""


class Session(Protocol):
    """All parties of one run's exchange in this process."""

    grid: Grid

    def sum(self, number: int, vectors: Integers, noise: Sequence[Stream]) -> npt.NDArray[np.float64]:
        """The sum over silos of ``vectors [silos, numbers]`` in round ``number``, with everybody's noise."""
