"""The floor: what a hand-written pipe and a hand-written upsert cost, with no guarantees at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.shop import COLUMNS, TABLE
from tidegate.postgres.connection import Connection

KEY = "id"


def upsert(target: str, staging: str) -> str:
    """The same INSERT … ON CONFLICT that every side ends with."""
    names = ", ".join(COLUMNS)
    sets = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name != KEY)
    return f"INSERT INTO {target} ({names}) SELECT {names} FROM {staging} ON CONFLICT (id) DO UPDATE SET {sets}"  # noqa: E501


def run(
    psql: Path, source: str, target: str, session: Connection, name: str, since: str | None
) -> None:
    """COPY through a pipe into an unlogged table, then the upsert."""
    session.execute("DROP TABLE IF EXISTS floor_staging")
    session.execute(
        TABLE.format(name="floor_staging")
        .replace("CREATE TABLE", "CREATE UNLOGGED TABLE")
        .replace(" PRIMARY KEY", "")
    )
    where = "" if since is None else f" WHERE updated_at > '{since}'"
    out = subprocess.Popen(
        [psql, source, "-qc", f"COPY (SELECT * FROM orders{where}) TO STDOUT (FORMAT binary)"],
        stdout=subprocess.PIPE,
    )
    subprocess.run(
        [psql, target, "-qc", "COPY floor_staging FROM STDIN (FORMAT binary)"],
        stdin=out.stdout,
        check=True,
    )
    if out.wait() != 0:
        raise RuntimeError("the pipe's reader failed")
    session.execute(upsert(name, "floor_staging"))
    session.execute("DROP TABLE floor_staging")
