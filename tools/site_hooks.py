"""Hooks of MkDocs: links to files outside ``docs``, and mathematics as MathML.

A page may link to any file of the repository, as on a code host. Files outside ``docs`` that a page links to become
pages below ``repository/``: Markdown as it is, a folder as a list, other text as a code block.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=(?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.M | re.S)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".sh": "sh"}
MOVED = "repository"  # where files outside docs are in the site


def source_of(place: str) -> str:
    """The path in the repository of a page of the site."""
    if not place.startswith(f"{MOVED}/"):
        return f"docs/{place}"
    path = place.removeprefix(f"{MOVED}/")
    return path if (ROOT / path).is_file() else posixpath.dirname(path) if path.endswith("/index.md") else path[:-3]


def place_of(path: str) -> str | None:
    """The place in the site of a path in the repository; None where there is no such file."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    file = ROOT / path
    if file.is_dir():
        return f"{MOVED}/{path}/README.md" if (file / "README.md").is_file() else f"{MOVED}/{path}/index.md"
    if not file.is_file():
        return None
    return f"{MOVED}/{path}" if path.endswith(".md") else f"{MOVED}/{path}.md"


def targets(text: str, folder: str) -> set[str]:
    """Paths of the repository that a page in ``folder`` links to."""
    prose = FENCE.sub("", text)
    links = (link for link in LINK.findall(prose) if "://" not in link and not link.startswith("mailto:"))
    return {posixpath.normpath(posixpath.join(folder, link)) for link in links}


def text_of(path: str) -> str:
    """What the site shows of a file or folder outside ``docs``."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(child.name for child in file.iterdir() if child.is_file())
        return f"# {path}\n\n" + "\n".join(f"- [{name}]({name})" for name in names) + "\n"
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    return f"# {path}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text}\n````\n"


def outside() -> set[str]:
    """Files and folders outside ``docs`` that pages link to, and those that they link to."""
    pages = [(file.read_text(encoding="utf-8"), file.parent) for file in (ROOT / "docs").rglob("*.md")]
    waiting = {"CONTRIBUTING.md"}
    for text, folder in pages:
        waiting |= targets(text, folder.relative_to(ROOT).as_posix())
    found: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in found or path.startswith(("docs/", "..")) or not (ROOT / path).exists() or path in (".", "docs"):
            continue
        found.add(path)
        shown = ROOT / path / "README.md" if (ROOT / path / "README.md").is_file() else ROOT / path
        if shown.suffix == ".md" or shown.is_dir():
            folder = shown.parent if shown.is_file() else shown
            waiting |= targets(text_of(shown.relative_to(ROOT).as_posix()), folder.relative_to(ROOT).as_posix())
    return found


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to outside ``docs``."""
    for path in sorted(outside()):
        place = place_of(path)
        assert place is not None
        source = f"{path}/README.md" if (ROOT / path).is_dir() and place.endswith("README.md") else path
        if (ROOT / source).suffix not in (".png", ".csv", ".svg") and files.get_file_from_path(place) is None:
            page = File.generated(config, place, content=text_of(source), inclusion=InclusionLevel.NOT_IN_NAV)
            files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the place of their target in the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(source_of(here)) if (ROOT / source_of(here)).is_file() else source_of(here)

    def moved(link: re.Match[str]) -> str:
        if "://" in link[0] or link[0].startswith("mailto:"):
            return link[0]
        place = place_of(posixpath.normpath(posixpath.join(folder, link[0])))
        return link[0] if place is None else posixpath.relpath(place, posixpath.dirname(here) or ".")

    parts = FENCE.split(markdown)
    return "".join(part if index % 2 else LINK.sub(moved, part) for index, part in enumerate(parts))


def on_page_content(content: str, **_: Any) -> str:
    """Formulas in TeX become MathML, which browsers draw without a script."""
    return FORMULA.sub(
        lambda found: convert(html.unescape(found[3]), display="inline" if found[2] == "(" else "block"), content
    )
