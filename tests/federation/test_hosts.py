"""Server and silos as their processes run them, with bytes carried by hand: what leaves, what is written, what is
refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
from safetensors import safe_open
from safetensors.numpy import load_file

from tacit.crypto import Secret
from tacit.engine import Run
from tacit.engine.folder import CHECKPOINT, LEDGER, read_metrics
from tacit.engine.learner import packed
from tacit.exchange.post import join
from tacit.federation.carrier.envelope import CALL, EVALUATE, MESSAGE, Call, Reply, calls
from tacit.federation.carrier.processes import prepare_silo
from tacit.federation.kits import FederationOptions, Kit, make_kits
from tacit.federation.protocol.sides import CoordinatorSide
from tacit.federation.request import Sealed, received
from tacit.federation.server_host import CoordinatorHost, Ended
from tacit.federation.site.host import AnalyzerHost, SiloHost
from tacit.federation.site.shard import load_shard, read_silo_data
from tacit.privacy import Ledger
from tests.federation.worlds import travelled

pytest.importorskip("nvflare")

ANA = "ana@example.org"
SILOS = ("north", "south", "west")
RUN = "0123456789abcdef" * 2
PLANTED = 123.456789  # a value of one record
EXPERIMENT = """
[data]
label = "ill"
subjects = { column = "patient", count = 400 }
silos = { count = 3 }
numeric = { age = { mean = 50, scale = 20 }, pressure = { mean = 120, scale = 30 } }

[model]
name = "logistic"

[method]
name = "uldp-avg"
noise_multiplier = 8.0

[train]
rounds = 3

