"""What an exchange is: how contributions become a sum, what each view sees, who adds noise, and the parties.

An :class:`Exchange` is a frozen value of public numbers. Plans ask it what it carries, reveals and assumes. Engines ask
it for the parties of a run and drive them without knowing which exchange it is:

    terms = exchange.terms(run, silos, numbers, facts)     what all parties agree on; public
    server = exchange.server(terms, keys)                  a :class:`ServerRole`
    silo = exchange.silo(terms, keys, members)             a :class:`SiloRole`
    third = exchange.third(terms, keys)                    a :class:`ThirdRole`, where ``third_party`` names one

    setup, where ``exchange.opens``     every silo sends ``silo.open()``; then ``server.open()`` and a conversation
    a round                             ``preface = third.begin(number)``, b"" without a third party
                                        every silo sends ``silo.begin(number, contribution, noise, preface)``
                                        ``server.begin(number, stream, preface)`` and a conversation
                                        ``server.numbers()`` is the sum

A conversation (:func:`tacit.exchange.session.led`) is: the server receives one message of each silo, ``advance`` gives
what each party is sent next, the party's ``receive`` gives its answer; until the server's ``phase`` is None.

``silo.shows`` says of the message made last whether it tells anything about records. Then the party that drives the
silo writes a line into its ledger before the message leaves. The simulator carries the same messages in one process
(:class:`tacit.exchange.session.Session`). Two exchanges need none: the sum of the plain one is part of the compiled
round, and reports that are shuffled without seals are added up as they come.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from inspect import isfunction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from tacit.crypto import EVERYONE, Identity, Replayed
from tacit.exchange.post import SERVER, OutOfTurn, Post, TooFew
from tacit.exchange.sums import SumFacts
from tacit.privacy import Index, Reveals, View
from tacit.privacy.randomness import Stream

if TYPE_CHECKING:
    import numpy as np

    from tacit.exchange.masked import Masked
    from tacit.exchange.session import Summing
    from tacit.exchange.sums import Grid

# What silos hand over: a sum inside the compiled round, integers on a grid, groups of subjects with such integers of
# each, single reports, or messages to neighbours.
Carried = Literal["sum", "integers", "subjects", "reports", "neighbours"]
Place = Literal["shares", "once"]


class PlanPart(Protocol):
    """What an exchange adds to a plan: as an object of its JSON, and in a sentence or two."""

    def as_dict(self) -> dict[str, Any]: ...

    @property
    def words(self) -> str: ...


class Keys(NamedTuple):
    """A party: its name, its signing identity, and the public identities of all parties by name."""

    name: str
    identity: Identity
    roster: Mapping[str, bytes]


@dataclass(frozen=True)
class Exchange:
    """Base of all exchanges; subclasses are frozen dataclasses.

    carries      what silos hand over
    adds         in which places it can add noise to a sum
    opens        whether silos send something before the first round
    third_party  the name of a third party, next to silos and server, if there is one
    carries_once whether sums that a plan releases once can travel between parties that use this exchange
    repeats      whether a round that is done again with the same seed is the same release to the last number
    noise_from_silos_only  whether silos add all noise, whatever the method says, so that no other party is trusted
    """

    name: ClassVar[str]
    about: ClassVar[str]
    carries: ClassVar[Carried]
    adds: ClassVar[frozenset[Place]] = frozenset({"shares"})
    opens: ClassVar[bool] = False
    third_party: ClassVar[str | None] = None
    carries_once: ClassVar[bool] = False
    repeats: ClassVar[bool] = True
    noise_from_silos_only: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """A field in the place of a function would be a number where the function is called."""
        functions = {name for base in cls.__mro__[1:] for name, value in vars(base).items() if isfunction(value)}
        hidden = functions & set(vars(cls).get("__annotations__", ()))
        if hidden:
            raise TypeError(f"{cls.__name__}: {', '.join(sorted(hidden))} is a function of exchanges: rename the field")

    # -- what a plan asks

    @property
    def reveals(self) -> Mapping[str, Reveals]:
        """For each view that the exchange knows, what it sees."""
        raise NotImplementedError

    def views(self, silos: int) -> tuple[str, ...]:
        """The views against which a plan gives guarantees unless it names others."""
        return tuple(self.reveals)

    def reveals_to(self, view: View) -> Reveals | None:
        """What a view sees; None where the exchange knows no such view."""
        raise NotImplementedError

    def settings_for(self, view: View) -> str | None:
        """The settings with which this exchange would have such a view; None where there are none."""
        return None

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        """What must be true for a guarantee to hold, as far as the exchange is concerned."""
        raise NotImplementedError

    def factor(self, view: View, silos: int) -> float | None:
        """What a view learns of a silo, over what it would learn of a sum with the planned noise; None where what the
        view sees (``reveals_to``) decides."""
        return None

    def check(self, facts: SumFacts) -> None:
        """Refuse (UserError) sums that the exchange cannot take."""

    def check_federated(self) -> None:
        """Refuse (UserError) settings that work in the simulator only."""

    @property
    def index(self) -> Index | None:
        """How silos name a subject's slot where contributions are weighted by records in all silos and no party learns
        those; None for exchanges without such weights."""
        return None

    @property
    def weights(self) -> tuple[str, ...] | None:
        """The values of ``method.weights`` that it carries without a party learning counts; None for exchanges that
        have no weights of their own: silos weight their contributions."""
        return None

    @property
    def weight_bits(self) -> int | None:
        """Its weights are rounded down to multiples of 2^-weight_bits; None where they are exact."""
        return None

    def record_cap(self, silos: int) -> int | None:
        """The most records of a subject in a silo where none is declared; None: it needs no bound."""
        return None

    @property
    def hidden_sampling(self) -> bool:
        """Whether silos do not know who is sampled either, so that they work on all subjects."""
        return False

    @property
    def drop_outs(self) -> int:
        """How many silos may vanish in a round."""
        return 0

    @property
    def compiled(self) -> bool:
        """Whether the sum is taken inside the compiled round; in the others, parties of the exchange take it."""
        return self.carries in ("sum", "neighbours")

    @property
    def masking(self) -> Masked | None:
        """The exchange of sums that a plan releases once, where the server must see nothing else of them; None where
        the parts of single silos are seen, and counted so."""
        return None

    def plan_parts(self, promise: Any) -> dict[str, PlanPart]:
        """What ``tacit plan`` shows of this exchange under a ``Promise``, next to guarantees, by its key in JSON."""
        return {}

    def memory(self, people: int, numbers: int) -> int:
        """About how many bytes a silo's side holds for ``people`` declared subjects and contributions of ``numbers``
        numbers, next to what the method needs."""
        return 0

    def slot_count(self, people: int) -> int:
        """How many slots there are for ``people`` declared subjects."""
        return people

    def slots_of(self, keys: np.ndarray, people: int) -> np.ndarray | None:
        """The slots of subjects with these ``keys``, of whom ``people`` are declared; None without an index."""
        return None

    def options(self) -> dict[str, Any]:
        """The section ``[exchange]`` that describes it."""
        return {"name": self.name, **asdict(self)}

    # -- what an engine asks

    def session(self, silos: Sequence[str], numbers: int, facts: SumFacts, members: Sequence[Any] = ()) -> Summing:
        """All parties in this process, for contributions of ``numbers`` numbers; ``members``: see :meth:`silo`."""
        from tacit.exchange.session import Session, silo_names

        return Session(self, self.terms(secrets.token_hex(16), silo_names(silos), numbers, facts), members)

    def terms(self, run: str, silos: Sequence[str], numbers: int, facts: SumFacts) -> Any:
        """What the parties agree on."""
        raise NotImplementedError

    def server(self, terms: Any, keys: Keys) -> ServerRole:
        """The server's side."""
        raise NotImplementedError

    def silo(self, terms: Any, keys: Keys, members: Any) -> SiloRole:
        """A silo's side; ``members`` is what its worker says about its subjects (``Worker.members``)."""
        raise NotImplementedError

    def third(self, terms: Any, keys: Keys) -> ThirdRole:
        """The side of the third party."""
        raise NotImplementedError


