"""Tables of a lake that others write to, and projects that read them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from integration.conftest import MakePlace, Place, Rows
from integration.without_spark import NoSpark
from tidegate.lake.metadata import read_metadata, read_table
from tidegate.lake.session import LakeSession, lake_session
from tidegate.model.lake import LakeTable
from tidegate.model.relation import Relation
from tidegate.project import Project
from tidegate.runtime.runner import RunReport
from tidegate.spark.session import SparkSessions

ORDERS = Relation("raw", "orders")
COLUMNS = "id int, status string, total decimal(12,2)"
KEYED = {"source": "lake:raw.orders", "target": "warehouse:raw.orders", "key": "id"}
COPIED = {"source": "lake:raw.orders", "target": "other:copy.orders", "key": "id"}


@dataclass(slots=True)
class Lake:
    """A project with two lakes, and a session of somebody who writes to the first."""

    place: Place
    project: Project
    session: LakeSession

    def sql(self, *statements: str) -> None:
        """Run statements over the table, which they call T."""
        for text in statements:
            self.session.run(re.sub(r"\bT\b", "lake.raw.orders", text, count=1))

    def call(self, procedure: str, arguments: str = "") -> None:
        more = f", {arguments}" if arguments else ""
        self.session.run(f"CALL lake.system.{procedure}(table => 'raw.orders'{more})")

    def create(self, columns: str = COLUMNS, *, mode: str = "merge-on-read") -> None:
        properties = ", ".join(
            f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge")
        )
        self.session.run("CREATE NAMESPACE IF NOT EXISTS lake.raw")
        self.sql(f"CREATE TABLE T ({columns}) USING iceberg TBLPROPERTIES ({properties})")

    def insert(self, *ids: int, status: str = "new") -> None:
        values = ", ".join(f"({one}, '{status}', {one}.25)" for one in ids)
        self.sql(f"INSERT INTO T VALUES {values}")

    def run(self, **options: Any) -> RunReport:
        return self.project.run("orders", **options)

    def run_without_spark(self) -> RunReport:
        """A run that must find nothing to do for Spark."""
        project = self.place.open()
        project.context.spark = NoSpark(project.settings.spark, project.settings.state_directory)
        return project.run("orders")

    @property
    def table(self) -> LakeTable:
        found = read_table(self.project.context.catalog("lake"), ORDERS)
        assert found is not None
        return found

    def source(self, columns: str = "id, status, total") -> Rows:
        rows = self.session.run(f"SELECT {columns} FROM lake.raw.orders")
        return sorted(rows, key=repr)

    def target(self, columns: str = "id, status, total") -> Rows:
        return sorted(self.place.target.execute(f"SELECT {columns} FROM raw.orders"), key=repr)

    def copy(self) -> Rows:
        """The rows of the other lake's table, read without Spark."""
        from pyiceberg.io import load_file_io
        from pyiceberg.table import StaticTable

        metadata = read_metadata(self.project.context.catalog("other"), Relation("copy", "orders"))
        assert metadata is not None
        table = StaticTable(
            identifier=("copy", "orders"),
            metadata=metadata,
            metadata_location="",
            io=load_file_io({}, metadata.location),
            catalog=None,  # type: ignore[arg-type]
        )
        found = table.scan().to_arrow().select(["id", "status", "total"]).to_pylist()
        return sorted((tuple(row.values()) for row in found), key=repr)


def declare_lakes(place: Place) -> None:
    file = place.folder / "tidegate.toml"
    lakes = '[connections]\nlake = { type = "iceberg" }\nother = { type = "iceberg" }\n'
    file.write_text(file.read_text().replace("[connections]\n", lakes))


@contextmanager
def open_lake(
    make_place: MakePlace, spark: SparkSessions, *syncs: Mapping[str, Any], **options: Any
) -> Iterator[Lake]:
    """A project with these syncs; its table is not made yet."""
    default = () if "pipelines" in options else (KEYED,)
    place = make_place(*(syncs or default), databases=2, **options)
    declare_lakes(place)
    project = place.open(spark)
    project.context.ledger("lake").ensure()
    with lake_session(spark, project.context.catalog("lake")) as session:
        yield Lake(place, project, session)