[exchange]
name = "masked"
"""
DATA = """
path = "table.csv"
subjects = "patient"
hold_out = { fraction = 0.2 }
"""
POLICY = {
    "requesters": [ANA],
    "methods": ["uldp-avg"],
    "exchanges": ["masked"],
    "unit": "subject",
    "against": ["public", "server"],
    "delta": 1e-5,
    "epsilon_per_run": 3.0,
    "epsilon_in_total": 6.0,
    "least_records": 10,
    "metrics": True,
}


@pytest.fixture(scope="module")
def kits(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("federation") / "kits"
    options = FederationOptions(
        name="test", server={"host": "localhost"}, silos=SILOS, requesters=(ANA,), analyzer=True
    )
    make_kits(options, out, None)
    for name in SILOS:  # the same people are held out in every run of these tests
        (out / "silos" / name / "tacit" / "pseudonyms.key").write_bytes(bytes(range(32)))
    return out


class World:
    """A federation without a network. ``tamper(what, silo, answer)`` is the network."""

    def __init__(self, kits: Path, folder: Path) -> None:
        self.server = Kit.load(kits / "server", "server")
        self.silos = {name: Kit.load(kits / "silos" / name, "silo") for name in SILOS}
        self.analyzer = Kit.load(kits / "analyzer", "analyzer")
        self.homes = {name: folder / name for name in SILOS}
        self.sent: list[bytes] = []
        rng = np.random.default_rng(1)
        for k, (name, home) in enumerate(self.homes.items()):
            home.mkdir()
            who = np.repeat(np.arange(40 * k, 40 * k + 60), 2)
            age = rng.uniform(0, 100, len(who))
            table = {"patient": who, "age": age, "pressure": rng.normal(120, 20, len(who)), "ill": (age > 50) * 1}
            frame = pd.DataFrame(table)
            frame.loc[5, "pressure"] = PLANTED
            frame.to_csv(home / "table.csv", index=False)
            (home / "DATA.toml").write_text(DATA)
            (home / "DATA.hold_out.key").write_bytes(bytes(range(32)))  # the same people in every test
            self.allow(name)

    def allow(self, name: str, **changes) -> None:
        (self.homes[name] / "POLICY.toml").write_text(tomli_w.dumps({**POLICY, **changes}))
        prepare_silo(self.silos[name].path, self.homes[name] / "DATA.toml", self.homes[name] / "POLICY.toml")

    def ledger(self, name: str) -> Path:
        return self.homes[name] / "DATA.ledger.jsonl"

    def lines(self, name: str) -> list[dict]:
        with Ledger(self.ledger(name)) as book:
            return book.lines

    def attempt(
        self,
        number: int = 1,
        *,
        run: str = RUN,
        text: str = EXPERIMENT,
        requester: str = ANA,
        tamper: Callable[[str, str, bytes], bytes | None] = lambda what, silo, answer: answer,
    ) -> tuple[Ended, CoordinatorHost]:
        hosts: dict[str, SiloHost | AnalyzerHost] = {name: SiloHost(kit) for name, kit in self.silos.items()}
        hosts["analyzer"] = AnalyzerHost(self.analyzer)

        def send(what: str, messages: Mapping[str, bytes]) -> dict[str, bytes | None]:
            answers: dict[str, bytes | None] = {}
            for silo, message in messages.items():
                host = hosts[silo]
                if what == CALL:
                    answer = host.call(lambda: Sealed(travelled(text), run, number, requester), message)
                else:
                    answer = {MESSAGE: host.message, EVALUATE: host.evaluate}[what](message)
                self.sent += [message, answer]
                answers[silo] = tamper(what, silo, answer)
            return answers

        host = CoordinatorHost(self.server, Sealed(travelled(text), run, number, requester).opened(), send)
        try:
            return host.run(), host
        finally:
            for silo in hosts.values():
                silo.close()


@pytest.fixture
def world(kits, tmp_path) -> World:
    copy = tmp_path / "kits"
    shutil.copytree(kits, copy)
    return World(copy, tmp_path)


def is_between_silos(result: dict) -> bool:
    """Whether the accuracy is a mean of those of the silos. The noise has no seed, so that any accuracy may come."""
    silos = [silo["accuracy"] for silo in result["silos"].values()]
    return bool(min(silos) - 1e-9 <= result["metrics"]["accuracy"] <= max(silos) + 1e-9)


def test_a_run_ends_with_a_folder_like_any_other_and_every_side_has_written_every_round(world):
    ended, host = world.attempt()
    assert ended == Ended("finished")
    run = Run.load(host.folder)
    assert run.result["rounds"] == 3
    assert set(run.result["silos"]) == set(SILOS)
    assert is_between_silos(run.result)
    assert {line["view"]: line["epsilon"] for line in run.guarantees()}["server"] < 3.0
    assert len(run.predict(pd.DataFrame({"age": [20.0, 80.0], "pressure": [120.0, 120.0]}))) == 2
    with Ledger(host.folder / LEDGER) as book:
        assert [(line["run"], line["round"]) for line in book.lines] == [(RUN, 1), (RUN, 2), (RUN, 3)]
    for name in SILOS:
        assert {line["run"] for line in world.lines(name)} == {RUN}  # one number everywhere
        assert [(line["party"], line["round"]) for line in world.lines(name)] == [(name, 1), (name, 2), (name, 3)]


def test_nothing_of_a_record_leaves_a_silo_in_the_clear(world):
    world.attempt()
    everything = b"".join(world.sent)
    standardized = np.float32((PLANTED - 120) / 30)
    for form in (
        str(PLANTED).encode(),
        np.float32(PLANTED).tobytes(),
        np.float64(PLANTED).tobytes(),
        standardized.tobytes(),
    ):
        assert form not in everything
    assert b"patient" not in everything
    assert b"table.csv" not in everything


def test_a_silo_that_forbids_the_run_is_named_with_its_rule_and_nothing_is_released(world):
    world.allow("south", methods=["uldp-sgd"])
    ended, host = world.attempt()
    assert ended.status == "refused"
    assert ended.rules == {"south": ("methods",)}
    assert not (host.folder / LEDGER).exists()
    assert all(not world.lines(name) for name in SILOS)
    assert "methods" in (world.silos["south"].ours / "log.txt").read_text()


def test_the_servers_log_tells_refusals_from_silence_and_from_metrics_that_stay(world):
    def said() -> list[str]:
        return [line.split("Z ", 1)[1] for line in (world.server.ours / "log.txt").read_text().splitlines()]

    world.allow("south", most_rounds=1)
    world.attempt()
    assert "refused south: a call (most_rounds)" in said()
    assert said()[-1] == f"ended   {RUN}: refused by south (most_rounds)"
    for name in SILOS:
        world.allow(name, metrics=False)
    world.attempt(run="f" * 32)
    assert said()[-1] == f"ended   {'f' * 32}: finished"
    kept = [line for line in said() if "metrics" in line]
    assert len(kept) == len(SILOS)
    assert all(line.startswith("without metrics of ") for line in kept)
    world.attempt(run="e" * 32, tamper=lambda what, silo, answer: None if silo == "west" else answer)
    assert "silent  west: no answer to a call in time" in said()


def test_what_goes_wrong_in_a_silo_stays_in_its_log(world):
    (world.homes["west"] / "table.csv").write_text("patient,age,secret-column\n1,2,3\n")
    ended, _ = world.attempt()
    assert ended.rules == {"west": ("data",)}
    assert b"secret-column" not in b"".join(world.sent)
    assert "the table has no column 'pressure'" in (world.silos["west"].ours / "log.txt").read_text()


@pytest.mark.parametrize("fit", [0, 1, 100])
def test_no_refusal_tells_how_many_rows_are_as_declared(world, fit):
    """With a column that is declared oddly, a requester would find out who has which value."""
    file = world.homes["west"] / "table.csv"
    table = pd.read_csv(file).astype({"pressure": object})
    table.loc[fit:, "pressure"] = "not-a-number"
    table.to_csv(file, index=False)
    ended, host = world.attempt()
    assert ended == Ended("finished")
    assert [line["round"] for line in world.lines("west")] == [1, 2, 3]
    assert b"not-a-number" not in b"".join(world.sent)
    words = f"left out {len(table) - fit} of {len(table)} rows: pressure is missing in them, or not as the experiment"
    assert any(words in line for line in log_of(world, "west"))
    assert all(np.isfinite(values).all() for values in load_file(host.folder / "model.safetensors").values())


def test_an_unexpected_failure_says_nothing_but_that(world, monkeypatch):
    from tacit.federation.site import host

    def broken(*_):
        raise RuntimeError("the value 42 of patient 7")

    monkeypatch.setattr(host, "load_shard", broken)
    ended, _ = world.attempt()
    assert ended.status == "failed"
    assert b"patient 7" not in b"".join(world.sent)


def test_only_a_model_that_the_server_has_signed_for_this_round_is_evaluated(world, monkeypatch):
    """Otherwise any party could ask a silo for metrics of models of its choice."""
    signed, asked = CoordinatorSide.unpaid, []

    def repeated(side):
        asked.append(signed(side))
        return asked[0]

    monkeypatch.setattr(CoordinatorSide, "unpaid", repeated)
    _, host = world.attempt()
    found = [bool(line["metrics"]) for line in read_metrics(host.folder / "metrics.jsonl")]
    assert found == [True, False, False, False]
    monkeypatch.setattr(CoordinatorSide, "unpaid", lambda side: packed(side.model()))
    _, host = world.attempt(run="f" * 32)
    assert Run.load(host.folder).metrics == {}
    assert any("refused an evaluation of the server" in line for line in log_of(world, "north"))


def test_metrics_stay_where_the_policy_says_so(world):
    for name in SILOS:
        world.allow(name, metrics=False)
    ended, host = world.attempt()
    assert ended.status == "finished"
    assert Run.load(host.folder).metrics == {}


def test_a_silo_that_falls_silent_ends_the_attempt_and_the_next_goes_on_at_the_checkpoint(world):
    heard = []

    def cut(what, silo, answer):
        heard.append(what)
        return None if silo == "west" and what == MESSAGE and len(heard) > 60 else answer

    ended, host = world.attempt(tamper=cut)
    assert ended.status == "failed"
    assert "west" in ended.reason
    done = host.progress["done"]
    assert (host.folder / CHECKPOINT).is_file() == (done > 0)
    ended, host = world.attempt(2)
    assert ended.status == "finished"
    with Ledger(host.folder / LEDGER) as book:
        rounds = [line["round"] for line in book.lines]
    assert sorted(set(rounds)) == [1, 2, 3]
    assert len(rounds) <= 4
    for name in SILOS:  # nobody has released what is not written down
        assert {line["round"] for line in world.lines(name)} >= {1, 2, 3}


class Killed(Exception):
    """The server is no more."""


@pytest.mark.parametrize("without", [(), ("clock.json",), ("clock.json", "model.safetensors", "metrics.jsonl")])
@pytest.mark.parametrize("number", [1, 3])
def test_a_server_that_is_killed_after_a_checkpoint_makes_up_for_what_it_has_not_written(world, number, without):
    """The first round, after which nothing else was there before, and the last, after which no other comes."""
    whole, host = world.attempt(run="f" * 32)
    assert whole.status == "finished"
    evaluations = []

    def kill(what, silo, answer):
        if what == EVALUATE and silo == "north":
            evaluations.append(what)
            if len(evaluations) == number + 1:  # that of the model before the first round is one, too
                raise Killed
        return answer

    with pytest.raises(Killed):
        world.attempt(tamper=kill)
    folder = world.server.ours / "runs" / RUN
    for name in without:
        (folder / name).unlink()
    ended, host = world.attempt(2)
    assert ended.status == "finished"
    run = Run.load(host.folder)
    assert run.result["rounds"] == 3
    assert is_between_silos(run.result)
    assert [line["round"] for line in read_metrics(host.folder / "metrics.jsonl")][-1] == 3
    with safe_open(host.folder / "model.safetensors", "np") as model:
        assert json.loads(model.metadata()["facts"])["round"] == "3"
    with Ledger(host.folder / LEDGER) as book:  # every round was complete when the server was killed
        assert [line["round"] for line in book.lines] == [1, 2, 3]


def test_an_attempt_that_wakes_up_after_a_later_one_has_begun_leaves_the_run_to_it(world):
    later = []

    def overtake(what, silo, answer):
        if what == EVALUATE and silo == "west" and not later:
            later.append(None)
            later.append(world.attempt(2)[0])
        return answer

    ended, _ = world.attempt(tamper=overtake)
    assert later[1] == Ended("finished")
    assert ended.status == "failed"
    assert "a later attempt" in ended.reason
    assert json.loads((world.server.ours / "runs" / RUN / "outcome.json").read_text())["status"] == "finished"
    for name in SILOS:
        assert [line["round"] for line in world.lines(name)] == [1, 2, 3]


def test_a_run_that_is_finished_is_not_begun_again(world):
    world.attempt()
    before = {name: world.lines(name) for name in SILOS}
    ended, _ = world.attempt(2)
    assert ended.status == "finished"
    assert {name: world.lines(name) for name in SILOS} == before


def test_the_same_attempt_is_not_taken_twice(world):
    _, host = world.attempt()
    shutil.rmtree(host.folder)  # a server that pretends to know nothing of it
    ended, _ = world.attempt()
    assert set(ended.rules.values()) == {("replayed",)}
    for name in SILOS:
        assert f"refused a call to run {RUN} (attempt 1) of {ANA}: replayed: attempt 1" in log_of(world, name)[-1]


def test_a_run_is_neither_gone_on_with_nor_shown_to_somebody_else(world, tmp_path):
    for name in SILOS:
        world.allow(name, requesters=[ANA, "eve@example.org"])
    world.attempt()
    ended, host = world.attempt(2, requester="eve@example.org")
    assert ended.status == "failed"
    assert "another request" in ended.reason
    (tmp_path / "shared").mkdir()
    host.share(tmp_path / "shared")
    assert [file.name for file in (tmp_path / "shared").iterdir()] == ["outcome.json"]


def test_a_silo_with_an_older_ledger_is_refused(world):
    world.attempt()
    ledger = world.ledger("north")
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:2]))  # its id, and a release
    ended, _ = world.attempt(run="f" * 32)
    assert ended.rules == {"north": ("ledger",)}
    assert any("ledger: it has 1 lines, and the server has seen line 3" in line for line in log_of(world, "north"))
    again, _ = world.attempt(
        run="e" * 32
    )  # by refusing, it has told how far it is: the server remembers the most it saw
    assert again.rules == {"north": ("ledger",)}


def test_runs_beyond_the_total_are_refused(world):
    for name in SILOS:
        world.allow(name, epsilon_in_total=1.0)
    assert world.attempt()[0].status == "finished"
    assert set(world.attempt(run="f" * 32)[0].rules.values()) == {("epsilon_in_total",)}
    for name in SILOS:
        assert f"refused a call to run {'f' * 32} (attempt 1) of {ANA}: epsilon_in_total" in log_of(world, name)[-1]


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"x" * 100,
        Reply(b"no message").to_bytes(),
        Reply(b"\x00" * 5_000_000).to_bytes(),
        join([b"[" * 200_000, b""]),  # too deep to be read
    ],
)
def test_an_answer_that_is_none_is_refused_and_named(world, garbage):
    def spoil(what, silo, answer):
        return garbage if silo == "west" and what == MESSAGE else answer

    ended, _ = world.attempt(tamper=spoil)
    assert ended.status == "failed"
    assert "west" in ended.reason
    log = (world.server.ours / "log.txt").read_text()
    assert "refused west: a reply" in log or "without west in round 0, hello: west: a message" in log


def test_a_message_that_is_too_long_is_refused_by_the_silo(world):
    host = SiloHost(world.silos["north"])
    assert called(world, host).rules == ()
    reply = Reply.from_bytes(host.message(b"x" * 50_000_000), "north")
    assert (reply.content, reply.rules) == (None, ("message",))
    (line,) = [line for line in log_of(world, "north") if "refused" in line]
    assert f"of the server to run {RUN} (attempt 1) of {ANA}: server: a message of 50000000 bytes" in line
    host.close()


def called(world: World, host: SiloHost | AnalyzerHost, by: str = "server", attempt: int = 1) -> Reply:
    """What a party replies to the call of another: to the first attempt, though it may be signed for another one."""
    asked, kit = Sealed(travelled(EXPERIMENT), RUN, 1, ANA), {"server": world.server, **world.silos}[by]
    signed = calls(kit, "server", replace(asked, attempt=attempt)).write(host.kit.name, CALL, Call().to_bytes())
    return Reply.from_bytes(host.call(lambda: asked, signed), "north")


@pytest.mark.parametrize(("by", "attempt"), [("west", 1), ("server", 2)])
def test_nobody_else_calls_a_silo_and_it_still_hears_the_server(world, by, attempt):
    """A call that came first would keep the server's own from being heard, and hide what it has seen of ledgers."""
    host = SiloHost(world.silos["north"])
    assert called(world, host, by, attempt).rules == ("message",)
    assert any("refused a call of the server" in line for line in log_of(world, "north"))
    assert called(world, host).rules == ()
    assert called(world, host).rules == ("request",)
    host.close()


