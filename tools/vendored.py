"""Check the libraries of the pages against the npm packages from which they come: ``python tools/vendored.py``.

``vendored.json`` of a folder of assets (reports, documentation) names each package, its version, the hash of the
published archive, and its files. The tool downloads the archives with ``npm pack``, compares hash and files, and exits
with 1 if one differs. To update a library: change its version, run with ``--update``, and look at every page.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "src" / "tacit" / "report" / "assets"
FOLDERS = (ASSETS, ROOT / "docs" / "assets")
LIST = "vendored.json"


def published(package: str, version: str, folder: Path) -> Path:
    """The archive of a package, downloaded with npm."""
    command = ["npm", "pack", "--json", f"{package}@{version}", "--pack-destination", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return folder / json.loads(done.stdout)[0]["filename"]


def integrity(archive: Path) -> str:
    """The hash of an archive as npm writes it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()


def contents(archive: Path, library: dict[str, Any]) -> dict[str, bytes]:
    """The listed files of a package, by the name that they have here."""
    with tarfile.open(archive) as opened:
        members = {name: opened.extractfile(f"package/{file['path']}") for name, file in library["files"].items()}
        return {name: member.read() for name, member in members.items() if member is not None}


def check(library: dict[str, Any], archive: Path, folder: Path = ASSETS) -> list[str]:
    """What differs between the package and the files here; empty if nothing does."""
    label = f"{library['package']} {library['version']}"
    found = [] if integrity(archive) == library["integrity"] else [f"{label}: the archive has another hash"]
    for name, content in contents(archive, library).items():
        if (folder / name).read_bytes() != content:
            found.append(f"{label}: {name} differs from {library['files'][name]['path']} of the package")
    return found


def update(library: dict[str, Any], archive: Path, folder: Path = ASSETS) -> None:
    library["integrity"] = integrity(archive)
    for name, content in contents(archive, library).items():
        (folder / name).write_bytes(content)
        library["files"][name]["sha256"] = hashlib.sha256(content).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the libraries against their npm packages.")
    parser.add_argument("--update", action="store_true", help="take the files of the listed versions")
    renew = parser.parse_args().update
    problems = []
    with tempfile.TemporaryDirectory() as archives:
        for folder in FOLDERS:
            libraries = json.loads((folder / LIST).read_text())
            for library in libraries:
                archive = published(library["package"], library["version"], Path(archives))
                if renew:
                    update(library, archive, folder)
                problems += check(library, archive, folder)
                print(f"{library['package']} {library['version']}: {len(library['files'])} files compared")
            if renew:
                (folder / LIST).write_text(json.dumps(libraries, indent=2) + "\n")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
