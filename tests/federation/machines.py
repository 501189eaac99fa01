"""Machines for tests: network namespaces of this one, each with its own address, on a switch whose cables can be
pulled. Needs root and ``ip``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

_NETNS = Path("/etc/netns")  # where ``ip netns exec`` looks for a machine's own /etc/hosts


class Machines:
    """Machines by name."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._mark = f"tacit{os.getpid()}"

    def command(self, machine: str, *words: str) -> list[str]:
        """A command of Tacit's on a machine."""
        return [*self.within(machine), sys.executable, "-m", "tacit", *words]

    def within(self, machine: str) -> tuple[str, ...]:
        """What stands before a command, so that it runs on a machine."""
        return ("ip", "netns", "exec", self._space(machine))

    def pull_cable(self, machine: str) -> None:
        _ip("-n", self._switch, "link", "set", self._port(machine), "down")

    def plug_in(self, machine: str) -> None:
        _ip("-n", self._switch, "link", "set", self._port(machine), "up")

    @contextmanager
    def connected(self, hosts: dict[str, str]) -> Iterator[None]:
        """All of them on one switch; ``hosts`` are names on the network, and the machines that they mean."""
        with ExitStack() as stack:
            self._add_space(stack, self._switch)
            _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "bridge", "up")
            known = "".join(f"{self._address(machine)} {host}\n" for host, machine in hosts.items())
            for machine in self._names:
                self._connect(stack, machine, f"127.0.0.1 localhost\n{known}")
            yield

    def _connect(self, stack: ExitStack, machine: str, hosts: str) -> None:
        space, port = self._space(machine), self._port(machine)
        own = _NETNS / space
        own.mkdir(parents=True)
        stack.callback(shutil.rmtree, own)
        (own / "hosts").write_text(hosts)
        self._add_space(stack, space)
        _ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self._switch)
        _ip("-n", space, "address", "add", f"{self._address(machine)}/24", "dev", "eth0")
        _ip("-n", self._switch, "link", "set", port, "master", "bridge")
        for where, device in ((space, "lo"), (space, "eth0"), (self._switch, port)):
            _ip("-n", where, "link", "set", device, "up")

    def _add_space(self, stack: ExitStack, space: str) -> None:
        _ip("netns", "add", space)
        stack.callback(_ip, "netns", "delete", space)

    @property
    def _switch(self) -> str:
        return f"{self._mark}-switch"

    def _space(self, machine: str) -> str:
        return f"{self._mark}-{machine}"

    def _port(self, machine: str) -> str:
        return f"port{self._names.index(machine)}"

    def _address(self, machine: str) -> str:
        return f"10.77.0.{1 + self._names.index(machine)}"


def require_namespaces() -> None:
    """Skip where there can be no such machines."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    if subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("there are no network namespaces here")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
