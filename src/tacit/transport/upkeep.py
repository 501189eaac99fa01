"""Keeps what NVFlare writes within bounds: uploads, jobs, their folders.

NVFlare 2.9.0 takes in a job of any size, unpacks it, and keeps all jobs, their results, their folders at silos and what
was uploaded in vain for ever. :class:`Upkeep` is a component of the server's and of every silo's main process (not of
those of jobs), named in ``local/resources.json``:

server    an upload ends at ``MOST_BYTES``; a job is measured before it is unpacked or stored, brings no number of its
          own (which would become the name of a folder), and is refused while ``MOST_WAITING`` wait. When a job has
          ended, the last ``KEPT_JOBS`` stay, as long as they take at most ``KEPT_BYTES``: a requester that has not
          collected a result by then asks again, and the server finds it in its own run folder.
silo      a job is measured before it is unpacked; its folder goes when it has ended.

Runs are resumed from what is Tacit's own (``KIT/tacit/runs``), which is not touched.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.app_common.streamers import file_streamer
from nvflare.private.admin_defs import error_reply
from nvflare.private.fed.client.training_cmds import DeployProcessor
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator

from tacit.escape import escaped
from tacit.transport.log import log_of

MOST_BYTES, MOST_FILES = 1 << 20, 64  # of a job, packed and unpacked
MOST_WAITING = 32  # jobs that have not ended, and uploads that have not become jobs
KEPT_JOBS, KEPT_BYTES = 8, 1 << 30
ABANDONED = 3600.0  # seconds after which a download or a folder without a job is taken to be given up
_GRACE = 60.0  # seconds between a record of a submission and its job, or between a download's folder and its files
_JOB = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ENDED = ("FINISHED", "FAILED")


class Upkeep(FLComponent):
    """The component; it takes no arguments."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        if event_type not in (EventType.SYSTEM_BOOTSTRAP, EventType.JOB_COMPLETED):
            return
        kit = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        is_server = (kit / "startup" / "fed_server.json").is_file()
        if event_type == EventType.SYSTEM_BOOTSTRAP:  # no job is at work yet
            (limit_uploads if is_server else limit_deployments)(kit)
            remove_job_folders(kit)
        else:
            engine = fl_ctx.get_engine()
            at_work = engine.run_processes if is_server else engine.get_all_job_ids()
            ended = str(fl_ctx.get_prop(FLContextKey.CURRENT_JOB_ID) or "")
            # a job that was just deployed has no process yet
            remove_job_folders(
                kit, lambda job: job.name == ended or (job.name not in at_work and _age(job) > ABANDONED)
            )
        if is_server:
            prune_store(kit)


# -- what comes in


def problem_of(packed: str | bytes) -> str | None:
    """Why a packed job is refused before it is unpacked."""
    try:
        with ZipFile(packed if isinstance(packed, str) else io.BytesIO(packed)) as job:
            entries = job.infolist()
            size = sum(entry.file_size for entry in entries)
            if len(entries) > MOST_FILES or size > MOST_BYTES:
                return f"{len(entries)} files of {size} bytes; at most {MOST_FILES} of {MOST_BYTES} are accepted"
            described = [entry for entry in entries if re.fullmatch(r"[^/]+/meta\.\w+", entry.filename)]
            for entry in described:
                if not entry.filename.endswith(".json"):
                    return "its description is not JSON"
                if "job_id" in json.loads(job.read(entry)):
                    return "it brings a number of its own"
    except (BadZipFile, ValueError, TypeError, RecursionError, NotImplementedError, RuntimeError, OSError, EOFError):
        return "it cannot be unpacked"
    return None


def limit_uploads(kit: Path) -> None:
    """At the server: measure jobs while they are uploaded, and before they are unpacked."""
    log, uploads = log_of(kit), kit / "tacit" / "store" / "uploads"
    shutil.rmtree(uploads, ignore_errors=True)
    uploads.mkdir(parents=True, mode=0o700)

    class Bounded(file_streamer._ChunkConsumer):
        def __init__(self, stream_ctx: Any, dest_dir: str) -> None:
            waiting = sorted(uploads.iterdir(), key=lambda file: file.stat().st_mtime)
            for file in waiting[: max(0, len(waiting) - MOST_WAITING + 1)]:
                file.unlink(missing_ok=True)
            super().__init__(stream_ctx, str(uploads))

        def consume(self, shareable: Any, stream_ctx: Any, fl_ctx: Any) -> Any:
            data = shareable.get(file_streamer.KEY_DATA)
            size = self.received_size + (len(data) if data else 0)
            if size > MOST_BYTES or (isinstance(self.file_size, int) and self.file_size > MOST_BYTES):
                self.file.close()
                Path(self.file.name).unlink(missing_ok=True)
                log.warning("refused an upload: more than %d bytes", MOST_BYTES)
                raise ValueError(f"an upload has at most {MOST_BYTES} bytes")
            return super().consume(shareable, stream_ctx, fl_ctx)

    file_streamer._ChunkConsumer = Bounded
    validate = JobMetaValidator.validate

    def measured(self: Any, job_name: str, job_data: Any) -> tuple[bool, str, dict[str, Any]]:
        problem = problem_of(job_data)
        if problem is None and sum(not has_ended for has_ended in _jobs(kit).values()) >= MOST_WAITING:
            problem = f"{MOST_WAITING} jobs wait already"
        if problem is None:
            found: tuple[bool, str, dict[str, Any]] = validate(self, job_name, job_data)
        else:
            log.warning("refused a job: %s: %s", escaped(job_name, 80), problem)
            found = False, problem, {}
        if not found[0] and isinstance(job_data, str):
            Path(job_data).unlink(missing_ok=True)
        return found

    JobMetaValidator.validate = measured


def limit_deployments(kit: Path) -> None:
    """At a silo: measure jobs before they are unpacked."""
    log, process = log_of(kit), DeployProcessor.process

    def measured(self: Any, req: Any, app_ctx: Any) -> Any:
        body = req.body
        problem = "it is not packed"
        if isinstance(body, bytes):
            problem = f"it has {len(body)} bytes" if len(body) > 2 * MOST_BYTES else problem_of(body) or ""
        if not problem:
            return process(self, req, app_ctx)
        log.warning("refused a job of the server: %s", problem)
        return error_reply("the job is too large")

    DeployProcessor.process = measured


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
        kept += _size(job)
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


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
