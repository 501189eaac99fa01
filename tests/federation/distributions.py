"""A small distribution with a factory of models, as an installer leaves it."""

from __future__ import annotations

from pathlib import Path

_FACTORY = (Path(__file__).parents[2] / "examples" / "own_model" / "residual.py").read_text()
_FILES = {
    "ward_models/__init__.py": "",
    "ward_models/nets.py": _FACTORY,
    "ward_models-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ward-models\nVersion: 1.0\n",
}


def installed(site: Path) -> None:
    """Write the distribution ``ward-models`` into a folder of the import path."""
    record = "ward_models-1.0.dist-info/RECORD"
    files = {**_FILES, record: "".join(f"{name},,\n" for name in (*_FILES, record))}
    for name, content in files.items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(content)
