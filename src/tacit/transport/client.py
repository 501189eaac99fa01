"""NVFlare's client for a requester, with its doors closed: the server chooses no file and no command here.

NVFlare 2.9.0's own client writes the files of a result under names that the server chooses, wherever they lead, and it
carries out a command in the way that the server's list of commands says: any command can become a transfer of files.
Here, the client has only two commands of its own. One signs a job and sends it as a property of
the command, the other asks for the list of files of a result. A result is one archive of limited size, written to a
file of our own, from which only known names are taken. The requester's cell accepts answers and the end of its session
(:mod:`tacit.transport.channels`).
"""

from __future__ import annotations

import errno
import io
import logging
import tempfile
import zlib
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import nvflare.fuel.hci.client.api as hci
from nvflare.apis.storage import WORKSPACE_ZIP
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.streaming.download_service import Consumer, download_object
from nvflare.fuel.flare_api.api_spec import NoReply
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.hci.client.api_status import APIStatus
from nvflare.fuel.hci.cmd_arg_utils import join_args
from nvflare.fuel.hci.proto import MetaKey, ProtoKey
from nvflare.fuel.hci.reg import CommandModule, CommandModuleSpec, CommandSpec
from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
from nvflare.lighter.utils import load_private_key_file, sign_folders

from tacit.transport.channels import SERVER
from tacit.transport.gate import guard
from tacit.transport.packed import MOST_BYTES, PACKED
from tacit.transport.streams import PROCESS

_SUBMIT, _DOWNLOAD = "submit_job", "download_job"
_SENDING = 60.0  # seconds until a job has to be there
_REST = 64 << 20  # bytes of an archive apart from the files that are taken from it: logs, the job
_PART = 8 << 20  # bytes of a message to a requester: NVFlare's server sends a file in parts of 5 MB
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_READ = 1 << 20  # bytes that are read at once: of a file, or of the archive's table of contents


def is_local(error: BaseException) -> bool:
    """Whether a file of this machine is the problem, and not the connection or what arrived over it."""
    return isinstance(error, OSError) and (error.filename is not None or error.errno in _DISK)


class Unacceptable(Exception):
    """A result that is ``too-large``, or ``malformed``: no archive."""

    def __init__(self, code: Literal["malformed", "too-large"], problem: str) -> None:
        super().__init__(problem)
        self.code = code


def connected(name: str, kit: Path, timeout: float) -> Session:
    PROCESS.widen(_PART)
    session = Session(username=name, startup_path=str(kit), secure_mode=True)
    session.api.cmd_modules = [_Commands()]
    hci.Cell = partial(_guarded, kit)
    told = logging.getLogger("nvflare.tacit")  # what NVFlare's client would print, with the server's words in it
    hci.traceback = SimpleNamespace(print_exc=lambda: told.exception("failed"))
    hci._print_hci_message = lambda text: told.info("%s", text)
    try:
        session.try_connect(timeout)
    except Exception:
        with suppress(Exception):
            session.close()
        raise
    return session


def fetch(session: Session, job: str, folder: str, limits: Mapping[str, int], target: Path) -> None:
    """Write files of a job's result into the folder ``target``: of its ``folder`` those that are there of ``limits``,
    which says how many bytes each may have. :class:`Unacceptable` where the server sends no valid archive."""
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
            if is_local(error):
                raise
            raise Unacceptable("malformed", f"the archive cannot be read ({type(error).__name__})") from None


class _Commands(CommandModule):
    """The commands that the client carries out by itself; all others go to the server as they are."""

    def get_spec(self) -> CommandModuleSpec:
        specs = [
            CommandSpec(_SUBMIT, "send a job", f"{_SUBMIT} FOLDER", _sent),
            CommandSpec(_DOWNLOAD, "list the files of a result", f"{_DOWNLOAD} JOB", _listed),
        ]
        return CommandModuleSpec(name="tacit", cmd_specs=specs)

    def generate_module_spec(self, server_cmd_spec: Any) -> None:
        return None


def _sent(args: list[str], context: Any) -> Any:
    folder, api = Path(args[1]).absolute(), context.get_api()
    sign_folders(str(folder), load_private_key_file(api.client_key), api.client_cert)
    packed = zip_directory_to_bytes(str(folder.parent), folder.name)
    if len(packed) > MOST_BYTES:
        return {ProtoKey.STATUS: APIStatus.ERROR_RUNTIME, ProtoKey.DETAILS: f"the job has {len(packed)} bytes"}
    api.set_command_timeout(_SENDING)
    try:
        command = join_args([_SUBMIT, folder.name, *args[2:]])
        return api.server_execute(command, props={PACKED: b64encode(packed).decode()})
    finally:
        api.unset_command_timeout()


def _listed(args: list[str], context: Any) -> Any:
    return context.get_api().server_execute(context.get_command())


def _guarded(kit: Path, **options: Any) -> Cell:
    """A cell that opens no streams, which the server does not take from requesters: its messages are single ones."""
    cell = Cell(**options)
    guard(cell.core_cell, kit)
    for name in ("send_request", "fire_and_forget"):
        setattr(cell, f"_{name}", partial(_single, getattr(cell.core_cell, name)))
    return cell


def _single(send: Any, abort_signal: Any = None, **options: Any) -> Any:
    return send(**options)


class _Received(Consumer):
    """Writes what is downloaded to a file, up to ``most`` bytes."""

    def __init__(self, file: Any, most: int) -> None:
        super().__init__()
        self._file, self._most, self._bytes = file, most, 0
        self.has_ended = False
        self.refused: Exception | None = None

    def consume(self, ref_id: str, state: dict[str, Any], data: Any) -> dict[str, Any]:
        if not isinstance(data, bytes) or not data:
            self.refused = Unacceptable("malformed", "a part of the download is empty, or not bytes")
        elif self._bytes + len(data) > self._most:
            self.refused = Unacceptable("too-large", f"it has more than {self._most} bytes")
        if self.refused is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.refused = error
        if self.refused is not None:
            raise self.refused  # NVFlare ends the download
        self._bytes += len(data)
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
                    raise Unacceptable("too-large", f"{name} has more than {most} bytes")
                copy.write(part)
