"""Methods, exchanges, models and data sources of other installed packages, found through Python entry points.

A package adds one in its own ``pyproject.toml``::

    [project.entry-points."tacit.models"]
    fourier = "their_package.models:FOURIER"

A built-in name always means the built-in. A package is imported only when an experiment names what it adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeVar, cast

from tacit.errors import UserError, nearest

Group = Literal["tacit.methods", "tacit.exchanges", "tacit.models", "tacit.sources"]
Found = TypeVar("Found")


def plugin_names(group: Group) -> list[str]:
    """Names that other packages add; nothing is imported."""
    return sorted({point.name for point in entry_points(group=group)})


def find(group: Group, built_in: Mapping[str, Found], name: str, field: str, kind: type[Any]) -> Found:
    """The built-in called ``name``, or what another package adds by this name, an instance (or subclass) of ``kind``.

    ``field`` is the key of the experiment file that holds the name; errors are about it.
    """
    if name in built_in:
        return built_in[name]
    points = list(entry_points(group=group, name=name))
    if not points:
        known = [*built_in, *plugin_names(group)]
        noun = group.removeprefix("tacit.").removesuffix("s")
        raise UserError("unknown-name", field, f"there is no {noun} '{name}'", nearest(name, known))
    if len({point.value for point in points}) > 1:
        packages = ", ".join(sorted({_package(point) for point in points}))
        raise UserError("duplicate", field, f"several packages add '{name}': {packages}", "uninstall all but one")
    point = points[0]
    try:
        found = point.load()
    except Exception as error:
        problem = f"'{name}' of package {_package(point)} cannot be loaded ({type(error).__name__}: {error})"
        raise UserError("invalid-plugin", field, problem, f"correct or update {_package(point)}") from error
    if not (isinstance(found, kind) or (isinstance(found, type) and issubclass(found, kind))):
        problem = f"'{name}' of package {_package(point)} is not a {kind.__name__}"
        fix = f"let its entry point {point.value} name a {kind.__module__}.{kind.__qualname__}"
        raise UserError("invalid-plugin", field, problem, fix)
    return cast(Found, found)


def _package(point: EntryPoint) -> str:
    return "unknown" if point.dist is None else point.dist.name
