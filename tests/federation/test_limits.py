"""What a request may ask for at most, in which order that is checked, and what a refusal costs."""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tacit.crypto import Refused
from tacit.errors import UserError
from tacit.exchange.post import join
from tacit.federation import server_host
from tacit.federation.carrier.envelope import CALL, Call, Reply, calls
from tacit.federation.kits import FederationOptions, Kit, make_kits
from tacit.federation.request import REQUEST, Request, Sealed, read_job, received, write_job
from tacit.federation.server_host import CoordinatorHost
from tacit.federation.site import limits
from tacit.federation.site.host import SiloHost
from tacit.federation.site.limits import MOST_TEXT, deadline, megabytes
from tacit.federation.site.policy import Guard, Head, Refusal
from tacit.planning.plan import plan
from tests.federation.test_hosts import EXPERIMENT as HOSTED
from tests.federation.test_hosts import World
from tests.federation.test_policy import ANA, EXPERIMENT, POLICY, RUN, SILOS, replaced, request
from tests.federation.worlds import travelled
from tests.refusals import refuses

pytest.importorskip("nvflare")

# what findings A3 and A4 sent, and more of the kind: the text of an experiment, and the field that is named
SECTION = json.loads(travelled(EXPERIMENT))


def changed(section: str, **values: object) -> str:
    return json.dumps({**SECTION, section: {**SECTION.get(section, {}), **values}})


BATCHES = {"clip": 1.0, "noise_multiplier": 8.0, "sample_rate": 0.01}
CAP = "privacy.max_records_per_subject_and_silo"
IN_MANY = {**SECTION["data"], "silos": {"count": 1000}}
HUGE = {
    "4 MB": ("x" * (4 << 20), "experiment"),
    "4 MB of a table": (changed("data", categorical={f"c{i}": ["a"] for i in range(300_000)}), "experiment"),
    "5,000 brackets": ('{"a":' + "[" * 5000 + "]" * 5000 + "}", "experiment"),
    "brackets that never close": ("[" * MOST_TEXT, "experiment"),
    "tables in tables": ('{"a":' * 12 + "1" + "}" * 12, "experiment"),
    "20,000 keys": (json.dumps({str(i): 1 for i in range(5500)}), "experiment"),
    "a long text": (changed("data", label="y" * 2000), "experiment"),
    "a long key": (changed("data", **{"y" * 2000: 1}), "experiment"),
    "silos": (changed("data", silos={"count": 2**63}, records_per_silo=1), "data.silos.count"),
    "subjects": (changed("data", subjects={"column": "patient", "count": 2**31}), "data.subjects.count"),
    "rounds": (changed("train", rounds=10**7), "train.rounds"),
    "epochs": (changed("method", local_epochs=10**10), "method.local_epochs"),
    "records": (changed("privacy", max_records_per_subject_and_silo=10**18), None),
    "10^7 records": (changed("privacy", max_records_per_subject_and_silo=10**7), CAP),
    "10^4 records in 1,000 silos": (
        json.dumps({**SECTION, "data": IN_MANY, "privacy": {"max_records_per_subject_and_silo": 10**4}}),
        CAP,
    ),
    "a group": (changed("method", name="uldp-group", group_size=10**8), "method.group_size"),
    "bands": (changed("method", correlated_noise={"bands": 10**8}), "method.correlated_noise.bands"),
    "classes": (changed("data", classes=10**9, task="multiclass"), "data.categorical"),
    "layers": (changed("model", name="mlp", hidden=[2] * 5000), "model.hidden"),
    "a wide layer": (changed("model", name="mlp", hidden=[10**12]), None),
    "a number of 5,000 digits": ('{"seed":' + "9" * 5000 + "}", "experiment"),
    "a target to solve for": (changed("method", noise_multiplier=None, target_epsilon=1e-9), None),
    "no table": ("[1, 2]", "experiment"),
    "no JSON": ("{", "experiment"),
}


@pytest.fixture(scope="module")
def memory() -> Callable[[], float]:
    """The largest memory that this process has had, in MB; planning has been imported and used before."""
    received(travelled(EXPERIMENT))
    return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("key", ["colluding", "nonsense"])
def test_a_key_of_the_exchange_that_is_null_is_refused(key):
    with refuses("wrong-type", f"exchange.{key}"):
        received(changed("exchange", **{key: None}))


def test_the_order_and_spelling_of_exchange_keys_do_not_change_a_request():
    one = json.dumps({**SECTION, "exchange": {"name": "masked", "drop_outs": 0, "precision": 1e-9}})
    other = json.dumps({**SECTION, "exchange": {"precision": 1e-9, "drop_outs": 0, "name": "masked"}})
    assert Request(received(one), RUN, 1, ANA).digest == Request(received(other), RUN, 1, ANA).digest


