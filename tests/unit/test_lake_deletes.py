"""Delete files that delete nothing any more, against what Iceberg's specification says of each."""

from __future__ import annotations

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

from tidegate.iceberg.manifests import (
    DATA,
    EQUALITY_DELETES,
    POSITION_DELETES,
    FileEntry,
    normal_path,
    read_entries,
)
from tidegate.maintenance.delete_files import DeleteFiles

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
