"""The requester's side: request a run, follow it, collect its folder; and list who is connected.

If a job is lost (a process of a silo or the server ended), or a silo was missing, the run is requested again as its
next attempt, which continues from the last checkpoint: at most ``retries`` times, with a message each time. A run that
a silo's policy forbids is not requested again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import shutil
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tacit.engine.folder import LEDGER, METRICS, MODEL, RESULT, Run, free_folder, read_json, write_json
from tacit.engine.run import Progress, Silence
from tacit.errors import Forbidden, TacitError, UserError
from tacit.escape import OneLine, escaped
from tacit.federation.carrier.handshake import connection_problem
from tacit.federation.kits import Kit, require_nvflare
from tacit.federation.protocol.agreement import check_federated, taking_part
from tacit.federation.request import (
    MOST_TIMEOUT,
    PROGRESS,
    RESULTS,
    TIMEOUT,
    packed_model,
    received,
    travelling,
    write_job,
)
from tacit.federation.server_host import SHARED
from tacit.federation.site.retention import EXPIRED, OUTCOME
from tacit.planning.plan import Plan
from tacit.transport.attendant import NVFLARE_LOG
from tacit.transport.channels import ANALYZER
from tacit.transport.packed import not_deployed

RETRIES = 3
_LOOK = 1.0  # seconds between two looks at a run
_LOST = 60.0  # seconds without a sign of life of a job that NVFlare believes to be running
_MOST_LOG_BYTES = 1_000_000  # of nvflare.log in the requester's kit, before its text is moved to nvflare.log.1
_LEFT = "left.json"  # in the requester's kit: what is left of the budgets of silos, as they sent it last
# Bytes that a file of a result may have: a model of 10^9 numbers; lines of many rounds; the others are read as a whole.
_MOST = dict.fromkeys((*SHARED, OUTCOME), 16 << 20) | {MODEL: 4 << 30, LEDGER: 1 << 30, METRICS: 256 << 20}
_OF_DATA = "check the label and the columns of the experiment, or ask the silo to run `tacit federation check`"
_SHOWN = {"job": "job_id", "name": "name", "requester": "submitter_name", "state": "status"}  # of a job of NVFlare
_MEMORY = "runs"  # in the requester's kit: requested runs, to be collected after detaching


@dataclass(frozen=True)
class Asked:
    """A requested run: its experiment as text, where its folder goes, who must take part, the seconds that each party
    has for an answer (``patience``), and the job of its last attempt."""

    run: str
    experiment: str
    out: str
    parties: tuple[str, ...]
    patience: int
    attempt: int = 0
    model: str = ""  # the packed model, in base64
    job: str = ""
    server: float = 0.0  # when the server that has the job was started, by its own clock

    def kept(self, kit: Kit) -> Asked:
        """Keep it in the kit."""
        folder = kit.ours / _MEMORY
        folder.mkdir(exist_ok=True)
        write_json(folder / f"{self.run}.json", vars(self))
        return self

    @classmethod
    def of(cls, kit: Kit, run: str) -> Asked:
        file = kit.ours / _MEMORY / f"{run}.json"
        if not run.isalnum() or not file.is_file():
            problem = f"no run '{run}' was asked for with this kit"
            raise UserError("unknown-name", "--attach", problem, "name one that was")
        return cls(**read_json(file, "--attach"))


class Detached(Exception):
    """The user has interrupted; the run continues. An empty ``run``: nothing was requested yet."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run


def ask(kit: Kit, plan: Plan, out: Path | None, timeout: int = TIMEOUT) -> Asked:
    """A new run of ``plan``, not yet requested; UserError where silos would not accept the request."""
    check_federated(plan)
    text = travelling(plan)
    silos = plan.promise.facts.silos
    if silos != len(kit.silos):
        problem = f"{silos} silos are planned, and the federation has {len(kit.silos)}"
        raise UserError("mismatch", "data.silos.count", problem, f"set it to {len(kit.silos)}")
    model = packed_model(plan)
    received(text, silos, model, is_accepted=True)
    if plan.exchange.third_party is not None and not kit.analyzer:
        problem, fix = "'shuffled' needs an analyzer, and the federation has none", "set analyzer in FEDERATION.toml"
        raise UserError("not-supported", "exchange.name", problem, fix)
    if not 1 <= timeout <= MOST_TIMEOUT:
        problem = f"must be between 1 and {MOST_TIMEOUT} seconds (got {timeout})"
        raise UserError("out-of-range", "--timeout", problem, "use for example 120")
    if out is not None and out.exists():
        raise UserError("exists-already", "--out", f"'{out}' exists", "name a new folder")
    place = (out or free_folder(plan.title)).resolve()
    return Asked(
        secrets.token_hex(16), text, str(place), taking_part(plan, kit.silos), timeout, model=b64encode(model).decode()
    )


