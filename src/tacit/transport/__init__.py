"""How Tacit starts NVFlare, and which of its messages a party accepts.

    log       the log of a kit
    table     every channel and topic that NVFlare 2.9.0 registers: who may send on it, to whom
    gate      enforces the table inside NVFlare's processes
    __main__  the programs: ``python -m tacit.transport client|server|client-job|server-job``

Nothing here imports JAX or another room of Tacit: an idle party pays for NVFlare alone.
"""