@pytest.mark.parametrize("text", ['{"title": "\\ud800"}', '{"\\udfff": 1}', '{"a": [["\\ud800x"]]}'])
def test_half_of_a_character_is_refused(text):
    with refuses("malformed", "experiment"):
        limits.parsed(text)


@pytest.mark.parametrize("name", HUGE)
def test_a_request_that_is_too_large_is_refused_within_a_second_and_50_mb(name, memory):
    (text, field), before, began = HUGE[name], memory(), time.process_time()
    with pytest.raises(UserError) as caught:
        received(text)
    assert time.process_time() - began < 1
    assert memory() - before < 50
    assert field in (None, caught.value.field)
    assert len(str(caught.value)) <= 1000


def test_what_a_plan_of_the_largest_counts_costs_is_bounded(memory, tmp_path):
    data = {**SECTION["data"], "subjects": {"column": "patient", "count": 2**31 - 1}, "silos": {"count": 1000}}
    sections = {
        "data": data,
        "train": {"rounds": 10**6},
        "privacy": {"max_silos_per_subject": 1000},
        "model": {"name": "mlp", "hidden": [10**4] * 100},
    }
    before, began = memory(), time.process_time()
    asked = Sealed(json.dumps({**SECTION, **sections}), RUN, 1, ANA).opened()
    with Guard(POLICY, "north", tmp_path / "ledger") as guard, pytest.raises(Refusal) as caught:
        guard.admit(asked, SILOS, None, lambda: 100)
    assert time.process_time() - began < 1
    assert memory() - before < 50
    assert set(caught.value.rules) == {"silos", "most_parameters", "most_rounds", "most_subjects", "most_memory"}
    assert megabytes(asked.plan) > 100_000


# Plans with the most records of a subject that are accepted, or the most rounds.
LARGEST = {
    "local-record": {"method": BATCHES, "exchange": {"name": "plain"}},
    "uldp-group": {"method": BATCHES | {"group_size": 100_000}, "exchange": {"name": "plain"}},
    "uldp-avg": {
        "method": {"noise_multiplier": 8.0, "correlated_noise": {"groups": 10_000, "bands": 1000}},
        "train": {"rounds": 10_000},
        "exchange": {"name": "plain"},
    },
}


@pytest.mark.parametrize("name", LARGEST)
def test_what_the_price_of_the_largest_counts_costs_is_bounded(name, memory, tmp_path):
    sections = {**LARGEST[name], "method": {"name": name, **LARGEST[name]["method"]}}
    data = {**SECTION["data"], "silos": {"count": 10}, "records_per_silo": 10**6}
    privacy = {"max_records_per_subject_and_silo": 10**4, "max_silos_per_subject": 10, "unit": "subject"}
    text = json.dumps({**SECTION, "evaluation": {}, "data": data, "privacy": privacy, **sections})
    names = [f"silo-{k}" for k in range(10)]
    policy = POLICY.model_copy(update={"methods": tuple(LARGEST), "exchanges": ("plain", "masked")})
    before, began = memory(), time.process_time()
    asked = Sealed(text, RUN, 1, ANA).opened()
    with Guard(policy, "silo-0", tmp_path / "ledger") as guard, suppress(Refusal):
        guard.admit(asked, names, None, lambda: 100)
    print(name, time.process_time() - began, memory() - before)
    assert time.process_time() - began < 20
    assert memory() - before < 500


def test_a_plan_whose_price_does_not_fit_into_memory_is_refused(tmp_path):
    sections = LARGEST["local-record"] | {"method": {"name": "local-record", **BATCHES}}
    content = {**SECTION, **sections, "privacy": {"max_records_per_subject_and_silo": 10**15, "unit": "subject"}}
    content["data"] = {**SECTION["data"], "records_per_silo": 10**6}
    asked = Request(plan(content), RUN, 1, ANA)  # the limits on a request would not let it pass
    policy = POLICY.model_copy(update={"methods": ("local-record",), "exchanges": ("plain",)})
    with Guard(policy, "north", tmp_path / "ledger") as guard, pytest.raises(Refusal) as caught:
        guard.admit(asked, SILOS, None, lambda: 100)
    assert "request" in caught.value.rules


