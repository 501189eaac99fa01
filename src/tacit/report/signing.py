"""Sign a privacy sheet, and verify one.

The signature is Ed25519 (RFC 8032) over the bytes of ``sheet.json``, which states everything that the page states and
holds SHA-256 of the files that it is about: of the run folder, and of ``share/``. ``openssl pkeyutl -verify -rawin``
can check it without Tacit. The verifier brings the public key: a key that came with the files would prove nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tacit.crypto.identities import fingerprint
from tacit.engine import folder as files
from tacit.engine.learner import write_bytes
from tacit.errors import UserError
from tacit.report.disclosure import NO_LEDGER, SHEET, SIGNATURE, STATEMENT, leaving, ledger_problem, shared_content
from tacit.report.run_files import RunFiles

# what the sheet is about; pages other than the sheet can be made again from these
COVERED = (files.PLAN, files.LEDGER, files.METRICS, files.MODEL, files.ENCODER, files.RESULT, SHEET)
SEED = "seed"  # what a signer accepts, beside views without a guarantee


def new_key(file: Path, passphrase: str = "") -> Path:
    """Write a new private key (PEM, for its owner alone) and its public key next to it; the path of the public key."""
    public = file.with_name(f"{file.name}.pub")
    for path in (file, public):
        if path.exists():
            raise UserError("exists-already", "KEY", f"'{path}' exists", "name a new file")
    made = Ed25519PrivateKey.generate()
    locked = serialization.BestAvailableEncryption(passphrase.encode()) if passphrase else serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    write_bytes(file, made.private_bytes(pem, pkcs8, locked), files.PRIVATE)
    write_bytes(public, made.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return public


def read_private_key(file: Path, passphrase: str = "") -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(_read(file, "--sign"), passphrase.encode() or None)
    except TypeError:
        problem = "is required" if not passphrase else "is given, and the key has none"
        raise UserError("wrong-passphrase", "--passphrase", problem, "give that of the key") from None
    except ValueError:
        if passphrase:
            raise UserError("wrong-passphrase", "--passphrase", f"does not open '{file}'", "correct it") from None
        raise _no_key(file, "--sign", "private") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(file, "--sign", "private")
    return key


def read_public_key(file: Path) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(_read(file, "--key"))
    except ValueError:
        raise _no_key(file, "--key", "public") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(file, "--key", "public")
    return key


def key_name(key: Ed25519PrivateKey | Ed25519PublicKey) -> str:
    """The fingerprint of a key, to be compared by people."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    return fingerprint(public.public_bytes_raw())


