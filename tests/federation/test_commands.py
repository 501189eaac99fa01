"""The commands of a federation, as far as they need none that runs."""

from __future__ import annotations

import fcntl
import json
import logging
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
from typer.testing import CliRunner

from tacit.errors import UserError
from tacit.federation import requester
from tacit.federation.carrier.processes import in_background, prepare_silo, silo_warnings
from tacit.federation.kits import Kit
from tacit.federation.site.policy import Policy
from tacit.federation.site.shard import read_silo_data
from tacit.planning.settings import read_section
from tacit.ui.main import app
from tests.refusals import refuses

pytest.importorskip("nvflare")

ANA = "ana@example.org"


def called(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def kits(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    file = folder / "FEDERATION.toml"
    silos = {"name": "visits", "silos": ["north", "south"], "requesters": [ANA], "server": {"host": "localhost"}}
    file.write_text(tomli_w.dumps(silos))
    told = json.loads(called("federation", "init", file, "--out", folder / "kits", "--json"))
    assert set(told["kits"]) == {"server", "north", "south", ANA}
    return folder / "kits"


def test_init_says_where_kits_are_and_what_to_do_with_them(tmp_path):
    file = tmp_path / "FEDERATION.toml"
    silos = {"name": "visits", "silos": ["north", "south"], "requesters": [ANA], "server": {"host": "localhost"}}
    file.write_text(tomli_w.dumps(silos))
    told = called("federation", "init", file, "--out", tmp_path / "kits")
    assert "delete it here" in told
    assert "no party can be added later" in told
    with refuses("missing", "--out"):
        called("federation", "init", file, "--out", tmp_path / "kits")


def test_a_silo_does_not_start_with_a_file_that_is_missing_or_wrong(kits, tmp_path):
    data, policy = tmp_path / "DATA.toml", tmp_path / "POLICY.toml"
    arguments = ("silo", kits / "silos" / "north", "--data", data, "--policy", policy)
    with refuses("file-not-found", "DATA.toml"):
        called(*arguments)
    data.write_text('path = "nowhere.csv"\nsubjects = "patient"\n')
    with refuses("file-not-found", "path", names=["nowhere.csv"]):
        called(*arguments)
    (tmp_path / "nowhere.csv").write_text("patient,age\n1,2\n")
    policy.write_text('methods = ["all"]\n')
    with refuses("missing", "requesters", file=str(policy)):
        called(*arguments)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('subjects = "PATIENT_ID"\n', "subjects"),
        ('subjects = "patient"\n[columns]\nage = "AGE"\n', "columns.age"),
    ],
)
@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz", "table.parquet", "table.npz"])
def test_a_silo_does_not_start_with_a_column_that_its_table_lacks(kits, tmp_path, name, text, field):
    data, policy = tmp_path / "DATA.toml", tmp_path / "POLICY.toml"
    policy.write_text(tomli_w.dumps(RULES))
    frame, file = pd.DataFrame({"patient": [1], "age": [2]}), tmp_path / name
    if name.endswith("npz"):
        np.savez(file, **{column: frame[column].to_numpy() for column in frame})
    elif name.endswith("parquet"):
        frame.to_parquet(file)
    else:
        frame.to_csv(file, index=False)
    data.write_text(f'path = "{name}"\n{text}')
    with refuses("unknown-name", field, file=str(data), names=["patient", "age"]):
        prepare_silo(kits / "silos" / "north", data, policy)


RULES = {
    "requesters": [ANA],
    "methods": ["uldp-avg"],
    "exchanges": ["masked"],
    "unit": "subject",
    "against": ["public"],
    "delta": 1e-5,
    "epsilon_per_run": 1.0,
    "epsilon_in_total": 1.0,
    "least_records": 1,
}


def test_metrics_without_a_hold_out_are_warned_of_at_the_start(kits, tmp_path):
    data, policy, kit = tmp_path / "DATA.toml", tmp_path / "POLICY.toml", kits / "silos" / "south"
    (tmp_path / "table.csv").write_text("patient,age\n1,2\n")
    policy.write_text(tomli_w.dumps(RULES | {"metrics": True}))
    for hold_out, count in (("[hold_out]\nfraction = 0.5\n", 0), ("", 1)):
        data.write_text(f'path = "table.csv"\nsubjects = "patient"\n{hold_out}')
        prepare_silo(kit, data, policy)
        assert (kit / "tacit" / "log.txt").read_text().count("metrics: true has no effect") == count
        found = silo_warnings(read_silo_data(data), read_section(policy, Policy, "POLICY.toml"))
        assert len(found) == count


def test_a_hold_out_without_metrics_is_warned_of_at_the_start(kits, tmp_path):
    (tmp_path / "DATA.toml").write_text('path = "t.csv"\nsubjects = "patient"\n[hold_out]\nfraction = 0.5\n')
    options = read_silo_data(tmp_path / "DATA.toml")
    assert [len(silo_warnings(options, Policy(**RULES, metrics=metrics))) for metrics in (True, False)] == [0, 1]


