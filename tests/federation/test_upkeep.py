"""What NVFlare writes stays within bounds, at the server and at silos."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.private.fed.server.job_cmds import JobCommandModule
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator

from tacit.engine.folder import LEDGER, RESULT
from tacit.federation.demo import PARTS, REQUESTER, Trial
from tacit.federation.requester import _session
from tacit.federation.site.limits import MOST_JOB_BYTES
from tacit.federation.site.retention import KEPT_RUNS
from tacit.transport import upkeep
from tacit.transport.packed import MOST_BYTES, PACKED

from . import worlds
from .test_packed import kits as kits
from .test_packed import packed, signed


@pytest.fixture
def kit(tmp_path, monkeypatch) -> Path:
    """A server's kit; what is replaced in NVFlare is put back."""
    (tmp_path / "tacit").mkdir()
    monkeypatch.setattr(JobCommandModule, "submit_job", JobCommandModule.submit_job)
    monkeypatch.setattr(JobMetaValidator, "validate", JobMetaValidator.validate)
    return tmp_path


def test_jobs_of_tacit_and_the_bound_of_both_sides_are_the_same():
    assert MOST_BYTES == MOST_JOB_BYTES


@pytest.mark.parametrize("told", [None, {}, [], "x", {PACKED: None}, {PACKED: 7}, {PACKED: "!"}, {PACKED: "eHg="}])
def test_a_command_that_carries_no_job_is_refused_and_leaves_nothing(kit, told):
    given, judged = {ConnProps.CMD_PROPS: told}, []

    def submit_job(self, conn, args):
        judged.append(JobMetaValidator().validate("job", given[ConnProps.FILE_LOCATION]))

    JobCommandModule.submit_job = submit_job
    upkeep.limit_uploads(kit)
    conn = SimpleNamespace(get_prop=given.get, set_prop=given.__setitem__)
    JobCommandModule.submit_job(JobCommandModule(), conn, ["submit_job", "job"])
    assert judged == [(False, "it cannot be unpacked", {})]
    uploads = kit / "tacit" / "store" / "uploads"
    assert Path(given[ConnProps.FILE_LOCATION]).is_relative_to(uploads)
    assert not list(uploads.iterdir())
    assert "refused a job: job: it cannot be unpacked" in (kit / "tacit" / "log.txt").read_text()


def test_jobs_that_are_refused_write_a_limited_number_of_lines(kit, tmp_path):
    upkeep.limit_uploads(kit)
    (tmp_path / "none").write_bytes(b"none")
    for _ in range(100):
        assert not JobMetaValidator().validate("job", str(tmp_path / "none"))[0]
    assert len((kit / "tacit" / "log.txt").read_text().splitlines()) == 21


def test_a_job_of_more_than_a_megabyte_is_refused(kit, tmp_path):
    upkeep.limit_uploads(kit)
    (tmp_path / "large").write_bytes(bytes(MOST_BYTES + 1))
    assert JobMetaValidator().validate("job", str(tmp_path / "large")) == (False, f"it has {MOST_BYTES + 1} bytes", {})


@pytest.mark.parametrize(
    ("submitter", "most"), [("ana@example.org", upkeep.MOST_WAITING), ("", upkeep.MOST_OF_ONE)], ids=["all", "own"]
)
def test_jobs_that_wait_are_limited_in_number(kit, kits, tmp_path, submitter, most):
    """In all, and for the requester who asks (here one without a name)."""
    upkeep.limit_uploads(kit)
    shutil.copy(kits / "server" / "tacit" / "roster.json", kit / "tacit")
    (tmp_path / "packed").write_bytes(packed(signed(kits, tmp_path / "job").parent, "job"))
    for _ in range(most):
        assert JobMetaValidator().validate("job", str(tmp_path / "packed"))[0]
        stored(kit, "SUBMITTED", submitter_name=submitter)
    assert not JobMetaValidator().validate("job", str(tmp_path / "packed"))[0]


def stored(kit: Path, status: str, age: float = 0.0, size: int = 10, **more: str) -> Path:
    job = kit / "tacit" / "store" / "jobs" / str(uuid.uuid4())
    job.mkdir(parents=True)
    (job / "data").write_bytes(bytes(size))
    (job / "meta").write_text(json.dumps({"status": status, **more}))
    for path in (job / "data", job / "meta", job):
        os.utime(path, (time.time() - age,) * 2)
    return job


def test_the_server_keeps_the_last_jobs_within_a_bound(kit, monkeypatch):
    ended = [stored(kit, "FINISHED:COMPLETED", age=k) for k in range(50)]
    at_work = [stored(kit, state, age=10**6) for state in ("SUBMITTED", "RUNNING", "DISPATCHED")]
    upkeep.prune_store(kit)
    assert [job.exists() for job in ended] == [True] * upkeep.KEPT_JOBS + [False] * (50 - upkeep.KEPT_JOBS)
    assert all(job.exists() for job in at_work)
    monkeypatch.setattr(upkeep, "KEPT_BYTES", 300)
    large = [stored(kit, "FINISHED:COMPLETED", age=-k, size=100) for k in (1, 2, 3)]
    upkeep.prune_store(kit)
    assert [job.exists() for job in large] == [False, True, True]
    assert not any(job.exists() for job in ended)


