"""Secure aggregation: silos send masked vectors whose masks cancel in the sum.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), with the round of
signatures that lets silos notice a server that tells two stories (section 6 there). A silo's vector of integers x_s is
sent as

    y_s = x_s + noise_s + PRG(b_s) + sum_{r > s} PRG(k_sr) - sum_{r < s} PRG(k_sr)    in Z_2^bits

with an own secret b_s and keys k_sr that each two silos share. Both secrets are dealt out in shares. For a silo whose
vector arrived, the others open b_s; for one that vanished, its part of the k_sr; of no silo both.

    terms      what is agreed on beforehand
    silo       a silo's side, a handler of messages
    server     the server's side
    exchange   the exchange as a plan sees it
"""

from tacit.exchange.masked.exchange import Masked
from tacit.exchange.masked.server import MaskedServer
from tacit.exchange.masked.silo import MaskedSilo
from tacit.exchange.masked.terms import MaskedTerms

__all__ = ["Masked", "MaskedServer", "MaskedSilo", "MaskedTerms"]
