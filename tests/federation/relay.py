"""What stands between the parties of a federation and its server: it can listen, and it can break."""

from __future__ import annotations

import contextlib
import socket
import threading

from tacit.federation.demo import Trial


class Relay:
    """Carries bytes between parties and the server, until it is cut; used as a context. ``seen``: all of them, where it
    keeps them."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.seen, self._keeps = bytearray(), keeps

    def __enter__(self) -> Relay:
        self._listener = socket.create_server(("localhost", 0))
        self._open: set[socket.socket] = set()
        self._carries = threading.Event()
        self._carries.set()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def between(self, trial: Trial, *parties: str) -> None:
        """From their next start on, what these parties and the server say to each other comes through here."""
        self._target, port = trial.kit("server").port, self._listener.getsockname()[1]
        for party in parties:
            config = next(trial.kit(party).startup.glob("fed_*.json"))
            text = config.read_text()
            for form in (":{}", ": {}"):
                text = text.replace(form.format(self._target), form.format(port))
            assert str(port) in text
            config.write_text(text)

    def cut(self, *, silently: bool) -> None:
        """Carry nothing any more; both ends are told, or not."""
        self._carries.clear()
        for end in () if silently else tuple(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._carries.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                near, _ = self._listener.accept()
                try:
                    far = self._far()
                except ConnectionRefusedError:
                    near.close()
                    continue
                self._open |= {near, far}
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _far(self) -> socket.socket:
        if not self._carries.is_set():
            raise ConnectionRefusedError
        return socket.create_connection(("localhost", self._target))

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := one.recv(65536):
                if self._keeps:
                    self.seen += block
                self._carries.wait()
                other.sendall(block)
        for end in (one, other):
            self._open.discard(end)
            end.close()
