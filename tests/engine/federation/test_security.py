"""Who does not get in, and what a federation does not do although somebody asks for it."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

pytest.importorskip("nvflare")

from tacit.config import plan
from tacit.engine.federation import requester
from tacit.engine.federation.job import write_job
from tacit.engine.federation.kits import AUTHORITY, ROOT, ROOT_KEY, Kit
from tacit.engine.federation.processes import joined, prepare_silo, start, stop
from tacit.engine.federation.request import travelling
from tacit.engine.federation.trial import REQUESTER, Trial
from tacit.errors import TacitError, UserError

from . import worlds

PASSPHRASE = "correct horse"
LONG_ENOUGH = 12  # seconds: a silo that is let in has joined after about five


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    made = Trial(tmp_path_factory.mktemp("security"), worlds.POLICY, passphrase=PASSPHRASE)
    made.prepare()
    with made.running():
        yield made


@pytest.fixture
def stranger(trial, tmp_path):
    """Starts a silo from a kit that was tampered with; gives whether the server let it in, and what NVFlare said."""
    processes = []

    def started(kit: Path) -> tuple[bool, str]:
        home = trial.home("north")
        loaded = prepare_silo(kit, home / "DATA.toml", home / "POLICY.toml")
        processes.append(start(loaded))
        end = time.monotonic() + LONG_ENOUGH
        while time.monotonic() < end and processes[-1].poll() is None and not joined(loaded):
            time.sleep(0.2)
        return joined(loaded), (loaded.ours / "nvflare.log").read_text(errors="replace")

    yield started
    for process in processes:
        stop(process)


def copied(trial: Trial, name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trial.kit(name).path, tmp_path / name, ignore=shutil.ignore_patterns("process.pid")))


def test_without_a_certificate_there_is_no_connection(trial):
    context = ssl.create_default_context(cafile=str(trial.kit("north").startup / "rootCA.pem"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _spoken(context, trial.kit("server").port)


def _spoken(context: ssl.SSLContext, port: int) -> None:
    """Begin to speak HTTP/2 with the server; in TLS 1.3 it says no after the handshake."""
    with (
        socket.create_connection(("localhost", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        if not secured.recv(1):
            raise ConnectionError("the server hung up")


def test_a_certificate_of_another_authority_is_not_let_in(trial, stranger, tmp_path):
    other = Trial(tmp_path / "other", worlds.POLICY)
    other.prepare(port=trial.kit("server").port)
    assert not stranger(other.kit("north").path)[0]


def test_an_expired_certificate_is_not_let_in(trial, stranger, tmp_path):
    kit = copied(trial, "north", tmp_path)
    _expire(kit / "startup" / "client.crt", trial.folder / "kits" / AUTHORITY)
    assert not stranger(kit)[0]


def test_a_silos_key_does_not_open_the_door_under_another_silos_name(trial, stranger, tmp_path):
    kit = copied(trial, "south", tmp_path)
    for name in ("client.crt", "client.key"):
        shutil.copy(trial.kit("north").startup / name, kit / "startup" / name)
    assert not stranger(kit)[0]


def test_a_silos_key_is_no_requesters(trial, tmp_path):
    kit = copied(trial, REQUESTER, tmp_path)
    for name in ("client.crt", "client.key"):
        shutil.copy(trial.kit("north").startup / name, kit / "startup" / name)
    with pytest.raises(UserError, match="does not accept"):
        requester.status(Kit.load(kit, "requester"))


def submitted(trial: Trial, spoil) -> str:
    """How a job ends that was spoilt before it was signed and sent."""
    kit = trial.kit(REQUESTER)
    folder = trial.folder / "jobs" / spoil.__name__
    text = travelling(plan(worlds.experiment()))
    write_job(folder, text, spoil.__name__.encode().hex()[:32].ljust(32, "0"), 1, 3, 20)
    spoil(folder)
    with requester._session(kit) as session:
        try:
            job = session.submit_job(str(folder))
        except Exception as error:  # NVFlare has many kinds
            return f"refused: {error}"
        end = time.monotonic() + 60
        while not str(state := session.get_job_status(job)).startswith(("FINISHED", "FAILED")):
            assert time.monotonic() < end, state
            time.sleep(0.5)
        return str(state)


def test_a_job_that_ships_code_is_refused_and_its_code_never_runs(trial):
    marker = trial.folder / "ran"

    def ships_code(folder: Path) -> None:
        custom = folder / "app" / "custom"
        custom.mkdir()
        (custom / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Own:\n    pass\n")
        config = folder / "app" / "config" / "config_fed_client.json"
        config.write_text(config.read_text().replace("tacit.engine.federation.flare.SiloExecutor", "own.Own"))

    assert submitted(trial, ships_code) != "FINISHED:COMPLETED"
    assert not marker.exists()


def test_a_job_that_names_another_class_is_refused(trial):
    def names_another_class(folder: Path) -> None:
        config = folder / "app" / "config" / "config_fed_client.json"
        other = "nvflare.app_common.np.np_trainer.NPTrainer"
        config.write_text(config.read_text().replace("tacit.engine.federation.flare.SiloExecutor", other))

    assert submitted(trial, names_another_class) != "FINISHED:COMPLETED"
    assert "NPTrainer" in (trial.kit("north").ours / "nvflare.log").read_text(errors="replace") + "".join(
        path.read_text(errors="replace") for path in trial.kit("server").path.rglob("*log*.txt")
    )


def test_a_request_without_a_signature_is_refused(trial, tmp_path):
    from tacit.engine.federation.job import read_job

    write_job(tmp_path / "job", travelling(plan(worlds.experiment())), "a" * 32, 1, 3, 20)
    with pytest.raises(TacitError, match="not signed"):
        read_job(tmp_path / "job" / "app", trial.kit("north"))


def test_a_request_that_was_changed_after_it_was_signed_is_refused(trial, tmp_path):
    from nvflare.lighter.utils import load_private_key_file, sign_folders

    from tacit.engine.federation.job import read_job

    write_job(tmp_path / "job", travelling(plan(worlds.experiment())), "a" * 32, 1, 3, 20)
    kit, app = trial.kit(REQUESTER), tmp_path / "job" / "app"
    key = load_private_key_file(str(kit.startup / "client.key"))
    sign_folders(str(app), key, str(kit.startup / "client.crt"))
    request, _ = read_job(app, trial.kit("north"))
    assert request.requester == REQUESTER
    file = app / "config" / "request.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "attempt": 2}))
    with pytest.raises(TacitError, match="not signed"):
        read_job(app, trial.kit("north"))


def test_a_silo_cannot_sign_requests(trial, tmp_path):
    from nvflare.lighter.utils import load_private_key_file, sign_folders

    from tacit.engine.federation.job import read_job

    write_job(tmp_path / "job", travelling(plan(worlds.experiment())), "a" * 32, 1, 3, 20)
    kit, app = trial.kit("south"), tmp_path / "job" / "app"
    key = load_private_key_file(str(kit.startup / "client.key"))
    sign_folders(str(app), key, str(kit.startup / "client.crt"))
    with pytest.raises(TacitError, match="not signed"):
        read_job(app, trial.kit("north"))


def _expire(file: Path, authority: Path) -> None:
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