def test_records_of_submissions_and_downloads_go_with_their_jobs(kit):
    job, store = stored(kit, "RUNNING"), kit / "tacit" / "store"
    outside = kit / "tacit" / "identity.key"
    outside.write_text("kept")
    for name, number in (("here", job.name), ("gone", str(uuid.uuid4()))):
        record = store / "job_submit_records" / "study" / name / "token"
        index = store / "job_submit_record_index" / name
        for folder in (record, index):
            folder.mkdir(parents=True)
        uris = [str(record), str(outside), "../../../identity.key"]
        (index / "meta").write_text(json.dumps({"job_id": number, "submit_record_uris": uris}))
        for path in (index / "meta", index):
            os.utime(path, (time.time() - 100,) * 2)
    for name, age in (("new", 0), ("old", 10**4)):
        (kit / "transfer" / name / "job").mkdir(parents=True)
        for path in (kit / "transfer" / name / "job", kit / "transfer" / name):
            os.utime(path, (time.time() - age,) * 2)
    upkeep.prune_store(kit)
    assert {path.name for path in (store / "job_submit_record_index").iterdir()} == {"here"}
    assert {path.name for path in (store / "job_submit_records" / "study").iterdir()} == {"here"}
    assert {path.name for path in (kit / "transfer").iterdir()} == {"new"}
    assert outside.read_text() == "kept"


def test_folders_of_jobs_go_and_nothing_else(kit):
    job, other = str(uuid.uuid4()), str(uuid.uuid4())
    for name in (job, other, "startup", "local"):
        (kit / name / "app").mkdir(parents=True)
    upkeep.remove_job_folders(kit, lambda folder: folder.name == job)
    assert {path.name for path in kit.iterdir()} == {other, "startup", "local", "tacit"}
    upkeep.remove_job_folders(kit)
    assert {path.name for path in kit.iterdir()} == {"startup", "local", "tacit"}


def disk(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


def without_logs_and_runs(folder: Path) -> int:
    """What has no bound of its own but for the store of jobs: not logs, and not the folders of runs."""
    logs = sum(file.lstat().st_size for file in folder.rglob("*log*") if file.is_file())
    return disk(folder) - logs - disk(folder / "tacit" / "runs")


def grown(trial: Trial, runs: int) -> dict[str, list[int]]:
    """The disk of every party after each of that number of runs."""
    found: dict[str, list[int]] = {name: [] for name in ("server", *PARTS)}
    for number in range(runs):
        worlds.finished(trial, worlds.experiment(train={"rounds": 1}), f"run-{number}")
        time.sleep(2)  # NVFlare says that a job has ended before its folder goes
        for name, sizes in found.items():
            kit = trial.kit(name).path
            assert not [path for path in kit.iterdir() if upkeep._JOB.fullmatch(path.name)], name
            sizes.append(without_logs_and_runs(kit))
    return found


def check_bounds(trial: Trial, runs: int) -> None:
    found = grown(trial, runs)
    server = trial.kit("server").path
    jobs = list((server / "tacit" / "store" / "jobs").iterdir())
    folders = list((server / "tacit" / "runs").iterdir())
    whole = [folder for folder in folders if (folder / RESULT).is_file()]
    reduced = [folder for folder in folders if folder not in whole]
    kb = {name: [size // 1024 for size in sizes[:: max(1, runs // 10)]] for name, sizes in found.items()}
    print(f"after {runs} runs: {len(jobs)} jobs of {max(map(disk, jobs))} bytes at most,")
    sizes = [sum(map(disk, some)) for some in (whole, reduced)]
    print(f"{len(whole)} run folders of {sizes[0]} bytes together, {len(reduced)} reduced ones of {sizes[1]}")
    print(f"kB without logs and runs: {kb}")
    for silo in PARTS:
        assert found[silo][-1] <= found[silo][0] + 4096
        assert not any((trial.kit(silo).ours / "runs").iterdir())
    assert len(jobs) == min(runs, upkeep.KEPT_JOBS)
    assert found["server"][-1] <= found["server"][0] + (upkeep.KEPT_JOBS + 1) * (max(map(disk, jobs)) + 4096)
    assert len(whole) == min(runs, KEPT_RUNS)
    assert len(folders) == runs  # no ledger is removed
    assert all((folder / LEDGER).is_file() for folder in folders)
    assert all(disk(folder) <= (folder / LEDGER).lstat().st_size + 1024 for folder in reduced)


def test_disk_of_server_and_silos_stays_within_its_bound(tmp_path):
    with worlds.federation(tmp_path) as trial:
        check_bounds(trial, 2)
        before = {name: disk(trial.kit(name).path) for name in ("server", *PARTS)}
        kit = trial.kit(REQUESTER)
        for k, change in enumerate(("large", "named")):
            folder = tmp_path / f"job-{k}"
            worlds.write_request(folder, run="a" * 32)
            if change == "large":
                (folder / "app" / "zeros").write_bytes(bytes(40 << 20))
            else:
                meta = json.loads((folder / "meta.json").read_text())
                (folder / "meta.json").write_text(json.dumps({**meta, "job_id": "tacit"}))
            with pytest.raises(Exception), _session(kit) as session:  # noqa: B017, PT011
                session.submit_job(str(folder))
        after = {name: disk(trial.kit(name).path) for name in before}
        assert all(after[name] - before[name] < 1 << 18 for name in before)
        assert trial.kit("server").identity()
        said = (trial.kit("server").ours / "log.txt").read_text()
        assert "refused a job" in said


@pytest.mark.slow
def test_disk_of_server_and_silos_stays_within_its_bound_after_50_runs(tmp_path):
    with worlds.federation(tmp_path) as trial:
        check_bounds(trial, 50)
