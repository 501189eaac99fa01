"""What a requester asks a federation for: an experiment that has the same meaning for all parties.

An experiment that travels names no file: a silo opens no file and imports no module because a request names it. Data
come from the silos' own tables with the subjects and silos that exist, and the columns are declared, so that all silos
make the same features of their rows.

NVFlare carries a request as a folder of the files that :mod:`tacit.transport.packed` lists. The requester's kit signs
every file of it. Server and silos check that signature against their common authority, take the requester's name from
the certificate that made it, and read everything else from the signed file. NVFlare's own records are not used.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.data import SOURCES, source_facts
from tacit.errors import TacitError, UserError
from tacit.exchange import EXCHANGES
from tacit.federation.kits import REQUESTER_ROLE, Kit
from tacit.federation.protocol.agreement import check_method, meant, refuse_in_federation
from tacit.federation.site.limits import MOST_MODEL, MOST_TEXT, check_counts, check_job, deadline, parsed
from tacit.methods import METHODS
from tacit.models import is_built_in
from tacit.models.packed_model import PACKED, find, keep
from tacit.names import plugin_names
from tacit.planning.experiment import Experiment, read_experiment
from tacit.planning.plan import Plan, plan
from tacit.transport.packed import REQUEST, files

NOWHERE = Path("/nonexistent")  # where the relative paths of an experiment that travels would start
_RUN, MOST_ATTEMPTS = re.compile("[0-9a-f]{32}"), 1000
_FIX = "ask with `tacit submit`"
_OWN_MODEL = "use a built-in model, pack it with `tacit model pack`, or install it in every silo"
SILO_COUNT = "data.silos.count"
TOPIC, PROGRESS, RESULTS = "tacit", "tacit-progress", "tacit"
TIMEOUT, MOST_TIMEOUT = 120, 86400  # seconds for an answer of a silo: by default, and at most
VALID = 7 * 86400  # seconds after which a signed request is refused: it cannot be kept and sent again much later
CLOCKS = 3600  # seconds by which the clocks of parties may differ


@dataclass(frozen=True)
class Sealed:
    """A request whose experiment was not read yet.

    text       the experiment, as :func:`travelling` wrote it
    run        32 hexadecimal digits that the requester drew
    attempt    1, and one more whenever the run is requested again (after a crash)
    requester  who signed it
    model      the bytes of its packed model, if it has one
    """

    text: str
    run: str
    attempt: int
    requester: str
    model: bytes = b""

    def __post_init__(self) -> None:
        if not (isinstance(self.run, str) and _RUN.fullmatch(self.run)):
            raise UserError("malformed", "run", "is not 32 hexadecimal digits", _FIX)
        if type(self.attempt) is not int or not 1 <= self.attempt <= MOST_ATTEMPTS:
            raise UserError("out-of-range", "attempt", f"is not a number from 1 to {MOST_ATTEMPTS}", _FIX)

    @property
    def model_name(self) -> str:
        """The name of the model that the experiment asks for; it is not looked up."""
        model = parsed(self.text).get("model")
        return str(model.get("name", "")) if isinstance(model, dict) else ""

    def opened(self, silos: int | None = None, *, is_accepted: bool = False) -> Request:
        """With the plan of the experiment; a UserError where it is invalid, or not for that number of silos.

        ``is_accepted``: this party has checked that it accepts the model, also where that is code of another package.
        """
        plan = received(self.text, silos, self.model, is_accepted=is_accepted)
        return Request(plan, self.run, self.attempt, self.requester)


@dataclass(frozen=True)
class Request:
    """A request with the plan of its experiment (see :class:`Sealed`)."""

    plan: Plan
    run: str
    attempt: int
    requester: str

    @property
    def digest(self) -> str:
        """A hash of the experiment and its requester: the same for all attempts at a run."""
        return hashlib.sha256(f"{self.requester}\n{travelling(self.plan)}".encode()).hexdigest()[:32]


def travelling(planned: Plan) -> str:
    """The experiment of a plan as text that gives all parties the same plan; a UserError where it would differ."""
    content = meant(planned)
    _check_portable(read_experiment(content))
    return json.dumps(content)


def left_behind(planned: Plan) -> list[str]:
    """The fields of an experiment that name files of the requester's machine, and do not travel."""
    experiment = planned.experiment
    given = {"data.path": experiment.data.path, "privacy.budget_file": experiment.privacy.budget_file}
    return [field for field, name in given.items() if name is not None]


