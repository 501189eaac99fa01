"""How it is learned: one module per family, one line per method in the registry below. Installed packages add others as
entry points of the group ``tacit.methods`` (``tacit.plugins``)."""

from tacit.methods.averaging import FedAvg, FedProx, FedSGD, Scaffold
from tacit.methods.base import Info, Method, Options, ServerState
from tacit.methods.central import CentralGroup, DPFedAvg, DPFedSGD
from tacit.methods.decentralized import GossipSGD, LocalWalkSGD, MuffliatoSGD, RandomWalkSGD
from tacit.methods.encoders import LdpGaussian, LdpLaplace
from tacit.methods.facts import Facts
from tacit.methods.local_noise import HiGrad, LocalGroup, LocalRecord, PooledDPSGD, UserLDP
from tacit.methods.per_subject import SubjectSGD
from tacit.methods.personal import FedEM, FineTune, GraphRegularized, MeanRegularized, PerFedAvg, PFedMe
from tacit.methods.reference import Pooled, SiloOnly
from tacit.methods.shuffle import SSDouble, SSSimple, SSTopk
from tacit.methods.uldp import UldpAvg, UldpGroup, UldpNaive, UldpSGD
from tacit.plugins import find

METHODS: dict[str, type[Options]] = {
    options.info.name: options
    for options in (
        *(FedAvg, FedSGD, FedProx, Scaffold),
        *(SiloOnly, Pooled),
        *(DPFedAvg, DPFedSGD, CentralGroup, PooledDPSGD),
        *(LocalRecord, LocalGroup, HiGrad, UserLDP),
        *(SubjectSGD, UldpAvg, UldpSGD, UldpNaive, UldpGroup),
        *(FineTune, MeanRegularized, GraphRegularized, PerFedAvg, PFedMe, FedEM),
        *(SSSimple, SSDouble, SSTopk, LdpLaplace, LdpGaussian),
        *(GossipSGD, MuffliatoSGD, RandomWalkSGD, LocalWalkSGD),
    )
}


def find_method(name: str) -> type[Options]:
    """The options of a built-in method, or of one that an installed package adds (``tacit.plugins``)."""
    return find("tacit.methods", METHODS, name, "method.name", Options)


__all__ = ["METHODS", "Facts", "Info", "Method", "Options", "ServerState", "find_method"]
