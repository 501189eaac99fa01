"""Errors have a code of the table; the exit code belongs to it."""

import pytest

from tacit.errors import CODES, Forbidden, InvalidSetting, TacitError, UserError, in_file
from tacit.settings import explained


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
