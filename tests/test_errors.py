"""Errors have a code of the table; the exit code belongs to it."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.crypto import Refused, Tampered
from tacit.crypto.crypto_errors import MISUSES, REFUSALS, Misused
from tacit.errors import CODES, Forbidden, InvalidSetting, TacitError, UserError, in_file
from tacit.federation.site.policy import RULES
from tacit.planning.settings import explained
from tacit.privacy.invalid import ARGUMENTS, InvalidArgument
from tests.refusals import refuses
from tools.errors_page import PAGE, page


def test_an_error_ends_with_its_code():
    error = UserError("unknown-name", "data.label", "no such column", "name one")
    assert str(error) == "data.label: no such column; name one [unknown-name]"


def test_an_unknown_code_is_a_mistake_of_the_program():
    with pytest.raises(KeyError):
        UserError("no-such-code", "data.label", "problem", "fix")


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_code_belongs_to_the_class_with_its_exit_code(code: str):
    classes: tuple[type[TacitError], ...] = (UserError, Forbidden)
    for kind in classes:
        if kind.exit_code == CODES[code].exit_code:
            assert kind(code, "field", "problem", "fix").code == code
        else:
            with pytest.raises(AssertionError):
                kind(code, "field", "problem", "fix")


def test_an_error_about_a_file_keeps_its_code():
    with pytest.raises(Forbidden) as caught, in_file("POLICY.toml"):
        raise Forbidden("policy-forbids", "policy", "problem", "fix")
    assert (caught.value.code, caught.value.file) == ("policy-forbids", "POLICY.toml")


def test_a_validator_chooses_the_code_of_a_setting():
    from pydantic import BaseModel, ValidationError, field_validator

    class Section(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def _is_even(cls, number: int) -> int:
            if number % 2:
                raise InvalidSetting("conflict", "odd")
            return number

    def code(**content: object) -> tuple[str, str]:
        with pytest.raises(ValidationError) as caught:
            Section.model_validate(content)
        error = explained(caught.value, Section)
        return error.code, error.field

    assert code(number=1) == ("conflict", "number")
    assert code(number="x") == ("wrong-type", "number")
    assert code() == ("missing", "number")


# -- where codes are used

ROOT = Path(__file__).parents[1]
# the classes whose first argument is a code, by the table that has it
TABLES = {
    "UserError": CODES,
    "Forbidden": CODES,
    "InvalidSetting": CODES,
    "refuse_rows": CODES,
    "Refused": REFUSALS,
    "BadShares": REFUSALS,
    "RoundFailed": REFUSALS,
    "Refusal": RULES,
    "InvalidArgument": ARGUMENTS,
    "require": ARGUMENTS,
    "NoSuchGraph": ARGUMENTS,
    "Misused": MISUSES,
}


def codes_at_sites() -> Iterator[tuple[str, str, str]]:
    """The file, the class (or function) and the code of every error in the source; a class may fix its code."""
    for file in sorted((ROOT / "src" / "tacit").rglob("*.py")):
        if file.relative_to(ROOT / "src" / "tacit").parts[0] == "transport":
            continue  # imports NVFlare alone, and has a class of the same name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str() as code), *_]) if name in TABLES:
                    yield str(file), name, code
                case ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=str() as code)):
                    yield str(file), "Refused", code


def test_every_error_in_the_source_has_a_code_of_its_table():
    sites = list(codes_at_sites())
    assert len(sites) > 500
    assert [site for site in sites if site[2] not in TABLES[site[1]]] == []


@pytest.mark.parametrize("table", ["UserError", "Refused", "InvalidArgument", "Misused"])
def test_every_code_of_a_table_is_used(table: str):
    used = {code for _, name, code in codes_at_sites() if TABLES[name] is TABLES[table]}
    assert sorted(set(TABLES[table]) - used) == []


def test_the_catalogue_is_what_the_tables_give():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tools.errors_page`"


def test_no_test_depends_on_the_sentence_of_an_error():
    prose = re.compile(r"\b(raises|warns)\([^)]*\bmatch" + "=")
    files = (ROOT / "tests").rglob("*.py")
    assert [str(file) for file in files if prose.search(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "error",
    [
        UserError("missing", "data.label", "problem", "fix", "file.toml"),
        Refused("malformed", "reason", "north"),
        Tampered("reason", "north"),
        InvalidArgument("out-of-range", "sigma", "problem"),
        Misused("wiped", "secret", "problem"),
    ],
)
def test_an_error_from_another_process_is_the_same(error: Exception):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    "expected",
    [
        {"code": "missing"},
        {"field": "data.task"},
        {"names": ["sick"]},
        {"file": "other.toml"},
        {"kind": Forbidden},
    ],
)
def test_the_helper_of_tests_notices_another_error(expected: dict):
    right = {"code": "unknown-name", "field": "data.label", "names": ["ill"], "file": "data.toml"}

    def fail() -> None:
        raise UserError("unknown-name", "data.label", "no column 'ill'", "name one", "data.toml")

    with refuses(**right):
        fail()
    with pytest.raises((AssertionError, UserError)), refuses(**{**right, **expected}):
        fail()
