"""A whole federation on this machine: a server, three silos, their kits, tables and policies, as on four machines.

The built-in table is split by site (or there are other tables, one for each silo). Server and silos are processes of
their own that use mutually authenticated TLS on the loopback interface.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import tomli_w

from tacit.data import DataOptions
from tacit.data.sources import read_builtin
from tacit.data.sources.tables import SITES
from tacit.errors import UserError
from tacit.federation.carrier.processes import prepare_analyzer, prepare_server, prepare_silo
from tacit.federation.kits import FederationOptions, Kind, Kit, ServerOptions, make_kits
from tacit.transport.attendant import NVFLARE_LOG, joined, start, stop
from tacit.transport.channels import ANALYZER

REQUESTER = "you@example.org"
# which sites of the built-in table live where
PARTS = {"north": SITES[:2], "south": SITES[2:4], "west": SITES[4:]}
POLICY = {
    "requesters": [REQUESTER],
    "methods": ["subject-sgd", "uldp-avg"],
    "exchanges": ["masked", "weighted"],
    "unit": "subject",
    "against": ["public", "server"],
    "delta": 1e-5,
    "epsilon_per_run": 5.0,
    "epsilon_in_total": 20.0,
    "least_records": 100,
    "silos_per_subject": 1,  # no subject of this table lives at two sites
    "budget_shown": True,
}
_TIMEOUT = 60.0


class Trial:
    """The kits of a federation on this machine, and its processes while it runs."""

    def __init__(
        self,
        folder: Path,
        policy: dict[str, object] | None = None,
        passphrase: str | None = None,
        analyzer: bool = False,
        tables: Mapping[str, pd.DataFrame] | None = None,
    ) -> None:
        self.folder, self._passphrase, self._analyzer = folder, passphrase, analyzer
        self._tables = parted() if tables is None else tables
        self.policy = {**POLICY, **(policy or {})}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def prepare(self, port: int | None = None) -> None:
        """Kits, tables and policies; the server's port is one that is free."""
        options = FederationOptions(
            name="trial",
            server=ServerOptions(host="localhost", port=port or _free_port()),
            silos=self.silos,
            requesters=(REQUESTER,),
            analyzer=self._analyzer,
        )
        make_kits(options, self.folder / "kits", self._passphrase)
        for silo, table in self._tables.items():
            home = self.home(silo)
            home.mkdir(parents=True)
            table.to_parquet(home / "visits.parquet", index=False)
            (home / "DATA.toml").write_text(tomli_w.dumps({"path": "visits.parquet", "subjects": "person"}))
            (home / "POLICY.toml").write_text(tomli_w.dumps(self.policy))

    @property
    def silos(self) -> tuple[str, ...]:
        return tuple(self._tables)

    def home(self, silo: str) -> Path:
        return self.folder / "silos" / silo

    def kit(self, name: str) -> Kit:
        folder = {"server": "", ANALYZER: "", REQUESTER: "requesters"}.get(name, "silos")
        return Kit.load(self.folder / "kits" / folder / name, *get_args(Kind))

    def start(self, name: str) -> None:
        kit = self.kit(name)
        if kit.kind == "silo":
            prepare_silo(kit.path, self.home(name) / "DATA.toml", self.home(name) / "POLICY.toml")
        else:
            (prepare_server if kit.kind == "server" else prepare_analyzer)(kit.path)
        self.processes[name] = self.launch(kit.path)

    def launch(self, kit: Path) -> subprocess.Popen[bytes]:
        return start(kit)

    def wait(self, name: str) -> None:
        """Until the server listens, or a silo or the analyzer has joined."""
        kit = self.kit(name)
        end = time.monotonic() + _TIMEOUT
        while not (_listens(kit.port) if name == "server" else joined(kit.path)):
            if self.processes[name].poll() is not None or time.monotonic() > end:
                problem = f"{name} did not start"
                raise UserError("start-failed", "federation", problem, f"see {kit.ours / NVFLARE_LOG}")
            time.sleep(0.1)

    def stop(self, name: str) -> None:
        stop(self.processes.pop(name))

    @contextmanager
    def running(self, tell: Callable[[str], None] = lambda line: None) -> Iterator[None]:
        """The server and all who join it, until the end of the block."""
        with ExitStack() as stack:
            stack.callback(self._stop_all)
            self.start("server")
            self.wait("server")
            tell(f"server   localhost:{self.kit('server').port}")
            members = {silo: f"silo     {silo}, {len(table):,} records" for silo, table in self._tables.items()}
            if self._analyzer:
                members[ANALYZER] = "analyzer"
            for name in members:
                self.start(name)
            for name, words in members.items():
                self.wait(name)
                tell(words)
            yield

    def _stop_all(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for name in list(self.processes):
            self.stop(name)


def parted(parts: Mapping[str, Sequence[str]] = PARTS) -> dict[str, pd.DataFrame]:
    """The built-in table, a part for every silo: the people of some sites."""
    table = read_builtin(DataOptions(source="randhie"), np.random.default_rng(0))
    frame = pd.DataFrame({name: table.read(name) for name in table.names})
    sites = frame.pop("site")
    return {silo: frame[sites.isin(places)].reset_index(drop=True) for silo, places in parts.items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("localhost", port)) == 0
