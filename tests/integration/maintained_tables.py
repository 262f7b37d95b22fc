"""Tables of a lake in every state that maintenance meets, and what Iceberg itself says of them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median_low
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from integration.lake_harness import Lake
from tidegate.core.relation import Relation
from tidegate.iceberg.session import IcebergSession, iceberg_session
from tidegate.maintenance.facts import TableFacts

MERGE_ON_READ = (
    "'write.delete.mode'='merge-on-read','write.update.mode'='merge-on-read',"
    "'write.merge.mode'='merge-on-read','write.distribution-mode'='none',"
    "'write.delete.distribution-mode'='none'"
)
COLUMNS = pa.schema(
    [
        pa.field(name, type_, metadata={"PARQUET:field_id": str(number)})
        for number, (name, type_) in enumerate(
            (("id", pa.int64()), ("part", pa.string()), ("n", pa.int64())), start=1
        )
    ]
)
# What is asked of each of Iceberg's metadata tables.
ASKED = {
    "files": "content, spec_id, record_count, file_size_in_bytes, content_size_in_bytes",
    "manifests": "length",
    "snapshots": "unix_millis(committed_at) AS at",
    "refs": "name, type, snapshot_id",
    "metadata_log_entries": "file",
}


@dataclass(frozen=True, slots=True)
class Tables:
    """Makes tables through one session, and asks Iceberg's own metadata tables of them."""

    lake: Lake
    session: IcebergSession

    def relation(self, name: str) -> Relation:
        return Relation("raw", name)

    def named(self, name: str, *parts: str) -> str:
        return self.lake.catalog.quoted(self.relation(name), *parts)

    def run(self, statement: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.session.spark.sql(statement).collect()]

    def make(self, name: str, *, partitioned: str = "", properties: str = "") -> str:
        by = f" PARTITIONED BY ({partitioned})" if partitioned else ""
        given = f" TBLPROPERTIES ({properties})" if properties else ""
        table = self.named(name)
        self.run(
            f"CREATE TABLE {table} (id bigint, part string, n bigint) USING iceberg{by}{given}"
        )
        return table

    def append(
        self, name: str, first: int, rows: int, part: str = "a", to: str = "main", commits: int = 1
    ) -> None:
        """Commits with one data file each, written without Spark and committed by Iceberg."""
        table = self.java(name)
        for number in range(commits):
            numbers = range(first + number * rows, first + (number + 1) * rows)
            file = self.folder(name) / "data" / f"{uuid4()}.parquet"
            file.parent.mkdir(exist_ok=True)
            values = [list(numbers), [part] * rows, [one % 7 for one in numbers]]
            pq.write_table(pa.table(values, schema=COLUMNS), file)
            builder = (
                self._iceberg.DataFiles.builder(table.spec())
                .withPath(f"{table.location()}/data/{file.name}")
                .withFormat("PARQUET")
                .withFileSizeInBytes(file.stat().st_size)
                .withRecordCount(rows)
            )
            built = self._placed(builder, table, part).build()
            table.newAppend().appendFile(built).toBranch(to).commit()

    @property
    def _iceberg(self) -> Any:
        assert self.session.spark._jvm is not None
        return self.session.spark._jvm.org.apache.iceberg

    def _placed(self, builder: Any, table: Any, part: str) -> Any:
        """In the partition of that name; further fields of the partitioning have 0."""
        names = [one.name() for one in table.spec().fields()]
        values = [part, *("0" for _ in names[1:])]
        path = "/".join(f"{name}={value}" for name, value in zip(names, values, strict=False))
        return builder.withPartitionPath(path) if names else builder

    def java(self, name: str) -> Any:
        return self._iceberg.spark.Spark3Util.loadIcebergTable(
            self.session.spark._jsparkSession, self.named(name)
        )

    def delete_by_value(self, name: str, files: int, part: str = "") -> None:
        """Equality deletes, which Spark does not write; of each only the metadata."""
        spark = self.session.spark
        assert spark._jvm is not None
        ids = spark.sparkContext._gateway.new_array(spark._jvm.int, 1)
        ids[0] = 1
        builders = [self._delete_file(name).ofEqualityDeletes(ids) for _ in range(files)]
        self._commit_deletes(name, builders, part)

    def delete_by_position(self, name: str, data_file: str, part: str) -> None:
        """A position delete file for one data file; only the metadata."""
        builder = self._delete_file(name).ofPositionDeletes().withReferencedDataFile(data_file)
        self._commit_deletes(name, [builder], part)

    def _delete_file(self, name: str) -> Any:
        return self._iceberg.FileMetadata.deleteFileBuilder(self.java(name).spec())

    def _commit_deletes(self, name: str, builders: list[Any], part: str) -> None:
        table = self.java(name)
        delta = table.newRowDelta()
        for number, builder in enumerate(builders):
            builder = (
                builder.withPath(f"{table.location()}/data/deletes-{uuid4()}.parquet")
                .withFormat("PARQUET")
                .withFileSizeInBytes(1_000 + number)
                .withRecordCount(10)
            )
            delta = delta.addDeletes(self._placed(builder, table, part).build())
        delta.commit()

    def folder(self, name: str) -> Path:
        return Path(str(self.java(name).location()).removeprefix("file:").replace("///", "/"))

    def on_disk(self, name: str) -> dict[Path, int]:
        """Files that are there and not hidden, with their sizes."""
        return {
            one: one.stat().st_size
            for one in self.folder(name).rglob("*")
            if one.is_file() and not one.name.startswith((".", "_"))
        }


