"""The statements for a lake: what a merge says of the keys that it is about."""

from __future__ import annotations

from tidegate.core.shape import Shape, StagedColumn
from tidegate.iceberg.statements import find_bounds, merge_rows


def shape(**kinds: str) -> Shape:
    """Every column is part of the key."""
    columns = tuple(StagedColumn(name, kind, kind) for name, kind in kinds.items())
    return Shape(columns, tuple(kinds), None, key_is_unique=True)


def test_a_merge_names_the_bounds_of_its_keys() -> None:
    keyed = shape(region="string", id="bigint")
    assert find_bounds("rows", keyed) == (
        "SELECT CAST(min(`region`) AS string), CAST(max(`region`) AS string), "
        "CAST(min(`id`) AS string), CAST(max(`id`) AS string) FROM rows"
    )
    statement = merge_rows(
        "t", "rows", keyed, newest_wins=True, full=False, bounds=("o'east", "west", "1", "9")
    )
    assert (
        "ON t.`region` = s.`region` AND t.`id` = s.`id`"
        " AND t.`region` >= CAST('o\\'east' AS string) AND t.`region` <= CAST('west' AS string)"
        " AND t.`id` >= CAST('1' AS bigint) AND t.`id` <= CAST('9' AS bigint) WHEN" in statement
    )


def test_keys_that_change_on_their_way_through_text_have_no_bounds() -> None:
    assert find_bounds("rows", shape(hash="binary", ratio="double")) is None
    both = shape(hash="binary", id="int")
    assert find_bounds("rows", both) == (
        "SELECT CAST(min(`id`) AS string), CAST(max(`id`) AS string) FROM rows"
    )
    statement = merge_rows("t", "rows", both, newest_wins=True, full=False, bounds=("1", None))
    assert "AND t.`id` >= CAST('1' AS int) WHEN" in statement
