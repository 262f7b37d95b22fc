"""Projects to be broken: one sync over one, two or three databases, and a source that changes."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

import in_process
from acceptance import lake_oracle, oracle
from acceptance.lake_oracle import Lake
from acceptance.processes import Commands, Ended, Process
from integration import here
from projects import EMBEDDED_LAKE, toml

BUSY = 75
NO_SPARK = {"master": "local[1]"}
"""no Spark: commands copy the rows themselves"""
REGIONS = ("north", "south", "Øst", "o'west")

_TABLE = """
CREATE TABLE public.{name} (
    region text NOT NULL,
    id bigint NOT NULL,
    status text,
    total numeric(12,2) NOT NULL,
    "Note Text" text,
    payload jsonb,
    tags text[],
    seq bigint GENERATED ALWAYS AS IDENTITY,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (region, id)
)
"""


@dataclass(slots=True)
class Scene(Commands):
    """A project folder, its databases and the tables of its source."""

    source: str
    destination: str
    control: str
    seed: int
    tables: tuple[str, ...] = ("orders",)
    spark: dict[str, str] = field(default_factory=dict)
    batch_rows: int = 40
    partitions: int = 2
    cursor: str = "updated_at"
    worker: dict[str, str] = field(default_factory=dict)
    pipelines: str | None = None
    sections: dict[str, dict[str, object]] = field(default_factory=dict)
    """what else tidegate.toml says"""
    lake: bool = False
    """the target is a table of a lake; its ledger is in the control database"""
    sync: dict[str, object] = field(default_factory=dict)
    """what the syncs declare besides, or instead; None leaves a key out"""
    columns: tuple[str, ...] = (
        "region",
        "id",
        "status",
        "total",
        "Note Text",
        "payload",
        "tags",
        "seq",
        "updated_at",
    )
    key: tuple[str, ...] = ("region", "id")
    rng: random.Random = field(init=False)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1), init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        with psycopg.connect(self.source, autocommit=True) as connection:
            for table in self.tables:
                connection.execute(_TABLE.format(name=table))  # type: ignore[arg-type]
                connection.execute(f"CREATE INDEX ON public.{table} (updated_at)")  # type: ignore[arg-type]
        self.write_project()

    @property
    def target(self) -> str:
        """The connection that rows go to."""
        return lake_oracle.CATALOG if self.lake else "warehouse"

    @property
    def ledger(self) -> tuple[str, str]:
        """The database and the schema that say what is in the target."""
        return (self.control, lake_oracle.SCHEMA) if self.lake else (self.destination, "tidegate")

    @property
    def files(self) -> Lake:
        """The lake that is the target."""
        return Lake(self.control, self.folder / ".tidegate")

    @property
    def environment(self) -> dict[str, str]:
        """What its commands need to know besides."""
        return {in_process.VARIABLE: "1"} if self.spark == NO_SPARK else {}

    def write_project(self) -> None:
        sections: dict[str, dict[str, object]] = {
            "project": {"name": "shop", "control": self.control},
            "connections": {
                "source": self.source,
                self.target: EMBEDDED_LAKE if self.lake else self.destination,
            },
            "spark": dict(self.spark),
            "worker": dict(self.worker),
            **self.sections,
        }
        for table in self.tables if self.pipelines is None else ():
            sections[f"sync.{table}"] = {
                "source": f"source:public.{table}",
                "target": f"{self.target}:raw.{table}",
                "cursor": self.cursor,
                "batch_rows": self.batch_rows,
                "partitions": self.partitions,
                **self.sync,
            }
        if self.pipelines is not None:
            (self.folder / "pipelines.py").write_text(self.pipelines, encoding="utf-8")
        (self.folder / "tidegate.toml").write_text(toml(sections), encoding="utf-8")

    def use_spark(self, spark: dict[str, str]) -> None:
        """Run on another Spark from now on."""
        self.spark = spark
        self.write_project()

    def change(self, transactions: int = 3, table: str | None = None) -> None:
        """Random inserts and updates, several rows a transaction, so that stamps tie."""
        for name in [table] if table else self.tables:
            with psycopg.connect(self.source, autocommit=True) as connection:
                for _ in range(transactions):
                    with connection.transaction():
                        self.change_in(connection, name)

    def change_in(self, connection: psycopg.Connection, table: str, rows: int = 0) -> None:
        """Insert and update some rows inside the caller's transaction."""
        for _ in range(rows or self.rng.randint(3, 30)):
            connection.execute(
                f"""INSERT INTO public.{table}
                    (region, id, status, total, "Note Text", payload, tags, updated_at)
                    VALUES (%s, %s, %s, %s, %s, %s, %s, now())""",  # type: ignore[arg-type]
                (self.rng.choice(REGIONS), next(self._ids), *self._values()),
            )
        changed = connection.execute(
            f"SELECT region, id FROM public.{table} ORDER BY md5(id::text || %s) LIMIT %s",  # type: ignore[arg-type]
            (str(self.rng.random()), self.rng.randint(0, 5)),
        ).fetchall()
        for region, number in changed:
            connection.execute(
                f"""UPDATE public.{table} SET status = %s, total = %s, "Note Text" = %s,
                    payload = %s, tags = %s, seq = DEFAULT, updated_at = now()
                    WHERE (region, id) = (%s, %s)""",  # type: ignore[arg-type]
                (*self._values(), region, number),
            )

    def _values(self) -> tuple[object, ...]:
        rng = self.rng
        return (
            rng.choice(["new", "paid", "sent", None]),
            rng.randint(0, 10**7) / 100,
            rng.choice([None, "", "a\tb\\n'\"", "æøå 漢字", "x" * rng.randint(1, 50)]),
            json.dumps({"n": rng.randint(0, 9), "s": "ü"}) if rng.random() < 0.8 else None,
            rng.choice([None, [], ["a", None, "b,c"]]),
        )

    def start(
        self, name: str = "orders", failpoint: str | None = None, options: tuple[str, ...] = ()
    ) -> Process:
        """`tidegate run`."""
        return self.start_command("run", name, *options, failpoint=failpoint)

    def start_and_hold(self, point: str, name: str = "orders") -> tuple[Process, Path]:
        """A run that waits at a failpoint until the returned file is removed."""
        return self.hold(point, lambda armed: self.start(name, armed))

    def command(self, *words: str) -> Ended:
        """A command to its end, in this process unless it needs Spark: that takes a fifth."""
        if self.spark != NO_SPARK:
            return self.start_command(*words).wait()
        with pytest.MonkeyPatch.context() as patched:
            in_process.install(patched.setattr)
            done = here.tidegate(self.folder, *words)
        return Ended(done.code, done.out, done.err)

    def run(self, *names: str) -> Ended:
        """One clean run that must succeed."""
        ended = self.command("run", *(names or ("orders",)))
        assert ended.code == 0, ended
        return ended

    def at_source(self, *statements: str) -> None:
        """What the owner of the source does to it."""
        for statement in statements:
            oracle.rows(self.source, statement)

    def published(self) -> oracle.Published:
        return oracle.published(self.destination)

    def assert_exact(
        self, expected: Callable[[list[oracle.Row]], list[oracle.Row]] = lambda rows: rows
    ) -> int:
        """Target, ledger and queue are as one clean run would have left them; counts the loads."""
        for table in self.tables:
            rows = oracle.read_rows(self.source, ("public", table), self.columns, self.key)
            oracle.assert_same_rows(expected(rows), self.read_target(table))
            cursor = self.sync.get("cursor", self.cursor)
            if self.lake and cursor is not None:
                self.files.assert_watermark(self.source, table, str(cursor))
        oracle.assert_idle(self.control)
        return self.assert_ledger()

    def read_target(self, table: str) -> list[oracle.Row]:
        if self.lake:
            return self.files.read_rows(table, self.columns, self.key)
        return oracle.read_rows(self.destination, ("raw", table), self.columns, self.key)

    def assert_ledger(self) -> int:
        """What was published and what is recorded match one to one; counts the loads."""
        if self.lake:
            self.files.assert_published(*self.tables)
        return oracle.assert_ledger(*self.ledger)

    def staged(self) -> list[str]:
        """What lies aside for the target."""
        if self.lake:
            return self.files.staged(*self.tables)
        return oracle.staging_tables(self.destination)

    def assert_swept(self) -> None:
        """All is exact and nothing is left aside: the last run swept it, or the next one does.

        Spark's workers may outlive their driver and stage after the last run's sweep.
        """
        self.assert_exact()
        if self.assert_nothing_staged():
            self.assert_exact()

    def assert_nothing_staged(self) -> bool:
        """Whether it took another run."""
        self.wait_until_left()
        if was_staged := bool(self.staged()):
            ended = self.run(self.tables[0])
            assert "found nothing new" in ended.out, ended
        assert self.staged() == []
        return was_staged

    def wait_until_left(self) -> None:
        """Wait until no session of a killed run is left.

        The catalog's sessions are Spark's; a Connect server keeps those of clients that are gone.
        """
        oracle.wait_until_left(self.source, self.destination, self.control, catalogs=not self.lake)
