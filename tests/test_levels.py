"""Every test has one level, and the names in the table exist."""

from pathlib import Path, PurePosixPath

import pytest

from tests.levels import LEVELS, level_of

TESTS = Path(__file__).parent


def test_every_place_of_the_table_exists():
    assert [place for place in LEVELS if not (TESTS / place).exists()] == []


def test_every_test_file_has_a_level():
    files = [PurePosixPath(file.relative_to(TESTS).as_posix()) for file in TESTS.rglob("test_*.py")]
    assert [file for file in files if level_of(file) is None] == []


@pytest.mark.parametrize(("file", "level"), [("test_levels.py", "unit"), ("new/test_new.py", None)])
def test_a_file_takes_the_level_of_its_own_folder_alone(file, level):
    assert level_of(PurePosixPath(file)) == level


def test_a_test_carries_the_marker_of_its_file(request):
    assert request.node.get_closest_marker("unit")
    assert not request.node.get_closest_marker("engine")
