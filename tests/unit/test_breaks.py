"""The breaks of tests/breaks.py can still be made, and the tests that notice them are there."""

from __future__ import annotations

import pytest

from breaks import BREAKS, ROOT, Break

NAMED = pytest.mark.parametrize("found", BREAKS, ids=lambda found: found.name)
CONTRACT = "tests/integration/destination_conformance.py"


def read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def test_there_are_at_least_thirty_breaks_each_with_a_name_of_its_own() -> None:
    assert len({found.name for found in BREAKS}) == len(BREAKS) >= 30


@NAMED
def test_what_a_break_replaces_stands_once_in_its_file(found: Break) -> None:
    assert read(found.file).count(found.old) == 1
    assert found.new != found.old


@NAMED
def test_the_tests_that_notice_a_break_are_there(found: Break) -> None:
    file, _, words = found.tests.partition(" -k ")
    names = [line for line in (read(file) + read(CONTRACT)).splitlines() if "def test_" in line]
    assert words
    assert any(words in name for name in names)
