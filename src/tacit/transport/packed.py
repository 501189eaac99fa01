"""What a packed job consists of, to the byte. Everything else is refused before NVFlare unpacks or parses any of it.

NVFlare 2.9.0 accepts configurations in three languages, one of which includes files and URLs, and looks for code only
after it has unpacked a job. A job of Tacit's has one form, which :func:`submitted` and :func:`deployed` accept:

NAME/meta.json                           a name, and who takes part: its text follows from these two
NAME/app/config/config_fed_server.json   constant: names Tacit's class at the server
NAME/app/config/config_fed_client.json   constant: names Tacit's class at silos
NAME/app/config/request.json             what is asked for; server and silos read it in the process of the job

and in each of the three folders the signatures of what is in it, and the certificate of the requester. The server sends
silos what is below ``NAME/app``. The request is the only signed text that differs between jobs. It begins with a brace:
the other text that a requester's key signs, for a login, begins with the requester's name, so neither passes for the
other.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from zipfile import ZIP_STORED, BadZipFile, ZipFile

from tacit.escape import escaped
from tacit.transport.channels import ANALYZER, SERVER

MOST_BYTES: Final = 11 << 18  # of a job, packed or not; in base64 it is one message (``streams.MOST_BYTES``)
PACKED: Final = "tacit-job"  # the property of the command `submit_job` that is the job, packed, in base64
REQUEST, BARRIER = "request.json", "tacit-barrier"
CLASSES: Final = ("tacit.federation.carrier.flare.Coordinator", "tacit.federation.carrier.flare.SiloExecutor")
ROLE: Final = "lead"  # NVFlare's word for those who may submit jobs; it stands in their certificates
_APP, _META = "app", "meta.json"
_SIGNATURES: Final = (".__nvfl_sig.json", ".__nvfl_submitter.crt")
_RULE, _MOST_RULES = re.compile("[a-z_]{1,40}"), 32  # by which one silo refuses a job
_FOLDER, _NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"), re.compile(r"tacit-[0-9a-f]{1,12}-[0-9]{1,4}")


class Unfit(Exception):
    """Why a job is refused. ``rule`` is the word that the requester gets to know; ``by`` has signed it, if known."""

    def __init__(self, problem: str, rule: str = "request", by: str = "") -> None:
        super().__init__(problem)
        self.rule, self.by = rule, by


def text(content: object) -> bytes:
    return json.dumps(content, indent=1).encode()


_FILTERS: Final[dict[str, Any]] = {
    "format_version": 2,
    "task_data_filters": [],
    "task_result_filters": [],
    "components": [],
}
CONFIGS: Final = {
    "config_fed_server.json": text({**_FILTERS, "workflows": [{"id": "tacit", "path": CLASSES[0], "args": {}}]}),
    "config_fed_client.json": text(
        {**_FILTERS, "executors": [{"tasks": [BARRIER], "executor": {"path": CLASSES[1], "args": {}}}]}
    ),
}


_MOST: Final = {  # bytes
    **{name: len(content) for name, content in CONFIGS.items()},
    REQUEST: 5 << 19,  # with a packed model in base64
    _META: 1 << 17,
    **dict.fromkeys(_SIGNATURES, 1 << 14),
}


def files(name: str, parties: Sequence[str], request: object) -> dict[str, bytes]:
    """The files of a job before it is signed, below its folder; ``parties`` take part, apart from the server."""
    config = {**CONFIGS, REQUEST: text(request)}
    return {_META: _meta(name, parties), **{f"{_APP}/config/{file}": content for file, content in config.items()}}


def _meta(name: str, parties: Sequence[str]) -> bytes:
    return text(
        {
            "name": name,
            "resource_spec": {},
            "min_clients": len(parties),
            "mandatory_clients": list(parties),
            "deploy_map": {_APP: [SERVER, *parties]},
        }
    )


def submitted(packed: bytes, folder: str, roster: Collection[str]) -> None:
    """Unfit where this is no job that a requester submits as ``folder`` for all silos of the ``roster``, with or
    without the analyzer. A job for others would wait for parties that do not exist, or reach no silo's policy."""
    if not _FOLDER.fullmatch(folder):
        raise Unfit("its folder has no plain name")
    found = _opened(packed, {f"{folder}/{path}" for path in (_META, *_signed(""), *_in_app(f"{_APP}/"))})
    try:
        meta = json.loads(found[f"{folder}/{_META}"])
        name, parties = meta["name"], meta["mandatory_clients"]
        others = set(roster) - {SERVER}
        are_parties = set(parties) in (others, others - {ANALYZER})
        is_named = _NAME.fullmatch(name) is not None and len(set(parties)) == len(parties)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Unfit("its description cannot be read") from None
    if not is_named or not are_parties or found[f"{folder}/{_META}"] != _meta(name, parties):
        raise Unfit("its description is not that of a request")
    _check_app(found, f"{folder}/{_APP}/")


def deployed(packed: object) -> dict[str, bytes]:
    """The files of a job as the server sends it to a silo; Unfit where it is none."""
    if not isinstance(packed, bytes):
        raise Unfit("it is not packed")
    found = _opened(packed, set(_in_app("")))
    _check_app(found, "")
    return found


def _signed(folder: str) -> list[str]:
    return [f"{folder}{name}" for name in _SIGNATURES]


def _in_app(app: str) -> list[str]:
    config = f"{app}config/"
    folders = [config] if not app else [app, config]
    return [*folders, *_signed(app), *_signed(config), *(f"{config}{name}" for name in (*CONFIGS, REQUEST))]


def _opened(packed: bytes, expected: set[str]) -> dict[str, bytes]:
    """The files of an archive that holds exactly these files and folders, as they are: nothing is decompressed."""
    if len(packed) > MOST_BYTES:
        raise Unfit(f"it has {len(packed)} bytes")
    try:
        with ZipFile(io.BytesIO(packed)) as archive:
            entries = archive.infolist()
            names = [entry.filename for entry in entries]
            if sorted(names) != sorted(expected):
                raise Unfit("its files are not those of a request")
            if any(entry.compress_type != ZIP_STORED or entry.file_size != entry.compress_size for entry in entries):
                raise Unfit("it is compressed")
            if any(entry.file_size > _MOST.get(entry.filename.rpartition("/")[2], 0) for entry in entries):
                raise Unfit("a file of it is too large")
            return {entry.filename: archive.read(entry) for entry in entries if not entry.is_dir()}
    except (BadZipFile, ValueError, NotImplementedError, RuntimeError, OSError, EOFError):
        raise Unfit("it cannot be unpacked") from None


def _check_app(found: dict[str, bytes], app: str) -> None:
    for name, content in CONFIGS.items():
        if found[f"{app}config/{name}"] != content:
            raise Unfit("its configuration is not that of a request")
    if not found[f"{app}config/{REQUEST}"].startswith(b"{"):
        raise Unfit("it holds no request")


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
    if not isinstance(rules, list) or len(rules) > _MOST_RULES:
        return []
    return rules if all(isinstance(rule, str) and _RULE.fullmatch(rule) for rule in rules) else []
