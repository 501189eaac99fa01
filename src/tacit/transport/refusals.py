"""Connections that the server's TLS has turned away, in the words of Tacit's own log.

gRPC prints them past Python's logging, so the attendant finds them in ``nvflare.log``. What NVFlare logs may quote
other parties; it is in lines that begin with a time, or with spaces (:func:`tacit.transport.log.escape_records`), and
never in one that begins as gRPC's do. Of a connection whose certificate is not accepted nobody knows whose it is.
"""

from __future__ import annotations

import re

_FAILED = re.compile(
    r"[EWI]\d{4} [\d:. ]+ ssl_transport_security\.cc:\d+\] Handshake failed with error SSL_ERROR_SSL: "
    r"error:[0-9a-f]+:SSL routines:OPENSSL_internal:(.+)"
)
_ISSUER = r"unable to get (?:local )?issuer certificate|self.signed certificate.*|certificate signature failure"
_WORDS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"PEER_DID_NOT_RETURN_A_CERTIFICATE", "it shows no certificate"),
        (r"CERTIFICATE_VERIFY_FAILED: certificate has expired", "its certificate has expired"),
        (r"CERTIFICATE_VERIFY_FAILED: certificate is not yet valid", "its certificate is not valid yet"),
        (rf"CERTIFICATE_VERIFY_FAILED: (?:{_ISSUER})", "its certificate is of another authority"),
        (r"CERTIFICATE_VERIFY_FAILED: (.+)", "its certificate is not accepted ({0})"),
    )
)


def heard(line: str) -> str | None:
    """What was refused, as a line of gRPC says it; None where it says something else."""
    if failed := _FAILED.match(line):
        for pattern, words in _WORDS:
            if found := pattern.match(failed[1]):
                return f"refused a connection: {words.format(*found.groups())}"
    return None
