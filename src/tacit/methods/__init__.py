"""How it is learned. ``tacit.names`` lists all methods; each is imported when it is used."""

from collections.abc import Callable
from functools import partial

from tacit import names
from tacit.methods.base import Facts, Info, Method, Options, ServerState

METHODS: names.BuiltIn[type[Options]] = names.BuiltIn(names.METHODS)
# the options of a built-in method, or of one that an installed package adds
find_method: Callable[[str], type[Options]] = partial(
    names.find, "tacit.methods", METHODS, field="method.name", kind=Options
)

__all__ = ["METHODS", "Facts", "Info", "Method", "Options", "ServerState", "find_method"]
