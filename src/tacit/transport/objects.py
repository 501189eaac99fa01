"""Which objects a message may hold.

FOBS, the serialization of NVFlare 2.9.0, builds objects of about sixty types from what others send. One of them, a file
datum, makes the receiver write a file (into a folder that all local users share) and makes whoever serializes it again
read any file and send its content. Others download from an address in the message. A run needs six types, and no datum
that is a file or is processed by a handler: everything else is refused before it is built.
"""

from __future__ import annotations

from typing import Any, Final

from nvflare.fuel.utils.fobs import fobs, lobs
from nvflare.fuel.utils.fobs.datum import Datum, DatumManager, DatumType

TYPES: Final = frozenset(
    {
        "nvflare.apis.client.Client",
        "nvflare.apis.fl_context.FLContext",
        "nvflare.apis.job_def.JobMetaKey",
        "nvflare.apis.shareable.Shareable",
        "nvflare.fuel.utils.fobs.datum.DatumRef",  # a part of more than 10 MB, which is a section of its own
        "nvflare.private.admin_defs.Message",
    }
)
_SECTIONS: Final = (lobs.MARKER_MAIN, lobs.MARKER_DATUM_TEXT, lobs.MARKER_DATUM_BLOB)


class ForbiddenObject(ValueError):
    """A message holds an object that no run needs."""


def restrict() -> None:
    """Refuse all other objects in this process. Calling it twice changes nothing."""
    if getattr(fobs.Packer.unpack, "restricted", False):
        return
    unpack, header, add_datum = fobs.Packer.unpack, lobs._Header.from_bytes, DatumManager.add_datum

    def unpack_known(self: Any, obj: Any) -> Any:
        if type(obj) is dict and fobs.FOBS_TYPE in obj and obj[fobs.FOBS_TYPE] not in TYPES:
            raise ForbiddenObject("a message holds an object of a type that no run needs")
        return unpack(self, obj)

    def read_header(buffer: bytes) -> Any:
        """Called for every section of a message, before the section is read."""
        section = header(buffer)
        if section.marker not in _SECTIONS or section.dot != 0:
            raise ForbiddenObject("a message holds a file, or a part with a handler")
        return section

    def add_known(self: Any, datum: Datum) -> None:
        """Called for every part that is sent or received."""
        if datum.datum_type not in (DatumType.TEXT, DatumType.BLOB):
            raise ForbiddenObject("a file is no part of a message")
        add_datum(self, datum)

    unpack_known.restricted = True  # type: ignore[attr-defined]
    fobs.Packer.unpack = unpack_known
    lobs._Header.from_bytes = staticmethod(read_header)
    DatumManager.add_datum = add_known
