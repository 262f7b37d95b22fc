"""A table that is altered, emptied, swapped and rewritten while syncs of every kind read it.

One thread writes to the table and changes it, as its owner would. Two give commands for the syncs,
some of them in processes that are killed; this module is their script. One reads the source as any
other user does, and one looks at the targets. What must hold is looked up by plain SQL.
"""

from __future__ import annotations

import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors as pg

if __name__ == "__main__":
    sys.path.insert(1, str(Path(__file__).parents[1]))

from forked import Forked
from integration.conftest import Database, Place, open_without_spark, without_spark
from tidegate.core.errors import TidegateError
from tidegate.project import Project
from tidegate.verify.report import Verdict
from tried import count as tried

LOCK_SECONDS = 1
SLACK_SECONDS = 10
"""what a busy machine may add to a wait for a lock"""
ANCHORS = 60
"""so many rows are never deleted, and never in a partition that is taken out"""
STOPPED = 3

SETTINGS: dict[str, Any] = {
    "safety": {"lock_timeout": f"{LOCK_SECONDS}s"},
    "worker": {"lock_timeout": "2s", "lease": "9s", "heartbeat": "1s"},
}
_SOURCE = {"source": "shop:public.orders", "key": "id", "batch_rows": 40}
_CURSOR = {**_SOURCE, "cursor": "updated_at"}
KINDS: dict[str, dict[str, Any]] = {
    "merge": _CURSOR,
    "delete_insert": {**_CURSOR, "mode": "delete_insert"},
    "versions": {**_CURSOR, "mode": "append"},
    "replace": {**_SOURCE, "mode": "replace"},
    "snapshot": {**_SOURCE, "changes": "snapshot"},
    "cdc": {**_SOURCE, "changes": "cdc"},
}
BY_CURSOR = ("merge", "delete_insert", "versions")
SYNCS = [{"name": name, **kind, "target": f"warehouse:raw.{name}"} for name, kind in KINDS.items()]
COMMANDS = {"run": 10, "refresh": 3, "verify": 3, "repair": 3, "backfill": 2}
POINTS = (
    "job.claimed",
    "fence.raised",
    "slot.made",
    "changes.landed",
    "batch.planned",
    "evolve.changed",
    "stage.write",
    "stage.done",
    "publish.applied",
    "publish.committed",
    "slot.noted",
    "job.finishing",
)


def command(project: Project, name: str, what: str, *, allow: bool = False) -> None:
    """What a person or a schedule would do to one sync."""
    if what in ("run", "refresh"):
        project.run(name, full_refresh=what == "refresh", allow_removal=allow)
    elif what == "backfill":
        project.backfill(name, low="2026-01-01", high="2030-01-01", chunk="1 year")
    else:
        project.verify(name, repair=what == "repair", allow_removal=allow)


def say(seconds: float, *what: object) -> None:
    """A line for whoever looks into a seed that failed."""
    print(f"{time.strftime('%X')} {seconds:5.2f} s", threading.current_thread().name, *what)


