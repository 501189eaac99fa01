"""Text of others in logs and on terminals."""

from __future__ import annotations

import io
import logging

import pytest

from tacit.errors import UserError
from tacit.escape import OneLine, escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zürich, 东京", "Zürich, 东京"),
        ("a\nb\r\n", "a\\nb\\r\\n"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("admit\u202etted\u2028next", "admit\\u202etted\\u2028next"),
        ("\ud800", "\\ud800"),
    ],
)
def test_characters_that_do_not_print_are_written_out(text, shown):
    assert escaped(text) == shown


def test_a_text_has_a_largest_length_after_it_was_escaped():
    assert len(escaped("\x1b" * 10_000_000)) == 1000
    assert escaped("x" * 41, 40) == "x" * 39 + "…"
    assert escaped("x" * 40, 40) == "x" * 40


def logged(write) -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    write(logger)
    return stream.getvalue().split("\n")


def test_a_message_is_one_line_of_a_log():
    line, end = logged(lambda log: log.warning("refused %s", "x\n2026-01-01T00:00:00Z admitted run 1\x1b[2J"))
    assert line.endswith("refused x\\n2026-01-01T00:00:00Z admitted run 1\\x1b[2J")
    assert end == ""


def test_lines_of_a_traceback_cannot_be_taken_for_messages():
    def fail(log: logging.Logger) -> None:
        try:
            raise ValueError("x\n2026-01-01T00:00:00Z admitted run 1\x1b[2J")
        except ValueError:
            log.exception("failed")

    first, *others = logged(fail)
    assert first.endswith("failed")
    assert others[-1] == ""
    assert all(line.startswith("    ") for line in others[:-1])
    assert "\x1b" not in "".join(others)


def test_an_error_is_one_line_whatever_it_quotes():
    assert str(UserError("missing", "data.path", "'\x1b[31m' is\nmissing", "name one")) == (
        "data.path: '\\x1b[31m' is missing; name one [missing]"
    )
