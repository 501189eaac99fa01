"""Kits: certificates, keys and limits of a federation's server, silos, analyzer and requesters.

``FEDERATION.toml`` (:class:`FederationOptions`; an example is in docs/deploy.md) names them.

:func:`make_kits` makes one folder for each: certificates of one authority (NVFlare's provisioning), what that party may
do and may be made to do (no code from a request, no shell, only Tacit's own classes, signed requests only, no logs that
leave), and in ``tacit/`` what NVFlare does not know:

kit.json         the name and kind of the party
identity.key     the signing key of a server, silo or analyzer in exchanges that hide single silos
roster.json      the public keys of all of them; a party that relays messages cannot replace them by its own
pseudonyms.key   silos only: the secret by which the same person has the same number in every silo

The authority's own key signs new certificates. It is kept only if a passphrase encrypts it. If omitted, the key is
discarded and no party can be added later.
"""

from __future__ import annotations

import ipaddress
import json
import re
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Annotated, Literal, Self, cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.x509.oid import NameOID
from pydantic import Field, field_validator, model_validator

from tacit.crypto import Identity, Secret
from tacit.data.options import Section
from tacit.engine.folder import PRIVATE, read_json, write_json
from tacit.engine.learner import write_bytes
from tacit.errors import InvalidSetting, UserError
from tacit.exchange.post import SERVER
from tacit.transport import packed
from tacit.transport.attendant import KIT, organisation
from tacit.transport.channels import ANALYZER
from tacit.transport.log import OURS

Kind = Literal["server", "silo", "analyzer", "requester"]

IDENTITY, ROSTER, PSEUDONYMS = "identity.key", "roster.json", "pseudonyms.key"
AUTHORITY, ROOT, ROOT_KEY, MEMBERS = "authority", "rootCA.pem", "rootCA.key", "members.json"
RUNS = "runs"  # in the server's kit: checkpoints and ledgers of runs
SECRET_BYTES = 32

CLASSES = packed.CLASSES  # the only ones that a request may name; they treat every argument as untrusted
REQUESTER_ROLE = packed.ROLE

# Requesters are leads; no other role has members. They may ask the server who is connected and how their runs proceed,
# and a silo or the analyzer to take part in a run. They may not stop a party, read its files, or run other code there.
_ON_JOBS = ("submit_job", "clone_job", "manage_job", "download_job")
_NOTHING = dict.fromkeys((*_ON_JOBS, "view", "operate", "shell_commands", "byoc", "server-predeployed-flwr"), "none")
_AT_A_SILO = {**_NOTHING, "submit_job": "any"}
_OF_OWN_JOBS = dict.fromkeys(("manage_job", "download_job", "app_command"), "n:submitter")
_AT_THE_SERVER = {**_AT_A_SILO, "view": "any", **_OF_OWN_JOBS}

# What NVFlare puts into a kit to start it without Tacit: without a policy, and with stores that all local users share.
_OTHER_WAYS = (
    "readme.txt",
    *(f"startup/{name}" for name in ("readme.txt", "start.sh", "sub_start.sh", "stop_fl.sh", "fl_admin.sh")),
    "startup/system_info.ipynb",
)
_COMMANDS: dict[Kind, str] = {
    "server": "tacit server KIT",
    "silo": "tacit silo KIT --data DATA.toml --policy POLICY.toml",
    "analyzer": "tacit analyzer KIT",
    "requester": "tacit submit EXPERIMENT.toml --kit KIT",
}
_HEARTBEATS = 60  # seconds without a sign of life after which a silo counts as gone; it gives one every ten
UPKEEP = {"id": "tacit_upkeep", "path": "tacit.transport.upkeep.Upkeep", "args": {}}
# A job that waits for a silo is tried again soon, for a long time. Each job is a process.
_SCHEDULING = {"max_jobs": 4, "max_schedule_count": 1000, "min_schedule_interval": 2.0, "max_schedule_interval": 10.0}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_ADDRESS = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?")


class ServerOptions(Section):
    """Where the server is reached: a name that silos and requesters can resolve, and one port for all of them."""

    host: str
    port: Annotated[int, Field(strict=True, ge=1, le=65535)] = 8002

    @field_validator("host")
    @classmethod
    def _is_host(cls, host: str) -> str:
        if not _HOST.fullmatch(host) or len(host) > 64:
            raise InvalidSetting("malformed", "give a host name of at most 64 letters, digits, dots and hyphens")
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host
        raise InvalidSetting("malformed", "give a host name, not an address: the certificate has that name")


