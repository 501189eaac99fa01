"""Which ledger a silo starts with: a budget stays that of its data set, whatever files are called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("nvflare")

from tacit.errors import UserError
from tacit.federation.carrier.processes import prepare_silo
from tacit.federation.kits import FederationOptions, make_kits
from tacit.federation.server_host import HEADS
from tacit.federation.site.ledgers import LEDGERS, known_ledgers, registered
from tacit.federation.site.shard import read_silo_data
from tacit.privacy import Ledger, Nothing
from tacit.privacy.accounting.events import event_from_dict
from tests.federation.test_hosts import ANA, SILOS, World, log_of


class Silo:
    """A silo's kit, and its files."""

    def __init__(self, world: World) -> None:
        self.world, self.kit, self.home = world, world.silos["north"], world.homes["north"]

    def written(self, file: str = "DATA.toml", **changes: str) -> Path:
        """A data file with these lines."""
        (self.home / file).write_text(tomli_w.dumps({"path": "table.csv", "subjects": "patient", **changes}))
        return self.home / file

    def start(self, data: Path, new_budget: bool = False, same_table: bool = False) -> str:
        """The id of the ledger that it starts with."""
        prepare_silo(self.kit.path, data, self.home / "POLICY.toml", new_budget, same_table)
        return registered(self.kit, read_silo_data(data)).id

    def refusal(self, data: Path, new_budget: bool = False, same_table: bool = False) -> UserError:
        with pytest.raises(UserError) as caught:
            self.start(data, new_budget, same_table)
        return caught.value

    def refused(self, data: Path, new_budget: bool = False) -> str:
        return self.refusal(data, new_budget).field

    @property
    def warnings(self) -> list[str]:
        return [line for line in log_of(self.world, "north") if "new budget" in line]


