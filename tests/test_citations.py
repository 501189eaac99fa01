"""Every citation in code and documentation leads to a section or an entry that a reader can open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPECIFICATION = ROOT / "docs" / "explanation" / "specification.md"
BIBLIOGRAPHY = ROOT / "docs" / "reference" / "bibliography.md"
FILES = sorted(
    file
    for folder in ("src", "tests", "benchmarks", "examples", "docs")
    for kind in ("*.py", "*.md")
    for file in (ROOT / folder).rglob(kind)
    if file not in (BIBLIOGRAPHY, Path(__file__))
)
# names of the specification and of papers that no page resolves
UNRESOLVED = re.compile(
    r"(?<!docs/)(?<!\()privacy\.md,? (?=\d|section|finding)|\bpapers? 00\d|\b[Ss]lides 00\d|\b00[0-4]-[TLCAS]"
)
SECTIONS = re.compile(r"specification ((?:\d+(?:\.\d+[a-z]?)?(?:, | and | to )?)+)")
KEY = re.compile(r"\[([A-Z][A-Za-z]+-[A-Za-z0-9]+|FLAME|Slides)(?:,[^\]]*)?\](?!\()")
NAMES = r"[A-ZÀ-Ý][\wÀ-ÿ-]+(?:(?:,| and) [A-ZÀ-Ý][\wÀ-ÿ-]+)*(?: et al\.)?"
WORK = re.compile(rf"\b({NAMES}) ((?:19|20)\d\d)\b(?!\d)(?=[),;.: ])")
# a capital letter and a year that cite nothing: venues, data sets, summer schools
NOT_WORKS = {"CCS", "LATINCRYPT", "EUROCRYPT", "Learning", "School", "TACIT", "Experiment", "Issue", "Since", "In"}


def flowing(file: Path) -> str:
    """The text of a file with its lines joined."""
    return re.sub(r"\s*\n\s*(?:# )?", " ", file.read_text(encoding="utf-8"))


def sections() -> set[str]:
    text = SPECIFICATION.read_text(encoding="utf-8")
    return set(re.findall(r"^(?:#+ |\*\*)(\d+(?:\.\d+[a-z]?)?)[. ]", text, re.MULTILINE))


def entries() -> list[str]:
    rows = re.findall(r"^\| ([^|]+?) \|", BIBLIOGRAPHY.read_text(encoding="utf-8"), re.MULTILINE)
    return [row for row in rows if row not in ("key", "---")]


def names(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_the_specification_has_sections_and_the_bibliography_entries():
    assert {"0.4", "1.2b", "4.6", "5.2", "6.3", "9.1", "9.10"} <= sections()
    assert {"ULDP-FL", "FLAME", "SubjectDP-1", "SubjectDP-2", "Slides", "Mironov 2017"} <= set(entries())


def test_entries_are_listed_once_and_in_order():
    works = [entry for entry in entries() if re.search(r"\d{4}$", entry)]
    assert len(set(works)) == len(works)
    assert works == sorted(works, key=str.lower)


@pytest.mark.parametrize("file", FILES, ids=names)
def test_citations_resolve(file):
    text = flowing(file)
    assert not UNRESOLVED.findall(text)
    cited = {number for match in SECTIONS.findall(text) for number in re.findall(r"\d+(?:\.\d+[a-z]?)?", match)}
    assert cited <= sections()
    assert set(KEY.findall(text)) <= set(entries())


@pytest.mark.parametrize("file", [file for file in FILES if file.suffix == ".py" and "src" in file.parts], ids=names)
def test_works_that_code_cites_are_in_the_bibliography(file):
    known = {(re.split(r",| and | et al\.| \d", entry)[0], entry[-4:]) for entry in entries()}
    for authors, year in WORK.findall(flowing(file)):
        first = re.split(r",| and | et al\.", authors)[0]
        assert first in NOT_WORKS or (first, year) in known, f"{authors} {year}"
