"""What gRPC says, in our words; its lines are those that it has written."""

from __future__ import annotations

import pytest

from tacit.transport.attendant import rejected_connection

TLS = "E0000 00:00:1763371571.234567   27627 ssl_transport_security.cc:2563] Handshake failed with error "
REASON = "SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid", "it shows no certificate"),
        ("CERTIFICATE_VERIFY_FAILED: certificate has expired", "its certificate has expired"),
        ("CERTIFICATE_VERIFY_FAILED: unable to get issuer certificate", "its certificate is of another authority"),
        (
            "CERTIFICATE_VERIFY_FAILED: permitted subtree violation",
            "its certificate is not accepted (permitted subtree violation)",
        ),
    ],
)
def test_a_line_of_grpc_is_put_in_our_words(reason, words):
    assert rejected_connection(TLS + REASON + reason) == f"refused a connection: {words}"


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-16 09:20:21,546 - root - INFO - Server started",
        f"2026-11-16 09:20:21,546 - x - INFO - {TLS}{REASON}PEER_DID_NOT_RETURN_A_CERTIFICATE",
        f"    {TLS}{REASON}PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "Client: New client ghost@192.0.2.7 joined. Sent token.",
    ],
)
def test_everything_else_is_passed_over(line):
    assert rejected_connection(line) is None
