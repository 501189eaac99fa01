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
from tacit.transport.log import escape_records

PROGRAMS = {
    "client": "nvflare.private.fed.app.client.client_train",
    "server": "nvflare.private.fed.app.server.server_train",
    "client-job": "nvflare.private.fed.app.client.worker_process",
    "server-job": "nvflare.private.fed.app.server.runner_process",
}

_LOOK = 0.5  # seconds between two looks whether the parent process is there


def end_with(parent: int, terminates: bool) -> None:
    """End this process when its parent (the attendant, or NVFlare's process of a job) has ended: a supervisor can then
    start the party again. NVFlare asks the process of a job to stop, but not one that has not begun its work yet."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    if terminates:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(TIMEOUT)
    os.kill(os.getpid(), signal.SIGKILL)


def main(program: str) -> int:
    """Run a program of NVFlare's with its arguments in ``sys.argv``."""
    lock = os.environ.pop(LOCK_VARIABLE, None)
    if lock is not None:
        os.set_inheritable(int(lock), False)  # job processes do not hold it
    threading.Thread(target=end_with, args=(os.getppid(), lock is not None), daemon=True).start()
    escape_records()
    from nvflare.fuel.f3.mpm import MainProcessMonitor

    from tacit.transport.gate import close

    theirs = importlib.import_module(PROGRAMS[program])
    args = theirs.parse_arguments()
    kit = Path(args.workspace)
    close(kit)
    if program in ("client", "server"):
        from tacit.transport import upkeep

        if program == "server":
            upkeep.limit_uploads(kit)
            upkeep.log_deployments(kit)
        else:
            upkeep.limit_deployments(kit)
    run_dir = os.path.join(args.workspace, args.job_id) if hasattr(args, "job_id") else args.workspace
    return int(MainProcessMonitor.run(main_func=theirs.main, run_dir=run_dir, args=args) or 0)


if __name__ == "__main__":
    name = sys.argv.pop(1)
    sys.exit(main(name))
