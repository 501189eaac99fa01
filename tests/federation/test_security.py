"""Who does not get in, and what a federation does not do although somebody asks for it: refused by real processes.

What handlers of messages refuse is in ``test_hosts.py``, what a policy refuses in ``test_policy.py``.
"""

from __future__ import annotations

import datetime
import json
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

pytest.importorskip("nvflare")

from tacit.federation import requester
from tacit.federation.carrier.processes import prepare_silo
from tacit.federation.demo import PARTS, REQUESTER, Trial
from tacit.federation.kits import AUTHORITY, ROOT, ROOT_KEY, Kit
from tacit.federation.request import read_job, travelling, write_job
from tacit.planning.plan import plan
from tacit.transport.attendant import NVFLARE_LOG, joined, rejected_connection, start, stop
from tacit.transport.log import LOG
from tests.refusals import refuses

from . import worlds

PASSPHRASE = "correct horse"
SOON = 60  # seconds until a refusal is in a log, on a busy machine


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    made = Trial(tmp_path_factory.mktemp("security"), worlds.POLICY, passphrase=PASSPHRASE)
    made.prepare()
    with made.running():
        yield made


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The kits of another federation, with the same names."""
    other = Trial(tmp_path_factory.mktemp("elsewhere"), worlds.POLICY)
    other.prepare()
    return other


def refusals(kit: Kit) -> list[str]:
    """What the log of a kit says was turned away, by NVFlare or by Tacit."""
    file = kit.ours / LOG
    carried = (rejected_connection(line) for line in (kit.ours / NVFLARE_LOG).read_text(errors="replace").splitlines())
    own = [line for line in file.read_text().splitlines() if "refused" in line] if file.is_file() else []
    return [*(line for line in carried if line is not None), *own]


def wait_for(kit: Kit, words: str) -> str:
    """The refusal with these words, as soon as the log of a kit has it."""
    end = time.monotonic() + SOON
    while not (found := [line for line in refusals(kit) if words in line]):
        assert time.monotonic() < end, refusals(kit)
        time.sleep(0.1)
    return found[-1]


def copied(trial: Trial, name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trial.kit(name).path, tmp_path / name, ignore=shutil.ignore_patterns("process.pid")))


def with_keys_of(kit: Path, owner: Kit) -> Path:
    for name in ("client.crt", "client.key"):
        shutil.copy(owner.startup / name, kit / "startup" / name)
    return kit


# -- connections


def spoken(trial: Trial, startup: Path | None) -> bytes:
    """The first bytes that the server answers to whoever comes with these certificates."""
    context = ssl.create_default_context(cafile=str(trial.kit("north").startup / "rootCA.pem"))
    context.set_alpn_protocols(["h2"])
    if startup is not None:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with (
        socket.create_connection(("localhost", trial.kit("server").port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        # the beginning of HTTP/2; in TLS 1.3 a server says no after the handshake
        secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
        return secured.recv(1)


def test_with_a_certificate_of_the_federation_the_server_answers(trial):
    assert spoken(trial, trial.kit("north").startup)


def turned_away(trial: Trial, startup: Path | None, words: str) -> None:
    before = sum(words in line for line in refusals(trial.kit("server")))
    with suppress(ssl.SSLError, ConnectionError):
        assert not spoken(trial, startup)
    wait_for(trial.kit("server"), words)
    assert sum(words in line for line in refusals(trial.kit("server"))) > before


def test_without_a_certificate_there_is_no_connection(trial):
    turned_away(trial, None, "it shows no certificate")


def test_a_certificate_of_another_authority_is_not_let_in(trial, elsewhere):
    turned_away(trial, elsewhere.kit("north").startup, "another authority")


def test_an_expired_certificate_is_not_let_in(trial, tmp_path):
    kit = copied(trial, "north", tmp_path)
    expire(kit / "startup" / "client.crt", trial.folder / "kits" / AUTHORITY)
    turned_away(trial, kit / "startup", "has expired")


def test_a_silo_does_not_even_start_with_a_certificate_that_nobody_would_accept(trial, elsewhere, tmp_path):
    home = trial.home("north")
    files = home / "DATA.toml", home / "POLICY.toml"
    kit = copied(trial, "north", tmp_path)
    expire(kit / "startup" / "client.crt", trial.folder / "kits" / AUTHORITY)
    for owner, words in (
        (None, "north has expired"),
        ("south", "has the name south"),
        (elsewhere, "another authority"),
    ):
        if owner is not None:
            with_keys_of(kit, trial.kit(owner) if isinstance(owner, str) else owner.kit("north"))
        with refuses("bad-certificate", "KIT"):
            prepare_silo(kit, *files)
        assert words in (kit / "tacit" / LOG).read_text()


def test_a_silos_key_does_not_open_the_door_under_another_silos_name(trial, tmp_path):
    kit = Kit.load(with_keys_of(copied(trial, "south", tmp_path), trial.kit("north")), "silo")
    process = start(kit.path)
    try:
        wait_for(trial.kit("server"), "refused north: it calls itself south")
        assert not joined(kit.path)
    finally:
        stop(process)


def test_a_silos_key_is_no_requesters(trial, tmp_path):
    kit = with_keys_of(copied(trial, REQUESTER, tmp_path), trial.kit("north"))
    with refuses("bad-certificate", "KIT"):
        requester.status(Kit.load(kit, "requester"))
    assert wait_for(trial.kit("server"), "refused north: task challenge from _admin_").endswith("to server (name)")


# -- requests


@pytest.mark.parametrize("asked", ["sys_info client north", "report_env north", "ls north", "shutdown client north"])
def test_a_requester_learns_nothing_about_a_silos_machine_and_cannot_stop_it(trial, asked):
    with requester._session(trial.kit(REQUESTER)) as session:
        assert "not authorized" in str(session.api.do_command(asked)).lower()


def submitted(trial: Trial, name: str, spoil: Callable[[Path], None]) -> str:
    """How a job ends that was spoilt before it was signed and sent."""
    kit = trial.kit(REQUESTER)
    folder = trial.folder / "jobs" / name
    write_job(
        folder, travelling(plan(worlds.experiment())), name.encode().hex()[:32].ljust(32, "0"), 1, list(PARTS), 20
    )
    spoil(folder)
    return ended(kit, folder)


def ended(kit: Kit, folder: Path) -> str:
    with requester._session(kit) as session:
        try:
            job = session.submit_job(str(folder))
        except Exception as error:  # NVFlare has many kinds
            return f"refused: {error}"
        end = time.monotonic() + 90
        while not str(state := session.get_job_status(job)).startswith(("FINISHED", "FAILED")):
            assert time.monotonic() < end, state
            time.sleep(0.5)
        return str(state)


def renamed(folder: Path, side: str, old: str, new: str) -> None:
    config = folder / "app" / "config" / f"config_fed_{side}.json"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))


def test_a_job_that_ships_code_is_refused_and_its_code_never_runs(trial):
    marker = trial.folder / "ran"

    def ships_code(folder: Path) -> None:
        custom = folder / "app" / "custom"
        custom.mkdir()
        (custom / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Own:\n    pass\n")
        renamed(folder, "client", "tacit.federation.carrier.flare.SiloExecutor", "own.Own")

    assert submitted(trial, "code", ships_code) != "FINISHED:COMPLETED"
    wait_for(trial.kit("server"), "refused a job: code: its files are not those of a request")
    assert not marker.exists()


OTHER_SILO = "nvflare.app_common.np.np_trainer.NPTrainer"
OTHER_SERVER = "nvflare.app_common.workflows.scatter_and_gather.ScatterAndGather"


@pytest.mark.parametrize(
    ("side", "ours", "other"), [("client", "SiloExecutor", OTHER_SILO), ("server", "Coordinator", OTHER_SERVER)]
)
def test_a_job_that_names_another_class_is_refused_by_the_server(trial, side, ours, other):

    def spoil(folder):
        renamed(folder, side, f"tacit.federation.carrier.flare.{ours}", other)

    assert submitted(trial, f"class-{side}", spoil) != "FINISHED:COMPLETED"
    wait_for(trial.kit("server"), f"refused a job: class-{side}: ")


def signed(folder: Path, kit: Kit) -> Path:
    from nvflare.lighter.utils import load_private_key_file, sign_folders

    write_job(folder, travelling(plan(worlds.experiment())), "a" * 32, 1, list(PARTS), 20)
    key = load_private_key_file(str(kit.startup / "client.key"))
    sign_folders(str(folder / "app"), key, str(kit.startup / "client.crt"))
    return folder / "app"


def test_a_request_without_a_signature_is_refused(trial, tmp_path):
    write_job(tmp_path / "job", travelling(plan(worlds.experiment())), "a" * 32, 1, list(PARTS), 20)
    with refuses("not-signed", "request"):
        read_job(tmp_path / "job" / "app", trial.kit("north"))


def test_a_request_that_was_changed_after_it_was_signed_is_refused(trial, tmp_path):
    app = signed(tmp_path / "job", trial.kit(REQUESTER))
    request, _ = read_job(app, trial.kit("north"))
    assert request.requester == REQUESTER
    file = app / "config" / "request.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "attempt": 2}))
    with refuses("not-signed", "request"):
        read_job(app, trial.kit("north"))


def test_a_silo_cannot_sign_requests(trial, tmp_path):
    with refuses("not-signed", "request", names=["south"]):
        read_job(signed(tmp_path / "job", trial.kit("south")), trial.kit("north"))


@pytest.mark.slow
def test_a_plan_that_states_less_than_it_costs_is_refused_by_silos(trial):
    """The paper's accounting of uldp-naive says 2; what is proved is twice that."""
    method = {"name": "uldp-naive", "target_epsilon": 2.0}
    content = worlds.experiment() | {"method": method}
    content["privacy"] = {**content["privacy"], "target": "as-published"}
    assert plan(content).promise.published_epsilon() <= 2.0
    with (
        policies(trial, methods=["uldp-naive"], unit="subject", silos_per_subject=3, epsilon_per_run=3.0),
        refuses("policy-forbids", "policy", names=["north: epsilon_per_run"]),
    ):
        worlds.finished(trial, content, "understated")
    line = wait_for(trial.kit("north"), "epsilon_per_run")
    assert REQUESTER in line
    assert "is more than 3" in line