@contextmanager
def tables(lake: Lake) -> Iterator[Tables]:
    lake.ledger().ensure()
    with iceberg_session(lake.sessions, lake.catalog) as session:
        session.run(f"CREATE NAMESPACE IF NOT EXISTS {lake.catalog.name}.raw")
        yield Tables(lake, session)


def told_by_iceberg(made: Tables, name: str) -> dict[str, Any]:
    """The figures of `TableFacts`, each from Iceberg's metadata tables through Spark."""
    told = _metadata(made, name)
    by_content: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for one in told["files"]:
        by_content[one["content"]].append(one)
    data, positions, equalities = (by_content[content] for content in range(3))
    partitions: dict[Any, list[int]] = defaultdict(list)
    for one in data:
        partitions[one["spec_id"], one["part"]].append(one["file_size_in_bytes"])
    sizes = [sum(group) for group in partitions.values()] or [0]
    snapshots, refs = told["snapshots"], told["refs"]
    heads = {one["name"]: one["snapshot_id"] for one in refs}
    oldest = min((one["at"] for one in snapshots), default=None)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return {
        "snapshot_id": heads.get("main"),
        "snapshots": len(snapshots),
        "oldest_snapshot_at": None if oldest is None else epoch + timedelta(milliseconds=oldest),
        "branches": sum(one["type"] == "BRANCH" for one in refs),
        "tags": sum(one["type"] == "TAG" for one in refs),
        "loose_snapshots": len(snapshots) - len(set(heads.values())),
        "records": sum(one["record_count"] for one in data),
        "data": (len(data), sum(one["file_size_in_bytes"] for one in data)),
        "partitions": len(partitions),
        "largest_partition_bytes": max(sizes),
        "median_partition_bytes": median_low(sizes),
        "position_deletes": (len(positions), sum(map(_weight, positions))),
        "position_deleted_rows": sum(one["record_count"] for one in positions),
        "equality_deletes": (len(equalities), sum(map(_weight, equalities))),
        "equality_deleted_rows": sum(one["record_count"] for one in equalities),
        "manifests": (len(told["manifests"]), sum(one["length"] for one in told["manifests"])),
        "metadata_files": len(told["metadata_log_entries"]) - 1,
    }


def _metadata(made: Tables, name: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of all metadata tables, by one query."""
    # Tables without partitions have no column for them.
    partitioned = "partition" in made.session.spark.table(made.named(name, "files")).columns
    part = "to_json(partition)" if partitioned else "''"
    asked = {**ASKED, "files": f"{ASKED['files']}, {part} AS part"}
    rows = made.run(
        " UNION ALL ".join(
            f"SELECT '{table}' AS of, to_json(struct({columns})) AS found"
            f" FROM {made.named(name, table)}"
            for table, columns in asked.items()
        )
    )
    found: dict[str, list[dict[str, Any]]] = {table: [] for table in asked}
    for row in rows:
        found[row["of"]].append(json.loads(row["found"]))
    return found


def told_by_us(facts: TableFacts, told: dict[str, Any]) -> dict[str, Any]:
    """The same figures, as read without Spark."""
    found = {}
    for name in told:
        value = getattr(facts, name)
        found[name] = (value.files, value.bytes) if hasattr(value, "files") else value
    return found


def dangling_positions(made: Tables, name: str) -> int:
    """Delete files none of whose rows is of a data file that is there, found by reading them."""
    rows = made.run(
        f"SELECT d.delete_file_path, max(f.file_path IS NOT NULL) AS any_left"
        f" FROM {made.named(name, 'position_deletes')} d"
        f" LEFT JOIN {made.named(name, 'data_files')} f ON f.file_path = d.file_path GROUP BY 1"
    )
    return sum(not row["any_left"] for row in rows)


def _weight(file: dict[str, Any]) -> int:
    return int(file.get("content_size_in_bytes") or file["file_size_in_bytes"])
