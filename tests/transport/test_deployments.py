"""Which silos did not deploy a job, in the server's log."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.private.fed.server.job_runner import JobRunner

from tacit.transport.packed import not_deployed
from tacit.transport.upkeep import log_deployments

REFUSED = json.dumps({"rules": ["requesters"]})
DETAIL = ["server: OK", "north: OK", f"south: {REFUSED}", "west: the job was not deployed", "num_ok_sites 1 < 3"]


def test_refusals_and_failures_of_silos_are_told_apart():
    assert not_deployed(DETAIL) == ({"south": ["requesters"]}, ["west"])
    assert not_deployed(None) == ({}, [])


@pytest.mark.parametrize(
    "text", ['{"rules": "all"}', '{"rules": ["x\\u001b[2J"]}', '{"rules": [1]}', "[" * 10**5, '{"rules": ["a"]' * 2]
)
def test_what_is_no_list_of_rules_is_a_failure(text):
    assert not_deployed([f"south: {text}"]) == ({}, ["south"])


def test_the_server_logs_who_did_not_deploy_a_job(tmp_path, monkeypatch):
    (tmp_path / "tacit").mkdir()

    def deploy(self, job, sites, fl_ctx):
        fl_ctx.set_prop(FLContextKey.JOB_DEPLOY_DETAIL, DETAIL)
        raise RuntimeError("deploy failure")

    monkeypatch.setattr(JobRunner, "_deploy_job", deploy)
    log_deployments(tmp_path)
    job = SimpleNamespace(job_id="3254", meta={"submitter_name": "eve@example.org\n"})
    with pytest.raises(RuntimeError):
        JobRunner._deploy_job(None, job, {}, FLContext())
    refused, failed = (tmp_path / "tacit" / "log.txt").read_text().splitlines()
    assert "refused job 3254 of eve@example.org\\n: by south (requesters)" in refused
    assert "failed  job 3254" in failed
    assert "west" in failed
