"""A request as NVFlare carries it: a folder that names Tacit's two classes and holds the experiment, signed as a whole.

The requester's kit signs every file of it. Server and silos check that signature against their common authority, take
the requester's name from the certificate that made it, and read everything else from the signed file. What NVFlare's
own records say about a job is not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.engine.federation.kits import CLASSES, REQUESTER_ROLE, Kit
from tacit.engine.federation.limits import MOST_TEXT, check_job
from tacit.engine.federation.request import Sealed
from tacit.errors import UserError
from tacit.exchange.post import SERVER

REQUEST = "request.json"
BARRIER, TOPIC, PROGRESS, RESULTS = "tacit-barrier", "tacit", "tacit-progress", "tacit"
PATIENCE = 120  # seconds that a silo has for an answer, unless the requester says otherwise
MOST_PATIENCE = 86400
_APP = "app"


def write_job(folder: Path, text: str, run: str, attempt: int, parties: Sequence[str], patience: int) -> None:
    """Fill ``folder`` with the request for an attempt at a run of the experiment ``text``.

    parties   who must be there for it to begin, beside the server
    patience  seconds that each of them has for an answer
    """
    coordinator, silo = CLASSES
    config = folder / _APP / "config"
    config.mkdir(parents=True)
    filters: dict[str, Any] = {
        "format_version": 2,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
    }
    workflow = {"id": "tacit", "path": coordinator, "args": {}}
    executor = {"tasks": [BARRIER], "executor": {"path": silo, "args": {}}}
    contents = {
        folder / "meta.json": {
            "name": f"tacit-{run[:12]}-{attempt}",
            "resource_spec": {},
            "min_clients": len(parties),
            "mandatory_clients": list(parties),
            "deploy_map": {_APP: [SERVER, *parties]},
        },
        config / "config_fed_server.json": {**filters, "workflows": [workflow]},
        config / "config_fed_client.json": {**filters, "executors": [executor]},
        config / REQUEST: {"experiment": text, "run": run, "attempt": attempt, "patience": patience},
    }
    for file, content in contents.items():
        file.write_text(json.dumps(content, indent=1), encoding="utf-8")


def read_job(app: Path, kit: Kit) -> tuple[Sealed, int]:
    """The request in the folder of a job as it was deployed here, and the patience it asks for; UserError where it is
    too large, not signed by exactly one requester, or no request. Its experiment is not looked at."""
    from nvflare.lighter.utils import verify_folder_signature_and_get_signers

    check_job(app)
    root = str(kit.startup / "rootCA.pem")
    verified, signers = verify_folder_signature_and_get_signers(str(app), root)
    # everybody of the federation has a key that signs; the certificate says who is a requester
    if not verified or len(signers) != 1 or signers[0][2] != REQUESTER_ROLE:
        whose = ", ".join(str(signer[0]) for signer in signers) if verified and signers else "nobody whose word it is"
        problem = f"it is not signed by one requester of this federation, but by {whose}"
        raise UserError("request", problem, "ask with `tacit submit`")
    file = app / "config" / REQUEST
    try:
        # a character takes six bytes at most
        if file.lstat().st_size > 8 * MOST_TEXT:
            raise ValueError
        values = json.loads(file.read_text(encoding="utf-8"))
        text, run, attempt, patience = (values[key] for key in ("experiment", "run", "attempt", "patience"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError("request", "it is unreadable", "ask with `tacit submit`") from None
    if not isinstance(text, str) or type(patience) is not int or not 1 <= patience <= MOST_PATIENCE:
        raise UserError("request", "it is unreadable", "ask with `tacit submit`")
    return Sealed(text, run, attempt, str(signers[0][0])), patience
