"""Neighbouring tables, from the table to the release, in every engine: what every view sees of them moves by no more
than the accountant is told, in units of the noise that is really there.

Both tables are run with the same coins and the same noise, which cancels in the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.neighbours.cells import cells, verdicts
from tests.neighbours.page import record

CELLS = list(cells())


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_no_view_sees_a_unit_beyond_what_the_accountant_is_told(cell):
    found = verdicts(cell)
    if file := os.environ.get("TACIT_NEIGHBOURS"):  # the page is made of it
        record(Path(file), cell, found)
    assert not {place: verdict for place, verdict in found.items() if not verdict.holds}
