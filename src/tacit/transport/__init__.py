"""How Tacit starts NVFlare, and which of its messages a party accepts.

    attendant  starts NVFlare's process from a kit, logs rejected connections, and stops it
    packed     what a packed job consists of, to the byte
    upkeep     keeps what NVFlare writes within bounds
    log        the log of a kit
    table      every channel and topic that NVFlare 2.9.0 registers: who may send on it, to whom
    streams    how much of others' messages a process holds at a time
    gate       enforces the table inside NVFlare's processes
    __main__   the programs: ``python -m tacit.transport client|server|client-job|server-job``

Nothing here imports JAX or another package of Tacit: an idle party needs the memory of NVFlare alone.
"""
