"""How it is learned: one module per family, one line per method in the registry below."""

from tacit.methods.averaging import FedAvg, FedProx, FedSGD, Scaffold
from tacit.methods.method import Facts, Method, ServerState
from tacit.methods.reference import Pooled, SiloOnly

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (FedAvg, FedSGD, FedProx, Scaffold, SiloOnly, Pooled)
}

__all__ = ["METHODS", "Facts", "Method", "ServerState"]
