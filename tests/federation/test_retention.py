"""Folders of runs stay within a bound, and ledgers, runs at work and the last interrupted runs stay in any case."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from tacit.engine.folder import CHECKPOINT, LEDGER, MODEL, PLAN, RESULT
from tacit.federation.site import retention
from tacit.federation.site.retention import KEPT_RUNS, at_work, expire_at_server, expire_at_silo
from tests.federation.test_hosts import RUN, World, kits, world  # noqa: F401

WHOLE = (LEDGER, PLAN, MODEL, "request.json", "outcome.json")


def called(name: str) -> str:
    """The name of a run, which has 32 hexadecimal digits."""
    return name.encode().hex().zfill(32)


def folder(runs: Path, name: str, age: float, files: tuple[str, ...], size: int = 10) -> Path:
    made = runs / called(name)
    made.mkdir(parents=True)
    for file in files:
        (made / file).write_bytes(b"x" * size)
    for path in (*made.iterdir(), made):
        os.utime(path, (time.time() - age,) * 2)
    return made


def left(runs: Path) -> dict[str, set[str]]:
    names = {path: bytes.fromhex(path.name).strip(b"\x00").decode() for path in runs.iterdir()}
    return {name: {file.name for file in path.iterdir()} for path, name in names.items()}


def test_old_runs_of_the_server_are_reduced_to_their_ledgers(tmp_path):
    reduced = {LEDGER, "request.json", "outcome.json"}
    for k in range(KEPT_RUNS + 3):
        folder(tmp_path, f"finished-{k}", 100 + k, (*WHOLE, RESULT))
        folder(tmp_path, f"stopped-{k}", 100 + k, (*WHOLE, CHECKPOINT))
    folder(tmp_path, "refused", 0, (PLAN, "request.json", "outcome.json"))
    for expired in (6, 0):  # what has expired before takes no place of others
        assert len(expire_at_server(tmp_path)) == expired
        found = left(tmp_path)
        assert "refused" not in found
        for k in range(KEPT_RUNS + 3):
            assert found[f"finished-{k}"] == ({*WHOLE, RESULT} if k < KEPT_RUNS else reduced)
            assert found[f"stopped-{k}"] == ({*WHOLE, CHECKPOINT} if k < KEPT_RUNS else reduced)
    outcome = json.loads((tmp_path / called(f"finished-{KEPT_RUNS}") / "outcome.json").read_text())
    assert outcome["status"] == "expired"


def test_runs_that_take_too_much_are_reduced_but_for_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(retention, "KEPT_BYTES", 1000)
    for k in range(4):
        folder(tmp_path / "several", str(k), k, (*WHOLE, RESULT), size=80)
    folder(tmp_path / "one", "large", 0, (*WHOLE, RESULT), size=5000)
    expire_at_server(tmp_path / "several")
    expire_at_server(tmp_path / "one")
    found = left(tmp_path / "several")
    assert RESULT in left(tmp_path / "one")["large"]
    assert [RESULT in found[str(k)] for k in range(4)] == [True, True, False, False]


def test_a_run_that_is_at_work_stays(tmp_path):
    oldest = folder(tmp_path / "server", "oldest", 10**6, (*WHOLE, CHECKPOINT))
    begins = tmp_path / "server" / called("begins")
    kept = folder(tmp_path / "silo", "oldest", 10**6, ("round-3.kept",))
    for k in range(KEPT_RUNS):
        folder(tmp_path / "server", str(k), k, (*WHOLE, CHECKPOINT))
        folder(tmp_path / "silo", str(k), k, ("round-3.kept",))

    def expire() -> None:
        expire_at_server(tmp_path / "server")
        expire_at_silo(tmp_path / "silo")

    with at_work(oldest), at_work(begins), at_work(kept):
        expire()
        assert (oldest / CHECKPOINT).is_file()
        assert begins.is_dir()
        assert (kept / "round-3.kept").is_file()
    expire()
    assert not (oldest / CHECKPOINT).exists()
    assert (oldest / LEDGER).is_file()
    assert not begins.exists()
    assert not kept.exists()
    assert len(left(tmp_path / "silo")) == KEPT_RUNS


def test_a_run_that_has_expired_is_neither_shared_nor_begun_again(world, tmp_path, monkeypatch):  # noqa: F811
    ended, _ = world.attempt()
    assert ended.status == "finished"
    run = world.server.ours / "runs" / RUN
    lines = (run / LEDGER).read_text()
    retention._reduce(run)
    ended, host = world.attempt(2)
    assert ended.status == "expired"
    assert (run / LEDGER).read_text() == lines
    assert {file.name for file in run.iterdir()} == {LEDGER, "request.json", "outcome.json"}
    (tmp_path / "shared").mkdir()
    host.share(tmp_path / "shared")
    assert json.loads((tmp_path / "shared" / "outcome.json").read_text())["status"] == "expired"
    assert not (tmp_path / "shared" / RESULT).exists()


def test_a_run_that_was_refused_leaves_no_folder(world):  # noqa: F811
    ended, _ = world.attempt(requester="eve@example.org")
    assert ended.status == "refused"
    assert not (world.server.ours / "runs" / RUN).exists()
    assert not any((kit.ours / "runs" / RUN).exists() for kit in world.silos.values())
