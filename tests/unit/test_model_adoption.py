"""When a filled table may be adopted: by mode, key and starting point."""

from __future__ import annotations

import pytest

from tidegate.admin.adopted_table import StartingPoint, check_mode, check_point
from tidegate.core.errors import UsageError

AT = StartingPoint(at="1")
MAX = StartingPoint(from_target_max=True)
NONE = StartingPoint()


@pytest.mark.parametrize("point", [AT, MAX, NONE])
@pytest.mark.parametrize("mode", ["merge", "delete_insert"])
@pytest.mark.parametrize("key", [("id",), None])
def test_modes_that_replace_rows_by_key_absorb_any_overlap(
    mode: str, key: tuple[str, ...] | None, point: StartingPoint
) -> None:
    check_mode("orders", mode, key, point)


@pytest.mark.parametrize("point", [AT, MAX, NONE])
def test_replace_has_nothing_to_go_on_from(point: StartingPoint) -> None:
    with pytest.raises(UsageError, match="whole table each time") as refusal:
        check_mode("orders", "replace", None, point)
    assert refusal.value.hint == "just run it: tidegate run orders"


@pytest.mark.parametrize("key", [None, ()])
def test_a_plain_append_begins_only_where_a_person_says(key: tuple[str, ...] | None) -> None:
    check_mode("orders", "append", key, AT)
    check_mode("orders", "append", key, NONE)
    with pytest.raises(UsageError, match="skipped or doubled"):
        check_mode("orders", "append", key, MAX)


@pytest.mark.parametrize("point", [AT, MAX, NONE])
def test_an_append_with_a_key_has_a_table_of_its_own(point: StartingPoint) -> None:
    with pytest.raises(UsageError, match="behind a view"):
        check_mode("orders", "append", ("id",), point)


def test_options_that_contradict_each_other_are_refused() -> None:
    check_point("orders", StartingPoint(from_target_max=True, back="1h"))
    for point in (StartingPoint("1", True), StartingPoint("1", back="1h"), StartingPoint(back="1")):
        with pytest.raises(UsageError):
            check_point("orders", point)