def _read(file: Path, field: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError("file-not-found", field, f"'{file}' cannot be read ({error.strerror})", "correct it") from None


def _no_key(file: Path, field: str, kind: str) -> UserError:
    fix = "make a key with `tacit sheet key KEY`"
    return UserError("wrong-file", field, f"'{file}' holds no {kind} Ed25519 key in PEM form", fix)


# ---- sign


def check_signable(run: RunFiles, accepted: Sequence[str]) -> None:
    """Refuse what must not be signed, and what the signer has not accepted by name."""
    for name in run.from_this_table:
        problem = "was read from the private table, so the guarantee holds only if it is public anyway"
        raise UserError("cannot-sign", name, problem, "declare a public value, remove the mark, and run again")
    infinite = [line.view for line in run.guarantees if not line.finite]
    known = [*infinite, *([SEED] if run.seed is not None else [])]
    for name in accepted:
        if name not in known:
            problem = f"'{name}' need not be accepted in this run"
            raise UserError(
                "unknown-name", "--accept", problem, f"use {' or '.join(known)}" if known else "leave it out"
            )
    if run.seed is not None and SEED not in accepted:
        problem = f"is {run.seed}: the noise can be regenerated, so the model must not be published"
        raise UserError("cannot-sign", "seed", problem, "run without a seed, or add --accept seed")
    if not run.guarantees:
        raise UserError("cannot-sign", "guarantees", "the run states none", "run the experiment again")
    for view in infinite:
        if view not in accepted:
            problem = f"epsilon is infinite against view '{view}'"
            raise UserError("cannot-sign", "guarantees", problem, f"plan a guarantee, or add --accept {view}")
    problem = (ledger_problem(run) or ("" if run.released.releases else NO_LEDGER)) if run.private else ""
    if problem:
        raise UserError("cannot-sign", files.LEDGER, problem, "restore the ledger from a backup")


def hashes(place: Path, run: RunFiles) -> dict[str, dict[str, str]]:
    """SHA-256 of the files that a sheet is about: of the run folder, and of ``share/``."""
    shared = {name: shared_content(place, name) for name in leaving(place, run) if name not in (STATEMENT, SIGNATURE)}
    return {
        "run": {name: _digest(place / name) for name in COVERED if (place / name).is_file()},
        "share": {
            name: _digest(place / name) if content is None else hashlib.sha256(content).hexdigest()
            for name, content in shared.items()
        },
    }


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def is_current(place: Path, run: RunFiles) -> bool:
    """Whether the folder has a signature, and still has the files that were signed."""
    if not (place / SIGNATURE).is_file() or not (place / STATEMENT).is_file():
        return False
    try:
        return bool(json.loads((place / STATEMENT).read_bytes()).get("signed_files") == hashes(place, run))
    except (ValueError, AttributeError):
        return False


# ---- verify


def verify(folder: Path, key: Ed25519PublicKey) -> dict[str, Any]:
    """What the signed sheet of a run folder, or of its ``share/``, states; a UserError on the first file that is not as
    it was signed."""
    statement, signature = _read_part(folder, STATEMENT), _read_part(folder, SIGNATURE)
    try:
        key.verify(signature, statement)
    except InvalidSignature:
        problem = f"is not signed by key {key_name(key)}, or was changed"
        raise _not_verified(STATEMENT, problem) from None
    stated: dict[str, Any] = json.loads(statement)
    signed = stated["signed_files"]
    if (folder / files.RESULT).exists() or (folder / files.SHARE).exists():
        _compare(folder, signed["run"], "")
        for name in COVERED:
            if name not in signed["run"] and (folder / name).exists():
                raise _not_verified(name, "is not part of what was signed")
        _compare_share(folder / files.SHARE, signed["share"], f"{files.SHARE}/")
        for name in (STATEMENT, SIGNATURE):
            _same(f"{files.SHARE}/{name}", _read_part(folder, f"{files.SHARE}/{name}"), _read_part(folder, name))
    else:
        _compare_share(folder, signed["share"], "")
    return stated


def _compare_share(folder: Path, signed: dict[str, str], prefix: str) -> None:
    """The folder must hold these files, the sheet with its signature, and nothing else."""
    present = set(os.listdir(folder)) if folder.is_dir() else set()
    for name in sorted(present - signed.keys() - {STATEMENT, SIGNATURE}):
        raise _not_verified(f"{prefix}{name}", "is not part of what was signed")
    _compare(folder, signed, prefix)


def _compare(folder: Path, signed: dict[str, str], prefix: str) -> None:
    for name, digest in signed.items():
        _same(f"{prefix}{name}", hashlib.sha256(_read_part(folder, name, prefix)).hexdigest(), digest)


def _same(name: str, found: object, signed: object) -> None:
    if found != signed:
        raise _not_verified(name, "differs from what was signed")


def _read_part(folder: Path, name: str, prefix: str = "") -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError:
        raise _not_verified(f"{prefix}{name}", "is missing") from None


def _not_verified(name: str, problem: str) -> UserError:
    return UserError("not-verified", name, problem, "do not rely on the sheet; ask the signer for the original files")


def verify_data(folder: Path, stated: Mapping[str, Any]) -> None:
    """Compare the fingerprint on the sheet with that of the table that the plan names, by the key in the run folder."""
    from tacit.engine.fingerprints import data_fingerprint
    from tacit.engine.run import load_federation
    from tacit.planning.plan import plan

    if not (folder / files.DATA_KEY).is_file():
        problem = f"'{folder}' has no {files.DATA_KEY}"
        raise UserError("wrong-file", "--data", problem, "only the data holder's run folder has it")
    found = data_fingerprint(load_federation(plan(folder / files.PLAN)), (folder / files.DATA_KEY).read_bytes())
    if found != stated["fingerprints"]["data_hmac"]:
        raise _not_verified("data", "the table is not the one that the run used")
