"""What notebooks show: HTML of plans, runs, guarantees and audits, progress bars, and the model card."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import tacit
from tacit.auditing import Audit
from tacit.report.model_card import CARD

TITLE = "Visits <script>alert(1)</script> & more"


@pytest.fixture
def private(experiment) -> dict:
    experiment["title"] = TITLE
    experiment["data"]["subjects"]["count"] = 60
    experiment["data"]["silos"]["count"] = 3
    experiment["method"] = {"name": "subject-sgd", "target_epsilon": 4.0}
    return experiment


class Tags(HTMLParser):
    """The tags that a piece of HTML opens, and whether it closes them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(html: str) -> None:
    """Small, self-contained, well-formed and escaped, and without a colour for text or background."""
    tags = Tags(html)
    assert tags.open == []
    assert not tags.seen & {"script", "link", "img", "iframe"}
    assert len(html) < 20_000
    assert "http" not in html
    assert re.findall(r"[; \"](?:color|background):(?! transparent)", html) == []


def test_plans_runs_and_guarantees_have_a_table_in_a_notebook(tmp_path, private, visits):
    plan = tacit.plan(private)
    run = tacit.run(plan, visits, out=tmp_path / "run")
    for shown in (plan, run, plan.guarantees()[0]):
        html = shown._repr_html_()
        check(html)
        assert "3.998" in html
    assert f"{run.metrics['accuracy']:.4f}" in run._repr_html_()
    assert "outside the guarantee" in run._repr_html_()
    compared = tacit.compare([run])._repr_html_()
    assert "&lt;script&gt;" in compared


def test_a_guarantee_that_depends_on_the_table_says_so_in_a_notebook(private):
    private["data"]["from_this_table"] = ["data.subjects.count"]
    assert "Only if: from-this-table: data.subjects.count" in tacit.plan(private)._repr_html_()


def test_an_audit_shows_its_verdict_in_a_notebook(private):
    found = Audit(TITLE, "subject-sgd", "subject", 1e-5, 4, tacit.plan(private).guarantees(), (), (), 1.0)
    check(found._repr_html_())
    assert "nothing claimed" in found._repr_html_()


def test_the_card_of_a_run_has_guarantees_metrics_and_room_for_the_intended_use(tmp_path, private, visits):
    run = tacit.run(private, visits, out=tmp_path / "run")
    card = run.card()
    assert card == (run.path / CARD).read_text()
    headings = ["Model", "Intended use", "Training data", "Privacy", "Metrics", "Limits"]
    assert re.findall(r"^## (.*)$", card, re.MULTILINE) == headings
    assert "To be written by the publisher" in card
    assert "outside the guarantee" in card
    assert "epsilon = 4.00" in card
    assert "must not be published" in card  # it has a seed
    assert "age, pressure, smoker" in card
    assert "<script>" not in card


CELLS = [
    "import sys; sys.path.insert(0, {root!r})\nimport tacit\nfrom tests import made",
    "run = tacit.run(made.experiment(), made.visits(), out={out!r})",
    "run",
]


def test_a_notebook_shows_progress_and_the_run(tmp_path):
    root = str(Path(__file__).parents[1])
    cells = [cell.format(root=root, out=str(tmp_path / "run")) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    trained, shown = notebook.cells[1], notebook.cells[2]
    (bar,) = (output["data"]["text/html"] for output in trained.outputs if output["output_type"] == "display_data")
    assert '<progress max="4" value="4"' in bar
    assert re.search(r"fedavg  4/4  auc 0\.\d{3}", bar)
    (output,) = shown.outputs
    assert "Made visits" in output["data"]["text/html"]