def test_a_requester_who_is_not_listed_does_not_learn_what_is_left(world):
    world.allow("north", budget_shown=True)
    _, host = world.attempt(requester="eve@example.org")
    assert host.progress["left"] == {}
    _, host = world.attempt(run="f" * 32)
    assert host.progress["left"] == {"north": 6.0}


def test_a_run_goes_on_after_a_silo_was_stopped_in_the_midst_of_it(world, monkeypatch):
    """Whoever stops a silo refuses nothing: the run is asked for again when the silo is back."""
    answer, heard = SiloHost.message, []

    def stopped(host: SiloHost, data: bytes) -> bytes:
        heard.append(host.kit.name)
        if host.kit.name == "south" and heard.count("south") == 10:
            host.close()
        return answer(host, data)

    monkeypatch.setattr(SiloHost, "message", stopped)
    ended, _ = world.attempt()
    assert (ended.status, ended.rules) == ("failed", {})
    assert "south" in ended.reason
    monkeypatch.undo()
    assert world.attempt(2)[0].status == "finished"


def test_a_message_before_a_call_is_refused(world):
    host = SiloHost(world.silos["north"])
    assert Reply.from_bytes(host.message(b"hello"), "north").rules == ("request",)
    assert Reply.from_bytes(host.evaluate(b"hello"), "north").rules == ("request",)


