"""What is found by name: parts of Tacit, which are imported when they are used, and those of other packages.

Another package adds one in its own ``pyproject.toml``::

    [project.entry-points."tacit.models"]
    fourier = "their_package.models:FOURIER"

A built-in name always means the built-in. The core imports no family: it finds them here.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from tacit.errors import UserError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

# commands of families, in the order of the help
COMMANDS = ("tacit.families.survey.command:survey",)
# names of the package ``tacit`` that are not those of ``tacit.api``
FUNCTIONS = {
    "survey": "tacit.families.survey.ask:survey",
    "study": "tacit.studies.study:study",
    **{name: f"tacit.errors:{name}" for name in ("Forbidden", "TacitError", "UserError")},
    **{name: f"tacit.estimators:{name}" for name in ("TacitClassifier", "TacitRegressor", "TacitSurvival")},
}
# exchanges, by the name in ``[exchange]``
EXCHANGES = {
    "plain": "tacit.exchange.plain:Plain",
    "masked": "tacit.exchange.masked:Masked",
    "weighted": "tacit.families.weighting.exchange:Weighted",
    "shuffled": "tacit.families.shuffle.exchange:Shuffled",
    "pairwise": "tacit.families.pairwise.exchange:Pairwise",
    "direct": "tacit.families.gossip.exchange:Direct",
}
# options of methods, by the name in ``[method]``
METHODS = {
    "fedavg": "tacit.methods.averaging:FedAvg",
    "fedsgd": "tacit.methods.averaging:FedSGD",
    "fedprox": "tacit.methods.averaging:FedProx",
    "scaffold": "tacit.methods.averaging:Scaffold",
    "silo-only": "tacit.methods.averaging:SiloOnly",
    "pooled": "tacit.methods.averaging:Pooled",
    "dp-fedavg": "tacit.methods.central:DPFedAvg",
    "dp-fedsgd": "tacit.methods.central:DPFedSGD",
    "central-group": "tacit.families.subject_dp.methods:CentralGroup",
    "pooled-dp-sgd": "tacit.methods.local_noise:PooledDPSGD",
    "local-record": "tacit.methods.local_noise:LocalRecord",
    "local-group": "tacit.families.subject_dp.methods:LocalGroup",
    "higrad": "tacit.families.subject_dp.methods:HiGrad",
    "user-ldp": "tacit.families.subject_dp.methods:UserLDP",
    "subject-sgd": "tacit.methods.per_subject:SubjectSGD",
    "uldp-avg": "tacit.families.weighting.methods:UldpAvg",
    "uldp-sgd": "tacit.families.weighting.methods:UldpSGD",
    "uldp-naive": "tacit.families.weighting.methods:UldpNaive",
    "uldp-group": "tacit.families.weighting.methods:UldpGroup",
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

Group = Literal["tacit.methods", "tacit.exchanges", "tacit.models", "tacit.sources"]
Found = TypeVar("Found")


def load(name: str) -> Any:
    """The object that ``module:name`` stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


class BuiltIn(UserDict[str, Found]):
    """Members given as ``module:name``: names are known without an import, and looking a member up imports it."""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()
        self.data: dict[str, Any] = dict(names)

    def __getitem__(self, name: str) -> Found:
        if isinstance(self.data[name], str):
            self.data[name] = load(self.data[name])
        return cast(Found, self.data[name])


def plugin_names(group: Group) -> list[str]:
    """Names that other packages add; nothing is imported."""
    return sorted({point.name for point in _entry_points(group)})


def _entry_points(group: Group) -> EntryPoints:
    from importlib.metadata import entry_points  # slow to import, and no built-in needs it

    return entry_points(group=group)


def find(group: Group, built_in: Mapping[str, Found], name: str, field: str, kind: type[Any]) -> Found:
    """The built-in called ``name``, or what another package adds by this name, an instance (or subclass) of ``kind``.

    ``field`` is the key of the experiment file that holds the name; errors are about it.
    """
    if name in built_in:
        return built_in[name]
    points = list(_entry_points(group).select(name=name))
    if not points:
        known = [*built_in, *plugin_names(group)]
        noun = group.removeprefix("tacit.").removesuffix("s")
        raise UserError("unknown-name", field, f"there is no {noun} '{name}'", nearest(name, known))
    if len({point.value for point in points}) > 1:
        packages = ", ".join(sorted({_package(point) for point in points}))
        raise UserError("duplicate", field, f"several packages add '{name}': {packages}", "uninstall all but one")
    point = points[0]
    try:
        found = point.load()
    except Exception as error:
        problem = f"'{name}' of package {_package(point)} fails to load ({type(error).__name__}: {error})"
        raise UserError("invalid-plugin", field, problem, f"correct or update {_package(point)}") from error
    if not (isinstance(found, kind) or (isinstance(found, type) and issubclass(found, kind))):
        problem = f"'{name}' of package {_package(point)} is not a {kind.__name__}"
        fix = f"let its entry point {point.value} name a {kind.__module__}.{kind.__qualname__}"
        raise UserError("invalid-plugin", field, problem, fix)
    return cast(Found, found)


def _package(point: EntryPoint) -> str:
    return "unknown" if point.dist is None else point.dist.name
