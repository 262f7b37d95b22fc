"""The pure parts of the test kit: comparing, spreading kills, reporting."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.failpoints import POINTS
from tidegate.testing.oracle import TableContent, compare
from tidegate.testing.report import Cause, Kill, Proof, ProofFinding, write_junit
from tidegate.testing.trial import spread


def content(*rows: tuple[str, ...]) -> TableContent:
    """Rows with their first column as the key."""
    found: dict[tuple[str | None, ...], Counter[tuple[str | None, ...]]] = {}
    for row in rows:
        found.setdefault(row[:1], Counter())[row] += 1
    return TableContent(("id", "value"), found)


def test_lost_doubled_different_and_extra_rows_are_told_apart() -> None:
    expected = content(("1", "a"), ("2", "b"), ("3", "c"), ("4", "d"))
    found = content(("1", "a"), ("3", "c"), ("3", "c"), ("4", "x"), ("5", "e"))
    difference = compare(expected, found)
    assert difference.lost == [("2",)]
    assert difference.doubled == [("3",)]
    assert difference.different == [("4",)]
    assert difference.extra == [("5",)]
    assert difference.columns == ("value",)


def test_a_row_that_came_twice_with_other_content_is_doubled_not_different() -> None:
    difference = compare(content(("1", "a")), content(("1", "a"), ("1", "b")))
    assert (len(difference.doubled), len(difference.different)) == (1, 0)


def test_keys_are_named_in_the_order_of_numbers() -> None:
    difference = compare(content(("10", "a"), ("9", "b"), ("100", "c")), content())
    assert difference.lost == [("9",), ("10",), ("100",)]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"))),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"))),
)
def test_every_surplus_and_every_missing_row_is_counted_once(
    wanted: list[tuple[str, str]], there: list[tuple[str, str]]
) -> None:
    difference = compare(content(*wanted), content(*there))
    more = len(difference.doubled) + len(difference.extra)
    assert len(there) - len(wanted) == more - len(difference.lost)
    assert bool(difference) == (Counter(wanted) != Counter(there))


@given(st.integers(1, 8), st.integers(0, 1000))
def test_every_point_gets_one_kill_and_later_points_come_later(rounds: int, seed: int) -> None:
    plan = spread(POINTS, rounds, seed)
    assert sorted(point for some in plan for point in some) == sorted(POINTS)
    for some in plan:
        assert some == sorted(some, key=POINTS.index)


def test_junit_blames_the_guilty_kill_and_takes_any_text(tmp_path: Path) -> None:
    finding = ProofFinding(
        Cause.KILL, "lost \0 <row>", "fix", "stage.done", ("id=\x01",), 1, "again"
    )
    kills = [
        Kill("stage.done", 1, True, 1.0, ok=False),
        Kill("job.finished", 2, False, 1.0),
        Kill("job.claimed", 2, True, 1.0),
    ]
    proof = Proof("orders", 0, kills=kills, lost=1, finding=finding, seconds=4.0)
    path = tmp_path / "new" / "report.xml"

    write_junit(path, [proof])

    suite = ElementTree.parse(path).getroot()[0]
    assert {name: suite.attrib[name] for name in ("tests", "failures", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "skipped": "1",
    }
    marks = {case.attrib["name"]: [mark.tag for mark in case] for case in suite.iter("testcase")}
    assert marks == {
        "equals one clean pass": [],
        "killed at stage.done in step 1": ["failure"],
        "killed at job.finished in step 2": ["skipped"],
        "killed at job.claimed in step 2": [],
    }
    assert suite.findtext("system-out") == "2 kills, 1 lost, 0 doubled"


def test_junit_gives_a_finding_without_a_kill_to_the_clean_pass(tmp_path: Path) -> None:
    finding = ProofFinding(Cause.WRONG_KEY, "two rows", "fix")
    write_junit(tmp_path / "report.xml", [Proof("orders", 0, finding=finding)])
    (case,) = ElementTree.parse(tmp_path / "report.xml").iter("testcase")
    assert case[0].attrib == {"type": "wrong_key", "message": "the key does not tell rows apart"}
