"""How files are put together, against Iceberg's planner written down plainly."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.maintenance.delete_files import FileSizes, Packer

TARGET = 1_000
SIZES = FileSizes(TARGET)
sizes = st.lists(st.integers(0, 3 * TARGET), max_size=30)


@given(sizes, st.integers(1, 8), st.integers(TARGET, 5 * TARGET))
def test_groups_are_those_of_iceberg(files: list[int], least: int, most: int) -> None:
    packer = Packer(SIZES, most)
    for size in files:
        packer.add(size)
    found = [(group.files, group.bytes) for group in packer.groups(least)]
    groups: list[list[int]] = []
    for size in files:
        if 0.75 * TARGET <= size <= 1.8 * TARGET:
            continue
        if not groups or sum(groups[-1]) + size > most:
            groups.append([])
        groups[-1].append(size)
    assert found == [
        (len(group), sum(group))
        for group in groups
        if (len(group) > 1 and (len(group) >= least or sum(group) > TARGET))
        or sum(group) > 1.8 * TARGET
    ]


@given(st.integers(0, 200 * TARGET))
def test_what_is_written_is_neither_much_larger_nor_more_than_needed(total: int) -> None:
    outputs = SIZES.output_files(total)
    assert 1 <= outputs <= math.ceil(total / TARGET) or total == 0
    assert total / outputs <= 1.1 * TARGET
    assert outputs == 1 or total / outputs >= TARGET / 2


@given(st.lists(st.integers(0, int(TARGET * 0.75) - 1), min_size=2, max_size=50))
def test_small_files_never_become_more(files: list[int]) -> None:
    assert SIZES.output_files(sum(files)) <= len(files)


@pytest.mark.parametrize(
    ("total", "files"),
    [(0, 1), (999, 1), (1_000, 1), (1_099, 1), (1_100, 2), (1_900, 2), (10_500, 10), (10_760, 11)],
)
def test_a_rest_is_spread_or_kept(total: int, files: int) -> None:
    assert SIZES.output_files(total) == files


def test_a_file_that_must_be_rewritten_is_taken_alone_and_whatever_its_size() -> None:
    packer = Packer(SIZES)
    packer.add(TARGET)
    assert not list(packer.groups(5))
    packer.add(TARGET, must=True)
    assert [(one.files, one.bytes) for one in packer.groups(5)] == [(1, TARGET)]
