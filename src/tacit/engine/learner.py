"""What is trained: model, task, starting point, frozen layers; and trees of arrays as bytes (safetensors)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from tacit.data import Labels
from tacit.errors import UserError
from tacit.kernels import Objective, split_frozen
from tacit.models import Params, Task, check_fit, is_built_in, parameter_count
from tacit.models.low_rank import is_factor
from tacit.planning.chosen_model import chosen_model, chosen_task, frozen_names
from tacit.planning.experiment import ModelOptions
from tacit.privacy import Randomness
from tacit.privacy.ledger import plain_file, sync_folder


def write_bytes(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace ``path`` in one step: a reader (or a crash) sees the old content or the new, never a half. It has the
    ``mode`` (less the umask) from the start; a symbolic link in its place is replaced, not followed."""
    draft = path.with_name(f".{path.name}.draft")
    with suppress(FileNotFoundError):
        draft.unlink()  # of a crash
    with os.fdopen(plain_file(draft, os.O_WRONLY | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)


class WrongTree(ValueError):
    """Bytes or arrays that are not those of the tree that is due."""


def packed(tree: Any, facts: Mapping[str, str] | None = None) -> bytes:
    """The arrays of ``tree`` under their paths, with ``facts`` as metadata.

    All facts are one entry: the format keeps several entries in random order, and equal trees make equal bytes.
    """
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in _named_leaves(tree)}
    return safetensors.numpy.save(arrays, metadata={"facts": json.dumps(dict(facts or {}), sort_keys=True)})


def unpacked(data: bytes, template: Any) -> Any:
    """The tree of the shapes of ``template`` that :func:`packed` packed; :class:`WrongTree` if it is no such tree."""
    try:
        arrays = safetensors.numpy.load(data)
    except (SafetensorError, KeyError, TypeError, ValueError):
        raise WrongTree("is no tree of arrays") from None
    if len(arrays) != len(jax.tree.leaves(template)):
        raise WrongTree("has other arrays than those that are due")
    return fitted(arrays, template)


def fitted(arrays: Mapping[str, np.ndarray], template: Any) -> Any:
    """``arrays`` by path as a tree of the shapes of ``template``."""
    leaves = []
    for name, leaf in _named_leaves(template):
        if name not in arrays:
            raise WrongTree(f"has no array '{name}'")
        if arrays[name].shape != leaf.shape:
            raise WrongTree(f"has '{name}' of shape {list(arrays[name].shape)} instead of {list(leaf.shape)}")
        if arrays[name].dtype != leaf.dtype:
            raise WrongTree(f"has '{name}' of {arrays[name].dtype} instead of {leaf.dtype}")
        leaves.append(jax.numpy.asarray(arrays[name]))
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def save_tree(path: Path, tree: Any, facts: Mapping[str, str] | None = None, mode: int = 0o666) -> None:
    """Write a tree in one step (:func:`packed`)."""
    write_bytes(path, packed(tree, facts), mode)


def load_arrays(path: Path, field: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays and the metadata of a file; a UserError on ``field`` where it is missing or damaged."""
    if not path.is_file():
        raise UserError("file-not-found", field, f"'{path}' does not exist", "name an existing .safetensors file")
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get("facts", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        problem = f"'{path.name}' is damaged ({error})"
        raise UserError("file-damaged", field, problem, "restore it or start a new run") from None


def load_tree(path: Path, template: Any, field: str) -> tuple[Any, dict[str, str]]:
    """A tree of the shapes of ``template`` from ``path``, and the file's metadata."""
    arrays, facts = load_arrays(path, field)
    try:
        return fitted(arrays, template), facts
    except WrongTree as error:
        raise UserError("mismatch", field, f"'{path.name}' {error}", "use a file of the same model") from None


def is_finite(tree: Any) -> bool:
    """Whether every number of a tree is finite."""
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree))


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Every array of a tree with its path, such as ``layer0/w``."""
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


@dataclass(frozen=True)
class Learner:
    """What is trained: ``objective`` over the trainable ``params``; ``frozen`` layers stay.

    ``module`` makes a module of the framework that the model comes from; None: of none. ``drops``: rounds have a key
    for dropout (:data:`tacit.models.model.DROPOUT`).
    """

    objective: Objective
    params: Params
    frozen: Params
    module: Callable[[Params], Any] | None = None
    drops: bool = False

    @property
    def task(self) -> Task:
        return self.objective.task

    @property
    def parameters(self) -> int:
        return parameter_count(self.params)


def learner(
    options: ModelOptions,
    labels: Labels,
    input_shape: tuple[int, ...],
    randomness: Randomness,
    start: Path | None = None,
) -> Learner:
    """The model of ``[model]`` for these labels and features: at random, or where the public file ``start`` stands."""
    check_fit(options.name, labels.kind)
    task = chosen_task(options, labels)
    model = chosen_model(options, input_shape, task.outputs)
    # compiled as one piece, which is quicker than layer by layer; another model need not be traceable
    init = jax.jit(model.init) if is_built_in(options.name) else model.init
    params = init(jax.random.key(randomness.integer("model")))
    frozen = frozen_names(options, params, model.fixed)
    if start is not None:
        params = started(start, params, model.fixed)
    objective = Objective(model.apply, task, model.prepare)
    return Learner(objective, *split_frozen(params, frozen), model.module, model.drops)


def started(start: Path, params: Params, fixed: frozenset[str]) -> Params:
    """``params`` with the public values of a file: safetensors, or a ``state_dict`` of PyTorch. Buffers (``fixed``) and
    factors of low rank that the file does not have stay as they are."""
    field = "model.init_from"
    arrays = _state_dict(start) if start.suffix in (".pt", ".pth", ".bin") else load_arrays(start, field)[0]
    tops = {name.partition("/")[0] for name in arrays} | set(arrays)
    due = {name: layer for name, layer in params.items() if name in tops or not (name in fixed or is_factor(name))}
    whole = {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in arrays.items()}
    try:
        found = fitted(whole, due)
    except WrongTree as error:
        raise UserError("mismatch", field, f"'{start.name}' {error}", "use a file of the same model") from None
    if not is_finite(found):
        problem = f"'{start.name}' holds numbers that are not finite"
        raise UserError("not-finite", field, problem, "use another file")
    return {**params, **found}


def _state_dict(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file that ``torch.save`` wrote; nothing else in it is read."""
    if not path.is_file():
        raise UserError("file-not-found", "model.init_from", f"'{path}' does not exist", "name an existing file")
    try:
        torch = import_module("torch")
    except ModuleNotFoundError:
        problem, fix = "the package torch is not installed", "pip install 'tacit[torch]', or use a .safetensors file"
        raise UserError("not-installed", "torch", problem, fix) from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        return {str(name): tensor.numpy() for name, tensor in found.items()}
    except Exception as error:
        problem = f"'{path.name}' is no state_dict ({type(error).__name__})"
        raise UserError("file-damaged", "model.init_from", problem, "save module.state_dict()") from None