def follow(
    kit: Kit,
    asked: Asked,
    rounds: int,
    label: str,
    *,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
    retries: int = RETRIES,
) -> Run:
    """Request the run (again, where its job is lost) and wait for its end; the run folder.

    Ctrl-C raises :class:`Detached`: the run continues, and can be followed again.
    """
    require_nvflare()
    shown = progress or Silence()
    shown.begin(label, rounds, 0)
    try:
        while True:
            if not asked.job:
                asked = _submitted(kit, asked)
                tell(f"asked for run {asked.run}, attempt {asked.attempt}")
            results = _watched(kit, asked, shown, tell)
            outcome = _Outcome(status="lost") if results is None else _outcome(results)
            write_json(kit.ours / _LEFT, {**_left(kit), **outcome.left})
            if outcome.status not in ("failed", "lost") or asked.attempt > retries:
                break
            tell(f"attempt {asked.attempt}: {outcome.reason or 'its processes are gone'}; asking again")
            asked = replace(asked, job="")
    except KeyboardInterrupt:
        raise Detached(asked.run if asked.job else "") from None
    finally:
        shown.end()
    run = _collected(asked, results, outcome)
    shutil.rmtree(_download(kit, asked), ignore_errors=True)
    return run


def status(kit: Kit) -> dict[str, Any]:
    """Who is connected, which runs there are, and what is left of budgets that silos show, as of the last run."""
    require_nvflare()
    with _session(kit) as session:
        info = session.get_system_info()
        here = {client.name for client in info.client_info}
        jobs = session.list_jobs(detailed=True)
        running = [job for job in jobs if str(job.get("status", "")).startswith(("RUNNING", "SUBMITTED", "DISPATCHED"))]
        return {
            "federation": kit.federation,
            "server": f"{kit.host}:{kit.port}",
            "silos": {silo: silo in here for silo in kit.silos},
            "analyzer": ANALYZER in here if kit.analyzer else None,
            "left": _left(kit),
            "runs": [
                {key: job.get(name) for key, name in _SHOWN.items()} | dict(_state(session, str(job.get("job_id"))))
                for job in running
            ],
        }


def _left(kit: Kit) -> dict[str, float]:
    file = kit.ours / _LEFT
    return dict(read_json(file, "--kit")) if file.is_file() else {}


