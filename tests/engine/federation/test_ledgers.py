"""Which ledger a silo starts with: a budget stays that of its data set, whatever files are called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("nvflare")

from tacit.engine.federation.kits import FederationOptions, make_kits
from tacit.engine.federation.ledgers import LEDGERS, known_ledgers, registered
from tacit.engine.federation.processes import prepare_silo
from tacit.engine.federation.server_host import HEADS
from tacit.engine.federation.shard import read_silo_data
from tacit.errors import UserError
from tacit.privacy import Ledger, Nothing
from tacit.privacy.events import event_from_dict
from tests.engine.federation.test_hosts import ANA, SILOS, World, log_of


class Silo:
    """A silo's kit, and its files."""

    def __init__(self, world: World) -> None:
        self.world, self.kit, self.home = world, world.silos["north"], world.homes["north"]

    def written(self, file: str = "DATA.toml", **changes: str) -> Path:
        """A data file with these lines."""
        (self.home / file).write_text(tomli_w.dumps({"path": "table.csv", "subjects": "patient", **changes}))
        return self.home / file

    def start(self, data: Path, new_budget: bool = False) -> str:
        """The id of the ledger that it starts with."""
        prepare_silo(self.kit.path, data, self.home / "POLICY.toml", new_budget)
        return registered(self.kit, read_silo_data(data))[0]

    def refused(self, data: Path, new_budget: bool = False) -> str:
        with pytest.raises(UserError) as caught:
            self.start(data, new_budget)
        return caught.value.field

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
    assert silo.refused(other) == "DATA.toml"
    assert set(silo.home.glob("*.jsonl")) == others
    assert len(silo.warnings) == before
    second = silo.start(other, new_budget=True)
    assert second != first
    assert set(known_ledgers(silo.kit)) == {first, second}
    assert len(silo.warnings) == before + 1
    assert second in silo.warnings[-1]
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
    said = (world.server.ours / "log.txt").read_text().count("new budget: north")
    other = silo.written("OTHER.toml", ledger="other.jsonl")
    second = silo.start(other, new_budget=True)
    assert world.attempt(run="f" * 32)[0].status == "finished"
    found = [line for line in (world.server.ours / "log.txt").read_text().splitlines() if "new budget: north" in line]
    assert len(found) == said + 1
    assert second in found[-1]
    assert second in silo.warnings[-1]


def test_a_ledger_that_is_gone_or_older_than_the_kit_remembers_does_not_start(silo):
    data, ledger = silo.written(), silo.home / "DATA.ledger.jsonl"
    silo.start(data)
    older = ledger.read_bytes()
    release(ledger, 1)
    silo.start(data)
    ledger.write_bytes(older)
    assert silo.refused(data) == "ledger"
    ledger.unlink()
    assert silo.refused(data) == "DATA.toml"
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
