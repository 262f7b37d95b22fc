"""Several writers with transactions open beside each other, over one table, until told to end.

What they do follows from the seed. One thread takes their steps in turn, so that a seed that has
failed does nearly the same again; when a run is killed under them depends on the machine.
"""

from __future__ import annotations

import itertools
import random
import threading
from types import TracebackType
from typing import Self

import psycopg
from psycopg import errors

EXTRA = "extra"
_PAUSE_SECONDS = 0.008
_LARGE = 3000
"""characters that are stored apart from their row"""
_PICK = """
WITH picked AS MATERIALIZED (
    SELECT region, id FROM public.orders ORDER BY md5(id::text || %s) LIMIT %s
    FOR UPDATE SKIP LOCKED
)
"""
_THESE = "WHERE (orders.region, orders.id) IN (SELECT region, id FROM picked)"


class _Writer:
    """One session and the transaction that it is in."""

    def __init__(self, conninfo: str) -> None:
        self.connection = psycopg.connect(conninfo, application_name="writer")
        # Nobody is there to end a wait but the one who waits.
        self.connection.execute("SET lock_timeout = '15ms'")
        self.connection.commit()
        self.left = 0
        self.savepoints: list[str] = []

    def end(self, *, commit: bool) -> None:
        if commit:
            self.connection.commit()
        else:
            self.connection.rollback()
        self.left = 0
        self.savepoints.clear()


