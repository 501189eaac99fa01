"""What a packed job may consist of: judged by the server when it is submitted, and by silos when it is deployed, before
NVFlare unpacks it."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from zipfile import ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, ZipFile

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
from nvflare.lighter.utils import load_private_key_file, sign_folders
from nvflare.private.admin_defs import Message, MsgHeader, ReturnCode, error_reply, ok_reply
from nvflare.private.fed.client.scheduler_cmds import StartJobProcessor
from nvflare.private.fed.client.training_cmds import DeployProcessor
from nvflare.private.fed.server.job_cmds import JobCommandModule
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.utils.identity_utils import IdentityAsserter

from tacit.federation.kits import FederationOptions, make_kits
from tacit.federation.request import REQUEST, write_job
from tacit.transport import upkeep

ANA, EVE, SILOS = "ana@example.org", "eve@example.org", ("north", "south")
SIGNATURES, CERTIFICATE = ".__nvfl_sig.json", ".__nvfl_submitter.crt"
Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def kits(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("federation") / "kits"
    made = FederationOptions(name="t", server={"host": "localhost"}, silos=SILOS, requesters=(ANA, EVE))
    make_kits(made, out, None)
    return out


def signed(kits: Path, folder: Path, who: str = ANA, spoil: Spoil = lambda job: None) -> Path:
    """A job that was spoilt before it was signed; what silos get of it."""
    write_job(folder, "x", "0" * 32, 1, SILOS, 20)
    spoil(folder)
    startup = kits / ("silos" if who in SILOS else "requesters") / who / "startup"
    sign_folders(str(folder), load_private_key_file(str(startup / "client.key")), str(startup / "client.crt"))
    return folder / "app"


def packed(folder: Path, name: str = "") -> bytes:
    """As NVFlare packs a folder."""
    return zip_directory_to_bytes(str(folder if not name else folder.parent), name)


def compressed(content: bytes, method: int) -> bytes:
    out = BytesIO()
    with ZipFile(BytesIO(content)) as old, ZipFile(out, "w", method) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    return out.getvalue()


def added(content: bytes, name: str, text: bytes) -> bytes:
    out = BytesIO(content)
    with ZipFile(out, "a", ZIP_STORED) as archive:
        archive.writestr(name, text)
    return out.getvalue()


def config(job: Path, name: str) -> Path:
    return job / "app" / "config" / name


def meta(job: Path, **changes: object) -> None:
    file = job / "meta.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}, indent=1))


def only(job: Path, parties: tuple[str, ...]) -> None:
    """A job for these parties alone, as Tacit writes it."""
    shutil.rmtree(job)
    write_job(job, "x", "0" * 32, 1, parties, 20)


def moved(job: Path, side: str, suffix: str) -> None:
    """A configuration in another of NVFlare's languages."""
    config(job, f"config_fed_{side}.json").unlink()
    config(job, f"config_fed_{side}.{suffix}").write_text('include required(file("/etc/hostname"))\nleak = [1] ${x}\n')


def with_code(job: Path) -> None:
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "sitecustomize.py").write_text("raise SystemExit")


