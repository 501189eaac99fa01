"""How it is learned: one module per family, one line per method in the registry below."""

from tacit.methods.across import UldpGroup, UldpNaive
from tacit.methods.averaging import FedAvg, FedProx, FedSGD, Scaffold
from tacit.methods.central import CentralGroup, DPFedAvg, DPFedSGD
from tacit.methods.decentralized import GossipSGD, LocalWalkSGD, MuffliatoSGD, RandomWalkSGD
from tacit.methods.encoders import LdpGaussian, LdpLaplace
from tacit.methods.local_noise import HiGrad, LocalGroup, LocalRecord, PooledDPSGD, UserLDP
from tacit.methods.method import Calibrated, Facts, Method, Private, ServerState
from tacit.methods.per_subject import SubjectSGD, UldpAvg, UldpSGD
from tacit.methods.personal import FedEM, FineTune, GraphRegularized, MeanRegularized, PerFedAvg, PFedMe
from tacit.methods.reference import Pooled, SiloOnly
from tacit.methods.shuffle import SSDouble, SSSimple, SSTopk

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
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

__all__ = ["METHODS", "Calibrated", "Facts", "Method", "Private", "ServerState"]