def _submitted(kit: Kit, asked: Asked) -> Asked:
    """The next attempt, requested. The first one needs a server that answers; a later one waits for the server."""
    from nvflare.fuel.flare_api.api_spec import SubmitTokenConflict

    asked = replace(asked, attempt=asked.attempt + 1)
    end = time.monotonic() + (_LOST + asked.patience if asked.attempt > 1 else 0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / f"tacit-{asked.run[:12]}"
        write_job(folder, asked.experiment, asked.run, asked.attempt, asked.parties, asked.patience, asked.model)
        while True:
            try:
                with _session(kit) as session:
                    server = session.get_system_info().server_info.start_time
                    try:
                        job = session.submit_job(str(folder), submit_token=f"{asked.run}-{asked.attempt}")
                    except SubmitTokenConflict as known:  # a connection broke before the server could answer
                        job = known.existing_job_id
                    return replace(asked, job=str(job), server=server).kept(kit)
            except UserError as error:
                if time.monotonic() > end or error.code == "file-access":
                    raise
                time.sleep(_LOOK)


def _watched(kit: Kit, asked: Asked, shown: Progress, tell: Callable[[str], None]) -> Path | None:
    """Wait for the end of an attempt; the folder of its results, None where there are none."""
    from nvflare.fuel.flare_api.api_spec import JobNotFound

    from tacit.transport.client import Unacceptable

    watch = _Watch(kit, asked, shown, tell)
    while True:
        try:
            with _session(kit) as session:
                while not watch.is_over(session):
                    time.sleep(_LOOK)
                if watch.is_lost:
                    return None
                return _refused_early(session, kit, asked) or _downloaded(session, kit, asked)
        except JobNotFound:  # a server that has removed it, or has lost its store
            return None
        except Unacceptable as error:
            problem = f"the server's result is refused: {error}"
            raise UserError("rejected", "run", problem, "see the log of the server, then ask again") from None
        except UserError as error:
            if watch.silence > _LOST + asked.patience or error.code == "file-access":
                raise
            time.sleep(_LOOK)


class _Watch:
    """Looks at one attempt: whether it has ended, or is lost with its processes, and for whom it waits."""

    def __init__(self, kit: Kit, asked: Asked, shown: Progress, tell: Callable[[str], None]) -> None:
        self._kit, self._asked, self._shown, self._tell = kit, asked, shown, tell
        self._alive = time.monotonic()
        self._missing: tuple[str, ...] = ()
        self.is_lost = False

    @property
    def silence(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._alive

    def is_over(self, session: Any) -> bool:
        state = str(session.get_job_status(self._asked.job))
        if state.startswith(("FINISHED", "FAILED")):
            return True
        if not state.startswith("RUNNING"):
            self._alive = time.monotonic()
            self._tell_missing(session)
            return False
        if told := _state(session, self._asked.job):
            self._alive = time.monotonic()
            self._shown.advance(*_progress(told))
        else:
            self.is_lost = self._is_given_up(session)
        return self.is_lost

    def _is_given_up(self, session: Any) -> bool:
        """Whether to stop waiting for a job that does not answer: at once where the server was restarted (NVFlare then
        always lists the job as running), and later where it has a process."""
        info = session.get_system_info()
        if any(job.job_id == self._asked.job for job in info.job_info):
            return self.silence > _LOST + self._asked.patience
        return self.silence > _LOST or info.server_info.start_time != self._asked.server

    def _tell_missing(self, session: Any) -> None:
        """The job has not begun: print which silos it waits for, whenever that changes."""
        here = {client.name for client in session.get_system_info().client_info}
        missing = tuple(silo for silo in self._kit.silos if silo not in here)
        if missing and missing != self._missing:
            self._tell(f"waiting for {', '.join(missing)}")
        self._missing = missing


def _state(session: Any, job: str) -> Mapping[str, Any]:
    """The progress of a job from the server's process of it; empty where that does not answer."""
    with contextlib.suppress(Exception):  # NVFlare raises half a dozen kinds for a job that has no process
        told = session.do_app_command(job, PROGRESS, {})
        return told if isinstance(told, dict) else {}
    return {}


def _progress(told: Mapping[str, Any]) -> tuple[int, dict[str, float | None]]:
    """Rounds done and metrics, as far as they are numbers."""
    done, metrics = told.get("done"), told.get("metrics")
    numbers = metrics.items() if isinstance(metrics, dict) else ()
    known = {escaped(name, 40): value for name, value in numbers if isinstance(value, float)}
    return done if type(done) is int else 0, dict(known)


def _download(kit: Kit, asked: Asked) -> Path:
    return kit.ours / _MEMORY / f"{asked.run}-{asked.attempt}"


def _downloaded(session: Any, kit: Kit, asked: Asked) -> Path | None:
    """What the server's run folder shares, in a folder of the kit."""
    from tacit.transport.client import fetch

    target = _download(kit, asked)
    for old in target.parent.glob(f"{asked.run}-*"):
        shutil.rmtree(old, ignore_errors=True)
    fetch(session, asked.job, RESULTS, _MOST, target)
    return target if (target / OUTCOME).is_file() else None


class _Outcome(BaseModel):
    """How an attempt ended, as the server sends it. Other fields, or budgets that are no numbers, are left out."""

    status: str = ""
    reason: str = ""
    rules: dict[str, Any] = {}
    left: dict[str, Any] = {}


def _outcome(results: Path) -> _Outcome:
    try:
        told = _Outcome.model_validate(read_json(results / OUTCOME, "run"), strict=True)
    except ValidationError:
        problem = f"the server's {OUTCOME} is malformed"
        raise UserError("malformed", "run", problem, "see the log of the server, then ask again") from None
    rules = {silo: rules for silo, rules in told.rules.items() if isinstance(rules, list)}
    left = {silo: value for silo, value in told.left.items() if isinstance(value, float)}
    return told.model_copy(update={"rules": rules, "left": left})


def _refused_early(session: Any, kit: Kit, asked: Asked) -> Path | None:
    """A folder with the outcome of a job for which silos started no process; None for every other job."""
    refused, _ = not_deployed(session.get_job_meta(asked.job).get("job_deploy_detail"))
    rules = {silo: found for silo, found in refused.items() if silo in kit.silos}
    if not rules:
        return None
    folder = _download(kit, asked)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / OUTCOME, {"status": "refused", "reason": "", "rules": rules})
    return folder


def _collected(asked: Asked, results: Path | None, outcome: _Outcome) -> Run:
    """The run folder at its place, or the reason why there is none."""
    state, reason = outcome.status, outcome.reason
    if state == "refused":
        silos = "; ".join(f"{silo}: {', '.join(map(str, rules))}" for silo, rules in outcome.rules.items())
        rules = {str(rule) for found in outcome.rules.values() for rule in found}
        fixes = [_OF_DATA] if "data" in rules else []
        fixes += ["plan within their policies, or ask them"] if rules != {"data"} else []
        raise Forbidden("policy-forbids", "policy", f"silos refuse the run ({silos})", "; ".join(fixes))
    if state == EXPIRED:
        raise UserError("expired", "run", reason, "ask for a new run with `tacit submit`")
    if results is None or not (results / RESULT).is_file():
        problem = f"no attempt came to an end ({reason or 'its processes are gone'})"
        raise UserError("run-failed", "run", problem, "see the logs of server and silos, then ask again")
    place = Path(asked.out)
    shutil.copytree(results, place, ignore=shutil.ignore_patterns(OUTCOME))  # budgets are for this requester alone
    result = json.loads((place / RESULT).read_text(encoding="utf-8"))
    write_json(place / RESULT, {**result, "run": str(place)})
    return Run.load(place)


def _log_nvflare(kit: Kit) -> None:
    """Write what NVFlare logs in this process into a file of the kit instead of the terminal."""
    logger, file = logging.getLogger("nvflare"), kit.ours / NVFLARE_LOG
    if not any(getattr(handler, "baseFilename", "") == str(file) for handler in logger.handlers):
        handler = RotatingFileHandler(file, maxBytes=_MOST_LOG_BYTES, backupCount=1, encoding="utf-8", delay=True)
        handler.setFormatter(OneLine())
        logger.addHandler(handler)


@contextmanager
def _session(kit: Kit) -> Iterator[Any]:
    """An open session with the server; closed in any case, or the process would not end."""
    from nvflare.fuel.flare_api.api_spec import JobNotFound, NoConnection

    from tacit.transport.client import Unacceptable, connected, is_local

    _log_nvflare(kit)
    server = f"the server at {kit.host}:{kit.port}"
    fix = "start it with `tacit server`, or check name, port and firewall"
    cause = connection_problem(kit, "--kit")
    if cause is not None and cause.code != "no-answer":  # NVFlare may reach it in another way, such as a proxy
        if cause.code == "rejected":
            kit.check_certificate()
        raise cause
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            session = connected(kit.name, kit.path, timeout=10.0)
    except NoConnection:
        raise UserError("no-answer", "--kit", f"{server} does not answer", fix) from None
    except Exception:  # NVFlare has many kinds, with the server's words in them
        kit.check_certificate()
        problem = "the server does not accept this kit"
        fix = "use a kit of the same federation whose certificate is valid"
        raise UserError("rejected", "--kit", problem, fix) from None
    try:
        yield session
    except (TacitError, JobNotFound, Unacceptable):
        raise
    # a server that was restarted does not know earlier sessions; any other answer that NVFlare's client cannot read
    except Exception as error:
        if is_local(error):
            problem = f"a file of this machine cannot be read or written: {escaped(error)}"
            raise UserError("file-access", "--kit", problem, "check free space and permissions") from None
        problem = f"{server} has closed the session: {escaped(error)} ({type(error).__name__})"
        raise UserError("no-answer", "--kit", problem, fix) from None
    finally:
        with redirect_stdout(StringIO()):
            session.close()