@pytest.fixture(scope="module")
def kits(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("federation") / "kits"
    who = {"silos": SILOS, "requesters": (ANA,), "analyzer": True}
    make_kits(FederationOptions(name="test", server={"host": "localhost"}, **who), out, None)
    return out


@pytest.fixture
def world(kits, tmp_path) -> World:
    shutil.copytree(kits, tmp_path / "kits")
    return World(tmp_path / "kits", tmp_path)


@pytest.fixture
def silo(world) -> Silo:
    return Silo(world)


def release(file: Path, number: int) -> None:
    with Ledger(file) as book:
        facts = {"round": number, "mechanism": "m", "step": number, "events": {"subject/public/zero-out": Nothing()}}
        book.append(run="r", party="north", **facts)


OTHERS = {
    "another name": ("DATA.toml", {"name": "other", "ledger": "other.jsonl"}),
    "another ledger": ("DATA.toml", {"ledger": "other.jsonl"}),
    "another data file": ("OTHER.toml", {}),
    "another table and data file": ("OTHER.toml", {"path": "copy.csv"}),
}


@pytest.mark.parametrize(("file", "changes"), OTHERS.values(), ids=OTHERS.keys())
def test_no_change_of_files_starts_a_new_budget_unless_a_person_asks_for_it(silo, file, changes):
    first = silo.start(silo.written())
    shutil.copy(silo.home / "table.csv", silo.home / "copy.csv")
    before, others = len(silo.warnings), set(silo.home.glob("*.jsonl"))
    other = silo.written(file, **changes)
    assert silo.refused(other) == "ledger"
    is_same = "path" not in changes
    if is_same:
        assert silo.refused(other, new_budget=True) == "--new-budget"
    assert set(silo.home.glob("*.jsonl")) == others
    assert set(known_ledgers(silo.kit)) == {first}
    assert not [line for line in silo.warnings[before:] if "begins" in line]
    second = silo.start(other, new_budget=True, same_table=is_same)
    assert second != first
    assert set(known_ledgers(silo.kit)) == {first, second}
    assert known_ledgers(silo.kit)[second]["counted_in"] == ([first] if is_same else [])
    begun = [line for line in silo.warnings if f"ledger {second} " in line and "begins" in line]
    counted = [line for line in silo.warnings if "was counted in" in line]
    assert (len(begun), len(counted)) == (1, int(is_same))
    assert all(first in line and "table.csv" in line and "0 lines" in line for line in counted)
    assert silo.refused(other, new_budget=True) == "--new-budget"  # it has begun: not again at every start


def test_other_rows_columns_names_and_places_continue_the_ledger_that_is_named(silo):
    first = silo.start(silo.written())
    (silo.home / "table.csv").write_text("patient,weight\n1,2\n")
    assert silo.start(silo.written()) == first
    assert silo.start(silo.written(name="other")) == first
    shutil.copy(silo.home / "table.csv", silo.home / "copy.csv")
    named = silo.written("OTHER.toml", path="copy.csv", ledger="DATA.ledger.jsonl")
    assert silo.start(named) == first
    assert any("copy.csv" in line and first in line for line in log_of(silo.world, "north"))  # another table
    (silo.home / "DATA.ledger.jsonl").rename(silo.home / "moved.jsonl")
    assert silo.start(silo.written(ledger="moved.jsonl")) == first


def test_two_lines_in_the_data_file_of_a_silo_that_runs_do_not_start_a_budget(world):
    assert world.attempt()[0].status == "finished"
    lines = {"path": "table.csv", "subjects": "patient", "name": "other", "ledger": "other.jsonl"}
    (world.homes["north"] / "DATA.toml").write_text(tomli_w.dumps(lines))
    assert world.attempt(run="f" * 32)[0].rules == {"north": ("ledger",)}
    assert not (world.homes["north"] / "other.jsonl").exists()


def test_a_new_budget_is_in_the_logs_of_silo_and_server(world):
    silo = Silo(world)
    world.attempt()
    (first,) = known_ledgers(silo.kit)
    said = (world.server.ours / "log.txt").read_text().count("new budget: north")
    other = silo.written("OTHER.toml", ledger="other.jsonl")
    second = silo.start(other, new_budget=True, same_table=True)
    assert world.attempt(run="f" * 32)[0].status == "finished"
    found = [line for line in (world.server.ours / "log.txt").read_text().splitlines() if "new budget: north" in line]
    assert len(found) == said + 1
    assert second in found[-1]
    (counted,) = [line for line in (world.server.ours / "log.txt").read_text().splitlines() if "was counted in" in line]
    assert all(word in counted for word in (second, first, "north", "3 lines"))
    assert "table.csv" not in counted  # no path travels
    assert first in silo.warnings[-1]
    assert "3 lines" in silo.warnings[-1]


def test_a_table_is_known_by_its_file_however_it_is_named(silo):
    first = silo.start(silo.written())
    (silo.home / "link.csv").symlink_to("table.csv")
    other = silo.written("OTHER.toml", path="link.csv")
    assert silo.refused(other, new_budget=True) == "--new-budget"
    shutil.copy(silo.home / "table.csv", silo.home / "copy.csv")
    assert silo.start(silo.written(path="copy.csv")) == first  # the ledger now counts two tables
    assert silo.refused(other, new_budget=True) == "--new-budget"


def test_the_confirmation_of_a_second_budget_needs_the_option_that_it_confirms(silo):
    assert silo.refusal(silo.written(), same_table=True).field == "--same-table"


def test_a_missing_ledger_is_to_be_restored_and_no_reason_for_a_new_budget(silo):
    data, ledger = silo.written(), silo.home / "DATA.ledger.jsonl"
    silo.start(data)
    release(ledger, 1)
    silo.start(data)
    ledger.unlink()
    for new_budget in (False, True):
        found = silo.refusal(data, new_budget)
        assert found.field == ("--new-budget" if new_budget else "ledger")
        assert found.code == "ledger-mismatch"
        assert all(word in str(found) for word in (str(ledger), "1 lines", "tacit ledger restore"))
        assert "--new-budget" not in found.fix
        assert "--same-table" not in found.fix
        assert not ledger.exists()
    release(ledger, 1)  # another ledger in its place
    found = silo.refusal(data)
    assert (found.field, "tacit ledger restore" in found.fix) == ("ledger", True)


def test_a_ledger_that_is_gone_or_older_than_the_kit_remembers_does_not_start(silo):
    data, ledger = silo.written(), silo.home / "DATA.ledger.jsonl"
    silo.start(data)
    older = ledger.read_bytes()
    release(ledger, 1)
    silo.start(data)
    ledger.write_bytes(older)
    assert silo.refused(data) == "ledger"
    ledger.unlink()
    assert silo.refused(data) == "ledger"
    assert not ledger.exists()


def test_the_kit_remembers_the_ledger_as_a_run_left_it(world):
    world.attempt()
    (entry,) = known_ledgers(world.silos["north"]).values()
    assert entry["lines"] == 3
    assert entry["hash"] == world.lines("north")[-1]["hash"]
    assert (world.silos["north"].ours / LEDGERS).stat().st_mode & 0o777 == 0o600


def test_a_ledger_of_an_earlier_version_gets_an_id_and_the_server_knows_it_still(world):
    world.attempt()
    kit, ledger, lines = world.silos["south"], world.ledger("south"), world.lines("south")
    ledger.unlink()
    (kit.ours / LEDGERS).unlink()
    with Ledger(ledger) as book:  # without an id
        for line in lines:
            names = ("run", "party", "round", "mechanism", "step")
            events = {where: event_from_dict(values) for where, values in line["events"].items()}
            book.append(**{name: line[name] for name in names}, events=events)
        head = book.head
    world.allow("south")
    ((mark, entry),) = known_ledgers(kit).items()
    with Ledger(ledger) as book:
        assert (book.id, len(book.lines), book.head) == (mark, 3, head)
    for run, lines, rules in (("e" * 32, 4, {"south": ("ledger",)}), ("f" * 32, 3, {})):
        (world.server.ours / HEADS).write_text(json.dumps({"south": {entry["before"]: [lines, head]}}))
        assert world.attempt(run=run)[0].rules == rules