def test_memory_is_estimated_above_what_was_measured():
    """Columns of the table of costs in docs/deploy.md."""
    for parameters, measured in ((100_000, 510), (1_000_000, 670), (25_000_000, 2300)):
        planned = received(changed("model", name="mlp", hidden=[parameters // 3]))
        assert abs((planned.parameters or 0) - parameters) < 4
        assert measured <= megabytes(planned) < 2 * measured


def _for_ever() -> None:
    while True:
        pass


def test_whatever_takes_too_long_is_ended():
    began = time.process_time()
    with refuses("timeout", "experiment"), deadline(0.1):
        _for_ever()
    assert time.process_time() - began < 5
    with deadline(0.05):
        pass
    time.sleep(0.1)  # nothing is interrupted later


def test_every_rule_that_forbids_a_run_is_named_at_once(tmp_path):
    text = replaced('name = "uldp-avg"\nnoise_multiplier = 8.0', 'name = "uldp-sgd"\nnoise_multiplier = 1.0')
    with Guard(POLICY, "north", tmp_path / "ledger") as guard, pytest.raises(Refusal) as caught:
        guard.admit(request("seed = 7\n" + text), SILOS, None, lambda: pytest.fail("the table was read"))
    assert set(caught.value.rules) == {"methods", "seeds", "epsilon_per_run", "epsilon_in_total"}
    assert all(rule in str(caught.value) for rule in caught.value.rules)


@pytest.mark.parametrize(
    "limit", [{"most_rounds": 3}, {"most_subjects": 499}, {"most_parameters": 1}, {"most_memory": 100}]
)
def test_a_policy_limits_what_a_run_may_take(limit, tmp_path):
    (rule,), strict = limit, POLICY.model_copy(update=limit)
    with Guard(strict, "north", tmp_path / "ledger") as guard, pytest.raises(Refusal) as caught:
        guard.admit(request(), SILOS, None, lambda: 100)
    assert caught.value.rules == (rule,)


def test_a_silo_works_on_a_limited_number_of_runs_at_a_time(tmp_path):
    policy = POLICY.model_copy(update={"most_runs": 2, "epsilon_in_total": float("inf")})

    def guard() -> Guard:
        return Guard(policy, "north", tmp_path / "ledger", tmp_path / "places")

    with guard() as first, guard() as second:
        first.admit(request(run="a" * 32), SILOS, None, lambda: 100)
        second.admit(request(run="b" * 32), SILOS, None, lambda: 100)
        with guard() as third, pytest.raises(Refusal) as caught:
            third.admit(request(run="c" * 32), SILOS, None, lambda: 100)
        assert caught.value.rules == ("most_runs",)
    with guard() as third:
        third.admit(request(run="c" * 32), SILOS, None, lambda: 100)


def test_an_experiment_of_a_requester_who_is_not_listed_is_not_looked_at(world):
    """Also one that could not be read; and the log has one line for it."""
    for k, (text, _) in enumerate(HUGE.values()):
        host, run = SiloHost(world.silos["north"]), f"{k:032x}"
        asked = Sealed(text, run, 1, "eve@example.org")
        call = calls(world.server, "server", asked).write("north", CALL, Call().to_bytes())
        assert Reply.from_bytes(host.call(lambda asked=asked: asked, call), "north").rules == ("requesters",)
        host.close()
    assert len(lines_of(world.silos["north"])) == len(HUGE)


def test_a_listed_requester_is_refused_for_what_is_too_large_in_one_line(world):
    for k, (text, _) in enumerate(HUGE.values()):
        host, run = SiloHost(world.silos["north"]), f"{k:032x}"
        asked = Sealed(text, run, 1, ANA)
        call = calls(world.server, "server", asked).write("north", CALL, Call().to_bytes())
        assert Reply.from_bytes(host.call(lambda asked=asked: asked, call), "north").rules in (("request",), ("silos",))
        host.close()
    assert len(lines_of(world.silos["north"])) == len(HUGE)


def lines_of(kit: Kit) -> list[str]:
    return [line for line in (kit.ours / "log.txt").read_text().splitlines() if "refused a call" in line]


@pytest.fixture(scope="module")
def kits(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("federation") / "kits"
    options = FederationOptions(name="t", server={"host": "localhost"}, silos=SILOS, requesters=(ANA,), analyzer=True)
    make_kits(options, out, None)
    return out


@pytest.fixture
def world(kits, tmp_path) -> World:
    shutil.copytree(kits, tmp_path / "kits")
    return World(tmp_path / "kits", tmp_path)


def job(kits: Path, folder: Path, text: str, **changes: object) -> Path:
    """A job of the requester, signed, as it is deployed. ``changes``: of the request, before it is signed."""
    from nvflare.lighter.utils import load_private_key_file, sign_folders

    write_job(folder, text, RUN, 1, SILOS, 20)
    file = folder / "app" / "config" / REQUEST
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    startup = kits / "requesters" / ANA / "startup"
    key = load_private_key_file(str(startup / "client.key"))
    sign_folders(str(folder / "app"), key, str(startup / "client.crt"))
    return folder / "app"


def test_a_job_is_measured_and_its_signature_checked_before_its_experiment_is_read(kits, tmp_path):
    kit = Kit.load(kits / "silos" / "north", "silo")
    sealed, patience = read_job(job(kits, tmp_path / "good", travelled(EXPERIMENT)), kit)
    assert (sealed.requester, sealed.attempt, patience) == (ANA, 1, 20)
    sealed, _ = read_job(job(kits, tmp_path / "odd", "[" * 5000), kit)  # read, and not looked at
    with refuses("too-many", "experiment"):
        sealed.opened()

    large = job(kits, tmp_path / "large", "x" * limits.MOST_JOB_BYTES)
    many = job(kits, tmp_path / "many", "x")
    for k in range(limits.MOST_JOB_FILES):
        (many / str(k)).touch()
    changed_text = job(kits, tmp_path / "changed", "x")
    (changed_text / "config" / REQUEST).write_text("[" * 100_000)
    for app in (large, many, changed_text):
        began = time.process_time()
        with pytest.raises(UserError) as caught:
            read_job(app, kit)
        assert caught.value.field == "request"
        assert time.process_time() - began < 1


DAY = 86400


@pytest.mark.parametrize("expires", [None, "soon", True, -2 * DAY, -2 * 3600, 8 * DAY, 10**9, 10**300])
def test_a_request_that_has_expired_or_has_no_date_is_refused(expires, kits, tmp_path):
    """A server that has kept it cannot send it to a silo later, when its policy is another."""
    when = int(time.time()) + expires if type(expires) is int else expires
    app = job(kits, tmp_path / "job", travelled(EXPERIMENT), expires=when)
    with refuses("expired" if type(expires) is int else "missing", "request"):
        read_job(app, Kit.load(kits / "silos" / "north", "silo"))


@pytest.mark.parametrize("expires", [-1800, 0, 7 * DAY, 7 * DAY + 1800])
def test_a_request_is_valid_for_a_week_though_clocks_differ(expires, kits, tmp_path):
    app = job(kits, tmp_path / "job", travelled(EXPERIMENT), expires=int(time.time()) + expires)
    assert read_job(app, Kit.load(kits / "silos" / "north", "silo"))[0].run == RUN


def told_heads(world: World, silo: str, datasets: int) -> dict:
    """What the server remembers after a silo has told of that number of data sets."""
    host = CoordinatorHost(world.server, Sealed(travelled(HOSTED), RUN, 1, ANA).opened(), lambda what, told: {})
    for k in range(datasets):
        host._opened(CALL, silo, Reply(b"", (), f"{k:016x}", Head(1, "0" * 64)).to_bytes())
    file = world.server.ours / "heads.json"
    return json.loads(file.read_text()) if file.exists() else {}


def test_the_server_remembers_a_limited_number_of_ledgers_of_silos_that_it_knows(world, monkeypatch):
    monkeypatch.setattr(server_host, "MOST_DATASETS", 5)
    assert told_heads(world, "stranger", 3) == {}
    assert len(told_heads(world, "north", 9)["north"]) == 5
    assert len(told_heads(world, "south", 2)["south"]) == 2


@pytest.mark.parametrize(
    "facts",
    [
        {"dataset": "x" * 10**6, "head": [1, "0" * 64]},
        {"dataset": "../../etc/passwd", "head": [1, "0" * 64]},
        {"dataset": "0" * 16, "head": [1, "\x1b" * 64]},
        {"dataset": "0" * 16, "head": [10**400, "0" * 64]},
        {"dataset": "0" * 16, "head": [True, "0" * 64]},
        {"dataset": "0" * 16, "head": None, "recounts": ["../../etc/passwd"]},
        {"dataset": "0" * 16, "head": None, "recounts": ["0" * 16] * 100},
        {"dataset": "0" * 16, "head": None, "recounts": "0" * 16},
    ],
)
def test_a_name_or_head_of_a_ledger_that_is_none_is_refused(facts):
    content = json.dumps({"rules": [], "left": None, "recounts": [], **facts}).encode()
    with refuses("malformed", kind=Refused, peer="north"):
        Reply.from_bytes(join([content, b""]), "north")
