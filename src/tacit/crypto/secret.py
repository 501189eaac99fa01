"""Bytes that are overwritten when they are no longer needed, and that nothing prints.

How far this goes: a :class:`Secret` holds its bytes in one place and zeroes that place in :meth:`Secret.wipe`, at the
end of a ``with`` block and when it is no longer referenced. Python and the libraries below it make copies that cannot
be reached from here (``bytes`` objects on the way in and out, the key objects of OpenSSL, which cleans them itself,
integers of gmpy2, which does not). So this shortens the life of keys in memory; it is no defence against an attacker
who can read the memory of the process while it runs.
"""

from __future__ import annotations

import hmac
import os
from types import TracebackType
from typing import NoReturn

from tacit.crypto.crypto_errors import Misused


class SelfWiping(bytearray):
    """Bytes that are zeroed before their memory is given back, which is after the last view of them is gone."""

    def wipe(self) -> None:
        self[:] = bytes(len(self))

    def __del__(self) -> None:
        self.wipe()


class Secret:
    """A few secret bytes. A ``bytearray`` that is handed in is copied and then zeroed."""

    __slots__ = ("_bytes", "_wiped")

    def __init__(self, value: bytes | bytearray | memoryview) -> None:
        self._wiped = False
        self._bytes = SelfWiping(value)
        if isinstance(value, bytearray):
            value[:] = bytes(len(value))

    @classmethod
    def random(cls, size: int = 32) -> Secret:
        """``size`` bytes from the operating system."""
        return cls(os.urandom(size))

    def expose(self) -> memoryview:
        """The bytes themselves, read-only, valid until they are wiped."""
        if self._wiped:
            raise Misused("wiped", "secret", "this secret has been wiped")
        return memoryview(self._bytes).toreadonly()

    def wipe(self) -> None:
        """Overwrite the bytes; the secret cannot be used any more."""
        self._bytes.wipe()
        self._wiped = True

    def __len__(self) -> int:
        return len(self._bytes)

    def __enter__(self) -> Secret:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wipe()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.expose(), other.expose())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled or copied")
