"""A project with events, to be broken: made-up events, real processes, and every table read."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from acceptance.processes import Ended, Process, WarmProcess
from projects import toml
from tidegate.admin.scaffold import other_files
from tidegate.events.generator import Generation, Totals, generate_events
from tidegate.project import Project

# What two runs of the same events may differ in: when, and in which transaction.
VOLATILE = {"received_at", "processed_at", "loaded_in", "refreshed_at", "duration", "changes"}
UNTIL = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)

# An event that ends twice breaks the primary key, in the transaction that ends it.
_WATCH = """
CREATE TABLE public.ended (id uuid PRIMARY KEY, status text NOT NULL);
CREATE FUNCTION public.note_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.ended VALUES (NEW.id, NEW.status);
    RETURN NEW;
END $$;
CREATE TRIGGER note_end AFTER UPDATE OF status ON public.raw_events
    FOR EACH ROW EXECUTE FUNCTION public.note_end();
"""


@dataclass(slots=True)
class EventScene:
    """The folder of a project of the template, and its two databases."""

    folder: Path
    warehouse: str
    control: str
    batch_size: int = 500
    spark: dict[str, str] | None = None
    """where batches are read; in each process itself by default"""
    totals: list[Totals] = field(default_factory=list)
    _started: list[Process] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        sections: dict[str, dict[str, object]] = {
            "project": {"name": "product", "control": self.control},
            "connections": {"warehouse": self.warehouse},
            "worker": {"lock_timeout": "2s"},
            "events": {
                "connection": "warehouse",
                "batch_size": self.batch_size,
                "spark_from": 0 if self.spark else 1_000_000,
            },
            "spark": dict(self.spark or {}),
        }
        (self.folder / "tidegate.toml").write_text(toml(sections), encoding="utf-8")
        for name, text in other_files().items():
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def generate(self, count: int, seed: int = 7) -> Totals:
        """Add events with duplicates, malformed bodies, late and absurd dates."""
        plan = Generation(count, seed, UNTIL, 40, 0.1, 0.05, 0.05)
        with Project.open(self.folder) as project:
            self.totals.append(generate_events(project.context, plan).totals)
        return self.totals[-1]

    def watch(self) -> None:
        """Have the database refuse that an event ends twice."""
        self.execute(_WATCH)

    def start(self, *options: str, failpoint: str | None = None) -> Process:
        """`tidegate event run`, with a failpoint armed or none."""
        log = self.folder / f"run-{next(self._numbers)}"
        command = ["tidegate", "event", "run", "--project", str(self.folder), *options]
        armed = {"TIDEGATE_FAILPOINT": failpoint} if failpoint else {}
        process = WarmProcess(command, log, armed)
        self._started.append(process)
        return process

    def run(self, *options: str) -> Ended:
        """A run that must end well."""
        ended = self.start(*options).wait()
        assert ended.code == 0, ended
        return ended

    def close(self) -> None:
        for process in self._started:
            if process.alive:
                process.kill_all()

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.warehouse, autocommit=True) as connection:
            cursor = connection.execute(text)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def value(self, text: str) -> Any:
        return self.execute(text)[0][0]

    def tables(self) -> dict[str, list[str]]:
        """Every table and view of the events, row by row, without what may differ."""
        found = {}
        with psycopg.connect(self.warehouse, autocommit=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            names = connection.execute(
                "SELECT n.nspname, c.relname FROM pg_class c"
                " JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname IN ('public', 'warehouse', 'analytics')"
                " AND c.relkind IN ('r', 'm', 'p') AND c.relname <> 'ended'"
            ).fetchall()
            for schema, name in names:
                rows = connection.execute(
                    sql.SQL("SELECT (to_jsonb(t) - %s::text[])::text FROM {} t ORDER BY 1").format(
                        sql.Identifier(schema, name)
                    ),
                    (sorted(VOLATILE),),
                )
                found[f"{schema}.{name}"] = [row[0] for row in rows]
        return found

    def lost_attempts(self, name: str) -> int:
        """How many attempts at jobs of this name ended with their process."""
        with psycopg.connect(self.control) as connection:
            row = connection.execute(
                "SELECT count(*) FROM tidegate_control.job_attempts a"
                " JOIN tidegate_control.jobs j USING (job_id)"
                " WHERE j.name = %s AND a.outcome = 'lost'",
                (name,),
            ).fetchone()
        assert row is not None
        return int(row[0])

    def assert_exact(self) -> None:
        """All that was made up has become what its makers say, once."""
        facts = sum(one.facts for one in self.totals)
        failed = sum(one.malformed.total() for one in self.totals)
        events = sum(one.events for one in self.totals)
        counts = dict(self.execute("SELECT status, count(*) FROM raw_events GROUP BY 1"))
        assert counts == {"done": events - failed, "failed": failed}
        reasons = "SELECT count(*) FROM raw_events WHERE (status = 'failed') = (error IS NULL)"
        assert self.value(reasons) == 0
        assert self.value("SELECT count(*) FROM warehouse.fact_events") == facts
        assert self.value("SELECT count(DISTINCT event_hash) FROM warehouse.fact_events") == facts
        amount = sum(one.sums["amount"] for one in self.totals)
        assert self.value("SELECT sum(amount) FROM warehouse.fact_events") == amount
        months = sum((one.months for one in self.totals), start=type(self.totals[0].months)())
        assert dict(
            self.execute(
                "SELECT to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM'), count(*)"
                " FROM warehouse.fact_events GROUP BY 1"
            )
        ) == dict(months)
        for name, table, column in (
            ("accounts", "dim_accounts", "account_id"),
            ("users", "dim_users", "user_id"),
            ("geography", "dim_geography", "geography_id"),
            ("event_types", "dim_event_types", "event_type"),
            ("experiments", "dim_experiments", "experiment_id"),
        ):
            keys = set().union(*(one.keys[name] for one in self.totals))
            assert self.value(f"SELECT count(*) FROM warehouse.{table}") == len(keys)
            orphans = (
                f"SELECT count(*) FROM warehouse.fact_events f LEFT JOIN warehouse.{table} d"
                f" USING ({column}) WHERE f.{column} IS NOT NULL AND d.{column} IS NULL"
            )
            assert self.value(orphans) == 0
        batches = "SELECT sum(done), sum(failed), sum(facts) FROM tidegate.event_batches"
        assert self.execute(batches) == [(events - failed, failed, facts)]

    def assert_swept(self) -> None:
        """All is exact, with no staging table and no job at work."""
        self.assert_exact()
        left = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'stg\\_%'"
        assert self.value(left) == 0
        assert self.jobs("running") == 0

    def jobs(self, status: str) -> int:
        with psycopg.connect(self.control) as connection:
            row = connection.execute(
                "SELECT count(*) FROM tidegate_control.jobs WHERE status = %s", (status,)
            ).fetchone()
        assert row is not None
        return int(row[0])