@dataclass
class Table:
    """The source, as its owner changes it; remembers what neither cursor nor log can know."""

    database: Database
    chance: random.Random
    partitioned: bool
    late: set[int] = field(default_factory=set)
    """rows that came with a partition, whatever their stamps"""
    added: set[str] = field(default_factory=set)
    """columns that rows have got without being written"""
    recast: bool = False
    """whether ALTER TYPE has given `total` other values"""
    longest: tuple[float, str] = (0.0, "")
    done: Counter[str] = field(default_factory=Counter)
    _type: str = "integer"
    _parts: dict[int, str] = field(default_factory=dict)
    _apart: dict[int, str] = field(default_factory=dict)
    _extra: list[str] = field(default_factory=list)
    _gone: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _ids: Counter[int] = field(default_factory=Counter)

    def create(self) -> None:
        by = "PARTITION BY RANGE (id)" if self.partitioned else ""
        self.database.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, total integer, note text,"
            f" updated_at timestamptz NOT NULL) {by}"
        )
        if self.partitioned:
            self._parts = {place: f"part_{place}_0" for place in range(2)}
            for place, name in self._parts.items():
                self.database.execute(
                    f"CREATE TABLE {name} PARTITION OF orders FOR VALUES {_bounds(place)}"
                )
        self.database.execute(
            "INSERT INTO orders SELECT n, n, 'anchor', '2026-01-01'::timestamptz + n * interval"
            f" '1 minute' FROM generate_series(1, {ANCHORS}) n"
        )
        self.write()

    def write(self) -> None:
        """Rows come, change and go, with the stamps that a cursor needs."""
        place = self.chance.choice(list(self._parts)) if self.partitioned else 0
        self._do(
            self._insert("orders", place, "clock_timestamp()"),
            self._update("orders", f"id % 7 = {self.chance.randrange(7)}"),
            f"DELETE FROM orders WHERE id > {ANCHORS} AND id % 29 = {self.chance.randrange(29)}",
        )

    def _insert(self, table: str, place: int, stamp: str) -> str:
        rows = self.chance.randint(1, 12)
        low = place * 1000 + ANCHORS + 1 + self._ids[place]
        self._ids[place] += rows
        return (
            f"INSERT INTO {table} (id, total, updated_at) SELECT n, n::{self._type}, {stamp}"
            f" FROM generate_series({low}, {low + rows - 1}) n"
        )

    def _update(self, table: str, condition: str) -> str:
        return (
            f"UPDATE {table} SET total = (total::text::bigint + 1)::{self._type},"
            f" updated_at = clock_timestamp() WHERE {condition}"
        )

    def change(self) -> None:
        """One change of the table itself, chosen at random."""
        ways = [
            self.add,
            self.drop,
            self.alter_type,
            self.truncate_and_insert,
            self.swap,
            self.reindex,
            self.vacuum_full,
        ]
        if self.partitioned:
            ways += [self.attach, self.detach] * 2
        way = self.chance.choice(ways)
        way()
        self.done[way.__name__] += 1

    def add(self) -> None:
        again = self._gone and self.chance.random() < 0.3
        name = self._gone.pop() if again else f"extra_{next(self._numbers)}"
        kind = self.chance.choice(
            ["text", "integer DEFAULT 7", "text NOT NULL DEFAULT 'x'", "uuid DEFAULT uuidv4()"]
        )
        # A column that is made again has no values, and the target keeps those of its namesake.
        if again or "DEFAULT" in kind:
            self.added.add(name)
        self._do(f"ALTER TABLE orders ADD COLUMN {name} {kind}")
        self._extra.append(name)

    def drop(self) -> None:
        if self._extra:
            name = self._extra.pop(self.chance.randrange(len(self._extra)))
            self._do(f"ALTER TABLE orders DROP COLUMN {name}")
            self._gone.append(name)

    def alter_type(self) -> None:
        wanted = self.chance.choice(["integer", "bigint", "numeric", "double precision", "text"])
        plus = self.chance.choice([0, 0, 1])
        self.recast |= plus > 0
        self._do(
            f"ALTER TABLE orders ALTER total TYPE {wanted}"
            f" USING (total::text::bigint + {plus})::{wanted}"
        )
        self._type = wanted

    def truncate_and_insert(self) -> None:
        stamp = self.chance.choice([[], ["UPDATE kept SET updated_at = clock_timestamp()"]])
        self._do(
            "CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM orders",
            *stamp,
            "TRUNCATE orders",
            "INSERT INTO orders SELECT * FROM kept",
        )

    def swap(self) -> None:
        """Another table takes the name."""
        number = next(self._numbers)
        parts = {place: f"part_{place}_{number}" for place in self._parts}
        by = "PARTITION BY RANGE (id)" if self.partitioned else ""
        self._do(
            f"CREATE TABLE orders_{number} (LIKE orders INCLUDING ALL) {by}",
            *(
                f"CREATE TABLE {name} PARTITION OF orders_{number} FOR VALUES {_bounds(place)}"
                for place, name in parts.items()
            ),
            f"INSERT INTO orders_{number} SELECT * FROM orders",
            f"ALTER TABLE orders RENAME TO old_{number}",
            f"ALTER TABLE orders_{number} RENAME TO orders",
            *self.chance.choice([[], [f"DROP TABLE old_{number}"]]),
        )
        self._parts = parts

    def reindex(self) -> None:
        self._do("REINDEX TABLE orders")

    def vacuum_full(self) -> None:
        self._do("VACUUM FULL orders")

    def detach(self) -> None:
        places = [place for place in self._parts if place > 0]
        if places:
            place = self.chance.choice(places)
            name = self._apart[place] = self._parts.pop(place)
            self._do(f"ALTER TABLE orders DETACH PARTITION {name}")

    def attach(self) -> None:
        """A new partition, or one that was taken out, with what was written to it meanwhile."""
        if self._apart and self.chance.random() < 0.7:
            place, name = self._apart.popitem()
            if self._columns(name) != self._columns("orders"):
                return
            self._do(self._update(name, "id % 3 = 1"))
        else:
            number = next(self._numbers)
            place, name = number + 1, f"part_{number + 1}_{number}"
            stamp = self.chance.choice(["clock_timestamp()", "'2026-02-01'::timestamptz"])
            self._do(f"CREATE TABLE {name} (LIKE orders INCLUDING ALL)")
            self._do(self._insert(name, place, stamp))
        self.late |= {number for (number,) in self.database.execute(f"SELECT id FROM {name}")}
        self._do(f"ALTER TABLE orders ATTACH PARTITION {name} FOR VALUES {_bounds(place)}")
        self._parts[place] = name

    def _columns(self, name: str) -> list[tuple[Any, ...]]:
        return self.database.execute(
            "SELECT attname, atttypid, attnotnull FROM pg_attribute WHERE attnum > 0"
            f" AND NOT attisdropped AND attrelid = '{name}'::regclass ORDER BY 1"
        )

    def _do(self, *statements: str) -> None:
        """In one transaction, which may stay open for a while; whoever waits too long is noted."""
        pause = self.chance.choice([0.0, 0.0, 0.1, 0.3]) if len(statements) > 1 else 0.0
        while True:
            began = time.monotonic()
            try:
                with self.database.connect() as session:
                    if len(statements) == 1:
                        session.execute(statements[0])  # type: ignore[arg-type]
                    else:
                        with session.transaction():
                            for statement in statements:
                                session.execute(statement)  # type: ignore[arg-type]
                            session.execute("SELECT pg_sleep(%s)", (pause,))
                took = time.monotonic() - began - pause
                say(took, *(statement[:60] for statement in statements))
                self.longest = max(self.longest, (took, "; ".join(statements)))
                return
            except pg.DeadlockDetected:
                # As every reader's order of locks may differ from that of a change.
                self.done["deadlock"] += 1


