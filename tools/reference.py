"""Write the pages of the reference from the source: ``python -m tools.reference``.

The description of a key comes from its type (``Field(description=…)``), or from the docstring of its class, which has a
line ``key  sentence`` for each key (two spaces or more between them; continuation lines are indented further).
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import tacit
from tacit.exchange import EXCHANGES
from tacit.federation.site.policy import Policy
from tacit.methods import METHODS
from tacit.models.model import MODELS
from tacit.planning.experiment import Experiment
from tacit.studies.study_file import StudyOptions
from tools import errors_page

FOLDER = errors_page.PAGE.parent
GENERATED = "`python -m tools.reference` writes this page from the source.\n"
BOUNDS = {"gt": "above {}", "ge": "at least {}", "lt": "below {}", "le": "at most {}"}
NAMES = {Any: "any value", int: "integer", float: "number", str: "text", bool: "true or false", dict: "table"}


# ---- keys


@dataclass(frozen=True)
class Key:
    """One key of a file, as the reference shows it."""

    name: str
    kind: str
    default: str
    about: str


def described(kind: type) -> dict[str, str]:
    """The sentences about keys in the docstrings of a class and its bases; those of the class come first."""
    found: dict[str, str] = {}
    for base in kind.__mro__:
        lines = inspect.cleandoc(base.__doc__ or "").splitlines()
        column, key = 0, ""
        here: dict[str, str] = {}
        for line in lines:
            entry = re.match(r"([a-z0-9_]+)(  +)(?=\S)(.*)", line)
            if entry:
                key, column = entry[1], len(entry[1]) + len(entry[2])
                here[key] = entry[3].strip()
            elif key and line.startswith(" " * column) and line.strip():
                here[key] += " " + line.strip()
            else:
                key = ""
        found = here | found
    return found


def kind_of(annotation: Any, limits: tuple[Any, ...] = ()) -> str:
    """A type in words, with its range."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind_of(arguments[0], (*limits, *_limits(arguments[1:])))
    if origin in (Union, types.UnionType):
        parts = dict.fromkeys(kind_of(argument, limits) for argument in arguments if argument is not type(None))
        return " or ".join(parts)
    if origin is Literal:
        return ", ".join(f'`"{value}"`' for value in arguments if value != "paid")
    if origin is tuple:
        return f"list of: {kind_of(arguments[0])}"
    if origin is dict:
        return "table" if arguments[1] is Any else f"table of: {kind_of(arguments[1])}"
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return "table"
    words = [NAMES.get(annotation, str(annotation))]
    return ", ".join([*words, *(BOUNDS[name].format(f"{value:g}") for name, value in limits)])


def _limits(metadata: tuple[Any, ...]) -> Iterator[tuple[str, float]]:
    for item in metadata:
        for part in item.metadata if isinstance(item, FieldInfo) else (item,):
            for name in BOUNDS:
                if (value := getattr(part, name, None)) is not None:
                    yield name, value


def said(annotation: Any) -> str | None:
    """The description that a type brings."""
    if get_origin(annotation) is Annotated:
        for item in get_args(annotation)[1:]:
            if isinstance(item, FieldInfo) and item.description:
                return item.description
    return next(filter(None, map(said, get_args(annotation))), None)


def shown(value: Any) -> str:
    """A default as it is written in TOML."""
    if value is MISSING or value is PydanticUndefined:
        return "required"
    if value is None or value in ((), {}) or isinstance(value, BaseModel):
        return "–"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value:,}`" if isinstance(value, int) else f"`{value:g}`"


def keys_of(kind: Any, prefix: str = "") -> list[Key]:
    """All keys of a section or of options, nested tables included."""
    sentences, hints, found = described(kind), get_type_hints(kind, include_extras=True), []
    if issubclass(kind, BaseModel):
        given = {
            field.alias or name: (name, None if field.default_factory else field.default)
            for name, field in kind.model_fields.items()
        }
    else:
        given = {field.name: (field.name, field.default) for field in fields(kind)}
    for name, (attribute, default) in given.items():
        annotation = hints[attribute]
        about = said(annotation) or sentences.get(name, "")
        found.append(Key(f"{prefix}{name}", kind_of(annotation), shown(default), about))
        for inner, many in tables(annotation):
            found += keys_of(inner, f"{prefix}{name}.{'COLUMN.' if many else ''}")
    return found


def tables(annotation: Any, many: bool = False) -> list[tuple[Any, bool]]:
    """The tables of keys in a type, and whether there is one for each of several names."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return [(annotation, many)]
    many = many or get_origin(annotation) is dict
    return [found for argument in get_args(annotation) for found in tables(argument, many)]


def sentence(text: str) -> str:
    """A description as a cell: a capital letter, a full stop, no break of the table."""
    text = re.sub(r"``(.*?)``", r"`\1`", text).replace("|", "\\|").strip()
    text = re.sub(r'\b([a-z_]+ = "[a-z-]+")', r"`\1`", text)
    text = text if re.match(r"[a-zA-Z]\w*[:_=]|`", text) else text[:1].upper() + text[1:]
    return text if not text or text.endswith(".") else text + "."