class FederationOptions(Section):
    """``FEDERATION.toml``."""

    name: str
    server: ServerOptions
    silos: tuple[str, ...] = Field(min_length=2)
    requesters: tuple[str, ...] = Field(min_length=1)
    analyzer: bool = False
    valid_days: Annotated[int, Field(strict=True, ge=1, le=360)] = 360

    @property
    def members(self) -> tuple[str, ...]:
        """Who joins the server, apart from requesters: silos, and the analyzer."""
        return (*self.silos, *((ANALYZER,) if self.analyzer else ()))

    @model_validator(mode="after")
    def _names(self) -> Self:
        for name in (self.name, *self.silos):
            if not _NAME.fullmatch(name):
                fix = "use at most 63 letters, digits, hyphens and underscores"
                raise InvalidSetting("malformed", f"'{name}' is not a valid name: {fix}")
        for name in self.requesters:
            if not _ADDRESS.fullmatch(name):
                fix = "write for example ana@example.org"
                raise InvalidSetting("malformed", f"requester '{name}' is not a mail address; {fix}")
        taken = [name.lower() for name in (*self.silos, *self.requesters)]
        others = (SERVER, ANALYZER, "all", "admin", self.server.host.lower())  # the server's certificate has its host
        if twice := [name for name in taken if taken.count(name) > 1 or name in others]:
            raise InvalidSetting("duplicate", f"'{twice[0]}' is taken; every party needs its own name")
        return self


