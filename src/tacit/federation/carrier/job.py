"""A request as NVFlare carries it: a folder of the files that :mod:`tacit.transport.packed` lists, signed as a whole.

The requester's kit signs every file of it. Server and silos check that signature against their common authority, take
the requester's name from the certificate that made it, and read everything else from the signed file. NVFlare's own
records about a job are not used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from tacit.errors import UserError
from tacit.federation.kits import REQUESTER_ROLE, Kit
from tacit.federation.request import Sealed
from tacit.federation.site.limits import MOST_TEXT, check_job
from tacit.transport.packed import BARRIER as BARRIER
from tacit.transport.packed import REQUEST, files

TOPIC, PROGRESS, RESULTS = "tacit", "tacit-progress", "tacit"
TIMEOUT, MOST_TIMEOUT = 120, 86400  # seconds for an answer of a silo: by default, and at most
VALID = 7 * 86400  # seconds after which a signed request is refused: it cannot be kept and sent again much later
CLOCKS = 3600  # seconds by which the clocks of parties may differ


def write_job(folder: Path, text: str, run: str, attempt: int, parties: Sequence[str], timeout: int) -> None:
    """Fill ``folder`` with the request for an attempt at a run of the experiment ``text``. It begins when all
    ``parties`` are connected; ``timeout`` is the seconds that each of them has for an answer."""
    expires = int(time.time()) + VALID
    request = {"experiment": text, "run": run, "attempt": attempt, "patience": timeout, "expires": expires}
    for path, content in files(f"tacit-{run[:12]}-{attempt}", parties, request).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def read_job(app: Path, kit: Kit) -> tuple[Sealed, int]:
    """The request in the folder of a job as it was deployed here, and its timeout; UserError where it is too large, not
    signed by exactly one requester, expired, or malformed. Its experiment is not read."""
    from nvflare.lighter.utils import verify_folder_signature_and_get_signers

    check_job(app)
    verified, signers = verify_folder_signature_and_get_signers(str(app), str(kit.path / "startup" / "rootCA.pem"))
    # all parties of the federation have a key that signs; the certificate says who is a requester
    if not verified or len(signers) != 1 or signers[0][2] != REQUESTER_ROLE:
        problem = "no requester of this federation has signed it"
        if verified and signers:
            whose = ", ".join(str(signer[0]) for signer in signers)
            problem = f"one requester of this federation must sign it, and it is signed by {whose}"
        raise UserError("not-signed", "request", problem, "ask with `tacit submit`")
    file = app / "config" / REQUEST
    try:
        # a character takes six bytes at most
        if file.lstat().st_size > 8 * MOST_TEXT:
            raise ValueError
        values = json.loads(file.read_text(encoding="utf-8"))
        text, run, attempt, timeout = (values[key] for key in ("experiment", "run", "attempt", "patience"))
        if not isinstance(text, str) or type(timeout) is not int or not 1 <= timeout <= MOST_TIMEOUT:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError("malformed", "request", "it is malformed", "ask with `tacit submit`") from None
    _check_date(values.get("expires"), time.time())
    return Sealed(text, run, attempt, str(signers[0][0])), timeout


def _check_date(expires: object, now: float) -> None:
    fix = "ask again with `tacit submit`"
    if type(expires) is not int:
        raise UserError("missing", "request", "expires is missing: the request is of an earlier version of Tacit", fix)
    if not now - CLOCKS <= expires <= now + VALID + CLOCKS:
        what = "has expired" if expires < now else f"expires more than {VALID // 86400} days from now"
        raise UserError("expired", "request", f"it {what} by the clock of this machine", fix)
