"""Names of what families add to the core, as ``module:name``. They are imported when they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, Protocol, TypeVar

Member = TypeVar("Member")

# commands of the program, in the order of its help
COMMANDS = ("tacit.families.survey.command:survey",)
# functions of the package ``tacit``
FUNCTIONS = {"survey": "tacit.families.survey.ask:survey"}
# exchanges, by the name in ``[exchange]``
EXCHANGES = {
    "shuffled": "tacit.families.shuffle.exchange:Shuffled",
    "pairwise": "tacit.families.pairwise.exchange:Pairwise",
    "direct": "tacit.families.gossip.exchange:Direct",
}
# options of methods, by the name in ``[method]``
METHODS = {
    "fine-tune": "tacit.families.personal.methods:FineTune",
    "mean-regularized": "tacit.families.personal.methods:MeanRegularized",
    "graph-regularized": "tacit.families.personal.methods:GraphRegularized",
    "per-fedavg": "tacit.families.personal.methods:PerFedAvg",
    "pfedme": "tacit.families.personal.methods:PFedMe",
    "fedem": "tacit.families.personal.methods:FedEM",
    "ss-simple": "tacit.families.shuffle.methods:SSSimple",
    "ss-double": "tacit.families.shuffle.methods:SSDouble",
    "ss-topk": "tacit.families.shuffle.methods:SSTopk",
    "ldp-laplace": "tacit.families.shuffle.encoders:LdpLaplace",
    "ldp-gaussian": "tacit.families.shuffle.encoders:LdpGaussian",
    "gossip-sgd": "tacit.families.gossip.methods:GossipSGD",
    "muffliato-sgd": "tacit.families.gossip.methods:MuffliatoSGD",
    "random-walk": "tacit.families.gossip.methods:RandomWalkSGD",
    "local-walk": "tacit.families.gossip.methods:LocalWalkSGD",
}
# sections of the report of a run, by the field of ``report.run_files.RunFiles`` that they show
SECTIONS = {"network": "tacit.families.gossip.network_section:part"}


class PlanPart(Protocol):
    """What a family adds to a plan: as an object of its JSON, and in a sentence or two."""

    def as_dict(self) -> dict[str, Any]: ...

    @property
    def words(self) -> str: ...


def load(name: str) -> Any:
    """The object that ``module:name`` stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


class BuiltIn(MutableMapping[str, Member]):
    """What is built in, by name: members of the core as they are, then those of families as ``module:name``. The names
    are known without an import; looking a member up imports it."""

    def __init__(self, core: Mapping[str, Member], families: Mapping[str, str]) -> None:
        self._members: dict[str, Member | str] = {**core, **families}

    def __getitem__(self, name: str) -> Member:
        member = self._members[name]
        if isinstance(member, str):
            found: Member = load(member)
            self._members[name] = found
            return found
        return member

    def __setitem__(self, name: str, member: Member) -> None:
        self._members[name] = member

    def __delitem__(self, name: str) -> None:
        del self._members[name]

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)