def key_table(keys: list[Key]) -> str:
    rows = [(f"`{key.name}`", key.kind, key.default, sentence(key.about)) for key in keys]
    return errors_page.table(("key", "type and range", "default", "meaning"), rows)


def lead(kind: type) -> str:
    """The first paragraph of a docstring, as text of a page."""
    paragraph = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]
    return re.sub(r"``(.*?)``", r"`\1`", " ".join(paragraph.split())) + "\n"


# ---- pages

SECTIONS = ("data", "model", "train", "privacy", "exchange", "evaluation", "engine", "governance")


def experiment_keys() -> dict[str, list[Key]]:
    """The keys of every section of an experiment file, but those of methods, exchanges and models."""
    top = [key for key in keys_of(Experiment) if "." not in key.name and key.name in ("title", "seed")]
    sections = {name: keys_of(Experiment.model_fields[name].annotation) for name in SECTIONS}
    return {"": top, **sections}


def experiment_page() -> str:
    """The keys of an experiment file."""
    parts = [
        "# Experiment file\n",
        "After reading this page you know every key of an experiment file: its type, range, default and meaning.\n",
        "The file is TOML. `--set section.key=value` replaces a key on the command line. A dash means: no value. "
        "An unknown key is an [error](errors.md). [Prepare a table](../data.md) and "
        "[Models, methods, training](../training.md) explain the settings with examples.\n",
        GENERATED,
    ]
    for name, keys in experiment_keys().items():
        title = f"`[{name}]`" if name else "Top level"
        parts.append(f"## {title}\n")
        if name:
            parts.append(lead(Experiment.model_fields[name].annotation))  # type: ignore[arg-type]
        parts.append(key_table(keys))
        if name == "model":
            parts += ["Other keys belong to the model:\n", model_table()]
    parts += ["## `[method]`\n", "`name` chooses a method. Each method has keys of its own.\n"]
    for name, options in METHODS.items():
        parts += [f"### Method `{name}`\n", sentence(options.info.summary) + f" Source: {options.info.reference}.\n"]
        parts.append(key_table(keys_of(options)))
    parts += ["## Keys of exchanges\n", "`name` chooses an exchange. Each exchange has keys of its own.\n"]
    for name, exchange in EXCHANGES.items():
        parts += [f"### Exchange `{name}`\n", sentence(exchange.about) + "\n"]
        parts.append(key_table(keys_of(exchange)) if fields(exchange) else "It has no keys.\n")
    return "\n".join(parts)


def model_table() -> str:
    rows = []
    for name in MODELS:
        kind = MODELS[name]
        made = inspect.signature(kind.factory)
        numbers = [p for p in made.parameters.values() if p.name not in ("input_shape", "outputs")]
        listed = ", ".join(f"`{p.name}`{'' if p.default is p.empty else f' ({p.default})'}" for p in numbers)
        rows.append((f"`{name}`", ", ".join(kind.tasks), listed or "–"))
    return errors_page.table(("model", "labels", "keys (defaults)"), rows)


def policy_page() -> str:
    """The keys of POLICY.toml."""
    return "\n".join(
        [
            "# Policy of a silo\n",
            "After reading this page you can write the `POLICY.toml` of a silo. No request can exceed its limits.\n",
            "A run that breaks a rule is refused with the names of all broken rules: "
            "[rules](errors.md#rules-by-which-a-silo-refuses-a-run). "
            "[Running a federation](../deploy.md) has an example.\n",
            GENERATED,
            key_table(keys_of(Policy)),
        ]
    )


def study_page() -> str:
    """The keys of a study file."""
    return "\n".join(
        [
            "# Study file\n",
            "After reading this page you know every key of a study file: its type, range, default and meaning.\n",
            "The file is TOML; `[[axes]]` and `[[contenders]]` are lists of tables. "
            "[Compare methods](../how-to/studies.md) has an example.\n",
            GENERATED,
            key_table(keys_of(StudyOptions)),
        ]
    )


def commands() -> list[tuple[str, Any]]:
    """Every command with its full name, in the order of the help."""
    from tacit.ui.main import app

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        yield name, command
        for child in getattr(command, "commands", {}).values():
            yield from walk(child, f"{name} {child.name}")

    return list(walk(typer.main.get_command(app), "tacit"))


