"""A party does not start if its doors cannot be closed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

CLOSED = "from pathlib import Path; from tacit.transport.gate import close; close(Path(sys.argv[1])); print('closed')"


def started(kit: Path, change: str = "") -> subprocess.CompletedProcess[str]:
    """A process that changes NVFlare, and then closes its doors."""
    (kit / "tacit").mkdir(exist_ok=True)
    program = f"import sys\n{change}\n{CLOSED}"
    command = [sys.executable, "-c", program, str(kit)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_doors_of_this_version_can_be_closed(tmp_path):
    assert started(tmp_path).stdout == "closed\n"


@pytest.mark.parametrize(
    "change",
    [
        "import nvflare; nvflare.__version__ = '2.9.1'",
        "from nvflare.private.fed.client.admin import FedAdminAgent as agent; del agent._dispatch_request",
        "from nvflare.fuel.f3.cellnet.core_cell import CoreCell as cell; del cell.process_message",
        "from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors as c; "
        "c.request_processors.pop(4)",
    ],
)
def test_another_nvflare_is_not_started(tmp_path, change):
    ended = started(tmp_path, change)
    assert ended.returncode != 0
    assert "closed" not in ended.stdout


def test_an_idle_partys_program_imports_neither_jax_nor_numpy(tmp_path):
    program = "import json, sys, tacit.transport.gate; print(json.dumps([n in sys.modules for n in ('jax', 'numpy')]))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == [False, False]
