"""Strikes a server or a silo at one exact moment of a run, which nobody outside of its process could hit.

Python imports this module in every process whose ``PYTHONPATH`` names its folder. In the folder that ``TACIT_MOMENTS``
names, a file for a silo or the server says when it is struck and by which signal (``worlds.Moment``); without one
nothing happens. The process takes the file away when it strikes: once, and so that the test knows.

Nothing of the protocol is replaced: a process is killed or stopped by the same signals as from outside.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
from pathlib import Path

HOSTS = "tacit.federation.carrier.flare"  # knows both of them
# a round of the masked exchange, message by message; those before the first round by their own names
PHASES = ("keys", "shares", "vectors", "survivors", "unmasking")


class AfterImport(importlib.abc.MetaPathFinder):
    """Tells :func:`attach` when the module that knows the two hosts has been imported."""

    def find_spec(self, name, path, target=None):
        if name != HOSTS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def and_attach(module):
            execute(module)
            attach(module)

        spec.loader.exec_module = and_attach
        return spec


class Counter:
    """Which phase of which round a message belongs to."""

    def __init__(self):
        self.round, self.messages = 0, 0

    def phase(self, message):
        from tacit.federation.protocol.messages import Message

        read = Message.from_bytes(message, "", 1 << 40)
        self.messages = self.messages + 1 if read.phase == "exchange" and read.round == self.round else 0
        self.round = read.round
        return PHASES[self.messages] if read.phase in ("work", "exchange") else read.phase


def attach(flare):
    silo_message, silo_call = flare.SiloHost.message, flare.SiloHost.call
    carried, after_round = flare.CoordinatorHost._carried, flare.CoordinatorHost.after_round
    write_result = flare.CoordinatorHost._write_result

    def call(self, read, data):
        strike(self.kit.name, 0, "call", "before")
        answer = silo_call(self, read, data)
        strike(self.kit.name, 0, "call", "in")
        return answer

    def message(self, data):
        counter = vars(self).setdefault("_counter", Counter())
        phase = counter.phase(data)
        strike(self.kit.name, counter.round, phase, "before")
        answer = silo_message(self, data)
        strike(self.kit.name, counter.round, phase, "in")
        return answer

    def carry(self, what, messages):
        counter = vars(self).setdefault("_counter", Counter())
        phase = counter.phase(next(iter(messages.values()))) if what == flare.MESSAGE else what
        strike("server", counter.round, phase, "before")
        answers = carried(self, what, messages)
        strike("server", counter.round, phase, "in")
        return answers

    def after(self, number, participants):
        strike("server", number, "checkpoint", "in")
        after_round(self, number, participants)

    def result(self, status):
        strike("server", self._side.done, "result", "before")
        write_result(self, status)

    flare.SiloHost.call, flare.SiloHost.message = call, message
    flare.CoordinatorHost._carried, flare.CoordinatorHost.after_round = carry, after
    flare.CoordinatorHost._write_result = result


def strike(who, number, phase, moment):
    """Send the signal to this process, and where it is meant to its parent, if the moment has come."""
    file = Path(os.environ["TACIT_MOMENTS"]) / who
    if not file.is_file():
        return
    due = json.loads(file.read_text())
    if (due["round"], due["phase"], due["moment"]) != (number, phase, moment):
        return
    file.unlink()
    if due["whole"]:
        os.kill(os.getppid(), due["signal"])
    os.kill(os.getpid(), due["signal"])


if "TACIT_MOMENTS" in os.environ:
    sys.meta_path.insert(0, AfterImport())
