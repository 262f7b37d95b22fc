"""What every engine must do: the same maintenance on the same table, under the same fence.

As a script it runs on a Spark of its own, since a process has room for one:
python -m acceptance.engine_suite MASTER CONNINFO FOLDER
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from pyiceberg.table import StaticTable

from acceptance.processes import until
from integration.conftest import Database
from integration.lake_harness import Lake, make_lake
from tidegate.errors import TidegateError
from tidegate.lake.catalog import Catalog
from tidegate.lake.engine import Engine, EngineSession, SparkEngine
from tidegate.lake.jars import lake_conf
from tidegate.ledger.fences import Fence, Fences
from tidegate.model.identity import new_attempt_id
from tidegate.model.relation import Relation
from tidegate.settings import SparkSettings
from tidegate.spark.session import SparkSessions

FILES = 6
SECRET = "s3cr3t-t0k3n"
REWRITE = "CALL {system}.rewrite_data_files(table => {name}, options => map('rewrite-all', 'true'))"
EXPIRE = (
    "CALL {system}.expire_snapshots(table => {name},"
    " older_than => TIMESTAMP '2100-01-01 00:00:00 UTC', retain_last => 1)"
)
REMOVE = (
    "CALL {system}.remove_orphan_files(table => {name},"
    " older_than => TIMESTAMP '2020-01-01 00:00:00 UTC')"
)
MANIFESTS = "CALL {system}.rewrite_manifests(table => {name})"
# Its first files appear early, its last ones not before half an hour; a task takes a moment.
ENDLESS = (
    "INSERT INTO {table} SELECT CAST(id % 9 AS int), sha2(CAST(id AS string), 512)"
    " FROM range(0, 400000000, 1, 2000)"
)


@dataclass(frozen=True, slots=True)
class State:
    """A table as another implementation of Iceberg sees it."""

    snapshots: int
    data_files: frozenset[str]
    manifests: int
    rows: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class EngineTable:
    """A table of small files in the embedded catalog, and the fence before it."""

    lake: Lake
    engine: Engine
    relation: Relation
    control_id: UUID
    token: int = 0

    @property
    def catalog(self) -> Catalog:
        return self.lake.catalog

    @property
    def folder(self) -> Path:
        return self.catalog.warehouse / self.relation.schema / self.relation.name / "data"

    def attempt(self) -> str:
        """A new attempt, which all others have to give way to."""
        self.token += 1
        fence = Fence(str(self.relation), self.control_id, self.token, new_attempt_id())
        Fences(self.lake.ledger()).raise_(fence)
        return fence.attempt_id

    @contextmanager
    def session(self, attempt_id: str) -> Iterator[EngineSession]:
        with self.engine.session(self.catalog, attempt_id) as session:
            yield session

    def text(self, statement: str) -> str:
        return statement.format(
            table=self.catalog.quoted(self.relation),
            system=f"`{self.catalog.name}`.system",
            name=f"'{self.relation}'",
        )

    def one(self, session: EngineSession, statement: str) -> dict[str, object]:
        """The only row of an answer."""
        (row,) = session.run(self.text(statement))
        return row

    def metadata_location(self) -> str:
        return str(
            self.lake.database.value(
                f"SELECT metadata_location FROM {self.lake.tables}"
                f" WHERE table_name = '{self.relation.name}'"
            )
        )

    def state(self) -> State:
        table = StaticTable.from_metadata(self.metadata_location())
        snapshot = table.current_snapshot()
        assert snapshot is not None
        found = table.scan().to_arrow().to_pylist()
        return State(
            snapshots=len(table.metadata.snapshots),
            data_files=frozenset(task.file.file_path for task in table.scan().plan_files()),
            manifests=len(snapshot.manifests(table.io)),
            rows=tuple(sorted((row["id"], row["name"]) for row in found)),
        )

    def files(self) -> set[Path]:
        return set(self.folder.glob("*.parquet"))


class Still:
    """Whether a table's files have not changed for a while."""

    def __init__(self, table: EngineTable) -> None:
        self._table = table
        self._seen: dict[Path, int] = {}
        self._since = time.monotonic()

    def __call__(self) -> bool:
        found = {file: file.stat().st_size for file in self._table.files() if file.exists()}
        if found != self._seen:
            self._seen, self._since = found, time.monotonic()
        return time.monotonic() - self._since > 1


def make_engine_lake(conninfo: str, folder: Path, name: str = "lake") -> Lake:
    """A lake for every engine; none of its Spark is used to make it."""
    database = Database(conninfo)
    unused = SparkSessions(SparkSettings(), folder)
    lake = make_lake(database, folder, unused)
    catalog = replace(lake.catalog, name=name, options={"some.token": SECRET})
    lake = replace(lake, catalog=catalog)
    lake.ledger().ensure()
    return lake


