"""Trees of arrays on disk (safetensors): models and checkpoints, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from tacit.errors import UserError
from tacit.privacy.ledger import sync_folder


def write_bytes(path: Path, content: bytes) -> None:
    """Replace ``path`` in one step: a reader (or a crash) sees the old content or the new, never a half."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)


def save_tree(path: Path, tree: Any, facts: Mapping[str, str] | None = None) -> None:
    """Write the arrays of ``tree`` under their paths, with ``facts`` as the file's metadata.

    All facts are one entry: the file format keeps several entries in random order, and equal runs make equal files.
    """
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in _named_leaves(tree)}
    write_bytes(path, safetensors.numpy.save(arrays, metadata={"facts": json.dumps(dict(facts or {}), sort_keys=True)}))


def load_arrays(path: Path, field: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays and the metadata of a file; a UserError on ``field`` where it is missing or damaged."""
    if not path.is_file():
        raise UserError(field, f"'{path}' does not exist", "name an existing .safetensors file")
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get("facts", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(field, f"'{path.name}' is damaged ({error})", "restore it or start anew") from None


def load_tree(path: Path, template: Any, field: str) -> tuple[Any, dict[str, str]]:
    """A tree of the shapes of ``template`` from ``path``, and the file's metadata."""
    arrays, facts = load_arrays(path, field)
    leaves = []
    for name, leaf in _named_leaves(template):
        if name not in arrays:
            raise UserError(field, f"'{path.name}' has no array '{name}'", "use a file of the same model")
        if arrays[name].shape != leaf.shape:
            shapes = f"{list(arrays[name].shape)} instead of {list(leaf.shape)}"
            raise UserError(field, f"'{name}' in '{path.name}' has shape {shapes}", "use a file of the same model")
        if arrays[name].dtype != leaf.dtype:
            kinds = f"{arrays[name].dtype} instead of {leaf.dtype}"
            raise UserError(field, f"'{name}' in '{path.name}' holds {kinds}", "use a file of the same model")
        leaves.append(jax.numpy.asarray(arrays[name]))
    return jax.tree.unflatten(jax.tree.structure(template), leaves), facts


def is_finite(tree: Any) -> bool:
    """Whether every number of a tree is finite."""
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree))


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Every array of a tree with its path, such as ``layer0/w``."""
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
