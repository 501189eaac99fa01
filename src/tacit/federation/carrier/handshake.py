"""One TLS handshake with the server, to find out why a party cannot connect.

NVFlare retries in silence, or reports a timeout, whatever the cause is. This is a diagnosis alone: NVFlare makes the
connection itself, with its own checks.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

from tacit.errors import UserError
from tacit.federation.kits import ROOT, Kit

_TIMEOUT = 5.0  # seconds for each step
_VERDICT = 1.0  # seconds for the server's answer to our certificate, which comes after the handshake in TLS 1.3
_PERIOD = (9, 10)  # OpenSSL's codes for a certificate that is not valid yet, and for one that has expired


def connection_problem(kit: Kit, field: str) -> UserError | None:
    """Why the server of a silo, an analyzer or a requester cannot be reached with this kit; None if it can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server, new_kit = f"the server at {kit.host}:{kit.port}", "ask for a new kit: new kits replace all earlier ones"
    try:
        context.load_verify_locations(kit.startup / ROOT)
        context.load_cert_chain(kit.startup / "client.crt", kit.startup / "client.key")
    except OSError:
        return UserError("file-damaged", field, "the certificate or key of the kit cannot be read", "restore the kit")
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((kit.host, kit.port), _TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=kit.host) as secured,
        ):
            secured.settimeout(_VERDICT)
            with suppress(TimeoutError):
                if not secured.recv(1):  # gRPC closes the connection without an alert
                    return UserError("rejected", field, f"{server} does not accept this kit", new_kit)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _PERIOD:
            problem = f"the certificate of {server} is not valid now ({error.verify_message})"
            return UserError("bad-certificate", field, problem, "check this machine's clock, or ask for a new kit")
        problem = f"the certificate of {server} is not of the authority of this kit ({error.verify_message})"
        return UserError("bad-certificate", field, problem, new_kit)
    except ssl.SSLError as error:
        return UserError("rejected", field, f"{server} does not accept this kit ({error.reason})", new_kit)
    except OSError as error:
        fix = "start it with `tacit server`, or check name, port and firewall"
        return UserError("no-answer", field, f"{server} does not answer ({error.strerror or 'timeout'})", fix)
    return None
