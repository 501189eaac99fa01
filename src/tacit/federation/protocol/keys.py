"""What parties bring to a federation: identities, and a secret that only silos know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.crypto import Identity, Secret


@dataclass(frozen=True)
class SiloKeys:
    """What a silo brings: its ``identity``, the ``roster`` of everybody's public identities (the server's is called
    ``server``), and a secret of 32 bytes that all silos have in ``common`` and the server has not."""

    identity: Identity
    roster: Mapping[str, bytes]
    common: Secret


@dataclass(frozen=True)
class ServerKeys:
    """What the coordinator brings: its ``identity``, and the ``roster``."""

    identity: Identity
    roster: Mapping[str, bytes]
