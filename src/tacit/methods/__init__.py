"""How it is learned: one line per method below. Families add others (``tacit.family_names``), and so do installed
packages, as entry points of the group ``tacit.methods`` (``tacit.plugins``)."""

from tacit.family_names import METHODS as FAMILY_METHODS
from tacit.family_names import BuiltIn
from tacit.methods.averaging import FedAvg, FedProx, FedSGD, Scaffold
from tacit.methods.base import Info, Method, Options, ServerState
from tacit.methods.central import CentralGroup, DPFedAvg, DPFedSGD
from tacit.methods.facts import Facts
from tacit.methods.local_noise import HiGrad, LocalGroup, LocalRecord, PooledDPSGD, UserLDP
from tacit.methods.per_subject import SubjectSGD
from tacit.methods.reference import Pooled, SiloOnly
from tacit.methods.uldp import UldpAvg, UldpGroup, UldpNaive, UldpSGD
from tacit.plugins import find

CORE = (
    *(FedAvg, FedSGD, FedProx, Scaffold),
    *(SiloOnly, Pooled),
    *(DPFedAvg, DPFedSGD, CentralGroup, PooledDPSGD),
    *(LocalRecord, LocalGroup, HiGrad, UserLDP),
    *(SubjectSGD, UldpAvg, UldpSGD, UldpNaive, UldpGroup),
)
METHODS: BuiltIn[type[Options]] = BuiltIn({options.info.name: options for options in CORE}, FAMILY_METHODS)


def find_method(name: str) -> type[Options]:
    """The options of a built-in method, or of one that an installed package adds (``tacit.plugins``)."""
    return find("tacit.methods", METHODS, name, "method.name", Options)


__all__ = ["METHODS", "Facts", "Info", "Method", "Options", "ServerState", "find_method"]
