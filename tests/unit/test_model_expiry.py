"""Which snapshots are forgotten, against Iceberg's rules said one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.iceberg.table import MAIN
from tidegate.maintenance.prediction import AgedSnapshot, Expiry, Ref

NOW = 1_000
ages = st.none() | st.integers(0, NOW)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[AgedSnapshot], list[Ref]]:
    """Snapshots that each follow an earlier one or none, and what points at them."""
    count = draw(st.integers(1, 12))
    times = sorted(draw(st.lists(st.integers(0, NOW), min_size=count, max_size=count)))
    snapshots = [
        AgedSnapshot(number, draw(st.none() | st.integers(0, number - 1)) if number else None, at)
        for number, at in enumerate(times)
    ]
    anyone = st.integers(0, count - 1)
    refs = [Ref(MAIN, draw(anyone), True, draw(ages), draw(ages), draw(st.none() | st.just(2)))]
    for number in range(draw(st.integers(0, 3))):
        least = draw(st.none() | st.integers(1, 3))
        refs.append(
            Ref(f"r{number}", draw(anyone), draw(st.booleans()), draw(ages), draw(ages), least)
        )
    return snapshots, refs


def ancestry(start: int, snapshots: list[AgedSnapshot]) -> list[AgedSnapshot]:
    found, at = [], start
    while True:
        found.append(snapshots[at])
        parent = snapshots[at].parent_id
        if parent is None:
            return found
        at = parent


@given(trees(), st.integers(0, NOW), st.integers(1, 4), ages, st.sets(st.integers(0, 11)))
def test_what_goes_is_what_no_rule_keeps(
    tree: tuple[list[AgedSnapshot], list[Ref]],
    cut: int,
    last: int,
    ref_age: int | None,
    keep: set[int],
) -> None:
    snapshots, refs = tree
    gone = Expiry(NOW, cut, last, ref_age).expired(snapshots, refs, keep)
    held = []
    for ref in refs:
        most = ref_age if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        if ref.name == MAIN or most is None or NOW - snapshots[ref.snapshot_id].at_ms <= most:
            held.append(ref)
    for one in snapshots:
        reasons = [one.snapshot_id in keep]
        in_a_branch = False
        for ref in held:
            reasons.append(ref.snapshot_id == one.snapshot_id)
            if not ref.is_branch:
                in_a_branch = in_a_branch or ref.snapshot_id == one.snapshot_id
                continue
            past = ancestry(ref.snapshot_id, snapshots)
            if one not in past:
                continue
            in_a_branch = True
            since = cut if ref.max_snapshot_age_ms is None else NOW - ref.max_snapshot_age_ms
            least = last if ref.min_snapshots is None else ref.min_snapshots
            place = past.index(one)
            # Iceberg stops at the first that is neither young nor among the last.
            reasons.append(
                all(
                    number < least or newer.at_ms >= since
                    for number, newer in enumerate(past[: place + 1])
                )
            )
        reasons.append(not in_a_branch and one.at_ms >= cut)
        assert (one.snapshot_id in gone) is not any(reasons), one


@given(trees(), st.integers(0, NOW))
def test_the_head_of_main_never_goes(tree: tuple[list[AgedSnapshot], list[Ref]], cut: int) -> None:
    snapshots, refs = tree
    assert refs[0].snapshot_id not in Expiry(NOW, cut).expired(snapshots, refs)
