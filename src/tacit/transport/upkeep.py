"""Keeps what NVFlare writes within bounds: uploads, jobs, their folders.

NVFlare 2.9.0 takes in a job of any size, unpacks it, and never deletes jobs, their results, their folders at silos and
incomplete uploads. :func:`limit_uploads` and :func:`limit_deployments` are in force before a main process of
the server or a silo connects; :class:`Upkeep` is a component of these processes (not of those of jobs), named in
``local/resources.json``.

server    a job comes within the command that submits it; it is judged (:mod:`tacit.transport.packed`) before it is
          unpacked or stored, and is refused while ``MOST_WAITING`` wait, or ``MOST_OF_ONE`` of the same requester. When
          a job has ended, the last ``KEPT_JOBS`` stay, as long as they take at most ``KEPT_BYTES``: a requester that
          has not collected a result by then asks again, and the server finds it in its own run folder.
silo      a job is judged before it is unpacked: its files, its signature, and whether the policy lists its requester;
          its folder goes when it has ended, or was not deployed. Its process is started if there are fewer than the
          policy wants runs (``most_runs``), and ``RUNS_AT_ONCE`` at least: that is how many the server starts.

Runs are resumed from what is Tacit's own (``KIT/tacit/runs``), which is not touched here.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import time
import tomllib
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.lighter.utils import verify_folder_signature_and_get_signers
from nvflare.private.admin_defs import MsgHeader, ReturnCode, error_reply
from nvflare.private.defs import RequestHeader
from nvflare.private.fed.client.scheduler_cmds import StartJobProcessor
from nvflare.private.fed.client.training_cmds import DeployProcessor
from nvflare.private.fed.server.job_cmds import JobCommandModule
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.server.job_runner import JobRunner

from tacit.escape import escaped
from tacit.transport.channels import SERVER
from tacit.transport.log import Refusals, log_of
from tacit.transport.packed import PACKED, ROLE, Unfit, deployed, not_deployed, submitted

MOST_WAITING = 32  # jobs that have not ended
MOST_OF_ONE = 16  # of them, of one requester
KEPT_JOBS, KEPT_BYTES = MOST_WAITING, 1 << 30  # all that wait may end before a requester looks again
ABANDONED = 3600.0  # seconds after which a download or a folder without a job is taken to be given up
_LOOK = 0.1  # seconds between two looks at the processes of jobs
_GRACE = 60.0  # seconds between a record of a submission and its job, or between a download's folder and its files
_JOB = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ENDED = ("FINISHED", "FAILED")
MOST_KNOWN = 10_000  # numbers of jobs that a silo remembers
RUNS_AT_ONCE = 4  # that the server starts; a silo whose policy wants fewer says so in the process of the job
_ENDING = 10.0  # seconds in which the process of a job that is over ends
NOT_DEPLOYED, NOT_STARTED = "the job was not deployed", "the job was not started"


class Upkeep(FLComponent):
    """The component; it takes no arguments."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type not in (EventType.SYSTEM_BOOTSTRAP, EventType.JOB_COMPLETED, EventType.JOB_ABORTED):
            return
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        is_server = (kit / "startup" / "fed_server.json").is_file()
        if event_type == EventType.SYSTEM_BOOTSTRAP:  # no job is at work yet
            remove_job_folders(kit)
            if is_server:  # NVFlare lists jobs of a server that was killed as running
                fl_ctx.get_engine().job_runner.update_abnormal_finished_jobs((), fl_ctx)
        else:
            engine = fl_ctx.get_engine()
            at_work = engine.run_processes if is_server else engine.get_all_job_ids()
            ended = str(fl_ctx.get_prop(FLContextKey.CURRENT_JOB_ID) or "")
            # a job that was just deployed has no process yet
            remove_job_folders(
                kit, lambda job: job.name == ended or (job.name not in at_work and _age(job) > ABANDONED)
            )
            gc.collect()  # what NVFlare leaves of a job refers to itself: tens of MB that nothing else soon collects
        if is_server:
            prune_store(kit)


# -- what comes in


