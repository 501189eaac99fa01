"""Which objects a message may hold."""

from __future__ import annotations

import uuid

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs.builtin_decomposers import BUILTIN_TYPES
from nvflare.fuel.utils.fobs.datum import Datum
from nvflare.fuel.utils.fobs.lobs import MARKER_DATUM_BLOB, MARKER_DATUM_FILE, MARKER_MAIN, _Header
from nvflare.private.admin_defs import Message
from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

from tacit.transport.objects import TYPES, ForbiddenObject, restrict


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
