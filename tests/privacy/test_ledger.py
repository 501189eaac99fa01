from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit.privacy import Ledger, LedgerError


def release(ledger: Ledger, number: int) -> None:
    ledger.append(party="server", round=number, mechanism="fedavg", step=number, event={"kind": "unprotected"})


def filled(path: Path, rounds: int = 3) -> Path:
    ledger = Ledger(path)
    for number in range(1, rounds + 1):
        release(ledger, number)
    ledger.close()
    return path


def test_lines_survive_and_the_chain_goes_on_after_reopening(tmp_path):
    path = filled(tmp_path / "ledger.jsonl")
    ledger = Ledger(path)
    release(ledger, 4)
    ledger.close()
    assert [line["round"] for line in Ledger(path).lines] == [1, 2, 3, 4]


@pytest.mark.parametrize("change", ["edit", "remove", "swap", "garbage"])
def test_an_altered_ledger_is_noticed(tmp_path, change):
    path = filled(tmp_path / "ledger.jsonl")
    lines = path.read_text().splitlines()
    if change == "edit":
        lines[1] = lines[1].replace('"round": 2', '"round": 7')
    elif change == "remove":
        del lines[1]
    elif change == "swap":
        lines[0], lines[1] = lines[1], lines[0]
    else:
        lines[1] = "not json"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match="altered"):
        Ledger(path)


def test_a_line_cut_off_by_a_crash_is_dropped_and_the_chain_goes_on(tmp_path):
    path = filled(tmp_path / "ledger.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"party": "ser')
    ledger = Ledger(path)
    assert len(ledger.lines) == 3
    release(ledger, 4)
    ledger.close()
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]
