"""Which objects a message may hold.

FOBS, the serialization of NVFlare 2.9.0, builds objects of about sixty types from what others send. One of them, a file
datum, makes the receiver write a file (into a folder that all local users share) and makes the next process that
serializes it read any file and send its content. Others download from an address in the message. A run needs six types,
and no datum that is a file or is processed by a handler: everything else is refused before it is built.

An empty list takes one byte of a message and 64 bytes of memory. :func:`check_values` therefore counts the values of a
message from its bytes, before anything is built from them.
"""

from __future__ import annotations

import json
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
MOST_VALUES: Final = 10_000  # of a message, or of the text of a command
MOST_HEADERS: Final = 1000  # values of the headers of a message, or of the message that names a neighbour
MOST_DEPTH: Final = 64  # of containers in containers
MOST_COMMAND: Final = 64 << 10  # characters of a command, apart from the job within
_MOST_PARTS: Final = 1000  # sections of a message after the first
_SECTIONS: Final = (lobs.MARKER_MAIN, lobs.MARKER_DATUM_TEXT, lobs.MARKER_DATUM_BLOB)


class ForbiddenObject(ValueError):
    """A message holds an object that no run needs, or too many values."""


# By tag of MessagePack. Bytes that follow the tag of a value without a length:
_LENGTHS: Final = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3, *range(0x80), *range(0xE0, 0x100)), 0),
    **dict(enumerate((4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), 0xCA)),  # numbers, short extensions
    **{0xA0 + length: length for length in range(32)},
}
# Texts, bytes and extensions: bytes of their length, and bytes between it and the content.
_SIZED: Final = dict(enumerate(((1, 0), (2, 0), (4, 0), (1, 1), (2, 1), (4, 1)), 0xC4)) | dict(
    enumerate(((1, 0), (2, 0), (4, 0)), 0xD9)
)
# Containers: bytes of their length, and values per entry.
_CONTAINERS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def is_table(tag: int) -> bool:
    """Whether a value of MessagePack with this tag is a table."""
    return 0x80 <= tag < 0x90 or tag in (0xDE, 0xDF)


def check_values(packed: bytes | memoryview, most: int) -> None:
    """Raise ForbiddenObject if MessagePack holds, or declares, more than ``most`` values, or containers more than
    ``MOST_DEPTH`` deep. Reads tags and lengths alone. Where the text breaks off or is malformed, msgpack stops, too."""
    view, at, due = memoryview(packed), 0, [1]  # due: values that have not been read yet, by open container
    read, promised = 0, 1
    while due and at < len(view):
        if not due[-1]:
            due.pop()
            continue
        tag = view[at]
        at += 1
        due[-1] -= 1
        read, promised = read + 1, promised - 1
        inner = 0
        if tag in _LENGTHS:
            at += _LENGTHS[tag]
        elif tag in _SIZED:
            width, between = _SIZED[tag]
            at += width + between + int.from_bytes(view[at : at + width])
        elif tag in _CONTAINERS:
            width, each = _CONTAINERS[tag]
            inner = each * int.from_bytes(view[at : at + width])
            at += width
        elif 0x80 <= tag < 0xA0:  # a short table or list
            inner = (2 if tag < 0x90 else 1) * (tag & 15)
        else:
            return  # the one tag that MessagePack does not use
        promised += inner
        if read + promised > most:
            raise ForbiddenObject(f"a message holds more than {most} values")
        if inner:
            due.append(inner)
            if len(due) > MOST_DEPTH + 1:
                raise ForbiddenObject(f"a message holds containers more than {MOST_DEPTH} deep")


def check_command(text: object, job: str) -> None:
    """Raise ForbiddenObject if a command (JSON) holds too many values, or is long without the property ``job``."""
    if not isinstance(text, str):
        raise ForbiddenObject("a command is no text")
    if sum(text.count(sign) for sign in "[{,") > MOST_VALUES:  # each value follows one of them
        raise ForbiddenObject(f"a command holds more than {MOST_VALUES} values")
    if len(text) <= MOST_COMMAND:
        return
    try:
        packed = json.loads(text)["meta"]["cmd_props"][job]
    except (ValueError, TypeError, KeyError, RecursionError):
        packed = ""
    if not isinstance(packed, str) or len(text) - len(packed) > MOST_COMMAND:
        raise ForbiddenObject(f"a command has more than {MOST_COMMAND} characters")


def restrict() -> None:
    """Refuse all other objects in this process. Calling it twice changes nothing."""
    if getattr(fobs.Packer.unpack, "restricted", False):
        return
    unpack, header, add_datum = fobs.Packer.unpack, lobs._Header.from_bytes, DatumManager.add_datum
    deserialize = lobs.deserialize

    def deserialize_few(data: bytes, *args: Any, **more: Any) -> Any:
        """Called for the first section of a message, before anything is built from it."""
        check_values(data, MOST_VALUES)
        return deserialize(data, *args, **more)

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
        if len(self.get_datums()) >= _MOST_PARTS:
            raise ForbiddenObject(f"a message has more than {_MOST_PARTS} parts")
        add_datum(self, datum)

    unpack_known.restricted = True  # type: ignore[attr-defined]
    fobs.Packer.unpack = unpack_known
    lobs.deserialize = deserialize_few
    lobs._Header.from_bytes = staticmethod(read_header)
    DatumManager.add_datum = add_known