def packed_model(planned: Plan) -> bytes:
    """The bytes of the packed model of a plan, which travel with it; none for another model."""
    model = planned.experiment.model
    if model.name != PACKED:
        return b""
    content = find(sha256=model.numbers["sha256"]).content
    if len(content) > MOST_MODEL:
        problem = f"the file has {len(content)} bytes, and at most {MOST_MODEL} travel"
        raise UserError("too-many", "model.path", problem, "use a smaller model")
    return content


def received(text: str, silos: int | None = None, model: bytes = b"", *, is_accepted: bool = False) -> Plan:
    """The plan of an experiment of another party; a UserError where it is invalid, names files or modules, exceeds the
    limits of a federation, or has another number of ``silos``. Nothing is computed before its counts are checked."""
    content = parsed(text)
    try:
        with deadline():
            return _planned(content, silos, model, is_accepted)
    except TacitError:
        raise
    except Exception as error:  # any number that the arithmetic of a plan does not bear
        problem = f"cannot be planned ({type(error).__name__})"
        raise UserError("invalid-value", "experiment", problem, "check it with `tacit plan`") from None


def _planned(content: dict[str, Any], silos: int | None, model: bytes, is_accepted: bool) -> Plan:
    experiment = read_experiment(content)
    _check_model(experiment, model, is_accepted)
    check_counts(experiment)
    counted = experiment.data.silos.count
    if silos is not None and counted != silos:
        problem = f"is {counted}, and the federation has {silos} silos"
        raise UserError("mismatch", SILO_COUNT, problem, f"set it to {silos}")
    _check_portable(experiment)
    check_method(experiment.made_method().info)
    for key, value in experiment.exchange.numbers.items():
        if value is None:
            raise UserError("wrong-type", f"exchange.{key}", "is null", "give a value, or leave the key out")
    if experiment.data.path is not None or experiment.privacy.budget_file is not None:
        raise UserError("simulator-only", "data.path", "an experiment that travels has no paths", _FIX)
    if experiment.method.get("target_epsilon") is not None:
        problem = "an experiment that travels has its noise, and no target to solve for"
        raise UserError("simulator-only", "method.target_epsilon", problem, _FIX)
    content = experiment.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
    # no party sees the records of all silos: to each of them the cap is a promise about the data
    content["privacy"] = content.get("privacy", {}) | {"over_silo_cap": "refuse"}
    return plan(content, folder=NOWHERE)


def _check_model(experiment: Experiment, content: bytes, is_accepted: bool) -> None:
    """Refuse code that this party did not accept, and a packed model that is not the one of the experiment."""
    name, numbers = experiment.model.name, experiment.model.numbers
    problem = f"'{name}' is not part of Tacit, and this party does not accept it"
    refuse_in_federation(("model.name", ":" in name and not is_accepted, problem, "use a built-in or packed model"))
    if name == PACKED:
        refuse_in_federation(("model.path", "path" in numbers, "names a file, which silos would not open", _FIX))
        if keep(content).sha256 != numbers.get("sha256"):
            raise UserError("mismatch", "model.sha256", "is not the hash of the packed model of the request", _FIX)