def limit_uploads(kit: Path) -> None:
    """At the server: take a job from the command that submits it, and judge it before it is unpacked."""
    refusals, uploads = Refusals(log_of(kit)), kit / "tacit" / "store" / "uploads"
    shutil.rmtree(uploads, ignore_errors=True)
    uploads.mkdir(parents=True, mode=0o700)
    submit, validate = JobCommandModule.submit_job, JobMetaValidator.validate
    asking: ContextVar[str] = ContextVar("asking", default="")
    one_by_one = Lock()  # a job counts among those that wait when it is stored

    def submit_job(self: Any, conn: Any, args: list[str]) -> None:
        asking.set(conn.get_prop(ConnProps.USER_NAME, ""))
        try:
            packed = b64decode(conn.get_prop(ConnProps.CMD_PROPS)[PACKED], validate=True)
        except (TypeError, KeyError, ValueError):
            packed = b""  # no archive: refused as such
        with one_by_one, TemporaryDirectory(dir=uploads) as folder:
            file = Path(folder, "job")
            file.write_bytes(packed)
            conn.set_prop(ConnProps.FILE_LOCATION, str(file))
            submit(self, conn, args)

    def measured(self: Any, job_name: str, job_data: str) -> tuple[bool, str, dict[str, Any]]:
        waiting = [job for job, has_ended in _jobs(kit).items() if not has_ended]
        own = [job for job in waiting if _read(job / "meta").get(JobMetaKey.SUBMITTER_NAME.value) == asking.get()]
        try:
            submitted(Path(job_data).read_bytes(), job_name, _read(kit / "tacit" / "roster.json"))
            if len(waiting) >= MOST_WAITING or len(own) >= MOST_OF_ONE:
                raise Unfit(f"{len(waiting)} jobs wait already, {len(own)} of them of this requester")
        except Unfit as unfit:
            refusals.write(asking.get(), f"refused a job: {escaped(job_name, 80)}: {unfit}")
            return False, str(unfit), {}
        found: tuple[bool, str, dict[str, Any]] = validate(self, job_name, job_data)
        return found

    JobCommandModule.submit_job, JobMetaValidator.validate = submit_job, measured


def limit_deployments(kit: Path) -> None:
    """At a silo: judge jobs before they are unpacked, one at a time, and each number once. What the server adds to a
    job goes no further: NVFlare would write it down, and choose how the job is started by it."""
    log, lock, process, start = Refusals(log_of(kit)), Lock(), DeployProcessor.process, StartJobProcessor.process
    starting = Lock()
    known: dict[str, None] = {}  # numbers of jobs, the latest last

    def deploy(self: Any, req: Any, app_ctx: Any) -> Any:
        job = str(req.get_header(RequestHeader.JOB_ID))
        with lock:
            try:
                requester = requester_of(kit, deployed(req.body))
                folders = [folder.name for folder in _folders(kit) if _JOB.fullmatch(folder.name)]
                if job in known or job in folders or len(folders) >= MOST_WAITING:
                    raise Unfit("its number is known already" if job in known else "other jobs have not ended")
            except Unfit as unfit:
                log.write(SERVER, f"refused job {job}{f' of {unfit.by}' if unfit.by else ''}: {unfit}")
                return error_reply(json.dumps({"rules": [unfit.rule]}))
            for old in list(known)[: len(known) - MOST_KNOWN + 1]:
                del known[old]
            known[job] = None
            req.set_header(RequestHeader.JOB_META, {JobMetaKey.JOB_ID.value: job})
            with suppress(Exception):  # its text is not for others
                reply = process(self, req, app_ctx)
                if reply.get_header(MsgHeader.RETURN_CODE) == ReturnCode.OK:
                    return reply
            log.write(SERVER, f"failed  job {job} of {requester}: it was not deployed, see nvflare.log")
            remove_job_folders(kit, lambda folder: folder.name == job)
            return error_reply(NOT_DEPLOYED)

    def start_job(self: Any, req: Any, app_ctx: Any) -> Any:
        told, job = req.get_header(RequestHeader.JOB_META), str(req.get_header(RequestHeader.JOB_ID))
        clients = told.get(JobMetaKey.JOB_CLIENTS.value) if isinstance(told, dict) else None
        meta = {JobMetaKey.JOB_ID.value: job, JobMetaKey.JOB_CLIENTS.value: clients}
        req.set_header(RequestHeader.JOB_META, meta)
        wanted, end = _policy(kit).get("most_runs"), time.monotonic() + _ENDING
        most = max(RUNS_AT_ONCE, wanted if type(wanted) is int else 0)
        while True:
            with starting:
                if len(app_ctx.get_all_job_ids()) < most:
                    return start(self, req, app_ctx)
            if time.monotonic() > end:
                log.write(SERVER, f"refused job {job}: {most} processes of jobs are at work")
                return error_reply(NOT_STARTED)
            time.sleep(_LOOK)

    DeployProcessor.process, StartJobProcessor.process = deploy, start_job