SPOILT_APPS: dict[str, Spoil] = {
    "HOCON for silos": lambda job: moved(job, "client", "conf"),
    "HOCON for the server": lambda job: moved(job, "server", "conf"),
    "YAML": lambda job: moved(job, "client", "yml"),
    "HOCON beside JSON": lambda job: config(job, "config_fed_client.conf").write_text("a = 1"),
    "references in JSON": lambda job: config(job, "config_fed_client.json").write_text('{"a": "{b}{b}", "b": "x"}'),
    "one more space": lambda job: config(job, "config_fed_server.json").open("a").write(" "),
    "code": with_code,
    "a file": lambda job: (job / "app" / "custom").write_text("x"),
    "no request": lambda job: config(job, REQUEST).unlink(),
    "a request that is none": lambda job: config(job, REQUEST).write_text("[]"),
    "a large request": lambda job: config(job, REQUEST).write_text("{" + " " * (5 << 19)),
    "a folder": lambda job: (job / "app" / "config" / "more").mkdir(),
    "40 MB": lambda job: (job / "app" / "zeros").open("wb").truncate(40 << 20),
}
SPOILT_JOBS: dict[str, Spoil] = {
    **SPOILT_APPS,
    "a number of its own": lambda job: meta(job, job_id="tacit"),  # the name of a folder of the kit
    "two apps": lambda job: meta(job, deploy_map={"app": ["server", "north"], "app2": ["south"]}),
    "a launcher": lambda job: meta(job, launcher_spec={"north": {"docker": {}}}),
    "other parties": lambda job: meta(job, deploy_map={"app": ["server", "@ALL"]}),
    "a party twice": lambda job: meta(job, mandatory_clients=["north", "north"]),
    "the server as a silo": lambda job: meta(job, mandatory_clients=["server"]),
    "some of the silos": lambda job: only(job, ("north",)),
    "a silo that is none": lambda job: only(job, (*SILOS, "west")),
    "the analyzer alone": lambda job: only(job, ("analyzer",)),
    "no silo": lambda job: only(job, ()),
    "another name": lambda job: meta(job, name="x\n2026"),
    "brackets": lambda job: (job / "meta.json").write_text("[" * 100_000),
    "a number": lambda job: (job / "meta.json").write_text("1"),
    "HOCON": lambda job: (job / "meta.json").rename(job / "meta.conf"),
    "another app": lambda job: (job / "app").rename(job / "other"),
}


@pytest.fixture
def server(kits, tmp_path, monkeypatch) -> Path:
    """A server's kit; what is replaced in NVFlare is put back."""
    shutil.copytree(kits / "server" / "tacit", tmp_path / "server" / "tacit")
    monkeypatch.setattr(JobMetaValidator, "validate", JobMetaValidator.validate)
    monkeypatch.setattr(JobCommandModule, "submit_job", JobCommandModule.submit_job)
    upkeep.limit_uploads(tmp_path / "server")
    return tmp_path / "server"


def taken(server: Path, content: bytes) -> bool:
    """Whether a server takes a job. The command that carries it removes its file (``test_upkeep.py``)."""
    file, log = server / "upload", server / "tacit" / "log.txt"
    file.write_bytes(content)
    began = time.process_time()
    is_taken, _, told = JobMetaValidator().validate("job", str(file))
    assert time.process_time() - began < 1
    assert is_taken == bool(told)
    assert is_taken != (log.is_file() and "refused a job: job: " in log.read_text())
    return bool(is_taken)


def test_the_server_takes_a_job_that_is_as_tacit_writes_it(kits, server, tmp_path):
    assert taken(server, packed(signed(kits, tmp_path / "job").parent, "job"))


