"""The programs that Tacit starts: NVFlare's own, behind :mod:`tacit.transport.gate`.

``python -P -m tacit.transport PROGRAM -m KIT …``; the arguments are those of NVFlare's program.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tacit.transport.attendant import LOCK_VARIABLE, TIMEOUT

PROGRAMS = {
    "client": "nvflare.private.fed.app.client.client_train",
    "server": "nvflare.private.fed.app.server.server_train",
    "client-job": "nvflare.private.fed.app.client.worker_process",
    "server-job": "nvflare.private.fed.app.server.runner_process",
}

_LOOK = 0.5  # seconds between two looks whether the attendant is there


def end_with(attendant: int) -> None:
    """End this process when its attendant has ended, however that ended: a supervisor can then start both again."""
    while os.getppid() == attendant:
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(TIMEOUT)
    os.kill(os.getpid(), signal.SIGKILL)


def main(program: str) -> int:
    """Run a program of NVFlare's with its arguments in ``sys.argv``."""
    if (lock := os.environ.pop(LOCK_VARIABLE, None)) is not None:
        os.set_inheritable(int(lock), False)  # job processes do not hold it
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    from nvflare.fuel.f3.mpm import MainProcessMonitor

    from tacit.transport.gate import close

    theirs = importlib.import_module(PROGRAMS[program])
    args = theirs.parse_arguments()
    close(Path(args.workspace))
    run_dir = os.path.join(args.workspace, args.job_id) if hasattr(args, "job_id") else args.workspace
    return int(MainProcessMonitor.run(main_func=theirs.main, run_dir=run_dir, args=args) or 0)


if __name__ == "__main__":
    name = sys.argv.pop(1)
    sys.exit(main(name))