def log_deployments(kit: Path) -> None:
    """At the server: log every job that a silo did not deploy. No process of the job is there to write that line."""
    log, deploy = log_of(kit), JobRunner._deploy_job

    def logged(self: Any, job: Any, sites: Any, fl_ctx: Any) -> Any:
        try:
            return deploy(self, job, sites, fl_ctx)
        finally:
            refused, failed = not_deployed(fl_ctx.get_prop(FLContextKey.JOB_DEPLOY_DETAIL))
            whose = f"{job.job_id} of {escaped(job.meta.get(JobMetaKey.SUBMITTER_NAME.value, 'unknown'), 80)}"
            if refused:
                by = ", ".join(f"{silo} ({', '.join(rules)})" for silo, rules in refused.items())
                log.warning("refused job %s: by %s", whose, by)
            if failed:
                log.warning("failed  job %s: not deployed by %s", whose, ", ".join(failed))

    JobRunner._deploy_job = logged


def requester_of(kit: Path, files: Mapping[str, bytes]) -> str:
    """The requester who has signed the files of a job; Unfit where it is not one requester of this federation, or not
    one whom the silo's policy lists. Where there is no policy that can be read (the analyzer has none), the process of
    the job says what is wrong."""
    with TemporaryDirectory() as scratch:
        for name, content in files.items():
            file = Path(scratch, name)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
        is_signed, signers = verify_folder_signature_and_get_signers(scratch, str(kit / "startup" / "rootCA.pem"))
    if not is_signed or len(signers) != 1 or signers[0][2] != ROLE:
        raise Unfit("it is not signed by one requester of this federation")
    requester = str(signers[0][0])
    listed = _policy(kit).get("requesters")
    if isinstance(listed, list) and requester not in listed:
        raise Unfit(f"requesters: {requester} is not among them", "requesters", requester)
    return requester


def _policy(kit: Path) -> dict[str, Any]:
    """A silo's policy as it is written; empty where there is none that can be read."""
    try:
        policy = Path(_read(kit / "tacit" / "settings.json")["policy"])
        return tomllib.loads(policy.read_text(encoding="utf-8"))
    except (KeyError, TypeError, OSError, ValueError):
        return {}


# -- what has ended


def remove_job_folders(kit: Path, is_over: Callable[[Path], bool] = lambda job: True) -> None:
    """Remove the folders of jobs that are over."""
    for folder in _folders(kit):
        if _JOB.fullmatch(folder.name) and is_over(folder):
            shutil.rmtree(folder, ignore_errors=True)


def prune_store(kit: Path) -> None:
    """Remove what the server keeps of jobs that ended long ago, and downloads that were given up."""
    store = kit / "tacit" / "store"
    ended = sorted((job for job, has_ended in _jobs(kit).items() if has_ended), key=_age)
    kept = 0
    for number, job in enumerate(ended):
        kept += sum(file.lstat().st_size for file in job.rglob("*") if file.is_file())
        if number and (number >= KEPT_JOBS or kept > KEPT_BYTES):
            shutil.rmtree(job, ignore_errors=True)
    jobs = {job.name for job in _jobs(kit)}
    for index in _folders(store / "job_submit_record_index"):
        meta = _read(index / "meta")
        if meta.get("job_id") not in jobs and _age(index) > _GRACE:
            for record in meta.get("submit_record_uris") or []:
                if (found := Path(str(record))).is_relative_to(store / "job_submit_records"):
                    _remove_upwards(found, store / "job_submit_records")
            shutil.rmtree(index, ignore_errors=True)
    for snapshot in _folders(store / "snapshots"):
        if snapshot.name not in jobs:
            shutil.rmtree(snapshot, ignore_errors=True)
    for download in _folders(kit / "transfer"):
        if _age(download) > (ABANDONED if any(download.iterdir()) else _GRACE):
            shutil.rmtree(download, ignore_errors=True)


def _jobs(kit: Path) -> dict[Path, bool]:
    """The folders of jobs in the store, and whether each has ended."""
    folders = _folders(kit / "tacit" / "store" / "jobs")
    return {job: str(_read(job / "meta").get("status", "")).startswith(_ENDED) for job in folders}


def _folders(place: Path) -> list[Path]:
    return [path for path in place.iterdir() if path.is_dir() and not path.is_symlink()] if place.is_dir() else []


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _remove_upwards(folder: Path, top: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    parent = folder.parent
    while parent != top and parent.is_relative_to(top):
        try:
            parent.rmdir()
        except OSError:  # others are there
            return
        parent = parent.parent


def _age(path: Path) -> float:
    """Seconds since a file, or anything in a folder, was written."""
    files = [path, *path.iterdir()] if path.is_dir() else [path]
    return time.time() - max((os.lstat(file).st_mtime for file in files if os.path.lexists(file)), default=0.0)
