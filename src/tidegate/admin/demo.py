"""The demo's shop."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg import sql

from tidegate.core.errors import BusyError, TidegateError, UsageError
from tidegate.core.relation import Relation
from tidegate.iceberg.rows import main_rows
from tidegate.load.context import Context
from tidegate.postgres.embedded import EmbeddedServer

MADE_BY_DEMO = "# Made by `tidegate demo`, which starts this folder afresh each time."

TOML = f"""\
{MADE_BY_DEMO}

[project]
name = "demo"

[connections]
shop = "embedded:shop"
warehouse = "embedded:warehouse"

[spark]
master = "local[2]"

[sync.orders]
source = "shop:public.orders"
target = "warehouse:raw.orders"
cursor = "updated_at"

[sync.order_items]                  # its key is the primary key: (order_id, line)
source = "shop:public.order_items"
target = "warehouse:raw.order_items"
cursor = "updated_at"
"""

PIPELINES = '''\
"""A sync with a transformation: e-mail addresses leave the shop as a hash only."""

from pyspark.sql import functions as f

import tidegate as tg


@tg.sync(source="shop:public.customers", target="warehouse:raw.customers", cursor="updated_at")
def customers(df):
    return df.withColumn("email", f.sha2("email", 256))
'''

_TABLES = """
CREATE TABLE customers (
    id         integer PRIMARY KEY,
    name       text NOT NULL,
    email      text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE orders (
    id          integer PRIMARY KEY,
    customer_id integer NOT NULL REFERENCES customers,
    status      text NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE order_items (
    order_id   integer NOT NULL REFERENCES orders,
    line       smallint NOT NULL,
    product    text NOT NULL,
    quantity   integer NOT NULL,
    price      numeric(10, 2) NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (order_id, line)
);
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN NEW.updated_at := now(); RETURN NEW; END';
CREATE TRIGGER stamp BEFORE UPDATE ON customers FOR EACH ROW EXECUTE FUNCTION stamp();
CREATE TRIGGER stamp BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION stamp();
CREATE TRIGGER stamp BEFORE UPDATE ON order_items FOR EACH ROW EXECUTE FUNCTION stamp();
"""

# Rows depend on their number alone, so every shop is the same.
_INSERTS = {
    "customers": (
        "INSERT INTO customers SELECT n, 'Customer ' || n, 'customer' || n || '@example.com', {at}"
        " FROM generate_series({low} / 6 + 1, {high} / 6) AS n"
    ),
    "orders": (
        "INSERT INTO orders SELECT n, 1 + n * 7 % ({high} / 6),"
        " CASE WHEN n % 9 = 0 THEN 'cancelled' ELSE 'placed' END, {at}"
        " FROM generate_series({low} + 1, {high}) AS n"
    ),
    "order_items": (
        "INSERT INTO order_items SELECT n, line, 'product ' || (n * 13 + line) % 80, 1 + n % 5,"
        " 0.99 + (n * 31 + line * 17) % 500, {at}"
        " FROM generate_series({low} + 1, {high}) AS n, generate_series(1, 1 + n % 4) AS line"
    ),
}
_UPDATES = {
    "customers": (
        "UPDATE customers SET email = 'new' || id || '@example.com' WHERE id % 50 = {round}"
        " AND id <= {low} / 6"
    ),
    "orders": "UPDATE orders SET status = 'shipped' WHERE id % 30 = {round} AND id <= {low}",
    "order_items": (
        "UPDATE order_items SET quantity = quantity + 1 WHERE order_id % 40 = {round}"
        " AND order_id <= {low}"
    ),
}
FIRST_ORDERS = 3_000
NEW_ORDERS = 240

# What a row of the target must be, computed from the source by other means than the sync's.
_EXPECTED = {
    "orders": "*",
    "order_items": "*",
    "customers": (
        "id, name, encode(sha256(convert_to(email, 'UTF8')), 'hex') AS email, updated_at"
    ),
}


@dataclass(frozen=True, slots=True)
class DemoContent:
    """How many rows a table holds, and a checksum over all of them."""

    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Pair:
    """One table at its source, as it should arrive, and at its target."""

    table: str
    source: DemoContent
    target: DemoContent

    @property
    def agrees(self) -> bool:
        return self.source == self.target


@contextmanager
def demo_folder(folder: Path, more: str = "") -> Iterator[Path]:
    """The folder with a fresh project in it, kept from other demos meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another demo is running in {folder}", "wait for it, or choose another --folder"
            ) from None
        _clear(folder)
        (folder / "tidegate.toml").write_text(TOML + more, encoding="utf-8")
        (folder / "pipelines.py").write_text(PIPELINES, encoding="utf-8")
        yield folder
    finally:
        os.close(handle)


def _clear(folder: Path) -> None:
    """Remove an earlier demo, and nothing else."""
    settings = folder / "tidegate.toml"
    if not any(folder.iterdir()):
        return
    if not settings.exists() or MADE_BY_DEMO not in settings.read_text(encoding="utf-8"):
        raise UsageError(
            f"{folder} holds something that is not a demo", "choose another --folder, or empty it"
        )
    state = folder / ".tidegate"
    EmbeddedServer(state / "postgres").stop("immediate")
    # The file by which a demo is known goes last: a clearing that is cut short can be repeated.
    for path in sorted(folder.iterdir(), key=lambda path: path == settings):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def make_shop(context: Context) -> None:
    """Create the shop's tables and its first orders, stamped in the past."""
    with context.databases.connect("shop", own_path=True) as connection, connection.transaction():
        connection.execute(_TABLES)
        for statement in _INSERTS.values():
            connection.execute(
                sql.SQL(statement).format(
                    low=sql.Literal(0),
                    high=sql.Literal(FIRST_ORDERS),
                    at=sql.SQL("timestamptz '2026-01-01 08:00+00' + n * interval '10 minutes'"),
                )
            )


def change_shop(context: Context, round_: int) -> dict[str, tuple[int, int]]:
    """Do some business in one transaction; (new, changed) rows per table."""
    low = FIRST_ORDERS + NEW_ORDERS * (round_ - 1)
    values = {
        "low": sql.Literal(low),
        "high": sql.Literal(low + NEW_ORDERS),
        "round": sql.Literal(round_),
        "at": sql.SQL("now()"),
    }
    done: dict[str, tuple[int, int]] = {}
    with context.databases.connect("shop", own_path=True) as connection, connection.transaction():
        for table, insert in _INSERTS.items():
            new = connection.execute(sql.SQL(insert).format(**values)).rowcount
            changed = connection.execute(sql.SQL(_UPDATES[table]).format(**values)).rowcount
            done[table] = (new, changed)
    return done


def compare_tables(context: Context) -> list[Pair]:
    """Source against target, table by table, each computed inside its database."""
    with (
        context.databases.connect("shop", own_path=True) as shop,
        context.databases.connect("warehouse") as warehouse,
    ):
        pairs = []
        for table, columns in _EXPECTED.items():
            expected = f"(SELECT {columns} FROM public.{table})"
            # A target that is not there yet holds nothing.
            found = warehouse.execute("SELECT to_regclass(%s)::text", (f"raw.{table}",)).fetchone()
            actual = f"raw.{table}" if found and found[0] else "(SELECT 1 WHERE false)"
            contents = [
                DemoContent(*row)
                for row in (
                    shop.execute(_summary(expected)).fetchone(),
                    warehouse.execute(_summary(actual)).fetchone(),
                )
                if row is not None
            ]
            pairs.append(Pair(table, *contents))
        return pairs


def _summary(relation: str) -> sql.SQL:
    return sql.SQL(
        "SELECT count(*),"
        " left(md5(coalesce(sum(hashtextextended(t::text, 0::bigint)), 0)::text), 10)"
        f" FROM {relation} AS t"
    )


LAKE_SYNC = "orders_in_the_lake"
LAKE_TOML = f"""
[connections.lake]                  # an Iceberg catalog in the control database
type = "iceberg"

[sync.{LAKE_SYNC}]
source = "shop:public.orders"
target = "lake:raw.orders"
cursor = "updated_at"
"""
_TABLE = Relation("raw", "orders")
_COLUMNS = ("id", "customer_id", "status", "updated_at")


def compare_lake(context: Context) -> Pair:
    """The shop's orders against the lake's, each read from where it lies and summed up here."""
    with context.databases.connect("shop") as shop:
        cursor = shop.execute("SELECT id, customer_id, status, updated_at FROM public.orders")
        source = _content(cursor)
    return Pair(LAKE_SYNC, source, _content(_lake_rows(context)))


def _lake_rows(context: Context) -> Iterator[tuple[Any, ...]]:
    rows = main_rows(context.catalog("lake"), _TABLE)
    for _, batch in () if rows is None else rows.batches(_COLUMNS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _content(rows: Iterable[tuple[Any, ...]]) -> DemoContent:
    """Count and checksum, whatever the order."""
    count = total = 0
    for row in rows:
        count += 1
        digest = hashlib.sha256(repr([_plain(value) for value in row]).encode()).digest()
        total = (total + int.from_bytes(digest[:8])) % 2**64
    return DemoContent(count, f"{total:016x}"[:10])


def _plain(value: Any) -> str:
    return value.timestamp().hex() if hasattr(value, "timestamp") else str(value)


_PATIENCE_SECONDS = 300.0


def kill_run(
    root: Path, arguments: Sequence[str], point: str, look: Callable[[], None], log: Path
) -> int:
    """Start `tidegate run`, let it come to `point`, call `look`, send SIGKILL; returns the pid."""
    log.parent.mkdir(parents=True, exist_ok=True)
    flag = log.with_suffix(".reached")
    flag.unlink(missing_ok=True)
    environment = {**plain_environment(), "TIDEGATE_FAILPOINT": f"{point}=wait:{flag}"}
    command = [sys.executable, "-m", "tidegate.cli.main", "run", *arguments, "--project", str(root)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not flag.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise TidegateError(
                    f"the run that was to be killed never came to {point}",
                    "it said: " + ("\n  ".join(lines[-5:]) or "nothing"),
                )
            time.sleep(0.02)
        look()
    finally:
        process.kill()
        code = process.wait()
        flag.unlink(missing_ok=True)
    if code != -signal.SIGKILL:
        raise TidegateError(f"the run ended by itself with code {code} before it could be killed")
    return process.pid


def plain_environment() -> dict[str, str]:
    """The environment without settings of Tidegate, which are meant for other projects."""
    return {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
