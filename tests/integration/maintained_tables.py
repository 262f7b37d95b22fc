"""Tables of a lake in every state that maintenance meets, and what Iceberg itself says of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_low
from typing import Any
from uuid import uuid4

from integration.lake_harness import Lake
from tidegate.lake.session import LakeSession, lake_session
from tidegate.model.relation import Relation
from tidegate.model.table_facts import TableFacts

MERGE_ON_READ = (
    "'write.delete.mode'='merge-on-read','write.update.mode'='merge-on-read',"
    "'write.merge.mode'='merge-on-read','write.distribution-mode'='none',"
    "'write.delete.distribution-mode'='none'"
)


@dataclass(frozen=True, slots=True)
class Tables:
    """Makes tables through one session, and asks Iceberg's own metadata tables of them."""

    lake: Lake
    session: LakeSession

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

    def append(self, name: str, first: int, rows: int, part: str = "a", to: str = "") -> None:
        """One commit with one data file."""
        branch = f".branch_{to}" if to else ""
        self.run(
            f"INSERT INTO {self.named(name)}{branch} SELECT /*+ COALESCE(1) */ id, '{part}', id % 7"
            f" FROM range({first}, {first + rows})"
        )

    def java(self, name: str) -> Any:
        spark = self.session.spark
        assert spark._jvm is not None
        return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, self.named(name)
        )

    def delete_by_value(self, name: str, files: int, part: str | None = None) -> None:
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
        spark = self.session.spark
        assert spark._jvm is not None
        return spark._jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(self.java(name).spec())

    def _commit_deletes(self, name: str, builders: list[Any], part: str | None) -> None:
        table = self.java(name)
        delta = table.newRowDelta()
        for number, builder in enumerate(builders):
            builder = (
                builder.withPath(f"{table.location()}/data/deletes-{uuid4()}.parquet")
                .withFormat("PARQUET")
                .withFileSizeInBytes(1_000 + number)
                .withRecordCount(10)
            )
            if part is not None:
                builder = builder.withPartitionPath(f"part={part}")
            delta = delta.addDeletes(builder.build())
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
    with lake_session(lake.sessions, lake.catalog) as session:
        session.run(f"CREATE NAMESPACE IF NOT EXISTS {lake.catalog.name}.raw")
        yield Tables(lake, session)


def told_by_iceberg(made: Tables, name: str, target: int = 512 * 1024 * 1024) -> dict[str, Any]:
    """The figures of `TableFacts`, each from Iceberg's metadata tables through Spark."""
    files = made.run(
        f"SELECT content, spec_id, {_partition(made, name)} AS partition, file_path, record_count,"
        f" file_size_in_bytes, content_size_in_bytes FROM {made.named(name, 'files')}"
    )
    data = [one for one in files if one["content"] == 0]
    positions = [one for one in files if one["content"] == 1]
    equalities = [one for one in files if one["content"] == 2]
    partitions: dict[Any, list[int]] = defaultdict(list)
    for one in data:
        partitions[one["spec_id"], one["partition"]].append(one["file_size_in_bytes"])
    sizes = [sum(group) for group in partitions.values()] or [0]
    manifests = made.run(f"SELECT length FROM {made.named(name, 'manifests')}")
    snapshots = made.run(f"SELECT committed_at FROM {made.named(name, 'snapshots')}")
    refs = made.run(f"SELECT * FROM {made.named(name, 'refs')}")
    heads = {one["name"]: one["snapshot_id"] for one in refs}
    return {
        "snapshot_id": heads.get("main"),
        "snapshots": len(snapshots),
        "oldest_snapshot_at": min(
            (_moment(one["committed_at"]) for one in snapshots), default=None
        ),
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
        "manifests": (len(manifests), sum(one["length"] for one in manifests)),
        "metadata_files": len(made.run(f"SELECT * FROM {made.named(name, 'metadata_log_entries')}"))
        - 1,
    }


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
        f"""
        SELECT d.delete_file_path, max(f.file_path IS NOT NULL) AS any_left
        FROM {made.named(name, "position_deletes")} d
        LEFT JOIN {made.named(name, "data_files")} f ON f.file_path = d.file_path
        GROUP BY d.delete_file_path, d.file_path
        """
    )
    left: dict[str, bool] = {}
    for row in rows:
        key = row["delete_file_path"]
        left[key] = left.get(key, False) or row["any_left"]
    return sum(not one for one in left.values())


def _partition(made: Tables, name: str) -> str:
    """Tables without partitions have no such column."""
    columns = made.session.spark.sql(f"SELECT * FROM {made.named(name, 'files')}").columns
    return "to_json(partition)" if "partition" in columns else "''"


def _weight(file: dict[str, Any]) -> int:
    return int(file["content_size_in_bytes"] or file["file_size_in_bytes"])


def _moment(at: datetime) -> datetime:
    return at.astimezone(UTC)