def test_a_server_that_puts_other_keys_into_the_roster_is_not_understood(world):
    roster = world.server.ours / "roster.json"
    keys = json.loads(roster.read_text())
    keys["north"], keys["south"] = keys["south"], keys["north"]
    roster.write_text(json.dumps(keys))
    ended, _ = world.attempt()
    assert ended.status == "failed"
    assert all(not world.lines(name) for name in SILOS)


def test_metrics_of_fewer_held_out_rows_than_the_policy_wants_stay(world):
    """Counted are rows of the table, whether they fit the experiment or not: otherwise a requester who declares
    columns oddly could count by refusals."""
    data = world.homes["north"] / "DATA.toml"
    rows = load_shard(received(travelled(EXPERIMENT)), "north", read_silo_data(data), Secret.random()).held_out
    assert 10 < rows < 50  # a fifth of 120 records, more or less
    few = EXPERIMENT.replace("numeric = {", 'categorical = { sex = ["other"] }\nnumeric = {')
    for k, home in enumerate(world.homes.values()):
        frame = pd.read_csv(home / "table.csv").assign(sex="other")
        frame.loc[frame.index > 30 * (k == 0), "sex"] = "none" if k == 0 else "other"
        frame.to_csv(home / "table.csv", index=False)
    for run, least, answers in (("a" * 32, rows, True), ("b" * 32, rows + 1, False)):
        world.allow("north", least_records=least)
        told = []

        def listen(what, silo, answer, told=told):
            if what == EVALUATE and silo == "north":
                told.append(Reply.from_bytes(answer, "north"))
            return answer

        assert world.attempt(run=run, text=few, tamper=listen)[0].status == "finished"
        assert [reply.rules for reply in told] == ([()] * 4 if answers else [("metrics",)])
        assert all(json.loads(reply.content)["records"] == rows for reply in told if reply.content is not None)


