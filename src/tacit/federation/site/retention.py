"""Which folders of runs stay on a party's disk (``KIT/tacit/runs``).

The last ``KEPT_RUNS`` runs with a result stay, as long as they take ``KEPT_BYTES`` together (one in any case), and as
many that were interrupted, which can be resumed. Of an older run at the server, its ledger stays, what was asked for,
and an outcome that says that the rest has expired: such a run is neither shared nor begun again. A run that is at work
is locked, and stays.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tacit.engine.folder import LEDGER, PLAN, RESULT, write_json

KEPT_RUNS = 32  # as many as jobs may wait at the server: a run that is asked for again is one of them
KEPT_BYTES = 4 << 30
OUTCOME, REQUESTED = "outcome.json", "request.json"
EXPIRED = "expired"
_RUN = re.compile(r"[0-9a-f]{32}")
_REASON = "the server has removed the files of this run, because newer ones took their place; its ledger is there"


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Keep the folder of a run, which is made where it is missing, until the end of the block or of this process."""
    while True:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileNotFoundError):  # removed by another process between the two lines
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if folder.is_dir() and os.path.samestat(os.fstat(descriptor), folder.stat()):
                break
            os.close(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


def expire_at_server(runs: Path) -> list[str]:
    """Reduce old runs at the server to their ledgers, and return which; remove runs that never began."""
    folders = _folders(runs)
    begun = [folder for folder in folders if (folder / LEDGER).is_file()]
    whole = [folder for folder in begun if (folder / PLAN).is_file()]  # the others have expired before
    with_result = [folder for folder in whole if (folder / RESULT).is_file()]
    interrupted = [folder for folder in whole if folder not in with_result]
    for folder in folders:
        if folder not in begun:
            _removed(folder, shutil.rmtree)
    return [folder.name for folder in (*_beyond(with_result), *_beyond(interrupted)) if _removed(folder, _reduce)]


def expire_at_silo(runs: Path) -> None:
    """Remove a silo's folders of old runs, and empty ones: they hold what a method keeps, and no ledger."""
    folders = _folders(runs)
    empty = [folder for folder in folders if not any(folder.iterdir())]
    for folder in (*empty, *_beyond([folder for folder in folders if folder not in empty])):
        _removed(folder, shutil.rmtree)


def _folders(runs: Path) -> list[Path]:
    found = [path for path in runs.iterdir() if _RUN.fullmatch(path.name) and not path.is_symlink()]
    return sorted(found, key=lambda folder: max(path.lstat().st_mtime for path in (folder, *folder.iterdir())))[::-1]


def _beyond(folders: list[Path]) -> list[Path]:
    """Those that are older than the ones that are kept."""
    kept, old = 0, []
    for number, folder in enumerate(folders):
        kept += sum(file.lstat().st_size for file in folder.iterdir())
        if number and (number >= KEPT_RUNS or kept > KEPT_BYTES):
            old.append(folder)
    return old


def _removed(folder: Path, remove: Callable[[Path], object]) -> bool:
    """Remove something of a folder, unless its run is at work, or another process was faster."""
    with suppress(FileNotFoundError, BlockingIOError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
            return True
        finally:
            os.close(descriptor)
    return False


def _reduce(folder: Path) -> None:
    write_json(folder / OUTCOME, {"status": EXPIRED, "reason": _REASON, "rules": {}})
    others = [file for file in folder.iterdir() if file.name not in (LEDGER, REQUESTED, OUTCOME)]
    for file in sorted(others, key=lambda file: file.name == PLAN):  # last: without it, the rest is gone
        file.unlink()