def _bounds(place: int) -> str:
    return f"FROM ({place * 1000}) TO ({place * 1000 + 1000})"


class Storm:
    """Everything at once, and what must hold in it and after it."""

    def __init__(self, place: Place, seed: int, commands: int) -> None:
        self.place = place
        self.seed = seed
        self.commands = commands
        chance = random.Random(f"{seed} table")
        self.table = Table(place.source, chance, partitioned=seed % 3 != 0)
        # Four of them, so that a seed stays short; three seeds have all.
        self.kinds = [list(KINDS)[(seed * 2 + place) % len(KINDS)] for place in range(4)]
        self.said: Counter[str] = Counter()
        self.killed = 0
        self._over = threading.Event()
        self._failed: list[BaseException] = []

    def rage(self) -> None:
        self.table.create()
        commands = [self._thread(self._command, number) for number in range(2)]
        others = [self._thread(work) for work in (self._change, self._read, self._look)]
        for thread in commands:
            thread.join()
        self._over.set()
        for thread in others:
            thread.join()
        if self._failed:
            raise self._failed[0]
        took, statement = self.table.longest
        assert took < LOCK_SECONDS + SLACK_SECONDS, f"{statement} waited for {took:.1f} s"

    def _thread(self, work: Callable[..., None], *given: object) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*given)
            except BaseException as error:
                self._failed.append(error)
                self._over.set()

        thread = threading.Thread(target=guarded, name=work.__name__, daemon=True)
        thread.start()
        return thread

    def _change(self) -> None:
        while not self._over.is_set():
            self.table.write()
            self.table.change()
            self._over.wait(self.table.chance.uniform(0, 0.3))

    def _read(self) -> None:
        """Another user of the source is never kept waiting, and always finds the table."""
        with self.place.source.connect() as session:
            while not self._over.wait(0.02):
                began = time.monotonic()
                row = session.execute("SELECT count(*) FROM orders").fetchone()
                took = time.monotonic() - began
                assert row is not None
                assert row[0] >= ANCHORS
                assert took < LOCK_SECONDS + SLACK_SECONDS, f"a reader waited for {took:.1f} s"

    def _look(self) -> None:
        """Once they are loaded, rows that the source always has are always in the target."""
        loaded: set[str] = set()
        with self.place.target.connect() as session:
            while not self._over.wait(0.05):
                for name in self.kinds:
                    try:
                        row = session.execute(
                            f"SELECT count(*) FROM raw.{name} WHERE id <= {ANCHORS}"  # type: ignore[arg-type]
                        ).fetchone()
                    except (pg.UndefinedTable, pg.InvalidSchemaName):
                        assert name not in loaded, f"{name} is gone"
                        continue
                    assert row is not None
                    if row[0] == ANCHORS:
                        loaded.add(name)
                    assert name not in loaded or row[0] == ANCHORS, f"{name} has {row[0]} rows"

    def _command(self, number: int) -> None:
        chance = random.Random(f"{self.seed} commands {number}")
        with open_without_spark(self.place) as project:
            for _ in range(self.commands):
                if self._over.is_set():
                    return
                name = chance.choice(self.kinds)
                what = chance.choices(list(COMMANDS), COMMANDS.values())[0]
                if what == "backfill" and name not in BY_CURSOR:
                    what = "run"
                if chance.random() < 0.3:
                    self._kill(chance, name, what)
                    continue
                began = time.monotonic()
                try:
                    command(project, name, what)
                    say(time.monotonic() - began, what, name)
                except TidegateError as error:
                    say(time.monotonic() - began, what, name, repr(error))
                    self._note(name, what, error)

    def _kill(self, chance: random.Random, name: str, what: str) -> None:
        """The same in a process that is killed, at a named point or some time."""
        environment = {**os.environ, "TIDEGATE_FAILPOINT": ""}
        seconds = chance.uniform(0.2, 2)
        if chance.random() < 0.6:
            environment["TIDEGATE_FAILPOINT"] = f"{chance.choice(POINTS)}=kill"
            seconds = 60
        log = self.place.folder / f"killed-{threading.get_ident()}"
        with log.open("w+") as printed, Path(os.devnull).open() as nothing:
            streams = (nothing.fileno(), printed.fileno(), printed.fileno())
            script = [__file__, str(self.place.folder), name, what]
            process = Forked(script, streams, environment, self.place.folder)
            if process._ended(seconds) is None:
                process.kill()
            code = process.wait(30)
            printed.seek(0)
            assert code in (0, STOPPED, -9), f"{what} {name} ended with {code}: {printed.read()}"
            printed.seek(0)
            say(0, what, name, environment["TIDEGATE_FAILPOINT"], code, printed.read())
        self.killed += code == -9
        tried(kills=code == -9)

    def _note(self, name: str, what: str, error: TidegateError) -> None:
        assert error.hint, f"{what} {name} stopped without a way on: {error!r}"
        self.said[f"{what} {name}: {type(error).__name__}"] += 1

    # --- afterwards

    def calm(self) -> None:
        """Each sync gets right by a run, or by what it or verify names as the way."""
        self.table.write()
        with open_without_spark(self.place) as project:
            for name in self.kinds:
                self._follow(project, name, "run")
                self._assert_loaded(name)
                for _ in range(3):
                    found = project.verify(name)
                    if found.verdict is Verdict.EQUAL:
                        break
                    assert found.hint, f"{name}: verify names no way: {found}"
                    self.said[f"verify {name}: {found.verdict}"] += 1
                    self._go(project, name, found.hint)
                self._assert_equal(name)
                assert found.verdict is Verdict.EQUAL, found

    def _follow(self, project: Project, name: str, what: str, *, allow: bool = False) -> None:
        """Do it, and where it stops do what is said; then it must go through."""
        for _ in range(6):
            try:
                command(project, name, what, allow=allow)
                return
            except TidegateError as error:
                say(0, what, name, error)
                self._note(name, what, error)
                self._go(project, name, str(error))
        raise AssertionError(f"{what} {name} does not get through: {self.said}")

    def _go(self, project: Project, name: str, hint: str) -> None:
        """The way that a message names."""
        allow = "--allow-removal" in hint
        altering = re.findall(r"(?:ALTER TABLE|DROP VIEW|CREATE VIEW) .*?(?=; | \(or |\n|$)", hint)
        if altering:
            self.place.target.execute("; ".join(altering))
        elif f"tidegate verify {name} --repair" in hint:
            self._follow(project, name, "repair", allow=allow)
        elif f"tidegate run {name} --full-refresh" in hint:
            self._follow(project, name, "refresh", allow=allow)
        elif f"tidegate run {name}" in hint:
            self._follow(project, name, "run", allow=allow)
        else:
            assert "again" in hint, f"{name}: no way that can be gone: {hint}"

    def _assert_loaded(self, name: str) -> None:
        """After a run that said nothing: what this kind of sync promises, and nothing less."""
        table = self.table
        missing, extra, different = self._compare(name)
        columns = set(table.added)
        if name == "replace":
            columns = set()
        if name in (*BY_CURSOR, "snapshot"):
            # These do not see that rows go, nor values that change without being written.
            extra = set()
            columns |= {"total"} if table.recast else set()
        if name in BY_CURSOR:
            missing -= table.late
            different = {one for one in different if one[0] not in table.late}
        different = {one for one in different if one[1] not in columns}
        _assert_none(f"{name} after a run", missing=missing, extra=extra, different=different)

    def _assert_equal(self, name: str) -> None:
        missing, extra, different = self._compare(name)
        _assert_none(f"{name} in the end", missing=missing, extra=extra, different=different)

    def _compare(self, name: str) -> tuple[set[int], set[int], set[tuple[int, str]]]:
        """Keys that are missing and too many, and where values differ, printed by the servers."""
        with self.place.source.connect() as session:
            columns = _printed(session, "orders")
            wanted = _rows(session, "orders", columns)
        with self.place.target.connect() as session:
            found = _rows(session, f"raw.{name}", columns)
        tried(rows_compared=len(wanted))
        different = {
            (key, column)
            for key in wanted.keys() & found.keys()
            for column, one, other in zip(columns, wanted[key], found[key], strict=True)
            if one != other
        }
        return wanted.keys() - found.keys(), found.keys() - wanted.keys(), different


def _assert_none(what: str, **wrong: set[Any]) -> None:
    tried(differences=sum(map(len, wrong.values())))
    assert not any(wrong.values()), f"{what}: {wrong}"


def _printed(session: psycopg.Connection[Any], table: str) -> list[str]:
    rows = session.execute(
        "SELECT attname FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped"
        f" AND attrelid = '{table}'::regclass ORDER BY 1"  # type: ignore[arg-type]
    )
    return [name for (name,) in rows]


def _rows(
    session: psycopg.Connection[Any], table: str, columns: list[str]
) -> dict[int, tuple[str, ...]]:
    session.execute("SET TimeZone = 'UTC'")
    texts = ", ".join(f"{column}::text" for column in columns)
    rows = session.execute(f"SELECT id, {texts} FROM {table}").fetchall()  # type: ignore[arg-type]
    found = {row[0]: row[1:] for row in rows}
    assert len(found) == len(rows), f"{table} has a key twice"
    return found


def main() -> int:
    folder, name, what = sys.argv[1:]
    with without_spark(Project.open(folder)) as project:
        try:
            command(project, name, what)
        except TidegateError as error:
            print(repr(error))
            return STOPPED if error.hint else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
