"""Writes into the server's log which silos have refused to deploy a job, and by which rules.

A silo refuses the job of a requester whom its policy does not list before a process is started for it
(:func:`tacit.transport.upkeep.limit_deployments`). No process of the job can then write a line at the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_def import JobMetaKey
from nvflare.private.fed.server.job_runner import JobRunner

from tacit.escape import escaped
from tacit.transport.log import log_of

_RULE = re.compile("[a-z_]{1,40}")
_MOST = 32  # rules of one silo


def log_deployments(kit: Path) -> None:
    """At the server: a line for every job that a silo did not deploy."""
    log, deploy = log_of(kit), JobRunner._deploy_job

    def logged(self: Any, job: Any, sites: Any, fl_ctx: Any) -> Any:
        try:
            return deploy(self, job, sites, fl_ctx)
        finally:
            refused, failed = not_deployed(fl_ctx.get_prop(FLContextKey.JOB_DEPLOY_DETAIL))
            whose = f"{job.job_id} of {escaped(job.meta.get(JobMetaKey.SUBMITTER_NAME.value, 'unknown'), 80)}"
            if refused:
                by = ", ".join(f"{silo} ({', '.join(rules)})" for silo, rules in refused.items())
                log.warning("refused job %s: by %s", whose, by)
            if failed:
                log.warning("failed  job %s: not deployed by %s", whose, ", ".join(failed))

    JobRunner._deploy_job = logged


def not_deployed(detail: Any) -> tuple[Mapping[str, list[str]], list[str]]:
    """By silo the rules by which it refuses a job, and the silos that failed to deploy it. ``detail`` is what NVFlare
    notes, ``SILO: OK`` or ``SILO: TEXT``; the text is the silo's."""
    refused: dict[str, list[str]] = {}
    failed: list[str] = []
    for line in detail if isinstance(detail, list) else ():
        silo, separator, text = str(line).partition(": ")
        if not separator or text == "OK" or " " in silo:
            continue
        rules = _rules(text)
        if rules:
            refused[escaped(silo, 80)] = rules
        else:
            failed.append(escaped(silo, 80))
    return refused, failed


def _rules(text: str) -> list[str]:
    try:
        rules = json.loads(text)["rules"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
    if not isinstance(rules, list) or len(rules) > _MOST:
        return []
    return rules if all(isinstance(rule, str) and _RULE.fullmatch(rule) for rule in rules) else []
