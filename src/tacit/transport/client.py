"""NVFlare's client for a requester, with its doors closed: the server chooses no file and no command here.

NVFlare 2.9.0's own client writes the files of a result under names that the server chooses, wherever they lead, and it
carries out a command in the way that the server's list of commands says: any command can become a transfer of files.
Here, the client keeps one such command, which sends a job. A result is one archive of limited size, written to a file
of our own, from which only known names are taken. The requester's cell accepts answers and the end of its session
(:mod:`tacit.transport.table`).
"""

from __future__ import annotations

import io
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import nvflare.fuel.hci.client.api as hci
from nvflare.apis.storage import WORKSPACE_ZIP
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.streaming.download_service import Consumer, download_object
from nvflare.fuel.flare_api.api_spec import NoReply
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.hci.client.file_transfer import FileTransferModule
from nvflare.fuel.hci.file_transfer_defs import PUSH_FOLDER_FQN
from nvflare.fuel.hci.proto import MetaKey, ProtoKey
from nvflare.fuel.hci.reg import CommandModuleSpec, CommandSpec

from tacit.transport.gate import guard
from tacit.transport.streams import PROCESS
from tacit.transport.table import SERVER

_DOWNLOAD = "download_job"
_REST = 64 << 20  # bytes of an archive beside the files that are taken from it: logs, the job
_PART = 8 << 20  # bytes of a message to a requester: NVFlare's server sends a file in parts of 5 MB
_READ = 1 << 20  # bytes that are read at once: of a file, or of the archive's table of contents


class Unacceptable(Exception):
    """A result that is too large, or no archive."""


def connected(name: str, kit: Path, timeout: float) -> Session:
    """A session of the requester with that name and kit."""
    PROCESS.widen(_PART)
    session = Session(username=name, startup_path=str(kit), secure_mode=True)
    session.api.cmd_modules = [_Submission(session.upload_dir, session.download_dir)]
    hci.Cell = partial(_guarded, kit)
    try:
        session.try_connect(timeout)
    except Exception:
        with suppress(Exception):
            session.close()
        raise
    return session


def fetch(session: Session, job: str, folder: str, limits: Mapping[str, int], target: Path) -> None:
    """Write files of a job's result into the folder ``target``: of its ``folder`` those that are there of ``limits``,
    which says how many bytes each may have. :class:`Unacceptable` where the server sends an archive that is none."""
    answer = session._do_command(f"{_DOWNLOAD} {job}")
    offered = answer.get(ProtoKey.META, {}).get(MetaKey.FILES)
    pairs = [pair for pair in offered if isinstance(pair, list) and len(pair) == 2] if isinstance(offered, list) else []
    found = next((ref for name, ref in pairs if name == WORKSPACE_ZIP and isinstance(ref, str)), None)
    if found is None:
        return  # a job that left nothing behind
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=target) as file:
        received = _Received(file, sum(limits.values()) + _REST)
        download_object(
            from_fqcn=SERVER,
            ref_id=found,
            per_request_timeout=session.api.file_download_progress_timeout,
            cell=session.api.cell,
            consumer=received,
            abort_signal=session.api.session_abort_signal,
        )
        if received.refused is not None:
            raise received.refused
        if not received.has_ended:
            raise NoReply("the download of the result broke off")
        try:
            with ZipFile(_Archive(file)) as archive:
                _take(archive, folder, limits, target)
        except (BadZipFile, EOFError, NotImplementedError, OSError, RuntimeError, ValueError, zlib.error) as error:
            raise Unacceptable(f"the archive cannot be read ({type(error).__name__})") from None


class _Submission(FileTransferModule):
    """Of NVFlare's commands that move files, the one that sends a job, and that under its own name alone. The one that
    downloads a result asks the server for the list of files, and no more."""

    def get_spec(self) -> CommandModuleSpec:
        listed = CommandSpec(_DOWNLOAD, "list the files of a result", f"{_DOWNLOAD} JOB", _asked)
        return CommandModuleSpec(name="file_transfer", cmd_specs=[listed])

    def generate_module_spec(self, server_cmd_spec: Any) -> CommandModuleSpec | None:
        if (server_cmd_spec.name, server_cmd_spec.client_cmd) != ("submit_job", PUSH_FOLDER_FQN):
            return None
        return super().generate_module_spec(server_cmd_spec)


def _asked(args: list[str], context: Any) -> Any:
    return context.get_api().server_execute(context.get_command())


def _guarded(kit: Path, **options: Any) -> Cell:
    cell = Cell(**options)
    guard(cell.core_cell, kit)
    return cell


class _Received(Consumer):
    """Writes what is downloaded to a file, up to ``most`` bytes."""

    def __init__(self, file: Any, most: int) -> None:
        super().__init__()
        self._file, self._most, self._bytes = file, most, 0
        self.has_ended = False
        self.refused: Unacceptable | None = None

    def consume(self, ref_id: str, state: dict[str, Any], data: Any) -> dict[str, Any]:
        if not isinstance(data, bytes) or not data:
            self.refused = Unacceptable("a part of the download is empty, or not bytes")
        elif self._bytes + len(data) > self._most:
            self.refused = Unacceptable(f"it has more than {self._most} bytes")
        if self.refused is not None:
            raise self.refused  # NVFlare ends the download
        self._bytes += len(data)
        self._file.write(data)
        return {"received_bytes": self._bytes}

    def download_completed(self, ref_id: str) -> None:
        self.has_ended = True

    def download_failed(self, ref_id: str, reason: str) -> None:
        pass


class _Archive(io.RawIOBase):
    """An archive of which no more than a little is read at once: the size of its table of contents is the server's."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file, self._size = file, file.seek(0, io.SEEK_END)

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int | None = -1) -> bytes:
        asked = self._size - self.tell() if size is None or size < 0 else size
        if asked > _READ:
            raise BadZipFile
        return bytes(self._file.read(asked))


def _take(archive: ZipFile, folder: str, limits: Mapping[str, int], target: Path) -> None:
    names = set(archive.namelist())
    for name, most in limits.items():
        if f"{folder}/{name}" not in names:
            continue
        entry = archive.getinfo(f"{folder}/{name}")
        if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise BadZipFile
        with archive.open(entry) as source, (target / name).open("xb") as copy:
            left = most
            while part := source.read(_READ):
                left -= len(part)
                if left < 0:
                    raise Unacceptable(f"{name} has more than {most} bytes")
                copy.write(part)
