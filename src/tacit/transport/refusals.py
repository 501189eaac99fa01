"""Whom NVFlare and its transport have let in or turned away, in the words of Tacit's own log.

What Tacit refuses, it writes into ``tacit/log.txt`` by itself. Connections without a valid certificate, names that are
somebody else's, and jobs that bring code or name other classes are turned away before Tacit hears of them: NVFlare's
log says so, among much else. Of a connection whose certificate is not accepted nobody knows whose it is.
"""

from __future__ import annotations

import re

_ISSUER = r"unable to get (?:local )?issuer certificate|self.signed certificate.*|certificate signature failure"
_WORDS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"Client: New client (\S+)@\S+ joined", "joined  {0}"),
        (r"Successfully registered client:(\S+) for", "joined  the server, as {0}"),
        (r"PEER_DID_NOT_RETURN_A_CERTIFICATE", "refused a connection: it shows no certificate"),
        (r"CERTIFICATE_VERIFY_FAILED: certificate has expired", "refused a connection: its certificate has expired"),
        (
            r"CERTIFICATE_VERIFY_FAILED: certificate is not yet valid",
            "refused a connection: its certificate is not valid yet",
        ),
        (rf"CERTIFICATE_VERIFY_FAILED: (?:{_ISSUER})", "refused a connection: its certificate is of another authority"),
        (r"CERTIFICATE_VERIFY_FAILED: (.+)", "refused a connection: its certificate is not accepted ({0})"),
        (r"authenticated as '([^']*)' but claimed endpoint '([^']*)'", "refused {0}: it calls itself {1}"),
        (r"failed to verify client identity: CNMismatch", "refused a login: it is not its certificate's ({last})"),
        (r"Failed to run the Job \(([^)]*)\): .*BYOC not permitted", "refused job {0}: it brings code"),
        (
            r"(?:client|server) execution exception: .*Component '([^']*)' at config path .* is not in allow_list",
            "refused a job: it names the class {0}",
        ),
    )
)


_CONNECTED = re.compile(r"Connection \[.* SSL (\S+)\] is created")


class Listener:
    """Listens to NVFlare's log, line by line."""

    def __init__(self) -> None:
        self._last = "nobody has connected"

    def heard(self, line: str) -> str | None:
        """Who has joined, or what was refused, as a line says it; None where it says something else."""
        if connected := _CONNECTED.search(line):
            self._last = f"the last connection was that of {connected[1]}"
        for pattern, words in _WORDS:
            if found := pattern.search(line):
                return words.format(*found.groups(), last=self._last)
        return None