def test_a_kit_that_is_in_use_is_named(kits):
    kit = Kit.load(kits / "server", "server")
    with (kit.ours / "process.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with refuses("in-use", "KIT", names=[str(kit.path)]):
            in_background(kit)


def test_an_experiment_is_needed_unless_a_run_is_followed(kits):
    with refuses("missing", "EXPERIMENT.toml"):
        called("submit", "--kit", kits / "requesters" / ANA)
    with refuses("unknown-name", "--attach"):
        called("submit", "--kit", kits / "requesters" / ANA, "--attach", "f" * 32)


def test_a_run_that_is_followed_has_the_rounds_that_were_asked_for(kits, tmp_path, monkeypatch):
    content = {
        "data": {
            "label": "ill",
            "path": "mine.csv",
            "subjects": {"column": "patient", "count": 100},
            "silos": {"count": 2},
            "numeric": {"age": {"mean": 50, "scale": 20}},
        },
        "method": {"name": "uldp-avg", "noise_multiplier": 5.0},
        "train": {"rounds": 7},
    }
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(content))
    kit = Kit.load(kits / "requesters" / ANA, "requester")
    seen = []

    def detached(kit, asked, rounds, label, **more):
        seen.append((asked.run, rounds, label))
        raise requester.Detached(asked.kept(kit).run)

    monkeypatch.setattr(requester, "follow", detached)
    first = CliRunner().invoke(app, ["submit", str(file), "--kit", str(kit.path), "--out", str(tmp_path / "run")])
    assert first.exit_code == 130
    assert "data.path" in first.stderr  # it does not travel
    (command,) = re.findall("tacit (submit .*)", first.stdout)
    assert CliRunner().invoke(app, shlex.split(command)).exit_code == 130
    assert seen[0] == seen[1]
    assert seen[0][1] == 7


def test_what_nvflare_logs_at_a_requester_goes_into_a_file(kits, capfd):
    kit = Kit.load(kits / "requesters" / ANA, "requester")
    requester._log_nvflare(kit)
    requester._log_nvflare(kit)
    logging.getLogger("nvflare.fuel.f3.cellnet.cell.Cell").warning("Receiving unknown req_id")
    assert (kit.ours / "nvflare.log").read_text().count("unknown req_id") == 1
    assert "unknown req_id" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"data": {"silos": {"assign": "uniform", "count": 2}}}, "simulator-only", "data.silos.assign"),
        ({"data": {"silos": {"count": 5}}}, "mismatch", "data.silos.count"),
        (
            {"method": {"name": "pooled-dp-sgd", "noise_multiplier": 1.0, "sample_rate": 0.1}},
            "simulator-only",
            "method.name",
        ),
        ({"data": {"numeric": None}}, "missing", "data.numeric"),
    ],
)
def test_what_silos_would_not_understand_is_refused_before_it_is_asked_for(kits, tmp_path, change, code, field):
    content = {
        "data": {
            "label": "ill",
            "subjects": {"column": "patient", "count": 100},
            "silos": {"count": 2},
            "numeric": {"age": {"mean": 50, "scale": 20}},
            "records_per_silo": 100,
        },
        "method": {"name": "uldp-avg", "noise_multiplier": 5.0},
        "train": {"rounds": 2},
    }
    for section, values in change.items():
        content[section] = {**content.get(section, {}), **values} if section == "data" else values
        content[section] = {key: value for key, value in content[section].items() if value is not None}
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(content))
    with refuses(code, field):
        called("submit", file, "--kit", kits / "requesters" / ANA)


def test_a_silo_looks_which_of_its_rows_an_experiment_would_use(tmp_path):
    (tmp_path / "e.toml").write_text(
        """
        [data]
        label = "ill"
        subjects = { column = "patient", count = 500 }
        silos = { count = 2 }
        numeric = { age = { mean = 50, scale = 20 } }
        categorical = { sex = ["f", "m"] }
        """
    )
    (tmp_path / "DATA.toml").write_text('path = "table.csv"\nsubjects = "patient"\n')
    (tmp_path / "table.csv").write_text("patient,age,sex,ill\n1,40,f,0\n2,,m,1\n3,50,d,1\n4,60,m,0\n5,old,x,0\n")
    said = called("federation", "check", tmp_path / "e.toml", "--data", tmp_path / "DATA.toml")
    assert "2 of 5 rows are as the experiment declares them" in said
    assert "age                       2 rows" in said
    assert "sex                       2 rows" in said
    (tmp_path / "table.csv").write_text("patient,age,ill\n1,40,0\n")
    with refuses("unknown-name", "data.categorical", names=["'sex'"]):
        called("federation", "check", tmp_path / "e.toml", "--data", tmp_path / "DATA.toml")
    experiment = tmp_path / "e.toml"
    experiment.write_text(experiment.read_text().replace('"patient"', '"patint"'))
    with refuses("unknown-name", "columns.patint", names=["'patient'"]):
        called("federation", "check", experiment, "--data", tmp_path / "DATA.toml")


@pytest.mark.parametrize("option", ["--timeout", "--patience"])
@pytest.mark.parametrize("seconds", [0, -5, 10**9])
def test_a_timeout_out_of_range_is_refused_before_submission(kits, tmp_path, option, seconds):
    file = tmp_path / "experiment.toml"
    file.write_text(
        '[data]\nlabel = "ill"\nsubjects = { column = "patient", count = 100 }\nsilos = { count = 2 }\n'
        'numeric = { age = { mean = 50, scale = 20 } }\n[method]\nname = "uldp-avg"\nnoise_multiplier = 5.0\n'
    )
    done = CliRunner().invoke(app, ["submit", str(file), "--kit", str(kits / "requesters" / ANA), option, str(seconds)])
    assert isinstance(done.exception, UserError)
    assert (done.exception.code, done.exception.field) == ("out-of-range", "--timeout")
    assert ("deprecated" in done.output) == (option == "--patience")
    assert "--patience" not in CliRunner().invoke(app, ["submit", "--help"]).output


def test_a_kit_of_another_kind_is_refused(kits):
    with refuses("wrong-file", "KIT"):
        called("server", kits / "silos" / "north")
    with refuses("wrong-file", "KIT"):
        called("federation", "status", "--kit", kits / "server")
