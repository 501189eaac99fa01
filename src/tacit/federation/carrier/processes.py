"""A server, a silo or the analyzer before it starts: its kit and files are checked, and its attendant begins.

``tacit/log.txt`` of a kit has a line for each event of a run: who joined, what was requested by whom, what was
released, what was refused and why. See :mod:`tacit.transport.attendant`.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from tacit.engine.folder import read_json, write_json
from tacit.errors import UserError, in_file
from tacit.federation.kits import Kind, Kit, configure, read_secret, require_nvflare
from tacit.federation.site.ledgers import register
from tacit.federation.site.policy import Policy
from tacit.federation.site.shard import SiloData, check_table, read_silo_data
from tacit.planning.settings import read_section
from tacit.transport.attendant import NVFLARE_LOG, PID, AlreadyRunning, check_idle
from tacit.transport.log import log_of

SETTINGS = "settings.json"
_LOOK = 0.2  # seconds between two looks at the number of the process


def party_log(kit: Kit) -> logging.Logger:
    """The log of a kit, for its holder alone. It may name values of the silo's own data."""
    return log_of(kit.path)


def _prepared(path: Path, kind: Kind) -> Kit:
    require_nvflare()
    kit = Kit.load(path, kind)
    try:
        kit.check_certificate()
    except UserError as error:
        party_log(kit).warning("refused to start: %s", error)
        raise
    configure(kit)
    return kit


def prepare_server(path: Path) -> Kit:
    kit = _prepared(path, "server")
    check_not_running(kit)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", kit.port))
        except OSError:
            problem = f"port {kit.port} is taken on this machine"
            raise UserError("in-use", "KIT", problem, "stop what uses it, or make kits with another port") from None
    return kit


def prepare_analyzer(path: Path) -> Kit:
    return _prepared(path, "analyzer")


def prepare_silo(path: Path, data: Path, policy: Path, new_budget: bool = False, same_table: bool = False) -> Kit:
    """The kit of a silo; its data and policy files are read now, to find mistakes. Other options: :func:`register`."""
    kit = _prepared(path, "silo")
    options = read_silo_data(data)
    check_table(options)
    if options.pseudonyms is not None:
        with in_file(options.file):
            read_secret(Path(options.pseudonyms), "pseudonyms")
    for warning in silo_warnings(options, read_section(policy, Policy, "POLICY.toml")):
        party_log(kit).warning("%s", warning)
    register(kit, options, new_budget, same_table)
    write_json(kit.ours / SETTINGS, {"data": str(data.resolve()), "policy": str(policy.resolve())})
    return kit


def silo_warnings(options: SiloData, policy: Policy) -> list[str]:
    """What a silo's files say that has no effect."""
    if policy.metrics and options.hold_out is None:
        return ["metrics: true has no effect, because the data file has no [hold_out]: metrics without noise stay here"]
    if options.hold_out is not None and not policy.metrics:
        return ["hold_out: its people are in no run and in no metric, because the policy has metrics = false"]
    return []


def settings(kit: Kit) -> tuple[Path, Path]:
    """Where the silo's data and policy files are."""
    values = read_json(kit.ours / SETTINGS, "KIT")
    return Path(values["data"]), Path(values["policy"])


def in_background(kit: Kit) -> int:
    """Attend to a kit's process without a terminal; the number of that process."""
    check_not_running(kit)
    pid_file = kit.ours / PID
    pid_file.unlink(missing_ok=True)
    null = subprocess.DEVNULL
    watch = subprocess.Popen(_attendant(kit), stdin=null, stdout=null, stderr=null, start_new_session=True)
    while not (pid_file.is_file() and pid_file.read_text().endswith("\n")):
        if watch.poll() is not None:
            raise UserError("start-failed", "KIT", "the process did not start", f"see {kit.ours / NVFLARE_LOG}")
        time.sleep(_LOOK)
    return int(pid_file.read_text())


def in_foreground(kit: Kit) -> NoReturn:
    """Replace this program (and the memory of JAX) by the attendant of a kit's process, which prints the log."""
    sys.stdout.flush()
    os.execv(sys.executable, [*_attendant(kit), "--tell"])


def _attendant(kit: Kit) -> list[str]:
    return [sys.executable, "-P", "-m", "tacit.transport.attendant", str(kit.path)]


def check_not_running(kit: Kit) -> None:
    """UserError where the party of this kit runs already."""
    try:
        check_idle(kit.path)
    except AlreadyRunning as error:
        raise UserError("in-use", "KIT", f"'{kit.path}' is in use: {error}", "stop that process first") from None