def make_table(lake: Lake, engine: Engine) -> EngineTable:
    """A table of small files, each with its own snapshot."""
    relation = Relation("raw", f"orders_{uuid4().hex[:6]}")
    table = EngineTable(lake, engine, relation, uuid4())
    with table.session(table.attempt()) as session:
        statements = [
            f"CREATE NAMESPACE IF NOT EXISTS `{lake.catalog.name}`.raw",
            "CREATE TABLE {table} (id int, name string) USING iceberg TBLPROPERTIES ("
            "'write.parquet.row-group-size-bytes' = '65536', 'commit.manifest-merge.enabled' ="
            " 'false')",
            *(f"INSERT INTO {{table}} VALUES ({n}, 'row {n}')" for n in range(FILES)),
        ]
        for statement in statements:
            list(session.run(table.text(statement)))
    return table


def check_maintenance(lake: Lake, engine: Engine) -> EngineTable:
    """Every action does what it says, and says what pyiceberg sees."""
    table = make_table(lake, engine)
    before = table.state()
    assert (before.snapshots, len(before.data_files), before.manifests) == (FILES, FILES, FILES)
    with table.session(table.attempt()) as session:
        table.one(session, EXPIRE)
        expired = table.state()
        assert (expired.snapshots, expired.data_files) == (1, before.data_files)

        orphan = table.folder / "orphan.parquet"
        orphan.write_bytes(b"nobody knows it")
        os.utime(orphan, (0, 0))
        removed = table.one(session, REMOVE)
        assert str(removed["orphan_file_location"]).endswith("/data/orphan.parquet")
        assert not orphan.exists()

        rewritten = table.one(session, REWRITE)
        after = table.state()
        assert rewritten["rewritten_data_files_count"] == FILES
        assert rewritten["added_data_files_count"] == len(after.data_files) == 1
        assert after.snapshots == 2

        gathered = table.one(session, MANIFESTS)
        last = table.state()
        assert gathered["added_manifests_count"] == last.manifests == 1
        assert last.data_files == after.data_files

        table.one(session, EXPIRE)
        assert {str(file) for file in table.files()} == {
            file.removeprefix("file:") for file in last.data_files
        }
    assert table.state().rows == before.rows == tuple((n, f"row {n}") for n in range(FILES))
    return table


def check_fence(table: EngineTable) -> None:
    """An attempt that was replaced commits nothing more."""
    attempt_id = table.attempt()
    with table.session(attempt_id) as session:
        list(session.run(table.text(REWRITE)))
        table.attempt()
        before = table.metadata_location()
        with pytest.raises(Exception, match=f"attempt {attempt_id} was replaced"):
            list(session.run(table.text(REWRITE)))
    assert table.metadata_location() == before


def check_interrupt(table: EngineTable) -> None:
    """What runs ends soon, in the engine as well, and nothing of it is committed."""
    before, files = table.metadata_location(), table.files()
    attempt_id = table.attempt()
    interrupted: list[float] = []

    def interrupt() -> None:
        until(lambda: bool(table.files() - files), "the statement to write")
        interrupted.append(time.monotonic())
        table.engine.interrupt(attempt_id)

    thread = threading.Thread(target=interrupt)
    with table.session(attempt_id) as session:
        thread.start()
        with pytest.raises(Exception, match=r"(?i)interrupted|cancel"):
            list(session.run(table.text(ENDLESS)))
        ended = time.monotonic()
    thread.join()
    assert ended - interrupted[0] < 2
    until(Still(table), "the engine to end the statement", 20)
    assert table.metadata_location() == before


def check_refusal(table: EngineTable) -> None:
    """What cannot be done is said in few words."""
    refused = pytest.raises(Exception, match="nosuch")
    with table.session(table.attempt()) as session, refused as raised:
        list(session.run("SELECT nosuch"))
    if isinstance(raised.value, TidegateError):
        assert len(raised.value.message.splitlines()) == 1


def check_engine(lake: Lake, engine: Engine) -> EngineTable:
    table = check_maintenance(lake, engine)
    check_fence(table)
    check_interrupt(table)
    check_refusal(table)
    return table


def main(master: str, conninfo: str, folder: str) -> None:
    sessions = SparkSessions(
        SparkSettings(master=master), Path(folder), lambda: lake_conf({}, postgres=True)
    )
    check_engine(make_engine_lake(conninfo, Path(folder)), SparkEngine(sessions))
    assert str(sessions.get().sparkContext.master) == master
    sessions.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
