"""Which objects a message may hold."""

from __future__ import annotations

import json
import time
import tracemalloc
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nvflare")

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs.builtin_decomposers import BUILTIN_TYPES
from nvflare.fuel.utils.fobs.datum import Datum
from nvflare.fuel.utils.fobs.lobs import MARKER_DATUM_BLOB, MARKER_DATUM_FILE, MARKER_MAIN, _Header
from nvflare.private.admin_defs import Message
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

from tacit.transport.objects import (
    MOST_COMMAND,
    MOST_DEPTH,
    MOST_VALUES,
    TYPES,
    ForbiddenObject,
    check_command,
    check_values,
    restrict,
)


@pytest.fixture(autouse=True)
def restricted():
    nvflare_fobs_initialize()
    restrict()
    restrict()  # as a process with several sessions does


def section(marker: int, content: bytes, dot: int = 0) -> bytes:
    return _Header(marker, dot, len(content)).to_bytes() + content


@pytest.mark.parametrize("large", [False, True])
def test_what_a_run_sends_arrives(large):
    message = Message("topic", Shareable({"content": bytes(11 << 20) if large else b"few"}))
    message.set_header("peer", FLContext())
    found = fobs.loads(fobs.dumps(message))
    assert found.topic == "topic"
    assert found.body["content"] == message.body["content"]


@pytest.mark.parametrize("name", sorted(BUILTIN_TYPES - TYPES))
def test_no_other_object_is_built(name):
    import msgpack

    content = {
        "__fobs_type__": name,
        "__fobs_dc__": "nvflare.fuel.utils.fobs.decomposer.DataClassDecomposer",
        "__fobs_data__": {"data": {"datum_id": str(uuid.uuid4()), "datum_type": 3, "dot": 0, "value": "/etc/hostname"}},
    }
    for nested in (content, {"peer": [content]}):
        with pytest.raises(ForbiddenObject):
            fobs.loads(section(MARKER_MAIN, msgpack.packb(nested)))


def test_no_message_writes_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("NVFLARE_DATUM_DIR", str(tmp_path / "datums"))
    content = section(MARKER_MAIN, b"\xc0") + section(MARKER_DATUM_FILE, uuid.uuid4().bytes + b"content")
    with pytest.raises(ForbiddenObject):
        fobs.loads(content)
    assert not (tmp_path / "datums").exists()


def test_no_message_sends_a_file(tmp_path):
    file = tmp_path / "secret.txt"
    file.write_text("secret")
    with pytest.raises((ForbiddenObject, RuntimeError)):
        fobs.dumps({"peer": Datum.file_datum(str(file))})


@pytest.mark.parametrize("dot", [1, 2, 255])
def test_no_part_of_a_message_has_a_handler(dot):
    content = section(MARKER_MAIN, b"\xc0") + section(MARKER_DATUM_BLOB, uuid.uuid4().bytes + b"content", dot)
    with pytest.raises(ForbiddenObject):
        fobs.loads(content)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=20),
    max_leaves=60,
)


def counted(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + counted(one) for one in value.values())
    return 1 + sum(map(counted, value)) if isinstance(value, list) else 1


@given(VALUES)
def test_the_values_of_a_message_are_counted_from_its_bytes(value):
    import msgpack

    packed, number = msgpack.packb(value), counted(value)
    check_values(packed, number)
    if number > 1:
        with pytest.raises(ForbiddenObject):
            check_values(packed, number - 1)


@pytest.mark.parametrize("tag", [*range(0xC4, 0xCA), 0xD4, 0xD8, *range(0xD9, 0xE0)])
def test_all_forms_of_texts_bytes_and_containers_are_counted(tag):
    import msgpack

    width = {0xC4: 1, 0xC7: 1, 0xD9: 1, 0xC5: 2, 0xC8: 2, 0xDA: 2, 0xDC: 2, 0xDE: 2}.get(tag, 4)
    extension = tag in (0xC7, 0xC8, 0xC9)
    if tag in (0xD4, 0xD8):
        one = bytes([tag, 5]) + b"x" * (1 if tag == 0xD4 else 16)
    elif tag >= 0xDC:
        one = bytes([tag]) + (1).to_bytes(width) + b"\x01" * (2 if tag >= 0xDE else 1)
    else:
        one = bytes([tag]) + (7).to_bytes(width) + b"\x05" * extension + b"x" * 7
    packed = b"\x93" + one + b"\xc0" + one
    assert len(msgpack.unpackb(packed, strict_map_key=False)) == 3
    number = 4 + (0 if tag < 0xDC else 4 if tag >= 0xDE else 2)
    check_values(packed, number)
    with pytest.raises(ForbiddenObject):
        check_values(packed, number - 1)


SMALL = 60_000
BOMBS = {
    "4 million empty lists": b"\xdd" + (4_000_000).to_bytes(4) + b"\x90" * 4_000_000,
    "empty lists in a short message": b"\xdd" + SMALL.to_bytes(4) + b"\x90" * SMALL,
    "empty tables": b"\xdd" + SMALL.to_bytes(4) + b"\x80" * SMALL,
    "tables of one entry": b"\xdd" + (SMALL // 3).to_bytes(4) + b"\x81\x00\x00" * (SMALL // 3),
    "short lists in short lists": b"\x9f" * SMALL,
    "lists that are declared and not there": (b"\xdd" + (9000).to_bytes(4)) * 100,
    "a list of 4 billion values": b"\xdd\xff\xff\xff\xff",
    "lists in lists": b"\x91" * 200 + b"\xc0",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_message_of_many_values_is_refused_before_any_of_them_is_built(name):
    packed = section(MARKER_MAIN, BOMBS[name])
    tracemalloc.start()
    try:
        began = time.process_time()
        with pytest.raises(ForbiddenObject):
            fobs.loads(packed)
        assert time.process_time() - began < 1
        assert tracemalloc.get_traced_memory()[1] < 2 * len(packed) + (1 << 20)
    finally:
        tracemalloc.stop()


def test_a_message_has_few_parts():
    part = section(MARKER_DATUM_BLOB, uuid.uuid4().bytes + b"x")
    fobs.loads(section(MARKER_MAIN, b"\xc0") + part * 3)
    many = b"".join(section(MARKER_DATUM_BLOB, uuid.uuid4().bytes + b"x") for _ in range(1001))
    with pytest.raises(ForbiddenObject):
        fobs.loads(section(MARKER_MAIN, b"\xc0") + many)


def test_containers_of_the_greatest_depth_are_accepted():
    check_values(b"\x91" * MOST_DEPTH + b"\xc0", MOST_VALUES)
    with pytest.raises(ForbiddenObject):
        check_values(b"\x91" * (MOST_DEPTH + 1) + b"\xc0", MOST_VALUES)


def command(text: str, **props: object) -> str:
    return json.dumps({"time": 1.0, "data": [{"type": "command", "data": text}], "meta": {"cmd_props": props}})


def test_a_command_is_long_only_by_the_job_within():
    check_command(command("submit_job job", job="A" * 1_400_000), "job")
    check_command(command("list_jobs -d"), "job")
    for long in (
        command("A" * MOST_COMMAND),
        command("submit_job " + "A" * MOST_COMMAND, job="A" * 1_400_000),
        command("submit_job job", other="A" * 1_400_000),
        command("submit_job job", job=["A" * 1_400_000]),
        "[" * (MOST_COMMAND + 1),
        "[" * (MOST_VALUES + 1),
        command("list_jobs")[:-1] + "," + "{}," * MOST_VALUES,
        7,
    ):
        with pytest.raises(ForbiddenObject):
            check_command(long, "job")
