"""Measure the structure of the source: ``python tools/shape.py`` prints a table, ``--json`` one object.

The measures are those of the architecture page. They need no run, except the files that two commands touch.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "tacit"
# a name may stand twice where every package of its kind has one
COMMON_FILES = {"__init__.py", "__main__.py", "base.py", "py.typed"}
# the rooms in which a class may be asked for: below these folders, and the registry
ROOMS = {"methods": "methods", "exchange": "exchange", "work": "engine"}
PROSE = re.compile(r"match=")

TRACE = """
import sys
seen = set()
def imports(frame):  # whether a function runs because a module is being imported
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "<module>" and "/tacit/" in frame.f_code.co_filename:
            return True
    return False
def profile(frame, event, arg):
    file = frame.f_code.co_filename
    if event == "call" and "/tacit/" in file and file not in seen:
        if frame.f_code.co_flags & 1 and not imports(frame):  # a function, not the body of a module or class
            seen.add(file)
sys.argv = {argv!r}
from tacit.ui.main import main
sys.setprofile(profile)
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
print(len(seen), file=sys.stderr)
"""


# the simplest run: the built-in table, a linear model, noise that is given, no cryptography
SIMPLEST = """
title = "Simplest run"
data = { source = "randhie", records_per_silo = 2700 }
model = { name = "logistic" }
method = { name = "subject-sgd", noise_multiplier = 5.0 }
train = { rounds = 1 }
privacy = { max_records_per_subject_and_silo = 5 }
exchange = { name = "plain" }
"""


def trees() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(SRC.rglob("*.py"))}


def lines(files: list[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def method_classes() -> set[type]:
    """All classes of methods, in the core and in families: options, parts, and what they are made of."""
    import tacit.methods
    from tacit.methods import METHODS

    core = {f"tacit.methods.{found.name}" for found in iter_modules(tacit.methods.__path__)}
    families = {options.__module__ for options in METHODS.values()} - core
    return {
        value
        for module in map(import_module, core | families)
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ in core | families
    }


def concrete() -> dict[str, set[str]]:
    """Names of methods, exchanges and workers, with the classes that they inherit from, by kind."""
    from tacit.exchange import EXCHANGES

    def named(classes: Any) -> set[str]:
        return {base.__name__ for one in classes for base in one.__mro__ if base.__module__.startswith("tacit.")}

    workers = {
        node.name
        for file, tree in trees().items()
        if file.name.endswith("_work.py") or ("families" in file.relative_to(SRC).parts and file.name == "worker.py")
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    return {"methods": named(method_classes()), "exchange": named(EXCHANGES.values()), "work": workers}


def isinstance_lines(*kinds: str) -> list[tuple[Path, int]]:
    """Lines that ask whether something is a certain method, exchange or worker (of these ``kinds``; all, if none is
    given), outside the package of its kind."""
    found = set()
    known = {kind: names for kind, names in concrete().items() if not kinds or kind in kinds}
    for file, tree in trees().items():
        room = file.relative_to(SRC).parts[0]
        imported = {
            alias.asname or alias.name: node.module or ""
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        foreign = {
            name
            for kind, names in known.items()
            if room != ROOMS[kind]
            for name in names
            if imported.get(name, "").startswith(f"tacit.{ROOMS[kind]}")
        }
        for node in ast.walk(tree):
            is_asked = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if is_asked and node.func.id in ("isinstance", "issubclass") and len(node.args) == 2:
                names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                if names & foreign:
                    found.add((file.relative_to(SRC), node.lineno))
    return sorted(found)


def methods() -> tuple[int, int]:
    """The deepest inheritance, and the most functions and properties, of any options class or part of a method."""
    own = [[base for base in one.__mro__ if base.__module__.startswith("tacit.")] for one in method_classes()]
    hooks = [
        len(
            {
                name
                for base in bases
                for name, value in vars(base).items()
                if not name.startswith("__") and (inspect.isfunction(value) or isinstance(value, property))
            }
        )
        for bases in own
    ]
    return max(map(len, own)), max(hooks)


def run_loops() -> int:
    """Functions that go round by round: a loop whose condition or range is about ``plan.rounds``."""
    found = 0
    for tree in trees().values():
        for node in ast.walk(tree):
            head = node.test if isinstance(node, ast.While) else node.iter if isinstance(node, ast.For) else None
            parts = [] if head is None else ast.walk(head)
            found += any(isinstance(one, ast.Attribute) and one.attr == "rounds" for one in parts)
    return found


def _in_protocol(file: Path) -> bool:
    """Whether a file belongs to a protocol or family, whose packages all have the same files."""
    room, *rest = file.relative_to(SRC).parts
    return room in ("exchange", "families") and len(rest) > 1


def repeated() -> tuple[int, int]:
    files = Counter(file.name for file in trees() if file.name not in COMMON_FILES and not _in_protocol(file))
    classes = Counter(
        node.name
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return (sum(count > 1 for count in files.values()), sum(count > 1 for count in classes.values()))


def touched(*argv: str) -> int:
    """How many files of Tacit a command runs through."""
    code = TRACE.format(argv=["tacit", *argv])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    return int(done.stderr.splitlines()[-1])


def measures(runs: bool) -> dict[str, Any]:
    files = list(trees())
    core = [file for file in files if "families" not in file.relative_to(SRC).parts]
    depth, hooks = methods()
    names, classes = repeated()
    tests = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py"))
    table: dict[str, Any] = {
        "isinstance on methods, exchanges, workers outside their rooms": len(isinstance_lines()),
        "deepest inheritance of a method": depth,
        "most functions of a method": hooks,
        "loops over rounds": run_loops(),
        "lines of the core": lines(core),
        "lines in all": lines(files),
        "lines of research, which is not installed": lines(sorted((ROOT / "research").rglob("*.py"))),
        "statements": sum(isinstance(node, ast.stmt) for tree in trees().values() for node in ast.walk(tree)),
        "file names used twice": names,
        "class names used twice": classes,
        "match= in tests": len(PROSE.findall(tests)),
    }
    if runs:
        folder = Path(tempfile.mkdtemp())
        (folder / "simplest.toml").write_text(SIMPLEST, encoding="utf-8")
        table["files touched by tacit plan"] = touched("plan", str(SRC / "demo.toml"), "--json")
        table["files touched by tacit run"] = touched(
            "run", str(folder / "simplest.toml"), "--out", str(folder / "run")
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", action="store_true", help="also count the files that two commands touch")
    options = parser.parse_args()
    table = measures(options.runs)
    if options.json:
        print(json.dumps(table))
        return
    for name, value in table.items():
        print(f"{value:>8,}  {name}")


if __name__ == "__main__":
    main()