@pytest.mark.slow
def test_a_plan_over_the_total_is_refused_by_silos(trial):
    with policies(trial, epsilon_in_total=0.1), refuses("policy-forbids", "policy", names=["north: epsilon_in_total"]):
        worlds.finished(trial, worlds.experiment(), "over-budget")
    assert REQUESTER in wait_for(trial.kit("north"), "is more than 0.1")


@pytest.mark.slow
def test_a_job_that_is_sent_once_more_is_refused_by_silos(trial, tmp_path):
    """Even if the server has forgotten, or pretends to have forgotten, that it was done."""
    kit, run = trial.kit(REQUESTER), "b" * 32
    write_job(tmp_path / "job", travelling(plan(worlds.experiment())), run, 1, list(PARTS), 60)
    assert ended(kit, tmp_path / "job") == "FINISHED:COMPLETED"
    lines = (trial.home("north") / "DATA.ledger.jsonl").read_text()
    shutil.rmtree(trial.kit("server").ours / "runs" / run)
    ended(kit, tmp_path / "job")
    for silo in PARTS:
        assert f"run {run} (attempt 1) of {REQUESTER}" in wait_for(trial.kit(silo), "replayed: attempt 1 was admitted")
    assert (trial.home("north") / "DATA.ledger.jsonl").read_text() == lines


@contextmanager
def policies(trial: Trial, **changes: object) -> Iterator[None]:
    """Other policies of all silos, for a while."""
    for silo in PARTS:
        (trial.home(silo) / "POLICY.toml").write_text(tomli_w.dumps({**trial.policy, **changes}))
    yield
    for silo in PARTS:
        (trial.home(silo) / "POLICY.toml").write_text(tomli_w.dumps(trial.policy))


def expire(file: Path, authority: Path) -> None:
    """The same certificate, valid until yesterday."""
    root = x509.load_pem_x509_certificate((authority / ROOT).read_bytes())
    key = serialization.load_pem_private_key((authority / ROOT_KEY).read_bytes(), PASSPHRASE.encode())
    assert isinstance(key, RSAPrivateKey)
    old = x509.load_pem_x509_certificate(file.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(root.subject)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=10))
        .not_valid_after(now - datetime.timedelta(days=1))
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    file.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
