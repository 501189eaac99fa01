"""What an exchange is: how contributions become a sum, what each view gets to see of them, and who adds noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from tacit.exchange.sums import SumFacts
from tacit.privacy import Index, Reveals, View


class Exchange(Protocol):
    """A frozen value of public numbers.

    reveals       for each kind of view that the exchange speaks of, what it sees
    index         how silos name a subject's slot where contributions are weighted by records in all silos and no party
                  learns those; None for exchanges without such weights

    In the plain exchange the sum and its noise are part of the compiled round. In the others, silos hand what they
    contribute, as integers on a grid, to the parties of a session, which add the noise.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    @property
    def index(self) -> Index | None: ...

    @property
    def reveals(self) -> Mapping[str, Reveals]: ...

    def __hash__(self) -> int: ...

    def reveals_to(self, view: View) -> Reveals | None:
        """What a view sees; None where the exchange knows no such view."""

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        """What must be true for a guarantee to hold, as far as the exchange is concerned."""

    def check(self, facts: SumFacts) -> None:
        """Refuse (UserError) what cannot be done for such sums."""