class ThirdRole(Protocol):
    """A third party, whose messages the server carries."""

    @property
    def longest(self) -> int: ...

    def begin(self, number: int) -> bytes:
        """What goes to all silos with the model of a round."""

    def receive(self, message: bytes) -> bytes:
        """The answer to the server's message."""


class SiloRole:
    """A silo's side: it begins a round with its contribution, and then answers the server's messages.

    releases       the phases whose messages tell something about records: these need a ledger line first
    signs          whether its messages are signed by the protocol of the exchange; otherwise the carrier signs them
    signs_opening  the same of what it sends in setup
    to_everyone    the phases whose answers are signed for all parties, because the server passes them on
    form           what a worker puts the contribution into: the grid of integers, or what makes a place for reports
    longest        no message of the server in a round has more bytes
    """

    terms: Any
    releases: ClassVar[tuple[str, ...]] = ()
    signs: ClassVar[bool] = True
    signs_opening: ClassVar[bool] = True
    to_everyone: ClassVar[tuple[str, ...]] = ()

    def __init__(self, protocol: str, terms: Any, keys: Keys, form: Any = None) -> None:
        self.name, self.terms, self.form = keys.name, terms, form
        self._post = Post(protocol, terms.place, *keys)
        self._phase: str | None = None
        self._made: str | None = None
        self._handlers: dict[str, Callable[[bytes], bytes]] = {}

    @property
    def longest(self) -> int:
        return int(self.terms.longest)

    @property
    def phase(self) -> str | None:
        """What it will answer the next message with; None where none is due."""
        return self._phase

    @property
    def shows(self) -> bool:
        """Whether the message that was made last tells something about records."""
        return self._made in self.releases

    def open(self) -> bytes:
        """The first message of setup."""
        raise OutOfTurn("this exchange has no setup", self.name)

    def begin(self, number: int, contribution: Any, noise: Stream, preface: bytes = b"") -> bytes:
        """The first message of round ``number``, about this silo's ``contribution``. ``noise`` is what its share is
        drawn from, ``preface`` what the third party sent for the round."""
        raise NotImplementedError

    def receive(self, message: bytes) -> bytes:
        """The answer to the server's next message. A malformed message ends the round for this silo: secrets are wiped,
        and it answers nothing more. A message that the server has not signed for this phase is refused and changes
        nothing; otherwise any sender could end the round."""
        if self._phase is None:
            raise OutOfTurn("a message outside of a round", SERVER)
        content = self._post.read(SERVER, self._phase, message)
        phase, self._phase = self._phase, None
        try:
            reply = self._handlers[phase](content)
        except BaseException:
            self._forget()
            raise
        return self._written(phase, reply)

    def _written(self, phase: str, content: bytes) -> bytes:
        """The message of a phase, signed."""
        self._made = phase
        return self._post.write(EVERYONE if phase in self.to_everyone else SERVER, phase, content)

    def _forget(self) -> None:
        """Wipe what belongs to this round alone."""