@dataclass(frozen=True)
class Kit:
    """A kit folder, as its holder uses it. ``silos`` and ``analyzer``: who is on the roster."""

    path: Path
    kind: Kind
    name: str
    federation: str
    host: str
    port: int
    silos: tuple[str, ...]
    analyzer: bool

    @classmethod
    def load(cls, path: Path, *kinds: Kind) -> Kit:
        """The kit in a folder; a UserError where there is none, or one of another kind than these."""
        path = path.resolve()
        file = path / OURS / KIT
        if not file.is_file():
            problem = f"'{path}' is not a kit"
            raise UserError("wrong-file", "KIT", problem, "name a folder that `tacit federation init` made")
        there = _roster(path)
        silos = tuple(name for name in there if name not in (SERVER, ANALYZER))
        try:
            kit = cls(path, **read_json(file, "KIT"), silos=silos, analyzer=ANALYZER in there)
        except TypeError:
            raise UserError("file-damaged", "KIT", f"'{KIT}' is damaged", "restore the kit") from None
        if kit.kind not in kinds:
            fix = f"name the kit of {' or '.join(map(_one, kinds))}"
            raise UserError("wrong-file", "KIT", f"'{path}' is the kit of {_one(kit.kind)}", fix)
        return kit

    @property
    def ours(self) -> Path:
        return self.path / OURS

    @property
    def startup(self) -> Path:
        return self.path / "startup"

    def identity(self) -> Identity:
        return Identity(read_secret(self.ours / IDENTITY, "KIT"))

    def roster(self) -> dict[str, bytes]:
        """The public signing keys of server, silos and analyzer, by name."""
        return _roster(self.path)

    def pseudonyms(self) -> Secret:
        return read_secret(self.ours / PSEUDONYMS, "KIT")

    def certificate(self) -> x509.Certificate:
        name = "server.crt" if self.kind == "server" else "client.crt"
        return x509.load_pem_x509_certificate((self.startup / name).read_bytes())

    def check_certificate(self) -> None:
        """A UserError where the certificate is not valid now, has another name, or is of another authority."""
        certificate, now = self.certificate(), datetime.now(UTC)
        root = x509.load_pem_x509_certificate((self.startup / ROOT).read_bytes())
        names = [part.value for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        problem = None
        if now > certificate.not_valid_after_utc:
            problem = f"has expired ({certificate.not_valid_after_utc:%Y-%m-%d})"
        elif now < certificate.not_valid_before_utc:
            problem = f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        elif names != [self.host if self.kind == "server" else self.name]:
            problem = f"has the name {' '.join(map(str, names)) or '(none)'}"
        elif not _issued_by(certificate, root):
            problem = "is of another authority"
        if problem is not None:
            fix = "check this machine's clock, or make new kits: `tacit federation init` with another --out"
            raise UserError("bad-certificate", "KIT", f"the certificate of {self.name} {problem}", fix)


def _one(kind: Kind) -> str:
    return f"an {kind}" if kind == "analyzer" else f"a {kind}"


def _roster(kit: Path) -> dict[str, bytes]:
    values = read_json(kit / OURS / ROSTER, "KIT")
    return {str(name): bytes.fromhex(text) for name, text in values.items()}


def _issued_by(certificate: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def read_secret(file: Path, field: str) -> Secret:
    content = file.read_bytes() if file.is_file() else b""
    if len(content) != SECRET_BYTES:
        problem = f"'{file.name}' does not hold {SECRET_BYTES} bytes"
        raise UserError("file-damaged", field, problem, "restore it from a backup")
    return Secret(content)


def require_nvflare() -> None:
    try:
        import nvflare  # noqa: F401
    except ImportError:
        problem = "a federation needs NVFlare, which is not installed"
        fix = 'install the extra: pip install ".[federation]"'
        raise UserError("not-installed", "federation", problem, fix) from None


def make_kits(options: FederationOptions, out: Path, passphrase: str | None) -> dict[str, Path]:
    """Make the kits of all parties that have none yet, under ``out``; their folders by name.

    Later, with the passphrase of the authority's key, these are the silos and requesters that have been added to the
    file since; all parties then need the new ``roster.json``.
    """
    require_nvflare()
    folders = {
        SERVER: out / SERVER,
        **{name: out / ("silos" if name in options.silos else "") / name for name in options.members},
        **{name: out / "requesters" / name for name in options.requesters},
    }
    authority = out / AUTHORITY
    begun = authority.is_dir()
    opened = _opened(authority, passphrase) if begun else None
    known = read_json(authority / MEMBERS, "--out") if begun else {"roster": {}, "requesters": []}
    missing = [name for name in folders if name not in (*known["roster"], *known["requesters"])]
    if not missing:
        problem = "all parties have a kit"
        fix = "add a silo or a requester; to remove a party, make new kits for all others with another --out"
        raise UserError("no-effect", "FEDERATION.toml", problem, fix)
    if there := next((folders[name] for name in missing if folders[name].exists()), None):
        raise UserError("exists-already", "--out", f"'{there}' exists", "name a new folder")
    adds_silo = any(name in options.silos for name in missing)
    pseudonyms = _shared_pseudonyms(folders, options.silos, begun) if adds_silo else b""
    _private_folder(out)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        made, key, root = _provisioned(options, Path(scratch), opened)
        for name in missing:
            folders[name].parent.mkdir(exist_ok=True)
            shutil.move(made[name], folders[name])
            public = _complete(folders[name], name, options, pseudonyms)
            known["roster"] |= {} if public is None else {name: public.hex()}
    known["requesters"] = sorted({*known["requesters"], *options.requesters})
    if not begun:
        _private_folder(authority)
        (authority / ROOT).write_bytes(root)
        if passphrase:
            sealed = serialization.BestAvailableEncryption(passphrase.encode())
            pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
            write_bytes(authority / ROOT_KEY, key.private_bytes(pem, pkcs8, sealed), PRIVATE)
    write_json(authority / MEMBERS, known)
    for folder in folders.values():
        if folder.is_dir():
            write_json(folder / OURS / ROSTER, known["roster"])
    return {name: folders[name] for name in missing}


def _provisioned(
    options: FederationOptions, scratch: Path, authority: tuple[RSAPrivateKey, bytes] | None
) -> tuple[dict[str, Path], RSAPrivateKey, bytes]:
    """NVFlare's own part of all kits, the authority's key and its certificate."""
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    given = {} if authority is None else {"root_private_key": authority[0], "serialized_root_cert": authority[1]}
    project = Project(options.name, "", **given)
    host, port = options.server.host, options.server.port
    ports = {"fed_learn_port": port, "admin_port": port, "default_host": host}
    project.set_server(host, organisation(options.name), ports)
    for name in options.members:
        project.add_client(name, organisation(name), {})
    for name in options.requesters:
        project.add_admin(name, organisation(name), {"role": REQUESTER_ROLE})
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder(config_folder="config", scheme="grpc", require_signed_jobs=True),
        CertBuilder(root_valid_days=options.valid_days),
        SignatureBuilder(),
    ]
    with redirect_stdout(StringIO()):
        context = Provisioner(str(scratch), builders).provision(project)
    if context.get(CtxKey.BUILD_ERROR):
        problem = " ".join(context.get_errors()) or "NVFlare could not make the kits"
        raise UserError("invalid-value", "FEDERATION.toml", problem, "correct what it names")
    folder = Path(context[CtxKey.CURRENT_PROD_DIR])
    key = cast(RSAPrivateKey, context[CtxKey.ROOT_PRI_KEY])
    root = context[CtxKey.ROOT_CERT].public_bytes(serialization.Encoding.PEM)
    names = {SERVER: host, **{name: name for name in (*options.members, *options.requesters)}}
    return {name: folder / place for name, place in names.items()}, key, root


def _complete(folder: Path, name: str, options: FederationOptions, pseudonyms: bytes) -> bytes | None:
    """Add Tacit's part of a kit: its limits, and ``tacit/``. Returns its public signing key, if it has one."""
    kinds: dict[str, Kind] = {SERVER: "server", ANALYZER: "analyzer", **dict.fromkeys(options.silos, "silo")}
    kind = kinds.get(name, "requester")
    ours = folder / OURS
    for path in (folder, folder / "startup", ours):
        _private_folder(path)
    for other in _OTHER_WAYS:
        (folder / other).unlink(missing_ok=True)
    words = f"The kit of {name} in the federation {options.name}. Keep it to yourself: it holds private keys."
    (folder / "README.txt").write_text(f"{words}\n\n    {_COMMANDS[kind]}\n\nKIT is this folder.\n", encoding="utf-8")
    identity = None if kind == "requester" else Identity()
    if identity is not None:
        _restrict(folder / "local", kind)
        write_bytes(ours / IDENTITY, bytes(identity.secret().expose()), PRIVATE)
    if kind == "silo":
        write_bytes(ours / PSEUDONYMS, pseudonyms, PRIVATE)
    host, port = options.server.host, options.server.port
    write_json(ours / KIT, {"kind": kind, "name": name, "federation": options.name, "host": host, "port": port})
    return None if identity is None else identity.public


def _restrict(local: Path, kind: Kind) -> None:
    resources = json.loads((local / "resources.json.default").read_text())
    resources |= {"class_list_enforcement_mode": "enforce", "class_allow_list": list(CLASSES)}
    if kind != "server":
        resources["allow_log_streaming"] = False
        # its components other than those that start a job would only carry logs to the server
        resources["components"] = [one for one in resources["components"] if one["id"] != "site_log_streamer"]
    else:
        resources["servers"][0]["heart_beat_timeout"] = _HEARTBEATS
    write_json(local / "resources.json", resources)
    of_requesters = _AT_THE_SERVER if kind == "server" else _AT_A_SILO
    roles = {**dict.fromkeys(("project_admin", "org_admin", "member"), _NOTHING), REQUESTER_ROLE: of_requesters}
    write_json(local / "authorization.json", {"format_version": "1.0", "permissions": roles})
    for name in ("resources.json.default", "authorization.json.default", "privacy.json.sample"):
        (local / name).unlink()


def configure(kit: Kit) -> None:
    """Set NVFlare's settings when a party starts, in kits that were made before, too: bounds on what it writes
    (:mod:`tacit.transport.upkeep`), few jobs at a time, and mutual TLS between the processes of a party (NVFlare's
    default is a port on the loopback interface for every local user). The server keeps its stores within its kit
    (NVFlare's default is a folder that all local users share), and receives no logs from requesters."""
    local = kit.path / "local"
    resources = read_json(local / "resources.json", "KIT")
    components = {one["id"]: one for one in resources["components"]}
    components.pop(UPKEEP["id"], None)
    if "job_scheduler" in components:
        components["job_scheduler"]["args"] = _SCHEDULING
    if kit.kind == "server":
        jobs, snapshots = (kit.ours / "store" / name for name in ("jobs", "snapshots"))
        for store in (jobs, snapshots):
            store.mkdir(parents=True, exist_ok=True, mode=0o700)
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(snapshots)
        components["job_manager"]["args"]["uri_root"] = str(jobs)
        components.pop("log_receiver", None)
    write_json(local / "resources.json", {**resources, "components": [*components.values(), UPKEEP]})
    tls = {"host": "localhost", "connection_security": "mtls"}
    write_json(local / "comm_config.json", {"internal": {"scheme": "tcp", "resources": tls}})


def _shared_pseudonyms(folders: dict[str, Path], silos: Sequence[str], begun: bool) -> bytes:
    """The secret that silos share: a new one, or what they have already."""
    if not begun:
        return secrets.token_bytes(SECRET_BYTES)
    places = (folders[name] / OURS / PSEUDONYMS for name in silos)
    found = next((file for file in places if file.is_file()), None)
    if found is None:
        problem = f"a new silo needs '{PSEUDONYMS}', and the folder has no kit of another silo"
        place = folders[silos[0]] / OURS / PSEUDONYMS
        raise UserError("file-not-found", "--out", problem, f"copy the file from the kit of any silo to '{place}'")
    return bytes(read_secret(found, "--out").expose())


def _opened(folder: Path, passphrase: str | None) -> tuple[RSAPrivateKey, bytes]:
    if not (folder / ROOT_KEY).is_file():
        problem = f"'{folder}' holds no key: it was made without a passphrase, so no party can be added"
        raise UserError("missing", "--out", problem, "make new kits for all parties in another folder")
    if not passphrase:
        raise UserError("missing", "--passphrase", "is needed to add kits", "give the passphrase of the first time")
    try:
        key = serialization.load_pem_private_key((folder / ROOT_KEY).read_bytes(), passphrase.encode())
    except ValueError:
        problem = "does not open the authority's key"
        raise UserError("wrong-passphrase", "--passphrase", problem, "give that of the first time") from None
    return cast(RSAPrivateKey, key), (folder / ROOT).read_bytes()


def _private_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
