"""The privacy sheet: what it states, which files may leave, and a signature that finds every change."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit import report
from tacit.errors import UserError
from tacit.privacy import Gaussian, Ledger, Repeated, account, attack_limits
from tacit.report import signing
from tacit.report.annexes import TO_ANSWER
from tests.refusals import refuses

ROUND = Gaussian(8.0)
PLACE = "subject/public/zero-out"
PLAN = """\
title = "Any doctor visit within a year"

[data]
source = "table"
path = "/srv/secret-place/visits.csv"

[method]
name = "subject-sgd"

[privacy]
max_silos_per_subject = 2

[governance]
controllers = ["St. Brigid", "Harbour Clinic"]
purpose = "predict doctor visits"
"""


def epsilon_of(rounds: int) -> float:
    return account(Repeated(ROUND, rounds), 1e-5).epsilon


def made(make_run, name: str = "run", rounds: int = 4, plan: str = PLAN, **changes) -> Path:
    """A private run with model and ledger."""
    public = {
        "unit": "subject", "relation": "zero-out", "view": "public", "sampling": "none", "epsilon": epsilon_of(rounds),
        "delta": 1e-5, "accountant": "gaussian", "assumptions": ["sizes are public"],
    }  # fmt: skip
    settings = {"guarantees": [public], "alone": None, "pooled": None, "rounds": rounds} | changes
    run = make_run(name, **settings)
    (run / "plan.toml").write_text(plan)
    (run / "model.safetensors").write_bytes(random.Random(name).randbytes(300))
    with Ledger(run / "ledger.jsonl") as ledger:
        for number in range(1, rounds + 1):
            ledger.append(run=name, party="server", round=number, mechanism="m", step=number, events={PLACE: ROUND})
    return run


@pytest.fixture
def key(tmp_path):
    signing.new_key(tmp_path / "key")
    return signing.read_private_key(tmp_path / "key")


def stated(run: Path) -> dict:
    return json.loads((run / "sheet.json").read_text())


# ---- what it states


def test_the_sheet_states_who_why_and_what_an_attacker_could_guess(make_run):
    run = made(make_run, data={"silos": 6, "declared_people": 5912, "fingerprint": "ab" * 32})
    report.write_sheet(run)
    found = stated(run)
    assert found["governance"]["controllers"] == "St. Brigid; Harbour Clinic"
    assert found["governance"]["legal_basis"] is None
    assert found["people_declared"] == 5912
    assert found["fingerprints"]["data_hmac"] == "ab" * 32
    (line,) = found["guarantees"]
    mu = math.sqrt(4) / 8.0  # of a Gaussian, the exact trade-off: right guesses are Phi(mu / 2)
    assert line["right_guesses"] == pytest.approx((1 + math.erf(mu / 2 / math.sqrt(2))) / 2, abs=1e-4)
    assert line["factor"] == pytest.approx(math.exp(epsilon_of(4)))
    page = (run / "sheet.html").read_text()
    assert page.index("Right guesses, at most") < page.index("Factor, at most")
    for text in (
        "predict doctor visits",
        "5,912 (declared, not counted)",
        "US Census Bureau 2021",
        "Annex A",
        "Annex B",
    ):
        assert text in page
    assert "/srv/secret-place" not in page + json.dumps(found)


def test_points_that_no_run_can_answer_are_left_to_the_controller(make_run):
    run = made(make_run)
    report.write_sheet(run)
    found = stated(run)
    answers = {point["asks"]: point["answer"] for point in found["gdpr_art_35"]}
    assert answers["Purposes"] == "predict doctor visits"
    assert answers["Legal basis"] == answers["Necessity and proportionality"] == TO_ANSWER
    nist = {point["point"]: point["answer"] for point in found["nist_sp_800_226"]}
    assert nist["Bias"] == nist["Tuning of settings"] == TO_ANSWER
    assert TO_ANSWER not in (nist["Epsilon and delta"], nist["Unit of privacy"], nist["Trust model"])


def test_a_cap_that_the_simulator_kept_across_silos_is_pointed_out(make_run):
    told = "looking at the records of all silos together"
    run = made(make_run)
    assert told in report.write(run).read_text()
    assert told in (run / "sheet.html").read_text()
    federated = made(make_run, "federated", evaluation={"status": "outside-guarantee", "held_out": "elsewhere"})
    assert told not in report.write(federated).read_text()
    uncapped = made(make_run, "uncapped", plan=PLAN.replace("= 2", "= 6"))
    assert told not in report.write(uncapped).read_text()


def test_runs_that_nothing_links_are_stated_as_this_run_only(make_run):
    run = made(make_run)
    report.write_sheet(run)
    total = stated(run)["cumulative"]
    assert total["scope"].startswith("this run only")
    assert total["epsilon"] == {"public": epsilon_of(4)}


def test_runs_of_a_budget_file_or_named_ones_add_up(make_run, tmp_path):
    budget = tmp_path / "visits.budget"
    plan = PLAN.replace("[privacy]", f'[privacy]\nbudget_file = "{budget}"')
    run, other = made(make_run, plan=plan), made(make_run, "other")
    with Ledger(budget) as ledger:
        for name in ("run", "third"):
            for number in range(1, 5):
                ledger.append(run=name, party="server", round=number, mechanism="m", step=number, events={PLACE: ROUND})
    report.write_sheet(run)
    total = stated(run)["cumulative"]
    assert (total["runs"], total["epsilon"]["public"]) == (2, pytest.approx(epsilon_of(8)))
    report.write_sheet(run, others=[other])
    total = stated(run)["cumulative"]
    assert (total["runs"], total["epsilon"]["public"]) == (3, pytest.approx(epsilon_of(12)))
    limit = attack_limits(Repeated(ROUND, 12)).advantage
    assert total["right_guesses"]["public"] == pytest.approx((1 + limit) / 2, abs=1e-6)
    with refuses("wrong-file", "--with"):
        report.write_sheet(run, others=[tmp_path])


# ---- what may leave


def leaving(run: Path) -> set[str]:
    report.write(run)
    listed = {found["file"] for found in stated(run)["files"] if found["may_leave"]}
    assert set(os.listdir(run / "share")) == listed
    return listed


COVERED = {"plan.toml", "ledger.jsonl", "model.safetensors", "sheet.html", "sheet.json"}


def test_share_holds_what_the_guarantee_covers_and_nothing_else(make_run):
    assert leaving(made(make_run)) == COVERED  # metrics without noise are on the report
    public = made(make_run, "public", evaluation={"status": "public", "held_out": "file"})
    assert leaving(public) == COVERED | {"report.html", "model-card.md"}
    assert "/srv/secret-place" not in "".join(path.read_text("latin-1") for path in (public / "share").iterdir())
    assert 'path = "…/visits.csv"' in (public / "share" / "plan.toml").read_text()


def test_a_model_without_a_guarantee_for_the_public_stays(make_run):
    nothing = {"unit": "subject", "relation": "zero-out", "view": "public", "epsilon": "inf", "delta": None}
    assert leaving(made(make_run, guarantees=[nothing])) == COVERED - {"model.safetensors"}


@pytest.mark.parametrize("case", ["seed", "altered", "no ledger"])
def test_nothing_but_the_sheet_leaves_where_noise_or_ledger_protects_nobody(make_run, case):
    run = made(make_run, seed=7 if case == "seed" else None)
    if case == "altered":
        (run / "ledger.jsonl").write_text((run / "ledger.jsonl").read_text().replace("8.0", "9.0"))
    if case == "no ledger":
        (run / "ledger.jsonl").unlink()
    assert leaving(run) == {"sheet.html", "sheet.json"}


def test_nothing_leaves_that_holds_values_of_the_private_table(make_run):
    run = made(make_run, plan=PLAN.replace("[method]", 'from_this_table = ["data.silos.count"]\n\n[method]'))
    assert leaving(run) == set()


def test_constants_without_noise_stay(make_run):
    for name, rule in (("own", "per-silo"), ("noisy", "private"), ("declared", "declared")):
        run = made(make_run, name, plan=PLAN.replace("[method]", f'standardize = "{rule}"\n\n[method]'))
        (run / "encoder.json").write_text("{}")
        assert ("encoder.json" in leaving(run)) == (rule != "per-silo")


def test_share_follows_what_the_run_folder_holds(make_run):
    run = made(make_run)
    leaving(run)
    (run / "share" / "note.txt").write_text("left behind")
    (run / "model.safetensors").write_bytes(b"a later model")
    leaving(run)
    assert (run / "share" / "model.safetensors").read_bytes() == b"a later model"


# ---- signing


def test_a_signature_is_that_of_ed25519_over_the_sheet(make_run, key, tmp_path):
    run = made(make_run)
    report.write_sheet(run, key=key)
    public = signing.read_public_key(tmp_path / "key.pub")
    found = signing.verify(run, public)
    assert found == signing.verify(run / "share", public)
    assert found["signer"] == signing.key_name(key) == signing.key_name(public)
    command = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", tmp_path / "key.pub"]
    subprocess.run(
        [*command, "-sigfile", run / "sheet.sig", "-in", run / "sheet.json"], check=True, stdout=subprocess.DEVNULL
    )


def test_a_report_that_is_written_again_keeps_the_signature_and_a_new_model_ends_it(make_run, key):
    run = made(make_run)
    report.write_sheet(run, key=key)
    report.write(run)
    assert signing.verify(run, key.public_key())["governance"]["purpose"] == "predict doctor visits"
    (run / "model.safetensors").write_bytes(b"a later model")
    report.write(run)
    assert not (run / "sheet.sig").exists()
    assert not (run / "share" / "sheet.sig").exists()
    with refuses("not-verified", "sheet.sig"):
        signing.verify(run, key.public_key())


def test_what_must_not_be_signed_is_refused(make_run, key):
    read = PLAN.replace("[method]", 'from_this_table = ["data.silos.count"]\n\n[method]')
    with refuses("cannot-sign", "data.silos.count"):
        report.write_sheet(made(make_run, "read", plan=read), key=key)
    cut = made(make_run, "cut")
    (cut / "ledger.jsonl").unlink()
    with refuses("cannot-sign", "ledger.jsonl"):
        report.write_sheet(cut, key=key)
    seeded = made(make_run, "seeded", seed=7)
    with refuses("cannot-sign", "seed", names=["--accept seed"]):
        report.write_sheet(seeded, key=key)
    report.write_sheet(seeded, key=key, accepted=["seed"])
    assert signing.verify(seeded, key.public_key())["accepted"] == ["seed"]


def test_a_view_without_a_guarantee_is_accepted_by_name_or_refused(make_run, key):
    run = make_run()
    for accepted in ([], ["public"]):
        with refuses("cannot-sign", "guarantees"):
            report.write_sheet(run, key=key, accepted=accepted)
    with refuses("unknown-name", "--accept", names=["server"]):
        report.write_sheet(run, key=key, accepted=["silos:2"])
    report.write_sheet(run, key=key, accepted=["public", "server"])
    assert signing.verify(run, key.public_key())["accepted"] == ["public", "server"]


def test_keys_may_have_a_passphrase_and_wrong_files_are_refused(tmp_path):
    locked, public = tmp_path / "locked", signing.new_key(tmp_path / "locked", "horse")
    assert locked.stat().st_mode & 0o777 == 0o600
    assert signing.key_name(signing.read_private_key(locked, "horse")) == signing.key_name(
        signing.read_public_key(public)
    )
    for passphrase in ("", "cow"):
        with refuses("wrong-passphrase", "--passphrase"):
            signing.read_private_key(locked, passphrase)
    with refuses("exists-already", "KEY"):
        signing.new_key(locked)
    with refuses("wrong-file", "--sign"):
        signing.read_private_key(public)
    with refuses("wrong-file", "--key"):
        signing.read_public_key(locked)
    with refuses("file-not-found", "--key"):
        signing.read_public_key(tmp_path / "none")


# ---- tampering

TAMPERINGS = 1000
TEXTS = ("plan.toml", "ledger.jsonl", "sheet.json", "sheet.html")


class Tampering:
    """Random changes of a signed run folder or of its ``share/``, each undone after it was looked at."""

    def __init__(self, run: Path, other: Path, seed: int) -> None:
        self.run, self.other, self.random = run, other, random.Random(seed)
        names = [*signing.COVERED, "sheet.json", "sheet.sig"]
        of_run = [run / name for name in names if (run / name).is_file()]
        self.kept = {path: path.read_bytes() for path in (*of_run, *(run / "share").iterdir())}
        self.kinds: list[Callable[[], None]] = [
            self.flip, self.remove_line, self.swap_lines, self.exchange, self.replace, self.sign_again, self.cut,
            self.edit, self.remove, self.add,
        ]  # fmt: skip

    def one(self) -> str:
        """Change something; the name of the change."""
        while True:
            kind = self.random.choice(self.kinds)
            kind()
            if self.changed():
                return kind.__name__

    def changed(self, folders: tuple[str, ...] = ("", "share")) -> bool:
        """Whether a file in these folders is not as it was."""
        if "share" in folders and not set((self.run / "share").iterdir()) <= self.kept.keys():
            return True
        kept = {path: old for path, old in self.kept.items() if path.parent in [self.run / name for name in folders]}
        return any(not path.exists() or path.read_bytes() != old for path, old in kept.items())

    def undo(self) -> None:
        for path in {*(self.run / "share").iterdir()} - self.kept.keys():
            path.unlink()
        for path, content in self.kept.items():
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)

    def file(self, names: tuple[str, ...] = ()) -> Path:
        return self.random.choice([path for path in self.kept if not names or path.name in names])

    def flip(self) -> None:
        path = self.file()
        content = bytearray(self.kept[path])
        content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
        path.write_bytes(content)

    def remove_line(self) -> None:
        path = self.file(TEXTS)
        lines = self.kept[path].splitlines(keepends=True)
        lines.pop(self.random.randrange(len(lines)))
        path.write_bytes(b"".join(lines))

    def swap_lines(self) -> None:
        path = self.file(TEXTS)
        lines = self.kept[path].splitlines(keepends=True)
        one, two = (self.random.randrange(len(lines)) for _ in range(2))
        lines[one], lines[two] = lines[two], lines[one]
        path.write_bytes(b"".join(lines))

    def exchange(self) -> None:
        one, two = self.file(), self.file()
        one.write_bytes(self.kept[two])
        two.write_bytes(self.kept[one])

    def replace(self) -> None:
        """By files of another run with a valid signature of the same key."""
        group = self.random.choice([("sheet.json", "sheet.sig", "sheet.html"), (self.file().name,)])
        for path in self.kept:
            if path.name in group:
                path.write_bytes((self.other / path.relative_to(self.run)).read_bytes())

    def sign_again(self) -> None:
        """Another statement, everywhere, signed with another key."""
        content = self.kept[self.run / "sheet.json"].replace(b"predict", b"inspect")
        signature = signing.Ed25519PrivateKey.generate().sign(content)
        for path in self.kept:
            if path.name in ("sheet.json", "sheet.sig"):
                path.write_bytes(content if path.name == "sheet.json" else signature)

    def cut(self) -> None:
        path = self.file(("sheet.sig",))
        length = self.random.randrange(70)
        path.write_bytes((self.kept[path] + bytes(6))[:length])

    def edit(self) -> None:
        """Governance, in the statement or in the plan."""
        path = self.file(("sheet.json", "plan.toml"))
        old, new = self.random.choice([(b"predict doctor visits", b"set prices"), (b"St. Brigid", b"St. Bridget")])
        path.write_bytes(self.kept[path].replace(old, new))

    def remove(self) -> None:
        self.file().unlink()

    def add(self) -> None:
        (self.run / "share" / f"extra-{self.random.randrange(99)}").write_text("not signed")


def test_a_thousand_random_tamperings_are_all_found(make_run, key):
    run, other = made(make_run), made(make_run, "other", rounds=5)
    for each in (run, other):
        report.write_sheet(each, key=key)
    public, tampering = key.public_key(), Tampering(run, other, seed=21)
    seen = set()
    for _ in range(TAMPERINGS):
        seen.add(tampering.one())
        for folder in [run, run / "share"] if tampering.changed(("share",)) else [run]:
            with pytest.raises(UserError) as caught:
                signing.verify(folder, public)
            assert caught.value.code == "not-verified"
        tampering.undo()
        assert not tampering.changed()
    assert seen == {kind.__name__ for kind in tampering.kinds}
    signing.verify(run, public)
    signing.verify(run / "share", public)