class Workload:
    """Writes from the moment it is entered; at the end every transaction has ended."""

    def __init__(self, conninfo: str, seed: int, *, removes: bool, writers: int = 4) -> None:
        self._conninfo = conninfo
        self._rng = random.Random(f"workload {seed}")
        self._removes = removes
        """rows are deleted and change their keys"""
        self._count = writers
        self._writers: list[_Writer] = []
        self._ids = itertools.count(10_000)
        self._names = itertools.count()
        self._freed: list[tuple[str, int]] = []
        self._steps = threading.Semaphore(0)
        self._stop = threading.Event()
        self._wanted = threading.Event()
        self._altered = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.commits = 0
        self.rollbacks = 0

    def __enter__(self) -> Self:
        self._writers = [_Writer(self._conninfo) for _ in range(self._count)]
        with psycopg.connect(self._conninfo) as connection:
            connection.execute(
                'ALTER TABLE public.orders ALTER COLUMN "Note Text" SET STORAGE EXTERNAL'
            )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the writers are stuck"
        for writer in self._writers:
            writer.connection.close()
        if self._failure is not None and error is None:
            raise self._failure

    def write(self, steps: int) -> bool:
        """Take so many steps more; transactions that are open then go on to their ends."""
        self._steps.release(steps)
        return False

    def add_column(self) -> None:
        """Change the table's columns between two transactions, and go on with the new one."""
        self._wanted.set()
        while not self._altered.wait(0.1):
            assert self._thread.is_alive(), self._failure

    def _write(self) -> None:
        try:
            while not self._stop.wait(_PAUSE_SECONDS):
                if self._wanted.is_set() and not self._altered.is_set():
                    self._alter()
                self._step_one()
            for writer in self._rng.sample(self._writers, len(self._writers)):
                self._end(writer)
        except BaseException as error:
            self._failure = error

    def _step_one(self) -> None:
        if self._steps.acquire(blocking=False):
            self._step(self._rng.choice(self._writers))
        elif opened := [one for one in self._writers if one.left]:
            self._step(self._rng.choice(opened))

    def _step(self, writer: _Writer) -> None:
        rng = self._rng
        if writer.left == 0:
            # Most are short; a few stay open while others come and go, and while runs do.
            writer.left = rng.randint(1, 6) if rng.random() < 0.8 else rng.randint(40, 120)
        self._act(writer)
        writer.left -= 1
        if writer.left == 0:
            self._end(writer)

    def _end(self, writer: _Writer) -> None:
        commit = self._rng.random() < 0.85
        self.commits += commit
        self.rollbacks += not commit
        writer.end(commit=commit)

    def _act(self, writer: _Writer) -> None:
        rng, connection = self._rng, writer.connection
        actions = [self._insert, self._update, self._touch, self._insert_many]
        weights = [6, 6, 6, 1]
        if self._removes:
            actions += [self._delete, self._rekey, self._swap, self._take_freed]
            weights += [5, 4, 2, 2]
        if rng.random() < 0.2:
            self._savepoint(writer)
        (action,) = rng.choices(actions, weights)
        connection.execute("SAVEPOINT one")
        try:
            action(connection)
        except (errors.UniqueViolation, errors.LockNotAvailable):
            connection.execute("ROLLBACK TO SAVEPOINT one")
        else:
            connection.execute("RELEASE SAVEPOINT one")

    def _savepoint(self, writer: _Writer) -> None:
        if writer.savepoints and self._rng.random() < 0.6:
            at = self._rng.randrange(len(writer.savepoints))
            name = writer.savepoints[at]
            word = self._rng.choice(["RELEASE", "ROLLBACK TO"])
            writer.connection.execute(f"{word} SAVEPOINT {name}")  # type: ignore[arg-type]
            del writer.savepoints[at + (word != "RELEASE") :]
        else:
            writer.savepoints.append(f"s{next(self._names)}")
            writer.connection.execute(f"SAVEPOINT {writer.savepoints[-1]}")  # type: ignore[arg-type]

    def _insert(self, connection: psycopg.Connection, rows: int = 1) -> None:
        for _ in range(rows):
            self._put(connection, self._region(), next(self._ids))

    def _insert_many(self, connection: psycopg.Connection) -> None:
        self._insert(connection, self._rng.randint(10, 25))

    def _take_freed(self, connection: psycopg.Connection) -> None:
        """Another row under a key that was deleted, perhaps by a transaction that took it back."""
        if self._freed:
            self._put(connection, *self._rng.choice(self._freed))

    def _put(self, connection: psycopg.Connection, region: str, number: int) -> None:
        names, values = self._values()
        columns = ", ".join(["region", "id", *names])
        places = ", ".join(["%s"] * (2 + len(names)))
        connection.execute(
            f"INSERT INTO public.orders ({columns}) VALUES ({places})",  # type: ignore[arg-type]
            (region, number, *values),
        )

    def _update(self, connection: psycopg.Connection) -> None:
        names, values = self._values()
        settings = ", ".join(f"{name} = %s" for name in names)
        statement = f"{_PICK} UPDATE public.orders SET {settings}, updated_at = now() {_THESE}"
        connection.execute(statement, (*self._some(), *values))  # type: ignore[arg-type]

    def _touch(self, connection: psycopg.Connection) -> None:
        """Change a row and leave what is stored apart from it."""
        statement = f"{_PICK} UPDATE public.orders SET total = %s, seq = DEFAULT {_THESE}"
        connection.execute(statement, (*self._some(), self._rng.randint(0, 999)))  # type: ignore[arg-type]

    def _delete(self, connection: psycopg.Connection) -> None:
        statement = f"{_PICK} DELETE FROM public.orders {_THESE} RETURNING region, id"
        self._freed += connection.execute(statement, self._some()).fetchall()  # type: ignore[arg-type]

    def _rekey(self, connection: psycopg.Connection) -> None:
        picked = self._keys(connection, 1)
        for key in picked:
            new = (self._region(), next(self._ids))
            if self._freed and self._rng.random() < 0.4:
                new = self._rng.choice(self._freed)
            self._move(connection, key, new)
            self._freed.append(key)

    def _swap(self, connection: psycopg.Connection) -> None:
        """Two rows change places, over a key that nobody ever sees."""
        picked = self._keys(connection, 2)
        if len(picked) == 2:
            one, two = picked
            aside = ("aside", next(self._ids))
            for old, new in ((one, aside), (two, one), (aside, two)):
                self._move(connection, old, new)

    def _keys(self, connection: psycopg.Connection, count: int) -> list[tuple[str, int]]:
        statement = f"{_PICK} SELECT region, id FROM picked"
        return connection.execute(statement, (str(self._rng.random()), count)).fetchall()  # type: ignore[arg-type]

    def _move(
        self, connection: psycopg.Connection, old: tuple[str, int], new: tuple[str, int]
    ) -> None:
        connection.execute(
            "UPDATE public.orders SET region = %s, id = %s WHERE (region, id) = (%s, %s)",
            (*new, *old),
        )

    def _alter(self) -> None:
        """One transaction writes with the old columns, makes a new one and writes with it."""
        for writer in self._writers:
            if writer.left:
                self._end(writer)
        connection = self._writers[0].connection
        truncate = self._removes and self._rng.random() < 0.3
        try:
            self._insert(connection, 2)
            # It waits for a run that reads the table, and may be waited for by one that begins.
            connection.execute("SET LOCAL lock_timeout = '1s'")
            if truncate:
                connection.execute("TRUNCATE public.orders")
                self._insert(connection, 5)
            connection.execute(f"ALTER TABLE public.orders ADD COLUMN {EXTRA} integer")  # type: ignore[arg-type]
        except errors.LockNotAvailable:
            connection.rollback()
            return
        self._altered.set()
        self._insert(connection, 2)
        self._update(connection)
        connection.commit()

    def _values(self) -> tuple[list[str], list[object]]:
        rng = self._rng
        values: dict[str, object] = {
            "status": rng.choice(["new", "paid", "sent", "o'k", None]),
            "total": rng.randint(0, 10**7) / 100,
            '"Note Text"': rng.choice(
                [None, "", "a\tb\\n'\"", "æøå 漢字", rng.randbytes(_LARGE // 2).hex()]
            ),
            "payload": rng.choice([None, '{"n": 1, "s": "ü"}', "[]"]),
            "tags": rng.choice([None, [], ["a", None, "b,c"]]),
        }
        if self._altered.is_set():
            values[EXTRA] = rng.choice([None, rng.randint(0, 999)])
        return list(values), list(values.values())

    def _region(self) -> str:
        return self._rng.choice(["north", "south", "Øst", "o'west"])

    def _some(self) -> tuple[str, int]:
        return str(self._rng.random()), self._rng.randint(1, 3)
