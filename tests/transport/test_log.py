"""What a kit's log says about refusals: one line each, whatever others wrote, and not without limit."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tacit.transport.log import LOG, OURS, Refusals, escaped, log_of


@pytest.fixture
def kit(tmp_path):
    (tmp_path / OURS).mkdir()
    return tmp_path


def lines(kit) -> list[str]:
    return (kit / OURS / LOG).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("word", ["a\nb", "\x1b[2J", "a b", "\u202eevil", "\r", "é", b"bytes", ["list"], None])
def test_what_others_wrote_is_one_printable_word(word):
    assert all("!" <= character <= "~" for character in escaped(word))


def test_long_words_are_cut():
    assert len(escaped("x" * 10_000)) < 100
    assert len(escaped("\u2028" * 10_000)) < 1000


def test_one_party_writes_twenty_lines_a_minute_and_the_rest_is_counted(kit):
    now = [0.0]
    refusals = Refusals(log_of(kit), lambda: now[0])
    for _ in range(1000):
        refusals.note("south", "admin sys.shell (topic)")
    refusals.note("west", "admin sys.shell (topic)")
    assert sum("refused south: " in line for line in lines(kit)) == 20
    assert sum("refused west: " in line for line in lines(kit)) == 1
    now[0] = 61.0
    refusals.note("south", "admin sys.shell (topic)")
    assert any("refused 980 more of south" in line for line in lines(kit))
    assert len(lines(kit)) == 24


def test_any_number_of_names_is_counted_in_bounded_memory(kit):
    refusals = Refusals(log_of(kit))
    for number in range(5000):
        refusals.note(f"name{number}", "a connection")
    assert len(lines(kit)) < 1100


FORGED = "x\nClient: New client ghost@192.0.2.7 joined\r\x1b[2J\x1b]0;owned\x07\x0b\u2028E0000 00:00:1 7 ssl_transport"
RECORDED = f"""
import logging, sys, threading, traceback
from tacit.transport.log import escape_records
FORGED = {FORGED!r}
def fail():
    raise ValueError(FORGED)
logging.basicConfig(format="2026 %(message)s", stream=sys.stdout, level=logging.INFO)
if sys.argv[1] == "escapes":
    escape_records()
logging.info("begins: %s", FORGED)
logging.info(FORGED * 100_000)
logging.info("no %d", "number")
try:
    fail()
except ValueError:
    logging.exception("failed")
sys.stderr = sys.stdout
try:
    fail()
except ValueError:
    traceback.print_exc()
thread = threading.Thread(target=fail)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("escapes", ["escapes", "leaves"])
def test_no_text_of_others_is_a_line_of_a_record(escapes):
    ended = subprocess.run([sys.executable, "-c", RECORDED, escapes], capture_output=True, text=True, check=True)
    found = re.split(r"[\n\r\x0b\u2028]", ended.stdout.rstrip("\n"))
    is_safe = all(line.startswith(("2026 ", "    ")) and line.isprintable() for line in found) and len(found) < 500
    assert is_safe == (escapes == "escapes")
    assert "begins: x" in ended.stdout
    assert ended.stdout.count("in fail") >= 3  # tracebacks can be read
