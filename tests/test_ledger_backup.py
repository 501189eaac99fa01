"""Encrypted backups of ledgers: what comes back, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.errors import UserError
from tacit.federation.carrier.processes import prepare_silo
from tacit.federation.kits import FederationOptions, Kit, make_kits
from tacit.federation.site.ledgers import known_ledgers
from tacit.ledgers.backup import backup, restore
from tacit.ledgers.recheck import check
from tacit.privacy import Gaussian, Ledger
from tacit.privacy.ledger import place
from tacit.transport.attendant import start, stop
from tacit.ui.main import app
from tests.refusals import refuses

WORDS = "correct horse"
POLICY = """
requesters = ["ana@example.org"]
methods = ["uldp-avg"]
exchanges = ["masked"]
unit = "subject"
against = ["public"]
delta = 1e-5
epsilon_per_run = 3.0
epsilon_in_total = 6.0
least_records = 10
"""


def release(file: Path, number: int) -> None:
    with Ledger(file) as book:
        events = {place("subject", "public", "zero-out"): Gaussian(5.0)}
        book.append(run="r", party="north", round=number, mechanism="m", step=number, events=events)


def rounds(file: Path) -> list[int]:
    with Ledger(file) as book:
        return [line["round"] for line in book.lines]


@pytest.fixture
def ledger(tmp_path) -> Path:
    file = tmp_path / "visits.ledger.jsonl"
    with Ledger(file) as book:
        book.identify()
    for number in (1, 2):
        release(file, number)
    release(tmp_path / "visits.ledger.admissions.jsonl", 1)
    return file


def refused(field: str, *arguments: object) -> None:
    with pytest.raises(UserError) as caught:
        restore(*arguments)
    assert caught.value.field == field


def test_a_lost_ledger_comes_back_with_its_admissions(ledger, tmp_path):
    made = backup(ledger, tmp_path / "b", WORDS)
    files = {file: file.read_bytes() for file in (ledger, tmp_path / "visits.ledger.admissions.jsonl")}
    for file in files:
        file.unlink()
    found = restore(tmp_path / "b", ledger, WORDS)
    assert found == made
    assert (found.lines, found.id is None) == (2, False)
    for file, content in files.items():
        assert file.read_bytes() == content
        assert file.stat().st_mode & 0o777 == 0o600
    assert restore(tmp_path / "b", ledger, WORDS) == made  # the same state: nothing is lost
    release(ledger, 3)
    assert rounds(ledger) == [1, 2, 3]


def test_an_older_copy_in_place_is_brought_up_to_the_backup(ledger, tmp_path):
    older = ledger.read_bytes()
    release(ledger, 3)
    backup(ledger, tmp_path / "b", WORDS)
    ledger.write_bytes(older)
    restore(tmp_path / "b", ledger, WORDS)
    assert rounds(ledger) == [1, 2, 3]


@pytest.mark.parametrize("file", ["visits.ledger.jsonl", "visits.ledger.admissions.jsonl"])
def test_a_backup_that_is_older_than_what_is_in_place_is_refused(ledger, tmp_path, file):
    backup(ledger, tmp_path / "b", WORDS)
    release(tmp_path / file, 7)
    before = (tmp_path / file).read_bytes()
    refused("ledger", tmp_path / "b", ledger, WORDS)
    assert (tmp_path / file).read_bytes() == before


def test_a_backup_of_another_ledger_is_refused(ledger, tmp_path):
    other = tmp_path / "other.jsonl"
    with Ledger(other) as book:
        book.identify()
    for number in range(1, 5):
        release(other, number)
    backup(other, tmp_path / "b", WORDS)
    refused("ledger", tmp_path / "b", ledger, WORDS)
    assert rounds(ledger) == [1, 2]


def test_without_the_passphrase_a_backup_shows_and_does_nothing(ledger, tmp_path):
    file = tmp_path / "b"
    backup(ledger, file, WORDS)
    assert b"north" not in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    ledger.unlink()
    refused("--passphrase", file, ledger, "wrong")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    (tmp_path / "damaged").write_bytes(content)
    refused("--passphrase", tmp_path / "damaged", ledger, WORDS)
    (tmp_path / "cut").write_bytes(content[:30])
    refused("--passphrase", tmp_path / "cut", ledger, WORDS)
    (tmp_path / "text").write_text("no backup")
    refused("BACKUP", tmp_path / "text", ledger, WORDS)
    assert not ledger.exists()


def test_a_backup_replaces_no_file(ledger, tmp_path):
    (tmp_path / "b").write_text("precious")
    with refuses("file-access", "OUT"):
        backup(ledger, tmp_path / "b", WORDS)
    assert (tmp_path / "b").read_text() == "precious"


@pytest.fixture
def kit(tmp_path) -> Kit:
    """Of a silo that has started once, with a ledger of two releases."""
    pytest.importorskip("nvflare")
    options = FederationOptions(
        name="test", server={"host": "localhost"}, silos=("north", "south"), requesters=("ana@example.org",)
    )
    made = Kit.load(make_kits(options, tmp_path / "kits", None)["north"], "silo")
    (tmp_path / "POLICY.toml").write_text(POLICY)
    (tmp_path / "table.csv").write_text("patient,age\n1,2\n")
    (tmp_path / "DATA.toml").write_text('path = "table.csv"\nsubjects = "patient"\n')
    started(made, tmp_path)
    for number in (1, 2):
        release(tmp_path / "DATA.ledger.jsonl", number)
    return made


def started(kit: Kit, home: Path) -> None:
    prepare_silo(kit.path, home / "DATA.toml", home / "POLICY.toml")


def test_a_kit_refuses_a_state_older_than_it_remembers_although_the_file_is_gone(kit, tmp_path):
    ledger = tmp_path / "DATA.ledger.jsonl"
    backup(kit.path, tmp_path / "old", WORDS)
    release(ledger, 3)
    backup(kit.path, tmp_path / "new", WORDS)
    started(kit, tmp_path)  # it remembers three
    ledger.unlink()
    refused("ledger", tmp_path / "old", kit.path, WORDS)
    assert not ledger.exists()
    assert restore(tmp_path / "new", kit.path, WORDS).lines == 3
    started(kit, tmp_path)
    assert list(known_ledgers(kit)) == [restore(tmp_path / "new", kit.path, WORDS).id]


def test_the_ledger_of_a_kit_is_checked_by_what_its_policy_protects(kit, tmp_path):
    started(kit, tmp_path)
    (found,), (total,) = check([kit.path])
    assert total.limit == 6.0
    assert total.left == pytest.approx(6.0 - total.epsilon["public"].recorded)
    assert Path(found.ledger) == tmp_path / "DATA.ledger.jsonl"
    assert (found.place, set(found.epsilon)) == ("subject/zero-out", {"public"})


def test_a_backup_of_a_kit_names_the_ledgers_that_are_not_in_it(kit, tmp_path):
    assert backup(kit.path, tmp_path / "first", WORDS).others == ()
    (tmp_path / "other.csv").write_text("patient,age\n1,2\n")
    (tmp_path / "OTHER.toml").write_text('path = "other.csv"\nsubjects = "patient"\n')
    prepare_silo(kit.path, tmp_path / "OTHER.toml", tmp_path / "POLICY.toml", new_budget=True)
    assert backup(kit.path, tmp_path / "second", WORDS).others == (str(tmp_path / "DATA.ledger.jsonl"),)


def test_a_kit_refuses_a_ledger_that_it_does_not_know(kit, ledger, tmp_path):
    backup(ledger, tmp_path / "b", WORDS)
    (tmp_path / "DATA.ledger.jsonl").unlink()
    refused("ledger", tmp_path / "b", kit.path, WORDS)
    assert not (tmp_path / "DATA.ledger.jsonl").exists()


def test_nothing_is_restored_while_the_silo_runs(kit, tmp_path):
    backup(kit.path, tmp_path / "b", WORDS)
    process = start(kit.path)
    try:
        refused("KIT", tmp_path / "b", kit.path, WORDS)
    finally:
        stop(process)


def test_the_commands_say_which_ledger_it_is(ledger, tmp_path):
    def called(*words: object) -> dict:
        arguments = ["ledger", *map(str, words), "--json"]
        done = CliRunner().invoke(app, arguments, env={"TACIT_PASSPHRASE": WORDS}, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    made = called("backup", ledger, tmp_path / "b")
    assert made["lines"] == 2
    shutil.move(ledger, tmp_path / "away")
    assert called("restore", tmp_path / "b", ledger) == made
    assert rounds(ledger) == [1, 2]
