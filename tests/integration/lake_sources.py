"""Tables of a lake that others write to, and a project that reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from in_process import NoSpark
from integration.commands import Done
from integration.conftest import MakePlace, Place, Rows
from integration.filled_lakes import open_table, rows_of, table_of
from integration.here import tidegate
from tidegate.core.relation import Relation
from tidegate.iceberg.session import IcebergSession, iceberg_session
from tidegate.iceberg.table import IcebergTable
from tidegate.load.runner import RunReport
from tidegate.project import Project
from tidegate.spark.session import SparkSessions

COLUMNS = "id int, status string, total decimal(12,2)"


def keyed(name: str, **options: Any) -> dict[str, Any]:
    """A sync that reads the table of its name, by its key."""
    source, target = f"lake:raw.{name}", f"warehouse:raw.{name}"
    return {"name": name, "source": source, "target": target, "key": "id", **options}


@dataclass(slots=True)
class Lake:
    """A table of a project with two lakes, and a session of somebody who writes to it."""

    place: Place
    project: Project
    session: IcebergSession
    name: str = ""

    def table_of(self, name: str) -> Lake:
        """The table that the sync of this name reads; it is not made yet."""
        return Lake(self.place, self.project, self.session, name)

    def sql(self, *statements: str) -> None:
        """Run statements over the table, which they call T."""
        for text in statements:
            self.session.run(re.sub(r"\bT\b", f"lake.raw.{self.name}", text, count=1))

    def call(self, procedure: str, arguments: str = "") -> None:
        more = f", {arguments}" if arguments else ""
        self.session.run(f"CALL lake.system.{procedure}(table => 'raw.{self.name}'{more})")

    def expire(self) -> None:
        """Only the newest snapshot is kept."""
        table = open_table(self.place, self.relation)
        gone = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != self.table.main]
        table.maintenance.expire_snapshots().by_ids(gone).commit()

    def roll_back(self, snapshot: int | None) -> None:
        assert snapshot is not None
        table = open_table(self.place, self.relation)
        table.manage_snapshots().rollback_to_snapshot(snapshot).commit()

    def create(self, columns: str = COLUMNS, *, mode: str = "merge-on-read") -> None:
        properties = ", ".join(
            f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge")
        )
        self.session.run("CREATE NAMESPACE IF NOT EXISTS lake.raw")
        self.sql(f"CREATE TABLE T ({columns}) USING iceberg TBLPROPERTIES ({properties})")

    def insert(self, *ids: int, status: str = "new") -> None:
        """As another engine than Spark does."""
        rows = [{"id": one, "status": status, "total": Decimal(f"{one}.25")} for one in ids]
        table = open_table(self.place, self.relation)
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))

    def run(self, **options: Any) -> RunReport:
        return self.project.run(self.name, **options)

    def run_without_spark(self) -> RunReport:
        """A run that must find nothing to do for Spark."""
        project = self.place.open()
        project.context.spark = NoSpark(project.settings.spark, project.settings.state_directory)
        return project.run(self.name)

    def tidegate(self, *arguments: str) -> Done:
        return tidegate(self.place.folder, *arguments)

    @property
    def relation(self) -> Relation:
        return Relation("raw", self.name)

    @property
    def table(self) -> IcebergTable:
        return table_of(self.place, self.relation)

    def source(self, columns: str = "id, status, total") -> Rows:
        rows = rows_of(open_table(self.place, self.relation), *columns.split(", "))
        return sorted(rows, key=repr)

    def target(self, columns: str = "id, status, total") -> Rows:
        rows = self.place.target.execute(f"SELECT {columns} FROM raw.{self.name}")
        return sorted(rows, key=repr)

    def copy(self) -> Rows:
        """The rows of the other lake's table, read without Spark."""
        copied = open_table(self.place, Relation("copy", self.name), "other")
        return sorted(rows_of(copied, "id", "status", "total"), key=repr)


def declare_lakes(place: Place) -> None:
    file = place.folder / "tidegate.toml"
    lakes = '[connections]\nlake = { type = "iceberg" }\nother = { type = "iceberg" }\n'
    file.write_text(file.read_text().replace("[connections]\n", lakes))


@contextmanager
def open_lakes(
    make_place: MakePlace, spark: SparkSessions, *syncs: Mapping[str, Any], pipelines: str
) -> Iterator[Lake]:
    """A project with these syncs, whose tables are not made yet."""
    place = make_place(*syncs, databases=2, pipelines=pipelines)
    declare_lakes(place)
    project = place.open(spark)
    project.context.ledger("lake").ensure()
    with iceberg_session(spark, project.context.catalog("lake")) as session:
        yield Lake(place, project, session)