def test_metrics_without_noise_stay_where_the_silo_has_no_hold_out_of_its_own(world):
    (world.homes["north"] / "DATA.toml").write_text('path = "table.csv"\nsubjects = "patient"\n')
    ended, host = world.attempt()
    assert ended.status == "finished"
    assert set(Run.load(host.folder).result["silos"]) == {"south", "west"}


@pytest.mark.parametrize(
    "told",
    [
        {"records": 20, "metrics": {"accuracy": float("nan")}},
        {"records": 20, "metrics": {"accuracy": 0.5, "visit our page": 1.0}},
        {"records": -1, "metrics": {"accuracy": 0.5}},
        {"records": 10**400, "metrics": {"accuracy": 0.5}},
        {"records": 20, "metrics": [0.5]},
        "[" * 200_000,
    ],
)
def test_metrics_that_are_none_are_refused_and_their_silo_is_named(world, told):
    def spoil(what, silo, answer):
        text = told if isinstance(told, str) else json.dumps(told)
        return Reply(text.encode()).to_bytes() if silo == "west" and what == EVALUATE else answer

    ended, host = world.attempt(tamper=spoil)
    assert ended.status == "finished"
    result = Run.load(host.folder).result
    assert set(result["silos"]) == {"north", "south"}
    assert is_between_silos(result)
    assert "refused west: malformed metrics" in (world.server.ours / "log.txt").read_text()


