"""Files in TOML into checked values. A mistake is an error of one line: the field, the value, the fix."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError

from tacit.errors import CODES, UserError, nearest

SomeSection = TypeVar("SomeSection", bound=BaseModel)

# Numbers as they are meant: no text that looks like one, no true for 1, nothing infinite.
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
AtLeastOne = Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(strict=True, gt=0, le=1)]
Count = Annotated[int, Field(strict=True, ge=1)]
Natural = Annotated[int, Field(strict=True, ge=0)]


def read_section(path: Path, kind: type[SomeSection], what: str) -> SomeSection:
    """A file (TOML) that is one section by itself; ``what`` is its kind. Errors name the file."""
    content = read_toml(path, what)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        found = explained(error, kind, what=what)
        raise UserError(found.code, found.field, found.problem, found.fix, str(path)) from None


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a file; ``what`` names it where it cannot be read."""
    if not path.is_file():
        state = "is a folder" if path.is_dir() else "does not exist"
        raise UserError("file-not-found", what, f"'{path}' {state}", f"name a file of this kind (TOML): {what}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError("file-damaged", what, f"'{path}' is no valid TOML ({error})", "correct that line") from None


def changed(content: dict[str, Any], change: str) -> dict[str, Any]:
    """``content`` with one ``a.b=value`` setting replaced; the value is TOML, or plain text where it is no TOML."""
    name, equals, text = change.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not equals or not all(keys):
        problem = f"'{change}' has no form a.b=value"
        raise UserError("malformed", "--set", problem, "write for example --set train.rounds=10")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    return _replaced(content, keys, value, name)


def _replaced(content: Any, keys: list[str], value: Any, name: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        problem = f"'{name}' goes through a value that is no table"
        raise UserError("invalid-value", "--set", problem, "check the name before the dot")
    head, *rest = keys
    return {**content, head: _replaced(content.get(head, {}), rest, value, name) if rest else value}


def explained(error: ValidationError, root: type[BaseModel], prefix: str = "", what: str = "") -> UserError:
    """The first mistake that pydantic found. ``root`` is the section that the file is, ``what`` its name, ``prefix``
    where in the file the checked part is."""
    # of a union, the branch that got furthest is the one that was meant; a misspelt key is missing, too
    first = max(error.errors(), key=lambda found: (len(found["loc"]), found["type"] == "extra_forbidden"))
    path = [str(part) for part in first["loc"] if not _is_type_tag(part)]
    where = ".".join([prefix, *path] if prefix else path) or prefix or what
    if first["type"] == "extra_forbidden":
        return UserError("unknown-key", where, "is not a known key", nearest(path[-1], _known_keys(path[:-1], root)))
    if first["type"] == "missing":
        return UserError("missing", where, "is missing", "add it")
    shown = repr(first["input"])
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    raised = first.get("ctx", {}).get("error")
    message = _FORMS.get(first["type"]) or getattr(raised, "problem", "") or first["msg"].removeprefix("Value error, ")
    return UserError(_code(first), where, f"{shown} is not accepted", message[:1].lower() + message[1:])


def _code(first: Mapping[str, Any]) -> str:
    """The code for a mistake that pydantic found; a validator's own error may bring one."""
    kind, raised = first["type"], first.get("ctx", {}).get("error")
    if (own := getattr(raised, "code", "")) in CODES:
        return str(own)
    if kind.endswith(("_type", "_parsing")):
        return "wrong-type"
    if kind.startswith(("greater_than", "less_than", "finite_number")):
        return "out-of-range"
    if kind in ("too_short", "too_long"):
        return {"too_short": "too-few", "too_long": "too-many"}[kind]
    return "unknown-name" if kind == "literal_error" else "invalid-value"


# What a value should look like in the file, where pydantic speaks of Python.
_FORMS = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dataclass_type", "dict_type"), "write a table of keys"),
    **dict.fromkeys(("tuple_type", "list_type"), 'write a list: ["…", "…"]'),
    "string_type": 'write a text: "…"',
}


def _is_type_tag(part: int | str) -> bool:
    """Pydantic puts the tried member of a union into the location; that is no field of the file."""
    return isinstance(part, str) and (part in _TYPE_NAMES or "[" in part or "(" in part)


_TYPE_NAMES = {"int", "float", "str", "bool", "none", "SurvivalLabel", "constrained-int", "constrained-float"}


def _known_keys(path: Sequence[str], root: type[BaseModel]) -> list[str]:
    """The keys that a (nested) section of ``root`` accepts."""
    kinds: list[type[BaseModel]] = [root]
    for part in path:
        fields_ = [kind.model_fields[part] for kind in kinds if part in kind.model_fields]
        # a part that is no field is a key of a table whose values are sections, such as a column's name
        kinds = [kind for field in fields_ for kind in _sections(field.annotation)] if fields_ else kinds
    return [field.alias or name for kind in kinds for name, field in kind.model_fields.items()]


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a type speaks of, however deep in unions and tables."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for argument in get_args(annotation) for kind in _sections(argument)]
