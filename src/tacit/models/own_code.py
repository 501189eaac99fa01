"""Functions of the user's own, named ``"package.module:function"``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from tacit.errors import UserError, nearest


def load_own(name: str, field: str) -> Callable[..., Any]:
    """The function that ``field`` names; its folder is importable only meanwhile, and never hides an installed
    module."""
    module_path, _, attribute = name.partition(":")
    folder, _, module_name = module_path.rpartition("/")
    folder = folder or os.getcwd()
    sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        problem = f"module '{module_name}' cannot be imported ({said(error)})"
        raise invalid(name, problem, "install it or start from its folder", field) from error
    finally:
        sys.path.remove(folder)
    found: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(found):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise invalid(name, f"module '{module_name}' has no function '{attribute}'", nearest(attribute, public), field)
    return found


def said(error: Exception) -> str:
    """An exception of the user's code in words."""
    return f"{type(error).__name__}: {error}"


def invalid(name: str, problem: str, fix: str, field: str = "model.name") -> UserError:
    """What is wrong with code of the user's own."""
    return UserError("invalid-model", field, f"'{name}': {problem}", fix)
