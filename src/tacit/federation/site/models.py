"""Which models of others a party runs: packed models within limits, and factories of distributions that it has checked.

The check is made before a plan exists, because a plan builds its model. A packed model is data
(:mod:`tacit.models.packed_model`). A factory is code: it must belong to a distribution that the party itself installed
and named, and whose files have the hash that the party wrote down.
"""

from __future__ import annotations

import hashlib
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tacit.data.options import Count, Section
from tacit.errors import TacitError, UserError
from tacit.models.packed_model import LIMITS, PACKED, Packed, keep

FILE = "MODELS.toml"  # in the kit of a server or analyzer, which have no policy
_OWN = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}  # written by what installs, not by the authors


class PackedLimits(Section):
    """What a packed model may need.

    most_bytes       largest size of its file, in bytes
    most_operations  largest number of arithmetic operations for one record
    most_memory      largest size of all values of one record, in bytes
    """

    most_bytes: Count = LIMITS.bytes
    most_operations: Count = 10_000_000
    most_memory: Count = 1_000_000

    def problem(self, found: Packed) -> str | None:
        """Why the policy does not accept the model."""
        needs = {"bytes": len(found.content), "operations": found.operations, "memory": found.memory}
        over = [f"{key}: {n} is more than {m}" for key, n in needs.items() if n > (m := getattr(self, f"most_{key}"))]
        return "; ".join(over) or None


class Installed(Section):
    """A distribution with factories that a plan may name.

    name       name of the distribution, as pip lists it
    sha256     hash of its files, as ``tacit model fingerprint`` prints it
    factories  accepted factories, such as ``"ward_models.nets:small"``; no other function of the package is called
    """

    name: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    factories: tuple[str, ...] = Field(min_length=1)


class Models(Section):
    """The models that are accepted in addition to the built-in ones.

    packed     accept packed models within these limits
    installed  distributions on this machine whose factories are accepted
    """

    packed: PackedLimits | None = None
    installed: tuple[Installed, ...] = ()

    def problem(self, name: str, content: bytes) -> str | None:
        """Why a plan with this model is not accepted; None where it is, and where the name says nothing about code."""
        try:
            if name == PACKED:
                return "packed models are not accepted" if self.packed is None else self.packed.problem(keep(content))
            if ":" in name:
                self._check_installed(name)
        except TacitError as error:
            return str(error)
        return None

    def _check_installed(self, name: str) -> None:
        module = name.partition(":")[0]
        for one in self.installed:
            found = _found(one.name)
            if name not in one.factories or not _has_module(found, module):
                continue
            if fingerprint(one.name) != one.sha256:
                problem = f"the files of {one.name} are not those with the hash of the policy"
                raise UserError("changed", "models.installed", problem, "check them, then update the hash")
            return
        problem = f"'{name[:80]}' is no factory of a distribution that is accepted"
        raise UserError("unknown-name", "models.installed", problem, "use a built-in or packed model, or ask the silo")


Accepted = Literal["built-in", "packed"] | Models


def accepted(models: Accepted) -> Models:
    """The short forms ``"built-in"`` and ``"packed"`` written out."""
    if isinstance(models, str):
        return Models(packed=PackedLimits()) if models == "packed" else Models()
    return models


def fingerprint(name: str) -> str:
    """A hash of the files of an installed distribution, and of all other files in its packages.

    Bytecode is left out. An editable installation is refused: its files may change at any time.
    """
    found = _found(name)
    digest = hashlib.sha256()
    for place in _files(found):
        content = hashlib.sha256(Path(str(found.locate_file(place))).read_bytes()).hexdigest()
        digest.update(f"{content}  {place}\n".encode())
    return digest.hexdigest()


def _found(name: str) -> Distribution:
    try:
        return distribution(name)
    except (PackageNotFoundError, ValueError):
        problem = f"there is no installed distribution '{name[:80]}'"
        raise UserError(
            "not-installed", "models.installed", problem, "install it in the environment of Tacit"
        ) from None


def _files(found: Distribution) -> list[str]:
    listed = [str(file) for file in found.files or ()]
    if not any(file.endswith(".py") for file in listed) or any(file.endswith(".pth") for file in listed):
        problem = f"{found.name} has no modules of its own in place (an editable installation?)"
        raise UserError("not-supported", "models.installed", problem, "install it from a wheel")
    base = Path(str(found.locate_file("")))
    tops = {file.split("/")[0] for file in listed if "/" in file and not file.startswith("..")}
    present = {str(path.relative_to(base)) for top in tops for path in (base / top).rglob("*") if path.is_file()}
    names = {file for file in listed if "/" not in file} | present
    return sorted(n for n in names if not n.endswith(".pyc") and n.rpartition("/")[2] not in _OWN)


def _has_module(found: Distribution, module: str) -> bool:
    """Whether importing the module would read a file of this distribution."""
    if not all(part.isidentifier() for part in module.split(".")):
        return False
    path, files = module.replace(".", "/"), set(_files(found))
    if not {f"{path}.py", f"{path}/__init__.py"} & files:
        return False
    top = module.partition(".")[0]
    spec = PathFinder.find_spec(top)
    own = {str(Path(str(found.locate_file(file))).resolve()) for file in (f"{top}.py", f"{top}/__init__.py")}
    return spec is not None and spec.origin is not None and str(Path(spec.origin).resolve()) in own