def _check_portable(experiment: Experiment) -> None:
    """Refuse what would be looked up on the machine of the reader, and what silos must know in advance."""
    data, model, privacy, engine = experiment.data, experiment.model, experiment.privacy, experiment.engine
    method, exchange = experiment.method.get("name"), experiment.exchange.name
    file, made = "names a file, which silos would not open", "people and silos of a federation are those that exist"
    drops = "over_silo_cap" in privacy.model_fields_set and privacy.over_silo_cap == "drop"
    own_method = method not in METHODS and method in plugin_names("tacit.methods")
    own_exchange = exchange not in EXCHANGES and exchange in plugin_names("tacit.exchanges")
    refuse_in_federation(
        ("engine", engine != type(engine)(), "is about the simulator alone", "leave it out in a federation"),
        ("model.init_from", model.init_from is not None, file, "leave it out in a federation"),
        ("data.schema", data.schema_ is not None, file, "leave it out in a federation"),
        ("evaluation.data", experiment.evaluation.data != "held-out", file, "leave it out in a federation"),
        ("privacy.over_silo_cap", drops, "'drop' needs the records of all silos in one place", 'use "refuse"'),
        ("model.name", not _can_travel(model.name), f"'{model.name}' is not part of Tacit", _OWN_MODEL),
        ("model.loss", model.loss is not None, f"'{model.loss}' is not part of Tacit", "leave it out in a federation"),
        ("method.name", own_method, f"'{method}' is not part of Tacit", "use a built-in method"),
        ("exchange.name", own_exchange, f"'{exchange}' is not part of Tacit", "use a built-in exchange"),
        ("data.subjects.assign", bool(data.subjects.assign), made, "leave it out"),
        ("data.silos.assign", bool(data.silos.assign), made, "leave it out"),
        ("data.standardize", data.standardize == "per-silo", "is not part of a federation", 'use "declared"'),
    )
    known = source_facts(data) if data.source in SOURCES else None
    if known is None or known.columns is None:
        problem = f"source '{data.source}' is not a built-in table, and silos of a federation hold tables"
        raise UserError("simulator-only", "data.source", problem, 'use "table"')
    required = {
        "data.numeric": (
            known.feature_shape is None,
            "the feature columns (or data.categorical), alike in all silos",
        ),
        "data.subjects.column": (known.subject_column is None, "the column that identifies the subject of each row"),
        "data.subjects.count": (not known.subject_count, "the number of subjects in all silos, which is public"),
    }
    for field, (is_missing, what) in required.items():
        if is_missing:
            raise UserError("missing", field, f"is required: {what}", "declare it")


# -- as a job of NVFlare


def _can_travel(model: str) -> bool:
    """A built-in model, or a factory of an installed module, which each party accepts or not."""
    return is_built_in(model) or (":" in model and "/" not in model)


def write_job(
    folder: Path, text: str, run: str, attempt: int, parties: Sequence[str], timeout: int, model: str = ""
) -> None:
    """Fill ``folder`` with the request for an attempt at a run of the experiment ``text``. It begins when all
    ``parties`` are connected; ``timeout`` is the seconds that each of them has for an answer, ``model`` the packed
    model in base64."""
    expires = int(time.time()) + VALID
    request = {"experiment": text, "run": run, "attempt": attempt, "patience": timeout, "expires": expires}
    request |= {"model": model} if model else {}
    for path, content in files(f"tacit-{run[:12]}-{attempt}", parties, request).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def read_job(app: Path, kit: Kit) -> tuple[Sealed, int]:
    """The request in the folder of a job as it was deployed here, and its timeout; UserError where it is too large, not
    signed by exactly one requester, expired, or malformed. Its experiment is not read."""
    from nvflare.lighter.utils import verify_folder_signature_and_get_signers

    check_job(app)
    verified, signers = verify_folder_signature_and_get_signers(str(app), str(kit.startup / "rootCA.pem"))
    # all parties of the federation have a key that signs; the certificate says who is a requester
    if not verified or len(signers) != 1 or signers[0][2] != REQUESTER_ROLE:
        problem = "no requester of this federation has signed it"
        if verified and signers:
            whose = ", ".join(str(signer[0]) for signer in signers)
            problem = f"one requester of this federation must sign it, and it is signed by {whose}"
        raise UserError("not-signed", "request", problem, _FIX)
    file = app / "config" / REQUEST
    try:
        # a character takes six bytes at most
        if file.lstat().st_size > 8 * MOST_TEXT + 2 * MOST_MODEL:
            raise ValueError
        values = json.loads(file.read_text(encoding="utf-8"))
        text, run, attempt, timeout = (values[key] for key in ("experiment", "run", "attempt", "patience"))
        model = b64decode(values.get("model", ""), validate=True)
        if not isinstance(text, str) or type(timeout) is not int or not 1 <= timeout <= MOST_TIMEOUT:
            raise ValueError
        if len(model) > MOST_MODEL:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError("malformed", "request", "it is malformed", _FIX) from None
    expires, now, fix = values.get("expires"), time.time(), "ask again with `tacit submit`"
    if type(expires) is not int:
        raise UserError("missing", "request", "expires is missing: the request is of an earlier version of Tacit", fix)
    if not now - CLOCKS <= expires <= now + VALID + CLOCKS:
        what = "has expired" if expires < now else f"expires more than {VALID // 86400} days from now"
        raise UserError("expired", "request", f"it {what} by the clock of this machine", fix)
    return Sealed(text, run, attempt, str(signers[0][0]), model), timeout
