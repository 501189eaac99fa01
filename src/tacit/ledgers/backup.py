"""Encrypted backups of a ledger. Restoring never brings back an older state.

A backup contains a ledger and its list of admissions, if there is one. Its key is derived from a passphrase by scrypt
(n = 2^17, r = 8, p = 1, 16 bytes of salt); ChaCha20-Poly1305 encrypts and authenticates the whole::

    "tacit-ledger-backup-1\\n" | salt (16) | nonce (12) | ciphertext

    with the plain text {"ledger": text, "admissions": text or null} as JSON

:func:`restore` compares before it writes. The existing ledger must be a prefix of that in the backup; the silo's kit
must know the ledger, if it knows any, and no later state of it. What the server has seen is checked at the next run.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from tacit.engine.folder import PRIVATE
from tacit.engine.learner import write_bytes
from tacit.errors import UserError
from tacit.federation.carrier.processes import settings
from tacit.federation.kits import Kit
from tacit.federation.site.ledgers import check_not_older, known_ledgers
from tacit.federation.site.policy import Head, admissions_of
from tacit.federation.site.shard import read_silo_data
from tacit.privacy import Ledger, LedgerError
from tacit.privacy.ledger import plain_file
from tacit.transport.attendant import KIT, AlreadyRunning, check_idle
from tacit.transport.log import OURS

_MAGIC, _SALT, _NONCE = b"tacit-ledger-backup-1\n", 16, 12


class State(NamedTuple):
    """A ledger in a backup. ``others``: other ledgers that the kit knows, which are not in the backup."""

    path: Path
    id: str | None
    lines: int
    others: tuple[str, ...] = ()


def backup(target: Path, out: Path, passphrase: str) -> State:
    """Write an encrypted backup of a ledger, or of the ledger that the silo of a kit uses, to the new file ``out``."""
    file, kit = ledger_of(target)
    if not file.is_file():
        raise UserError("file-not-found", "ledger", f"'{file}' does not exist", "name a ledger, or the kit of a silo")
    state, admissions = _state(file, file), admissions_of(file)
    if admissions.is_file():
        _state(admissions, admissions)
    ledger = _lines(file)  # before the admissions: a run is admitted before it releases anything
    content = {"ledger": ledger, "admissions": _lines(admissions) or None}
    salt, nonce = secrets.token_bytes(_SALT), secrets.token_bytes(_NONCE)
    sealed = ChaCha20Poly1305(_key(passphrase, salt)).encrypt(nonce, json.dumps(content).encode(), _MAGIC)
    try:
        with os.fdopen(plain_file(out, os.O_WRONLY | os.O_EXCL), "wb") as opened:
            opened.write(_MAGIC + salt + nonce + sealed)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        raise UserError("file-access", "OUT", f"'{out}' cannot be made ({error.strerror})", "name a new file") from None
    known = {} if kit is None else known_ledgers(kit)
    return state._replace(others=tuple(str(entry["ledger"]) for mark, entry in known.items() if mark != state.id))


def restore(source: Path, target: Path, passphrase: str) -> State:
    """Restore the ledger of a backup; UserError, and nothing written, if a release would be forgotten."""
    content = _opened(source, passphrase)
    file, kit = ledger_of(target)
    if kit is not None:
        try:
            check_idle(kit.path)
        except AlreadyRunning as error:
            raise UserError("in-use", "KIT", f"'{kit.path}' is in use: {error}", "stop the silo first") from None
    files = {admissions_of(file): content["admissions"] or "", file: content["ledger"]}
    for place, text in files.items():
        if not text.startswith(_lines(place)):
            problem = f"'{place}' has lines that the backup does not have"
            fix = "restore a newer backup; if the file is damaged, move it away first"
            raise UserError("ledger-mismatch", "ledger", problem, fix)
    draft = file.with_name(f".{file.name}.restored")
    try:
        write_bytes(draft, content["ledger"].encode(), PRIVATE)
        state = _state(draft, file, kit)
    except OSError as error:
        problem = f"'{file}' cannot be written ({error.strerror})"
        raise UserError("file-access", "ledger", problem, "correct the path") from None
    finally:
        draft.unlink(missing_ok=True)
    for place, text in files.items():
        if text:
            write_bytes(place, text.encode(), PRIVATE)
    return state


def ledger_of(target: Path) -> tuple[Path, Kit | None]:
    """The ledger of ``target``, and the kit if it is one: the ledger with which its silo was last started."""
    if not (target / OURS / KIT).is_file():
        return target, None
    kit = Kit.load(target, "silo")
    return Path(read_silo_data(settings(kit)[0]).ledger or ""), kit


def _state(file: Path, place: Path, kit: Kit | None = None) -> State:
    """The state of a ledger that belongs at ``place``; UserError if the kit knows only others, or a later state."""
    try:
        with Ledger(file) as ledger:
            lines, mark = ledger.lines, ledger.id
    except (LedgerError, OSError) as error:
        raise UserError("ledger-damaged", "ledger", str(error), "name another ledger or backup") from None
    known = {} if kit is None else known_ledgers(kit)
    if known and mark not in known:
        problem = f"the kit does not know the ledger {mark}"
        raise UserError("ledger-unknown", "ledger", problem, f"it knows {', '.join(known)}")
    if mark is not None and mark in known:
        check_not_older(lines, Head(known[mark]["lines"], known[mark]["hash"]), place)
    return State(place, mark, len(lines))


def _lines(file: Path) -> str:
    """The complete lines of a file; none if there is no file."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    return text[: text.rfind("\n") + 1]


def _opened(source: Path, passphrase: str) -> dict[str, str]:
    data = source.read_bytes() if source.is_file() else b""
    if not data.startswith(_MAGIC):
        problem = f"'{source}' is no backup of a ledger"
        raise UserError("wrong-file", "BACKUP", problem, "name a file that `tacit ledger backup` wrote")
    rest = data[len(_MAGIC) :]
    salt, nonce, sealed = rest[:_SALT], rest[_SALT : _SALT + _NONCE], rest[_SALT + _NONCE :]
    try:
        opened = ChaCha20Poly1305(_key(passphrase, salt)).decrypt(nonce, sealed, _MAGIC)
    except (InvalidTag, ValueError):
        problem = f"does not open '{source}', or the file is damaged"
        raise UserError("wrong-passphrase", "--passphrase", problem, "give the passphrase of the backup") from None
    content: dict[str, str] = json.loads(opened)
    return content


def _key(passphrase: str, salt: bytes) -> bytes:
    if not passphrase:
        raise UserError("missing", "--passphrase", "is required", "give one, or set TACIT_PASSPHRASE")
    return Scrypt(salt=salt, length=32, n=2**17, r=8, p=1).derive(passphrase.encode())