@pytest.mark.parametrize("spoilt", SPOILT_JOBS)
def test_the_server_takes_no_other_job(kits, server, tmp_path, spoilt):
    signed(kits, tmp_path / "job", spoil=SPOILT_JOBS[spoilt])
    assert not taken(server, packed(tmp_path / "job", "job"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_server_takes_no_other_archive(kits, server, tmp_path):
    good = packed(signed(kits, tmp_path / "job").parent, "job")
    unsigned = tmp_path / "unsigned" / "job"
    write_job(unsigned, "x", "0" * 32, 1, SILOS, 20)
    shutil.copytree(tmp_path / "job", tmp_path / "other")
    for content in (
        compressed(good, ZIP_DEFLATED),  # what is decompressed can be of any size
        compressed(good, ZIP_LZMA),
        added(good, f"job/app/config/{REQUEST}", b"{}"),  # a second file of the same name
        added(good, "job/../../x", b""),
        packed(unsigned, "job"),
        packed(tmp_path / "other", "other"),  # not the folder that was named
        good[:-30],
        b"no archive",
        b"",
    ):
        assert not taken(server, content)
        (server / "tacit" / "log.txt").write_text("")


# -- silos


class Silo:
    """A silo's main process, as far as it deploys jobs; ``handed`` are those that NVFlare has got."""

    def __init__(self, kit: Path, answer: Callable[[], Message]) -> None:
        self.kit, self.handed = kit, []

        def process(_: object, req: Message, app_ctx: object) -> Message:
            self.handed.append(req)
            (kit / str(req.get_header("job_id"))).mkdir()
            return answer()

        DeployProcessor.process = process
        upkeep.limit_deployments(kit)

    def deploys(self, content: bytes, job: str | None = None, **told: object) -> Message:
        request = Message("train.deploy", content)
        job = job or str(uuid.uuid4())
        request.set_headers({"job_id": job, "app_name": "app", "job_meta": {"job_id": job, **told}})
        return DeployProcessor().process(request, SimpleNamespace())

    def refuses(self, content: bytes, rule: str = "request", words: str = "") -> bool:
        """Whether a job is refused by a rule before NVFlare gets it, and the log says so in these words."""
        before, log = len(self.handed), self.kit / "tacit" / "log.txt"
        reply = self.deploys(content)
        assert len(self.handed) == before
        assert words in log.read_text()
        return has_failed(reply) and json.loads(reply.body) == {"rules": [rule]}


def has_failed(reply: Message) -> bool:
    return bool(reply.get_header(MsgHeader.RETURN_CODE) != ReturnCode.OK)


@pytest.fixture
def kit(kits, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(DeployProcessor, "process", DeployProcessor.process)
    monkeypatch.setattr(StartJobProcessor, "process", StartJobProcessor.process)
    return Path(shutil.copytree(kits / "silos" / "north", tmp_path / "north"))


@pytest.fixture
def silo(kit) -> Silo:
    return Silo(kit, ok_reply)


def test_a_silo_takes_a_job_that_is_as_tacit_writes_it(kits, silo, tmp_path):
    assert not has_failed(silo.deploys(packed(signed(kits, tmp_path / "job"))))
    assert len(silo.handed) == 1


@pytest.mark.parametrize("spoilt", SPOILT_APPS)
def test_a_silo_takes_no_other_job(kits, silo, tmp_path, spoilt):
    assert silo.refuses(packed(signed(kits, tmp_path / "job", spoil=SPOILT_APPS[spoilt])))


def test_a_silo_takes_no_other_archive(kits, silo, tmp_path):
    good = packed(signed(kits, tmp_path / "job"))
    for content in (compressed(good, ZIP_DEFLATED), compressed(good, ZIP_LZMA), bytes(3 << 20), b"", "text", None):
        assert silo.refuses(content)


def test_a_silo_takes_a_job_of_one_requester_alone(kits, silo, tmp_path):
    words = "it is not signed by one requester of this federation"
    assert silo.refuses(packed(signed(kits, tmp_path / "south", "south")), words=words)
    ana, eve = signed(kits, tmp_path / "ana", ANA), signed(kits, tmp_path / "eve", EVE)
    for name in (SIGNATURES, CERTIFICATE):
        shutil.copy(eve / name, ana / name)
    assert silo.refuses(packed(ana), words=words)
    (eve / "config" / REQUEST).write_text("{}")
    assert silo.refuses(packed(eve), words=words)


def test_what_a_requester_signs_for_a_login_is_no_job(kits, silo, tmp_path):
    """The server chooses the text that follows the requester's name, and the signature is one of a file."""
    from base64 import b64encode

    app, startup = signed(kits, tmp_path / "job"), kits / "requesters" / ANA / "startup"
    asserter = IdentityAsserter(str(startup / "client.key"), str(startup / "client.crt"))
    login = asserter.sign_common_name('{"experiment": ""}')
    for folder, name in ((app, "custom"), (app / "config", REQUEST)):
        (folder / name).write_text(ANA + '{"experiment": ""}')
        signatures = json.loads((folder / SIGNATURES).read_text())
        (folder / SIGNATURES).write_text(json.dumps({**signatures, name: b64encode(login).decode()}))
        assert silo.refuses(packed(app))
        (app / "custom").unlink(missing_ok=True)


def test_who_is_not_listed_is_known_from_the_signature_of_a_job(kits, silo, tmp_path):
    app, policy = packed(signed(kits, tmp_path / "job")), tmp_path / "POLICY.toml"
    (silo.kit / "tacit" / "settings.json").write_text(json.dumps({"policy": str(policy)}))
    for content, is_refused in (
        (None, False),  # no policy: the process of the job says so
        (f'requesters = ["{ANA}"]', False),
        ('requesters = ["eve@example.org"]', True),
        ("requesters = []", True),
        (f'requesters = "{ANA}"', False),  # malformed
        ("[[", False),
    ):
        if content is not None:
            policy.write_text(content)
        if is_refused:
            assert silo.refuses(app, "requesters", f"of {ANA}: requesters: {ANA} is not among them")
        else:
            assert not has_failed(silo.deploys(app))


@pytest.mark.parametrize("fails", ["an answer", "an exception"])
def test_a_deployment_that_fails_says_nothing_and_leaves_nothing(kits, kit, tmp_path, fails):
    def answer() -> Message:
        if fails == "an exception":
            raise RuntimeError("patient 4711")
        return error_reply("patient 4711")

    silo = Silo(kit, answer)
    reply = silo.deploys(packed(signed(kits, tmp_path / "job")))
    assert len(silo.handed) == 1
    assert has_failed(reply)
    assert "4711" not in str(reply.body)
    assert not [folder for folder in kit.iterdir() if upkeep._JOB.fullmatch(folder.name)]


def test_a_job_is_deployed_once_and_one_at_a_time(kits, kit, tmp_path):
    """NVFlare unpacks a job before it decides about it: two deployments of one number would share a folder."""
    at_work, most = [], []

    def answer() -> Message:
        at_work.append(0)
        most.append(len(at_work))
        time.sleep(0.2)
        at_work.pop()
        return ok_reply()

    silo, content = Silo(kit, answer), packed(signed(kits, tmp_path / "job"))
    numbers = [str(uuid.uuid4())] * 4 + [str(uuid.uuid4()) for _ in range(4)]
    threads = [Thread(target=silo.deploys, args=(content, number)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 5
    shutil.rmtree(kit / numbers[0])  # it has ended
    assert has_failed(silo.deploys(content, numbers[0]))
    assert "its number is known already" in (kit / "tacit" / "log.txt").read_text()
    for _ in range(2 * upkeep.MOST_WAITING):
        silo.deploys(content)
    folders = [folder for folder in kit.iterdir() if upkeep._JOB.fullmatch(folder.name)]
    assert len(folders) == upkeep.MOST_WAITING  # none of which was started


def test_what_the_server_adds_to_a_job_goes_no_further(kits, kit, tmp_path):
    started = []
    StartJobProcessor.process = lambda self, req, app_ctx: started.append(req.get_header("job_meta"))
    silo, job, clients = Silo(kit, ok_reply), str(uuid.uuid4()), [{"name": "north"}]
    silo.deploys(packed(signed(kits, tmp_path / "job")), job, launcher_spec={"x": 1}, byoc=True, x=[[]] * 10)
    assert silo.handed[0].get_header("job_meta") == {"job_id": job}
    request = Message("train.start_job", {})
    request.set_headers({"job_id": job, "job_meta": {"job_id": "other", "byoc": True, "job_clients": clients}})
    StartJobProcessor().process(request, SimpleNamespace(get_all_job_ids=list))
    assert started == [{"job_id": job, "job_clients": clients}]


@pytest.mark.parametrize(("policy", "most"), [(None, 4), ("most_runs = 1", 4), ("most_runs = 6", 6), ("[[", 4)])
def test_a_silo_starts_a_limited_number_of_processes(kit, tmp_path, monkeypatch, policy, most):
    """However many jobs a server has deployed, and at the same time."""
    at_work: list[str] = []

    def start(self: object, req: Message, app_ctx: object) -> Message:
        time.sleep(0.02)
        at_work.append(req.get_header("job_id"))
        return ok_reply()

    StartJobProcessor.process = start
    monkeypatch.setattr(upkeep, "_ENDING", 0.5)
    if policy is not None:
        (tmp_path / "policy.toml").write_text(policy)
        (kit / "tacit" / "settings.json").write_text(json.dumps({"policy": str(tmp_path / "policy.toml")}))
    Silo(kit, ok_reply)
    engine, answers = SimpleNamespace(get_all_job_ids=lambda: list(at_work)), []

    def asks() -> None:
        request = Message("train.start_job", {})
        request.set_headers({"job_id": str(uuid.uuid4()), "job_meta": {}})
        answers.append(StartJobProcessor().process(request, engine))

    threads = [Thread(target=asks) for _ in range(most + 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(at_work) == most
    assert sum(map(has_failed, answers)) == 5
    assert f"{most} processes of jobs are at work" in (kit / "tacit" / "log.txt").read_text()
    at_work.pop()  # one has ended
    asks()
    assert len(at_work) == most