def commands_page() -> str:
    """Every command and option."""
    parts = [
        "# Commands\n",
        "After reading this page you know every command, its arguments and its options.\n",
        "`--help` shows the same texts. Exit codes: 0 success, 2 an error that you can correct, 3 a budget or policy "
        "forbids the work, 130 stopped with Ctrl-C.\n",
        GENERATED,
    ]
    for name, command in commands():
        own = [parameter for parameter in command.params if parameter.name != "help" and not parameter.hidden]
        arguments = " ".join(argument.metavar for argument in own if argument.param_type_name == "argument")
        group = bool(getattr(command, "commands", {}))
        words = (name, "COMMAND" if group else arguments, "[OPTIONS]" if own and not group else "")
        usage = " ".join(filter(None, words))
        parts += [f"## `{name}`\n", " ".join((command.help or "").split()) + "\n", f"```text\n{usage}\n```\n"]
        rows = [(f"`{' '.join([*parameter.opts, *parameter.secondary_opts])}`", option_kind(parameter),
                 sentence(" ".join((parameter.help or "").split()))) for parameter in own]  # fmt: skip
        if rows:
            parts.append(errors_page.table(("argument or option", "value", "meaning"), rows))
    return "\n".join(parts)


def option_kind(parameter: Any) -> str:
    default = parameter.default
    words = "switch" if getattr(parameter, "is_flag", False) else f"`{parameter.metavar or value_of(parameter)}`"
    if parameter.required:
        return f"{words}, required"
    simple = isinstance(default, (str, int, float)) and not isinstance(default, bool) and default != ""
    return f"{words}, default `{default}`" if simple else words


def value_of(parameter: Any) -> str:
    """The kind of value of an option without a metavar."""
    return {int: "INTEGER", float: "NUMBER"}.get(getattr(parameter, "bare_type", str), "TEXT")


def python_page() -> str:
    """The public Python interface."""
    parts = [
        "# Python interface\n",
        "After reading this page you know every public name of the package `tacit`, its arguments and its result.\n",
        "[Use Tacit from Python](../python.md) has examples that run. [Accounting](../privacy.md) describes "
        "`tacit.privacy`.\n",
        GENERATED,
    ]
    for name in sorted(tacit.__all__, key=str.lower):
        parts += documented(name, getattr(tacit, name), f"## `{name}`")
    return "\n".join(parts)


def documented(name: str, thing: Any, heading: str) -> list[str]:
    """Signature and docstring of a public name, and of its public members."""
    parts = [f"{heading}\n", signature_of(name, thing), prose(inspect.getdoc(thing) or "")]
    for member in members(thing) if isinstance(thing, type) else ():
        target, is_value = function_of(thing, member)
        shown_as = f"`{name}.{member}`" if is_value else f"`{name}.{member}{plain(target)}`"
        parts.append(f"**{shown_as}**: {prose(docstring(thing, member))}")
    return parts


def function_of(thing: type, member: str) -> tuple[Any, bool]:
    """The function behind a member, and whether it is read as a value."""
    found = inspect.getattr_static(thing, member)
    is_value = isinstance(found, property) or hasattr(found, "func")
    target = found.fget if isinstance(found, property) else getattr(found, "func", getattr(found, "__func__", found))
    return target, is_value


def docstring(thing: type, member: str) -> str:
    return inspect.getdoc(function_of(thing, member)[0]) or ""


def members(thing: type) -> list[str]:
    """Public methods and properties that classes of Tacit define."""
    own = [base for base in thing.__mro__ if base.__module__.startswith("tacit")]
    names = dict.fromkeys(name for base in own for name in vars(base) if not name.startswith("_"))
    found = {name: inspect.getattr_static(thing, name) for name in names}
    is_code = (property, classmethod, staticmethod, types.FunctionType)
    return sorted(name for name, value in found.items() if isinstance(value, is_code) or hasattr(value, "func"))


def plain(function: Callable[..., Any]) -> str:
    text = str(inspect.signature(function))
    return re.sub(r"\b(self|cls)(, )?", "", text, count=1).split(" ->")[0].replace("'", "")


def signature_of(name: str, thing: Any) -> str:
    try:
        text = str(inspect.signature(thing))
    except ValueError:
        return ""
    text = re.sub(r"<[^>]*>", "…", text).replace("= ''", '= ""').replace("'", "")
    lines = f"{name}{text}"
    if len(lines) > 100:
        opened, _, result = lines.rpartition(")")
        head, _, inner = opened.partition("(")
        arguments = re.split(r", (?![^\[(]*[\])])", inner)
        lines = f"{head}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){result}"
    return f"```python\n{lines}\n```\n"


def prose(docstring: str) -> str:
    """A docstring as Markdown: double backquotes become single ones; indented blocks stay code."""
    text = re.sub(r":(?:func|class|meth):`~?([^`]*)`", r"`\1`", docstring)
    text = re.sub(r"``(.*?)``", r"`\1`", text)
    return "\n".join(f"- `{m[1]}`: {m[2]}" if (m := re.match(r"([a-z_]+)  +(\S.*)", line)) else line
                     for line in text.splitlines()) + "\n"  # fmt: skip


PAGES: dict[str, Callable[[], str]] = {
    "errors": errors_page.page,
    "experiment": experiment_page,
    "policy": policy_page,
    "study": study_page,
    "commands": commands_page,
    "python": python_page,
}


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / f"{name}.md").write_text(page(), encoding="utf-8")
        print(Path("docs") / "reference" / f"{name}.md")


if __name__ == "__main__":
    main()