@pytest.mark.parametrize(("file", "rule"), [("POLICY.toml", "policy"), ("DATA.toml", "data")])
def test_a_file_that_was_spoilt_after_the_start_forbids_the_run_and_is_named(world, file, rule):
    """It would not be another one at the next attempt."""
    (world.homes["west"] / file).write_text("nonsense = 1\n")
    ended, _ = world.attempt()
    assert (ended.status, ended.rules) == ("refused", {"west": (rule,)})
    assert f"refused a call to run {RUN} (attempt 1) of {ANA}: {rule}: " in log_of(world, "west")[-1]
    assert b"nonsense" not in b"".join(world.sent)


# -- metrics that are paid for


def test_metrics_that_are_paid_for_have_a_line_in_every_ledger_and_leave_though_others_must_not(world):
    for name in SILOS:
        world.allow(name, metrics=False)
    ended, host = world.attempt(text=f'{EXPERIMENT}\n[evaluation]\nstatus = "paid"\nnoise_multiplier = 20.0\n')
    assert ended == Ended("finished")
    run = Run.load(host.folder)
    assert set(run.metrics) == {"accuracy", "log_loss"}
    assert set(run.result["evaluation"]["standard_errors"]) == set(run.metrics)
    rounds = [(number, "uldp-avg") for number in (1, 2, 3)]
    with Ledger(host.folder / LEDGER) as book:
        assert [(line["round"], line["mechanism"]) for line in book.lines] == [*rounds, (3, "evaluation")]
    for name in SILOS:
        assert [(line["round"], line["mechanism"]) for line in world.lines(name)] == [*rounds, (3, "evaluation")]
        assert not any("evaluation of" in line or "an evaluation" in line for line in log_of(world, name))


