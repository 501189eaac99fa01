"""The documentation is complete, its links resolve, and its language is plain."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tacit
from tacit.exchange import EXCHANGES
from tacit.federation.site.policy import Policy
from tacit.methods import METHODS
from tools import errors_page, reference

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.M | re.S)
WORDS = ("anew", "mend", "beside", "somebody", "everybody", "nobody", "whoever", "that is none", "so many", "paid for")
BLOCKED = re.compile(rf"\b({'|'.join(WORDS)})\b", re.I)
LONGEST_MEAN = 20  # words in a sentence, on average over a page


def names(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


# ---- what must be documented


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_of_the_reference_is_what_the_source_gives(name):
    page = (reference.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert page == reference.PAGES[name](), "run `python -m tools.reference`"


def all_keys() -> Iterator[tuple[str, reference.Key]]:
    for section, keys in reference.experiment_keys().items():
        yield from ((section, key) for key in keys)
    yield from (("POLICY.toml", key) for key in reference.keys_of(Policy))
    for registry in (METHODS, EXCHANGES):
        yield from ((name, key) for name, kind in registry.items() for key in reference.keys_of(kind))


def test_every_key_has_a_sentence_and_a_type():
    found = list(all_keys())
    assert len(found) > 300
    assert [(where, key.name) for where, key in found if not key.about or "typing" in key.kind] == []


def test_every_command_argument_and_option_has_a_sentence():
    found = reference.commands()
    assert {"tacit run", "tacit federation init", "tacit sheet verify"} <= {name for name, _ in found}
    assert [name for name, command in found if not command.help] == []
    assert [(name, item.name) for name, command in found for item in command.params if not item.help] == []


@pytest.mark.parametrize("name", tacit.__all__)
def test_every_public_name_has_a_docstring(name):
    thing = getattr(tacit, name)
    assert inspect.getdoc(thing)
    if isinstance(thing, type):
        assert [member for member in reference.members(thing) if not reference.docstring(thing, member)] == []


def test_every_error_code_has_a_way_to_recover():
    page = (DOCS / "how-to" / "recover.md").read_text(encoding="utf-8")
    codes = re.findall(r"^\| `([\w-]+)` \|", errors_page.page(), re.M)
    assert len(codes) > 100
    assert [code for code in codes if f"`{code}`" not in page] == []


@pytest.mark.parametrize("kind", ["method", "exchange"])
def test_every_method_and_exchange_is_on_a_page_that_a_person_wrote(kind):
    written = "".join(page.read_text(encoding="utf-8") for page in PAGES if page.parent != reference.FOLDER)
    names = METHODS if kind == "method" else EXCHANGES
    assert [name for name in names if f"`{name}`" not in written] == []


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    assert {page.relative_to(DOCS).as_posix() for page in PAGES} - listed == set()


# ---- links


def prose(text: str) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]+`", "code", FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as code hosts and the site make them."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=names)
def test_links_resolve(page):
    text = prose(page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


# ---- language


def sentences(text: str) -> list[str]:
    """Sentences of the paragraphs and lists of a page; tables, headings and code do not count."""
    lines = [line for line in prose(text).splitlines() if not re.match(r"\s*(\||#|<|!\[|    )", line)]
    text = re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))
    blocks = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.M)
    found = [part for block in blocks for part in re.split(r"(?<=[.!?])\s+", " ".join(block.split()))]
    return [part for part in found if len(part.split()) > 2]


def problems(text: str) -> list[str]:
    """Why a page is hard to read."""
    found = sentences(text)
    mean = sum(len(part.split()) for part in found) / max(1, len(found))
    long = [f"{mean:.1f} words in a sentence"] if mean > LONGEST_MEAN else []
    return long + sorted({word.lower() for word in BLOCKED.findall(prose(text))})


# the changelog quotes what earlier versions printed
@pytest.mark.parametrize("page", [*PAGES, *sorted(set(ROOT.glob("*.md")) - {ROOT / "CHANGELOG.md"})], ids=names)
def test_a_page_is_easy_to_read(page):
    assert problems(page.read_text(encoding="utf-8")) == []


def test_the_check_of_the_language_notices_long_sentences_and_blocked_words():
    assert problems("# Title\n\n" + "word " * 30 + "end.\n") == ["31.0 words in a sentence"]
    assert problems("This page says nothing anew, and nobody reads it.\n") == ["anew", "nobody"]
    assert problems("`anew` is code. A short sentence follows.\n\n```sh\nnobody\n```\n") == []


def texts(file: Path) -> Iterator[str]:
    """Docstrings, and texts with a space: errors, logs, help."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield inspect.cleandoc(node.value)


def without_columns(text: str) -> str:
    """A docstring without its tables (``name   meaning``) and what is indented: formulas, arguments."""
    lines = [line for line in text.splitlines() if not re.match(r"  +\S|\S+(, \S+)*  +\S", line)]
    return re.sub(r"``.+?``", "code", "\n".join(lines), flags=re.S)


@pytest.mark.parametrize("file", sorted((ROOT / "src").rglob("*.py")), ids=names)
def test_texts_of_the_source_are_easy_to_read(file):
    assert [word for text in texts(file) for word in BLOCKED.findall(" ".join(text.split()))] == []
    found = [part for text in texts(file) for part in sentences(without_columns(text))]
    assert sum(len(part.split()) for part in found) <= LONGEST_MEAN * len(found)
