"""Every guarantee of the registries has a cell; the page of all cells can be read as it is written."""

from __future__ import annotations

from functools import cache

import pytest

from tacit.exchange import EXCHANGES
from tacit.methods import METHODS
from tacit.planning.claims import exchanges_for
from tests.neighbours import page
from tests.neighbours.cells import NUMBERS
from tests.neighbours.page import NOT_CHECKED, NOT_PRINTED
from tests.neighbours.reports import REPORTING

rows = cache(page.rows)


@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if kind.info.private])
def test_the_harness_knows_every_method_that_adds_noise(method):
    assert method in NUMBERS or method in REPORTING
    assert {row.exchange for row in rows() if row.method == method} == set(exchanges_for(METHODS[method].info))


def test_the_harness_knows_every_exchange():
    assert {row.exchange for row in rows()} == set(EXCHANGES)


def test_every_printed_guarantee_is_checked_in_a_world():
    assert not [row for row, text in rows().items() if text == NOT_CHECKED]


def test_the_page_shows_every_cell_and_no_other():
    shown = page.read(page.PAGE.read_text())
    assert {row: text for row, text in shown.items() if text == NOT_PRINTED} == {
        row: text for row, text in rows().items() if text is not None
    }
    assert shown.keys() == rows().keys()
    assert not [row for row, text in shown.items() if text == "fails"]


def test_a_page_is_read_as_it_was_written():
    results = {row: text or "1.00" for row, text in rows().items()}
    assert page.read(page.written(results)) == results