def test_where_metrics_are_paid_for_a_server_does_not_get_exact_ones_besides(world, monkeypatch):
    """Whatever the policy says about metrics that nobody pays for: the same people are paid for."""
    after_round, got = CoordinatorHost.after_round, []

    def curious(host: CoordinatorHost, number: int, participants: int) -> None:
        after_round(host, number, participants)
        got.append(host._carried(EVALUATE, dict.fromkeys(SILOS, host._side.unpaid())))
        got.append(host._rules)
        host._rules = {}

    monkeypatch.setattr(CoordinatorHost, "after_round", curious)
    ended, _ = world.attempt(text=f'{EXPERIMENT}\n[evaluation]\nstatus = "paid"\nnoise_multiplier = 20.0\n')
    assert ended.status == "finished"
    assert got == [dict.fromkeys(SILOS), dict.fromkeys(SILOS, ("metrics",))] * 3


def test_metrics_are_paid_for_once_though_the_server_is_killed_before_its_result(world, monkeypatch):
    text = f'{EXPERIMENT}\n[evaluation]\nstatus = "paid"\nnoise_multiplier = 20.0\n'

    def kill(host: CoordinatorHost, status: str) -> None:
        raise Killed

    monkeypatch.setattr(CoordinatorHost, "_write_result", kill)
    with pytest.raises(Killed):
        world.attempt(text=text)
    paid = read_metrics(world.server.ours / "runs" / RUN / "metrics.jsonl")[-1]["metrics"]
    monkeypatch.undo()
    ended, host = world.attempt(2, text=text)
    assert ended == Ended("finished")
    assert not (host.folder / CHECKPOINT).exists()  # a run that has finished is never gone on with
    assert Run.load(host.folder).metrics == paid
    with Ledger(host.folder / LEDGER) as book:
        assert [line["mechanism"] for line in book.lines].count("evaluation") == 1
    assert all([line["mechanism"] for line in world.lines(name)].count("evaluation") == 1 for name in SILOS)


# -- constants that are paid for

STANDARDIZED = EXPERIMENT.replace(
    "numeric = { age = { mean = 50, scale = 20 }, pressure = { mean = 120, scale = 30 } }",
    'numeric = { age = { low = 0, high = 100 }, pressure = { low = 60, high = 200 } }\nstandardize = "paid"',
)


def test_constants_that_are_paid_for_have_a_line_in_every_ledger_before_the_first_round(world):
    ended, host = world.attempt(text=STANDARDIZED)
    assert ended == Ended("finished")
    lines = [(0, "statistics"), *((number, "uldp-avg") for number in (1, 2, 3))]
    with Ledger(host.folder / LEDGER) as book:
        assert [(line["round"], line["mechanism"]) for line in book.lines] == lines
    for name in SILOS:
        assert [(line["round"], line["mechanism"]) for line in world.lines(name)] == lines
    run = Run.load(host.folder)
    age = json.loads((host.folder / "encoder.json").read_text())["numeric"]["age"]
    assert 0 <= age["mean"] <= 100  # among few people there is much noise
    assert age["mean"] != 50  # the middle of the bounds, which nobody has to pay for
    assert len(run.predict(pd.DataFrame({"age": [20.0, 80.0], "pressure": [120.0, 120.0]}))) == 2
    everything = b"".join(world.sent)
    assert np.float64(PLANTED).tobytes() not in everything


