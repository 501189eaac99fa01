"""How tests expect an error: by its class, its code and its field, never by its sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tacit.errors import CODES, Forbidden, TacitError, UserError
from tacit.planning.settings import explained


@contextmanager
def refuses(
    code: str,
    field: str | None = None,
    kind: type[Exception] | None = None,
    names: Sequence[str] = (),
    **attributes: Any,
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block raises an error with this code and field.

    Without ``kind`` it is the :class:`UserError` or :class:`Forbidden` that the code belongs to. ``names`` are
    values that the error must show, such as a file, a silo or an accepted name. ``attributes`` such as
    ``peer`` are compared too.
    """
    expected = kind or (Forbidden if CODES[code].exit_code == Forbidden.exit_code else UserError)
    with pytest.raises(expected) as caught:
        yield caught
    error: Any = caught.value
    assert error.code == code, error
    if issubclass(expected, TacitError):
        assert "\n" not in str(error)
        assert field is not None, "an error of a user names a field"
    if field is not None:
        assert error.field == field, error
    assert [name for name in names if name not in str(error)] == [], error
    assert {name: getattr(error, name) for name in attributes} == attributes, error


def advised(error: UserError) -> float:
    """The first number in the fix of an error."""
    found = re.search(r"\d[\d.]*(?:e[+-]?\d+)?", error.fix)
    assert found, error
    return float(found[0])


def refused_section(kind: type[BaseModel], **content: Any) -> UserError:
    """The error about a section of an experiment with these keys."""
    with pytest.raises(ValidationError) as caught:
        kind(**content)
    return explained(caught.value, kind, what=kind.__name__)