class ServerRole:
    """The server's side: it collects one message of every silo in each phase, and ``advance`` closes the phase.

    After the last phase ``total`` is the sum, in steps of the grid where there is one; after a round that failed it is
    None. A message that is refused counts as missing. Too few messages end the round.

    strict       whether a message that arrives and is refused ends the round
    to_everyone  the phases whose messages are signed for all parties
    longest      most bytes of a silo's message in a round, without a vector of numbers
    signs, signs_opening   as of :class:`SiloRole`
    """

    strict: ClassVar[bool] = False
    signs: ClassVar[bool] = True
    signs_opening: ClassVar[bool] = True
    to_everyone: ClassVar[tuple[str, ...]] = ()

    terms: Any

    def __init__(self, protocol: str, terms: Any, keys: Keys, grid: Grid | None = None) -> None:
        self.terms, self._grid = terms, grid
        self.total: Any = None
        self._silos: tuple[str, ...] = terms.silos
        self._post = Post(protocol, terms.place, *keys)
        self._phase: str | None = None
        self._there: tuple[str, ...] = ()
        self._inbox: dict[str, bytes] = {}

    @property
    def longest(self) -> int:
        return int(self.terms.longest)

    @property
    def least(self) -> int:
        """How many silos must answer in each phase."""
        return len(self._silos)

    @property
    def phase(self) -> str | None:
        """What silos are to send now; None outside of setup and rounds."""
        return self._phase

    def open(self) -> None:
        """Begin setup."""
        raise OutOfTurn("this exchange has no setup", SERVER)

    def begin(self, number: int, stream: Stream | None = None, preface: bytes = b"") -> None:
        """Begin round ``number``. ``stream`` is for random choices of the server, ``preface`` see :class:`SiloRole`."""
        raise NotImplementedError

    def _begin(self, number: int, phase: str) -> None:
        self._post.begin(number)
        self._inbox, self._there, self._phase, self.total = {}, tuple(sorted(self._silos)), phase, None

    def receive(self, sender: str, message: bytes) -> None:
        """Take ``sender``'s message of this phase, or refuse it."""
        phase = self._phase
        if phase is None:
            raise OutOfTurn("a message outside of a round", sender)
        try:
            if sender in self._inbox:
                raise Replayed(f"a second message in the phase of {phase}", sender)
            if sender not in self._there:
                raise OutOfTurn("a message of a party that is no longer part of the round", sender)
            self._read(phase, sender, self._opened(phase, sender, message))
        except BaseException:
            if self.strict:
                self._phase = None
            raise
        self._inbox[sender] = message

    def advance(self) -> dict[str, bytes]:
        """Close the phase; the messages to all parties that are still there."""
        phase = self._phase
        if phase is None:
            raise OutOfTurn("there is no phase to close", SERVER)
        try:
            if len(self._inbox) < self.least:
                missing = ", ".join(silo for silo in self._silos if silo not in self._inbox)
                left = f"{self.least} silos are required, and {len(self._inbox)} answered"
                raise TooFew(f"{left} (phase '{phase}'); missing: {missing}")
            following, contents = self._next(phase)
        except BaseException:
            self._end()
            raise
        if following is None:
            self._end()
            return {}
        self._inbox, self._phase = {}, following
        return {party: self._written(party, following, content) for party, content in contents.items()}

    def numbers(self) -> Any:
        """The sum as numbers, after a round."""
        if self.total is None:
            raise OutOfTurn("there is no sum", SERVER)
        return self.total if self._grid is None else self._grid.numbers(self.total)

    def _written(self, recipient: str, phase: str, content: bytes) -> bytes:
        return self._post.write(recipient, phase, content)

    def _opened(self, phase: str, sender: str, message: bytes) -> bytes:
        return self._post.read(sender, phase, message, to_everyone=phase in self.to_everyone)

    def _read(self, phase: str, sender: str, content: bytes) -> None:
        """Check and keep what a message holds."""
        raise NotImplementedError

    def _next(self, phase: str) -> tuple[str | None, dict[str, bytes]]:
        """The phase after this one, and what each party is sent; None after the last one."""
        raise NotImplementedError

    def _end(self) -> None:
        self._phase, self._inbox = None, {}
