"""Records what NVFlare registers in a party's processes, and which of an attacker's messages are accepted there.

Python imports this at the start of every process whose PYTHONPATH has this folder. It acts where ``TACIT_RECORDED``
names a file: before :mod:`tacit.transport.gate` replaces anything, so the messages that it sees have passed the gate.
"""

import json
import os
import sys

_FILE, _MARK = os.environ.get("TACIT_RECORDED"), "x-attack"


def _record(file: str, program: str) -> None:
    from nvflare.fuel.f3.cellnet import core_cell
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Key
    from nvflare.fuel.f3.cellnet.registry import Registry
    from nvflare.fuel.hci.reg import CommandRegister
    from nvflare.private.aux_runner import AuxRunner

    def write(*words: object) -> None:
        with open(file, "a", encoding="utf-8") as out:
            out.write(json.dumps([program, *words]) + "\n")

    def recorded(owner: type, name: str, words) -> None:
        old = getattr(owner, name)

        def method(self, *args, **kwargs):
            write(*words(*args, **kwargs))
            return old(self, *args, **kwargs)

        setattr(owner, name, method)

    recorded(Registry, "set", lambda channel, topic, items: ("registered", channel, topic))
    recorded(
        AuxRunner,
        "register_aux_message_handler",
        lambda topic, message_handle_func: ("registered", "aux_communication", topic),
    )
    recorded(CommandRegister, "add_command", lambda *args, **named: ("command", named["cmd_name"]))
    process = core_cell.CoreCell.process_message

    def process_message(self, endpoint, connection, app_id, message):
        if _MARK in message.headers:
            write("accepted", message.headers[_MARK], self.my_info.fqcn, message.get_header(Key.ORIGIN))
        else:
            process(self, endpoint, connection, app_id, message)

    core_cell.CoreCell.process_message = process_message


if _FILE and "tacit.transport" in sys.orig_argv:
    _record(_FILE, sys.orig_argv[sys.orig_argv.index("tacit.transport") + 1])