@pytest.mark.parametrize("after", [3, 14])
def test_constants_are_paid_for_once_though_the_server_is_killed(world, after):
    """Where they had been released, they are taken; where they had not, everybody writes another line at most."""
    messages = []

    def kill(what, silo, answer):
        messages.append(what)
        if what == MESSAGE and messages.count(MESSAGE) == 3 * after:
            raise Killed
        return answer

    with pytest.raises(Killed):
        world.attempt(text=STANDARDIZED, tamper=kill)
    file = world.server.ours / "runs" / RUN / "encoder.json"
    released = file.read_text() if file.is_file() else None
    assert (released is None) == (after == 3)
    ended, host = world.attempt(2, text=STANDARDIZED)
    assert ended == Ended("finished")
    if released is not None:
        assert file.read_text() == released
    with Ledger(host.folder / LEDGER) as book:
        paid = [line["mechanism"] for line in book.lines].count("statistics")
    assert paid == (2 if released is None else 1)
    for name in SILOS:
        assert 1 <= [line["mechanism"] for line in world.lines(name)].count("statistics") <= paid


# -- the analyzer

SHUFFLED = EXPERIMENT.replace(
    'name = "uldp-avg"\nnoise_multiplier = 8.0',
    'name = "ss-simple"\nlocal_epsilon = 30.0\nvalue_range = 0.5\nbatch_subjects = 60',
).replace('name = "masked"', 'name = "shuffled"\n\n[privacy]\nmax_silos_per_subject = 1')
REPORTED = {
    "methods": ["ss-simple"],
    "exchanges": ["shuffled"],
    "against": ["public", "analyzer"],
    "silos_per_subject": 1,
    "epsilon_per_run": 50.0,
    "epsilon_in_total": 60.0,
}


def test_reports_go_through_the_server_to_an_analyzer_of_its_own(world):
    for name in SILOS:
        world.allow(name, **REPORTED)
    ended, host = world.attempt(text=SHUFFLED)
    assert ended == Ended("finished")
    for name in SILOS:
        assert [line["round"] for line in world.lines(name)] == [1, 2, 3]
    assert Run.load(host.folder).result["rounds"] == 3
    log = (world.analyzer.ours / "log.txt").read_text()
    assert f"asked   to run {RUN} (attempt 1) of {ANA}" in log
    assert "ended" in log


def test_without_the_analyzer_nothing_begins(world):
    for name in SILOS:
        world.allow(name, **REPORTED)
    ended, _ = world.attempt(text=SHUFFLED, tamper=lambda what, who, answer: None if who == "analyzer" else answer)
    assert (ended.status, ended.reason) == ("failed", "no answer from analyzer")
    assert all(not world.lines(name) for name in SILOS)


def test_a_policy_that_names_the_server_counts_what_the_shuffler_sees(world):
    """Who mixes is the server."""
    for name in SILOS:
        world.allow(name, **{**REPORTED, "against": ["public", "server"], "epsilon_per_run": 1.0})
    assert set(world.attempt(text=SHUFFLED)[0].rules.values()) == {("epsilon_per_run",)}
    for name in SILOS:
        world.allow(name, **{**REPORTED, "against": ["public", "server"]})
    assert world.attempt(2, text=SHUFFLED)[0].status == "finished"
    for line in world.lines("north"):
        assert line["events"]["subject/server/replace"] == line["events"]["subject/shuffler/replace"]


def test_the_analyzer_takes_part_in_nothing_else(world):
    host = AnalyzerHost(world.analyzer)
    assert called(world, host).rules == ("request",)
    assert "masked exchange has no analyzer" in (world.analyzer.ours / "log.txt").read_text()
    assert Reply.from_bytes(host.evaluate(b""), "north").rules == ("metrics",)


# -- a server that lies


def test_a_server_that_relays_other_keys_is_found_out_by_silos_and_nothing_is_released(world, monkeypatch):
    """It passes the keys of north off as those of south: it would open what is meant for south."""
    from tacit.exchange.masked import KEYS, MaskedServer

    following = MaskedServer._next

    def swapping(self, phase):
        if phase == KEYS:
            self._inbox["south"] = self._inbox["north"]
        return following(self, phase)

    monkeypatch.setattr(MaskedServer, "_next", swapping)
    ended, _ = world.attempt()
    assert ended.status == "failed"
    for name in SILOS:
        assert world.lines(name) == []
        line = next(line for line in log_of(world, name) if "refused a message of the server" in line)
        assert "south: the message is not signed by south" in line
        assert f"run {RUN} (attempt 1) of {ANA}" in line


def log_of(world: World, name: str) -> list[str]:
    return (world.silos[name].ours / "log.txt").read_text().splitlines()
