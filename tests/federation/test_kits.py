"""Kits: what is in them, what they forbid, and who can be added later."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509.oid import NameOID

from tacit.federation.kits import (
    AUTHORITY,
    CLASSES,
    ROOT,
    ROOT_KEY,
    FederationOptions,
    Kit,
    configure,
    make_kits,
)
from tacit.planning.settings import read_section
from tests.refusals import refuses

pytest.importorskip("nvflare")

ANA = "ana@example.org"
OPTIONS = FederationOptions(
    name="visits", server={"host": "localhost", "port": 8102}, silos=("north", "south"), requesters=(ANA,)
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("federation") / "kits"
    folders = make_kits(OPTIONS, out, "correct horse")
    assert set(folders) == {"server", "north", "south", ANA}
    return out


def local(folder: Path, name: str) -> dict:
    return json.loads((folder / "local" / name).read_text())


def test_everybody_has_a_certificate_of_the_one_authority_in_their_own_name(made):
    root = x509.load_pem_x509_certificate((made / AUTHORITY / ROOT).read_bytes())
    public = root.public_key()
    assert isinstance(public, RSAPublicKey)
    kits = [Kit.load(made / "server", "server"), Kit.load(made / "silos" / "north", "silo")]
    for kit, name in [
        *zip(kits, ("localhost", "north"), strict=True),
        (Kit.load(made / "requesters" / ANA, "requester"), ANA),
    ]:
        certificate = kit.certificate()
        assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == name
        assert certificate.signature_hash_algorithm is not None
        public.verify(
            certificate.signature,
            certificate.tbs_certificate_bytes,
            padding.PKCS1v15(),
            certificate.signature_hash_algorithm,
        )


@pytest.mark.parametrize(
    ("folder", "command"),
    [("server", "tacit server"), ("silos/north", "tacit silo"), (f"requesters/{ANA}", "tacit submit")],
)
def test_a_kit_says_how_it_is_started_and_there_is_no_other_way(made, folder, command):
    kit = made / folder
    assert [file.name for file in kit.rglob("*") if file.name.lower().startswith("readme")] == ["README.txt"]
    assert f"    {command} " in (kit / "README.txt").read_text()
    assert not [file for file in kit.rglob("*") if file.suffix in (".sh", ".ipynb")]


@pytest.mark.parametrize("folder", ["server", "silos/north", "silos/south"])
def test_no_role_may_ship_code_or_run_commands_and_only_our_classes_are_built(made, folder):
    rights = local(made / folder, "authorization.json")["permissions"]
    assert set(rights) == {"project_admin", "org_admin", "lead", "member"}
    for allowed in rights.values():
        for right in ("byoc", "shell_commands", "operate", "clone_job"):
            assert allowed[right] == "none"
    resources = local(made / folder, "resources.json")
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["class_allow_list"] == list(CLASSES)
    assert not (made / folder / "local" / "resources.json.default").exists()
    assert not (made / folder / "local" / "authorization.json.default").exists()


def test_a_silo_can_be_asked_to_take_part_in_runs_and_for_nothing_else(made):
    allowed = local(made / "silos" / "north", "authorization.json")["permissions"]["lead"]
    assert {right for right, who in allowed.items() if who != "none"} == {"submit_job"}


@pytest.mark.parametrize("folder", ["server", "silos/north"])
def test_jobs_must_be_signed(made, folder):
    name = "fed_server.json" if folder == "server" else "fed_client.json"
    assert json.loads((made / folder / "startup" / name).read_text())["require_signed_jobs"] is True


def test_a_silo_streams_no_log(made):
    resources = local(made / "silos" / "north", "resources.json")
    assert resources["allow_log_streaming"] is False
    assert not any("log" in component["id"] for component in resources["components"])


def test_keys_are_readable_by_their_holder_alone(made):
    keys = [*made.rglob("*.key")]
    assert len(keys) >= 9  # certificates of four, signing keys of three, pseudonyms of two, the authority's
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700, key


def test_the_authoritys_key_is_encrypted_and_nowhere_else(made):
    assert b"ENCRYPTED" in (made / AUTHORITY / ROOT_KEY).read_bytes()
    assert not [*made.rglob("cert.json")]
    assert not [folder for folder in made.iterdir() if folder.name not in ("server", "silos", "requesters", AUTHORITY)]


def test_without_a_passphrase_the_authoritys_key_is_forgotten(tmp_path):
    make_kits(OPTIONS, tmp_path / "kits", None)
    assert not (tmp_path / "kits" / AUTHORITY / ROOT_KEY).exists()
    with refuses("missing", "--out"):
        make_kits(OPTIONS.model_copy(update={"silos": ("north", "south", "west")}), tmp_path / "kits", "any")


def test_silos_share_a_secret_that_the_server_does_not_have(made):
    north, south = (Kit.load(made / "silos" / name, "silo").pseudonyms() for name in ("north", "south"))
    assert north == south
    assert not [*(made / "server").rglob("pseudonyms*")]
    assert not [*(made / "requesters").rglob("pseudonyms*")]


def test_everybody_who_signs_is_on_everybodys_roster(made):
    kits = [Kit.load(made / "server", "server"), *(Kit.load(made / "silos" / n, "silo") for n in ("north", "south"))]
    rosters = [kit.roster() for kit in kits]
    assert rosters[0] == rosters[1] == rosters[2]
    assert {kit.name: kit.identity().public for kit in kits} == rosters[0]


def test_the_analyzer_has_a_kit_if_the_file_says_so_and_no_secret_of_the_silos(tmp_path, made):
    assert not (made / "analyzer").exists()
    assert not Kit.load(made / "server", "server").analyzer
    out = tmp_path / "kits"
    assert "analyzer" in make_kits(OPTIONS.model_copy(update={"analyzer": True}), out, None)
    kit, server = Kit.load(out / "analyzer", "analyzer"), Kit.load(out / "server", "server")
    ana = Kit.load(out / "requesters" / ANA, "requester")
    kit.check_certificate()
    assert kit.roster()["analyzer"] == server.roster()["analyzer"] == kit.identity().public
    assert (server.silos, server.analyzer) == (ana.silos, ana.analyzer) == (("north", "south"), True)
    assert not (kit.ours / "pseudonyms.key").exists()
    assert local(kit.path, "resources.json")["class_allow_list"] == list(CLASSES)
    assert not local(kit.path, "resources.json")["allow_log_streaming"]
    with refuses("wrong-file", "KIT"):
        Kit.load(out / "analyzer", "silo")


def test_the_servers_stores_lie_in_its_kit_wherever_that_is(made):
    kit = Kit.load(made / "server", "server")
    configure(kit)
    resources = local(kit.path, "resources.json")
    assert "/tmp/nvflare" not in json.dumps(resources)
    manager = next(one for one in resources["components"] if one["id"] == "job_manager")
    assert Path(manager["args"]["uri_root"]).is_relative_to(kit.path)


def test_a_silo_can_be_added_with_the_passphrase_and_leaves_the_others_as_they_are(tmp_path):
    out = tmp_path / "kits"
    make_kits(OPTIONS, out, "correct horse")
    before = (out / "silos" / "north" / "startup" / "client.crt").read_bytes()
    more = OPTIONS.model_copy(update={"silos": ("north", "south", "west")})
    with refuses("wrong-passphrase", "--passphrase"):
        make_kits(more, out, "wrong")
    assert set(make_kits(more, out, "correct horse")) == {"west"}
    assert (out / "silos" / "north" / "startup" / "client.crt").read_bytes() == before
    north, west = (Kit.load(out / "silos" / name, "silo") for name in ("north", "west"))
    assert "west" in north.roster()
    assert north.silos == Kit.load(out / "server", "server").silos == ("north", "south", "west")
    assert Kit.load(out / "requesters" / ANA, "requester").silos == ("north", "south", "west")
    assert north.roster() == west.roster()
    assert north.pseudonyms() == west.pseudonyms()
    with refuses("no-effect", "FEDERATION.toml"):
        make_kits(more, out, "correct horse")


def test_a_requester_can_be_added_after_all_kits_were_handed_out(tmp_path):
    out = tmp_path / "kits"
    make_kits(OPTIONS, out, "correct horse")
    shutil.move(out / "silos" / "north", tmp_path / "north")
    for folder in ("server", "silos", "requesters"):
        shutil.rmtree(out / folder)
    more = OPTIONS.model_copy(update={"requesters": (ANA, "bob@example.org")})
    assert set(make_kits(more, out, "correct horse")) == {"bob@example.org"}
    bob = Kit.load(out / "requesters" / "bob@example.org", "requester")
    bob.check_certificate()
    assert bob.roster() == Kit.load(tmp_path / "north", "silo").roster()
    with refuses("file-not-found", "--out", names=["pseudonyms.key", str(out / "silos" / "north")]):
        make_kits(more.model_copy(update={"silos": ("north", "south", "west")}), out, "correct horse")


def federation_file(**changes: object) -> str:
    right = {"name": "x", "silos": ["a", "b"], "requesters": ["a@b.org"], "server": {"host": "localhost"}}
    return tomli_w.dumps(right | changes)


@pytest.mark.parametrize(
    ("text", "code", "field", "names"),
    [
        ('name = "x"', "missing", "server", []),
        (federation_file(name="x y"), "malformed", "FEDERATION.toml", ["'x y'"]),
        (federation_file(silos=["a"]), "too-few", "silos", ["2"]),
        (federation_file(silos=["a", "A"]), "duplicate", "FEDERATION.toml", ["'a'"]),
        (federation_file(server={"host": "B"}), "duplicate", "FEDERATION.toml", ["'b'"]),
        (federation_file(silos=["a", "server"]), "duplicate", "FEDERATION.toml", ["'server'"]),
        (federation_file(requesters=["ana"]), "malformed", "FEDERATION.toml", ["'ana'"]),
        (federation_file(server={"host": "10.0.0.1"}), "malformed", "server.host", ["10.0.0.1"]),
        (federation_file(server={"hots": "h"}), "unknown-key", "server.hots", ["'host'"]),
        ('name = "x', "file-damaged", "FEDERATION.toml", []),
    ],
)
def test_a_wrong_federation_file_is_refused_in_one_line(tmp_path, text, code, field, names):
    file = tmp_path / "FEDERATION.toml"
    file.write_text(text)
    with refuses(code, field, names=[*names, str(file)]):
        read_section(file, FederationOptions, "FEDERATION.toml")


def test_a_folder_that_is_no_kit_or_another_kind_of_kit_is_refused(made, tmp_path):
    with refuses("wrong-file", "KIT"):
        Kit.load(tmp_path, "silo")
    with refuses("wrong-file", "KIT"):
        Kit.load(made / "server", "silo")
