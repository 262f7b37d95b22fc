"""Which files and snapshots maintenance works on, against Iceberg's own rules."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io import load_file_io
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from tidegate.core.relation import Relation
from tidegate.core.table_actions import RewriteDataFiles, RewritePositionDeleteFiles
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.manifests import (
    DATA,
    EQUALITY_DELETES,
    POSITION_DELETES,
    FileEntry,
    normal_path,
    read_entries,
)
from tidegate.iceberg.table import EMBEDDED, MAIN
from tidegate.maintenance import procedures
from tidegate.maintenance.delete_files import DeleteFiles, FileSizes, Packer
from tidegate.maintenance.orphan_files import plain_path
from tidegate.maintenance.prediction import AgedSnapshot, Expiry, Ref
from tidegate.maintenance.procedures import is_transient

UNPARTITIONED = 9
PATH_COLUMN = 2147483546


def metadata(**properties: str) -> Any:
    specs = [
        SimpleNamespace(spec_id=number, is_unpartitioned=lambda n=number: n == UNPARTITIONED)
        for number in (0, 1, UNPARTITIONED)
    ]
    return SimpleNamespace(properties=properties, partition_specs=specs, format_version=2)


@st.composite
def entries(draw: st.DrawFn, contents: tuple[int, ...]) -> FileEntry:
    spec = draw(st.sampled_from((0, 1, UNPARTITIONED)))
    partition = () if spec == UNPARTITIONED else (draw(st.sampled_from("ab")),)
    content = draw(st.sampled_from(contents))
    number = draw(st.integers(0, 5))
    named = content == POSITION_DELETES and draw(st.booleans())
    return FileEntry(
        content=content,
        path=f"{content}-{number}",
        spec_id=spec,
        partition=partition,
        sequence=draw(st.integers(1, 6)),
        records=1,
        bytes=10,
        data_file=f"{DATA}-{draw(st.integers(0, 5))}" if named else None,
    )


def applies(delete: FileEntry, data: FileEntry) -> bool:
    """The words of the specification."""
    same = (delete.spec_id, delete.partition) == (data.spec_id, data.partition)
    if delete.content == EQUALITY_DELETES:
        return data.sequence < delete.sequence and (same or delete.spec_id == UNPARTITIONED)
    if delete.data_file is not None:
        return data.sequence <= delete.sequence and delete.data_file == data.path
    return data.sequence <= delete.sequence and same


@given(
    st.lists(entries((DATA,)), max_size=6, unique_by=lambda one: one.path),
    st.lists(entries((POSITION_DELETES, EQUALITY_DELETES)), max_size=8),
)
def test_a_delete_file_dangles_if_it_applies_to_no_data_file(
    data: list[FileEntry], deletes: list[FileEntry]
) -> None:
    known = DeleteFiles(metadata())
    for one in deletes:
        known.take(one)
    oldest: dict[Any, int] = {}
    for one in data:
        known.see(one)
        key = (one.spec_id, one.partition)
        oldest[key] = min(one.sequence, oldest.get(key, one.sequence))
    expected = [one for one in deletes if not any(applies(one, file) for file in data)]
    assert known.dangling(oldest) == len(expected)


def test_a_position_delete_file_names_its_data_file_by_its_bounds(tmp_path: Path) -> None:
    io = load_file_io({}, str(tmp_path))
    schema = Schema(NestedField(1, "id", LongType()))
    output = io.new_output(str(tmp_path / "m.avro"))
    with write_manifest(2, UNPARTITIONED_PARTITION_SPEC, schema, output, 7, "deflate") as writer:
        writer.add(_written({PATH_COLUMN: b"file:/a"}, {PATH_COLUMN: b"file:/a"}))
        writer.add(_written({PATH_COLUMN: b"file:/a"}, {PATH_COLUMN: b"file:/b"}))
        writer.add(_written({}, {}))
        gone = _written({}, {})
        gone.sequence_number = gone.file_sequence_number = 1
        writer.delete(gone)
    manifest = writer.to_manifest_file()
    manifest.sequence_number = 5
    found = list(read_entries(io, manifest))
    assert [one.data_file for one in found] == ["file:/a", None, None]
    assert {(one.content, one.sequence, one.records, one.bytes) for one in found} == {
        (POSITION_DELETES, 5, 3, 40)
    }


def _written(lower: dict[int, bytes], upper: dict[int, bytes]) -> ManifestEntry:
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path="file:/d",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=3,
        file_size_in_bytes=40,
        lower_bounds=lower,
        upper_bounds=upper,
    )
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=7, sequence_number=None, data_file=file
    )


@pytest.mark.parametrize(
    "spellings",
    [
        ["/lake/a b.parquet", "file:/lake/a b.parquet", "file:///lake//a b.parquet"],
        ["s3://bucket/a", "s3a://bucket/a", "S3N://bucket//a"],
        ["gs://bucket/a:b", "gs://bucket//a:b"],
        ["hdfs://name:8020/a", "hdfs://name:8020//a"],
    ],
)
def test_a_file_is_the_same_however_its_path_is_written(spellings: list[str]) -> None:
    assert len({normal_path(one) for one in spellings}) == 1


def test_files_in_other_places_are_others() -> None:
    places = ["/a", "s3://a", "s3://b/a", "gs://b/a", "hdfs://one/a", "hdfs://two/a", "/A"]
    assert len({normal_path(one) for one in places}) == len(places)


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


ODD = Relation("ra`w", "or'ders")
NAME = "table => '`ra``w`.`or\\'ders`'"


@pytest.fixture
def catalog() -> Catalog:
    return Catalog("my`lake", EMBEDDED, {}, Path(), "s", control=str, lease=lambda: None)  # type: ignore[arg-type,return-value]


def test_a_moment_is_told_with_its_zone_and_never_later_than_it_is(catalog: Catalog) -> None:
    moment = datetime(2026, 3, 1, 1, 0, 0, 999_999, timezone(timedelta(hours=2)))
    assert procedures.expire_snapshots(catalog, ODD, moment, 3) == (
        f"CALL `my``lake`.system.expire_snapshots({NAME}, "
        "older_than => TIMESTAMP '2026-02-28 23:00:00.999 UTC', retain_last => 3)"
    )


def test_orphans_are_only_ever_told(catalog: Catalog) -> None:
    statement = procedures.find_orphan_files(catalog, ODD, datetime.now().astimezone())
    assert statement.startswith(f"CALL `my``lake`.system.remove_orphan_files({NAME}, ")
    assert statement.endswith(", dry_run => true)")


def test_what_is_asked_of_a_rewrite_is_said_and_nothing_else(catalog: Catalog) -> None:
    call = f"CALL `my``lake`.system.rewrite_data_files({NAME}, strategy => "
    plain = procedures.rewrite_data_files(catalog, ODD, RewriteDataFiles())
    assert (
        plain == f"{call}'binpack', options => map('min-input-files', '5', "
        "'delete-file-threshold', '1'))"
    )
    asked = RewriteDataFiles(1024, 2, sort=True, partial_progress=True, delete_file_threshold=0)
    assert procedures.rewrite_data_files(catalog, ODD, asked, dangling=True) == (
        f"{call}'sort', options => map('min-input-files', '2', 'target-file-size-bytes', '1024', "
        "'partial-progress.enabled', 'true', 'remove-dangling-deletes', 'true'))"
    )
    deletes = RewritePositionDeleteFiles()
    assert procedures.rewrite_position_delete_files(catalog, ODD, deletes, everything=True) == (
        f"CALL `my``lake`.system.rewrite_position_delete_files({NAME}, "
        "options => map('min-input-files', '5', 'rewrite-all', 'true'))"
    )
    assert procedures.rewrite_manifests(catalog, ODD) == (
        f"CALL `my``lake`.system.rewrite_manifests({NAME})"
    )


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("file:/lake/a", "/lake/a"),
        ("file:///lake/a", "/lake/a"),
        ("s3a://bucket/a b#c?d%20", "/a b#c?d%20"),
        ("hdfs://host:8020/a", "/a"),
        ("/lake/x:/y", "/lake/x:/y"),
    ],
)
def test_a_path_is_the_same_whoever_writes_it_down(location: str, path: str) -> None:
    assert plain_path(location) == path


def test_only_what_others_or_the_network_did_is_worth_another_try() -> None:
    assert is_transient(RuntimeError("org.apache.iceberg.exceptions.CommitFailedException: x"))
    assert is_transient(RuntimeError("ERROR: another commit came first"))
    assert not is_transient(RuntimeError("java.io.FileNotFoundException: no such file"))
