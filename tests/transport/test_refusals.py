"""What NVFlare's log says, in our words; its lines are those that it has written, shortened."""

from __future__ import annotations

import pytest

from tacit.transport.refusals import Listener

TLS = "ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: error:1000007d:SSL"
ALLOW = "exception: ComponentNotAuthorized: Component 'a.b.C' at config path 'workflows.#1' is not in allow_list"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{TLS} routines:OPENSSL_internal:PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid", "it shows no certificate"),
        (f"{TLS} routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired", "has expired"),
        (f"{TLS} routines:CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", "of another authority"),
        (f"{TLS} routines:CERTIFICATE_VERIFY_FAILED: permitted subtree violation", "not accepted (permitted subtree"),
        (
            "connection CN5 authenticated as 'north' but claimed endpoint 'south' requires",
            "north: it calls itself south",
        ),
        (
            "JobRunner - Failed to run the Job (32-5): RuntimeError: BYOC not permitted",
            "refused job 32-5: it brings code",
        ),
        (f"worker_process - ERROR - FL client execution {ALLOW}", "it names the class a.b.C"),
        (f"runner_process - ERROR - FL server execution {ALLOW}", "it names the class a.b.C"),
        ("ClientManager - INFO - Client: New client west@192.0.2.2 joined. Sent token.", "joined  west"),
        ("FederatedClient - INFO - Successfully registered client:north for project trial.", "the server, as north"),
    ],
)
def test_a_line_of_nvflares_log_is_put_in_our_words(line, words):
    assert words in (Listener().heard(line) or "")


def test_a_login_names_the_last_connection():
    listener = Listener()
    assert (
        listener.heard("conn_manager - Connection [CN7 127.0.0.1:1 <= ipv4:127.0.0.1:2 SSL north] is created") is None
    )
    heard = listener.heard("ClientManager - ERROR - failed to verify client identity: CNMismatch: ")
    assert heard == "refused a login: it is not its certificate's (the last connection was that of north)"


def test_everything_else_is_passed_over():
    assert Listener().heard("2026-11-16 09:20:21,546 - root - INFO - Server started") is None
