"""What NVFlare 2.9.0 registers, and Tacit with it: channels and topics by kind of cell, requests, commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tacit.transport.channels import (
    ACK,
    ADMIN,
    AUX,
    COMMAND,
    COMMANDS,
    DATA,
    DOWNLOAD,
    ERROR,
    HCI,
    LISTENER,
    REPLIES,
    STREAM,
    TASK,
    Kind,
    Topics,
    _topics,
)

_MANAGER = _topics(
    "_net_manager",
    *("bulk_item", "bulk_test", "cells", "change_root", "comm_config", "config_vars", "conns", "echo", "heartbeat"),
    *("list_pools", "msg_stats", "peers", "process_info", "route", "show_pool", "speed", "start_route", "stop"),
    *("stop_cell", "stress", "url_use"),
)
_EVERYWHERE = (
    _MANAGER
    | _topics("cellnet.channel", "bulk", "bye")
    | _topics("credential_manager", "key_exchange")
    | _topics(REPLIES, "*")
    | _topics(STREAM, ACK, DATA, ERROR)
    | _topics(AUX, "*", "ObjectStreamer.Abort", "ObjectStreamer.Request", "fed.event")
)
_IN_JOBS = _EVERYWHERE | _topics(
    *(AUX, "RM.RELIABLE_REPLY", "RM.RELIABLE_REQUEST", "__job_heartbeat__", "__sync_runner__", "__task_check__")
)
_DOWNLOAD = _topics(DOWNLOAD, "download_service__download", "download_service__source_failure")
# What NVFlare 2.9.0 registers, and Tacit with it, by the kind of cell.
REGISTERED: Final[Mapping[Kind, Topics]] = {
    "server": _EVERYWHERE
    | _DOWNLOAD  # once a result has been downloaded
    | _topics(TASK, "challenge", "register", "heart_beat", "quit", "report_job_failure")
    | _topics(HCI, "*")
    | _topics("hci.upload", "*")
    | _topics(LISTENER, "*"),
    "server's job": _IN_JOBS | _topics(COMMAND, "*"),
    "silo": _EVERYWHERE | _topics(ADMIN, "*") | _topics(COMMAND, "get_task", "submit_update"),
    "silo's job": _IN_JOBS
    | _DOWNLOAD
    | _topics(AUX, "__do_task__", "__end_run__", "tacit-call", "tacit-evaluate", "tacit-message")
    | _topics(COMMAND, "get_task", "submit_update")
    | _topics("client_command", "*"),
}
# What it registers on a silo's channel `admin`, and as commands for requesters: refused unless named above.
REGISTERED_REQUESTS: Final = frozenset(
    {
        *("info.reset_errors", "info.show_errors", "info.show_stats", "resource_manager.report_resources"),
        *("scheduler.cancel_resource", "scheduler.check_resource", "sys.configure_site_log", "sys.info"),
        *("sys.report_env", "sys.report_version", "sys.shell", "train.abort", "train.abort_task"),
        *("train.check_status", "train.configure_job_log", "train.delete_run", "train.deploy", "train.get_scopes"),
        *("train.notify_job_status", "train.restart", "train.shutdown", "train.start_job"),
    }
)
REGISTERED_COMMANDS: Final = COMMANDS | {
    *("add_study_site", "add_study_user", "admin_check_status", "cat", "cells", "clone_job", "configure_job_log"),
    *("configure_site_log", "conns", "dead", "delete_job", "disable_client", "download_job_components"),
    *("enable_client", "get_job_log", "grep", "head", "list_job", "list_pools", "list_sessions", "list_studies", "ls"),
    *("msg_stats", "peers", "process_info", "pwd", "register_study", "remove_client", "remove_study"),
    *("remove_study_site", "remove_study_user", "report_env", "report_resources", "report_version", "reset_errors"),
    *("restart", "route", "show_comm_config", "show_config_vars", "show_errors", "show_pool", "show_scopes"),
    *("show_stats", "show_study", "shutdown", "speed", "stress", "sys_info", "tail", "url_use"),
}
