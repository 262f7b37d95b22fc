"""A table of a lake with as many data files as wanted, of which only the metadata is written."""

from __future__ import annotations

import random
from pathlib import Path

from pyiceberg.conversions import to_bytes
from pyiceberg.io import load_file_io
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from tidegate.core.relation import Relation

COLUMNS = 13
PARTITIONS = 30
SNAPSHOT = 4711


def write_table(warehouse: Path, relation: Relation, *, files: int, per_manifest: int) -> None:
    """Write it as a catalog of folders has it."""
    folder = warehouse / relation.schema / relation.name
    (folder / "metadata").mkdir(parents=True)
    schema = Schema(*(NestedField(n, f"c{n}", LongType()) for n in range(1, COLUMNS + 1)))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "c1"))
    metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, folder.as_uri())
    io = load_file_io({}, folder.as_uri())
    manifests = [
        _manifest(io, metadata, range(start, min(start + per_manifest, files)))
        for start in range(0, files, per_manifest)
    ]
    listed = f"{folder.as_uri()}/metadata/snap-{SNAPSHOT}.avro"
    with write_manifest_list(2, io.new_output(listed), SNAPSHOT, None, 1, "deflate") as writer:
        writer.add_manifests(manifests)
    snapshot = Snapshot(
        snapshot_id=SNAPSHOT,
        sequence_number=1,
        timestamp_ms=metadata.last_updated_ms,
        manifest_list=listed,
        summary=Summary(Operation.APPEND),
        schema_id=0,
    )
    main = SnapshotRef(snapshot_id=SNAPSHOT, snapshot_ref_type=SnapshotRefType.BRANCH)
    written = metadata.model_copy(
        update={
            "snapshots": [snapshot],
            "current_snapshot_id": SNAPSHOT,
            "last_sequence_number": 1,
            "refs": {"main": main},
        }
    )
    place = f"{folder.as_uri()}/metadata/v1.metadata.json"
    ToOutputFile.table_metadata(written, io.new_output(place))


def _manifest(io: object, metadata: TableMetadata, numbers: range) -> ManifestFile:
    path = f"{metadata.location}/metadata/{numbers.start}-m0.avro"
    output = io.new_output(path)  # type: ignore[attr-defined]
    with write_manifest(
        2, metadata.spec(), metadata.schema(), output, SNAPSHOT, "deflate"
    ) as writer:
        for number in numbers:
            writer.add(_entry(metadata, number))
    return writer.to_manifest_file()


def _entry(metadata: TableMetadata, number: int) -> ManifestEntry:
    """As Spark writes it: every column with its sizes, counts and bounds."""
    chance = random.Random(number)
    columns = range(1, COLUMNS + 1)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{metadata.location}/data/{number:05d}-{chance.getrandbits(64):x}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(number % PARTITIONS),
        record_count=1_000,
        file_size_in_bytes=chance.randrange(10_000, 600_000_000),
        column_sizes={one: chance.randrange(10_000) for one in columns},
        value_counts=dict.fromkeys(columns, 1_000),
        null_value_counts=dict.fromkeys(columns, 0),
        nan_value_counts={},
        lower_bounds={one: to_bytes(LongType(), number) for one in columns},
        upper_bounds={one: to_bytes(LongType(), number + 1_000) for one in columns},
        split_offsets=[4],
        sort_order_id=0,
    )
    file.spec_id = metadata.default_spec_id
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=SNAPSHOT, data_file=file
    )
