"""Passwords come from where libpq looks, reach the workers, and show up nowhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from acceptance.processes import Process, until

PASSWORD = "s3cret-of-this-test"
KEY = "key: of=this #test"


def make_reader(database: str) -> dict[str, str]:
    """A role with a password of its own that may read the source."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS clerk")
        connection.execute(
            sql.SQL("CREATE ROLE clerk LOGIN PASSWORD {} IN ROLE pg_read_all_stats").format(
                sql.Literal(PASSWORD)
            )
        )
        connection.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamptz NOT NULL"
            " DEFAULT now()); INSERT INTO orders SELECT generate_series(1, 10);"
            " GRANT SELECT ON orders TO clerk"
        )
    return {key: str(value) for key, value in conninfo_to_dict(database).items()}


def command_lines(session: int) -> str:
    """The command lines of every process in a session, as `ps` shows them."""
    lines = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if os.getsid(int(folder.name)) == session:
                lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (ProcessLookupError, FileNotFoundError):
            continue
    return "\n".join(lines)


def test_a_service_and_a_password_file_are_enough_and_the_password_is_never_seen(
    tmp_path: Path, make_database: Callable[..., str]
) -> None:
    source, target = make_database("shop"), make_database("warehouse")
    address = make_reader(source)
    (tmp_path / "services").write_text(
        f"[shop]\nhost={address['host']}\nport={address['port']}\n"
        f"dbname={address['dbname']}\nuser=clerk\n"
    )
    passwords = tmp_path / "passwords"
    passwords.write_text(f"{address['host']}:{address['port']}:*:clerk:{PASSWORD}\n")
    passwords.chmod(0o600)
    (tmp_path / "tidegate.toml").write_text(
        '[project]\nname = "credentials"\ncontrol = "${TARGET}"\n'
        '[connections]\nshop = "service=shop"\nwarehouse = "${TARGET}"\n'
        '[spark]\nmaster = "local[1]"\n'
        f'[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "{KEY}"\n'
        '[sync.orders]\nsource = "shop:public.orders"\ntarget = "warehouse:raw.orders"\n'
        'cursor = "updated_at"\n'
    )
    flag = tmp_path / "staged"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = Process(
        [sys.executable, "-m", "tidegate.cli.main", "run", "orders", "-C", str(tmp_path)],
        tmp_path / "run",
        {
            "PGSERVICEFILE": str(tmp_path / "services"),
            "PGPASSFILE": str(passwords),
            "TARGET": target,
            "TMPDIR": str(scratch),
            "TIDEGATE_FAILPOINT": f"stage.done=wait:{flag}",
        },
    )
    try:
        until(lambda: flag.exists() or not process.alive, "the rows to be staged")
        shown = command_lines(process.pid)
        spilled = [one.stat().st_mode & 0o777 for one in scratch.glob("tidegate-spark-*")]
        flag.unlink(missing_ok=True)
        ended = process.wait()
    finally:
        process.kill()
    assert ended.code == 0, ended
    assert "10 rows" in ended.out
    assert "java" in shown
    said = shown + ended.out + ended.err
    logs = "".join(file.read_text() for file in (tmp_path / ".tidegate" / "logs").iterdir())
    assert PASSWORD not in said + logs
    assert KEY not in shown
    assert "spark.hadoop" not in shown
    assert "spark.authenticate" not in shown
    assert not list((tmp_path / ".tidegate" / "spark").glob("tmp*.properties"))
    # What Spark spills nobody else can read, and it is gone with the process.
    assert spilled == [0o700]
    assert not list(scratch.glob("tidegate-spark-*"))
    with psycopg.connect(target) as connection:
        row = connection.execute("SELECT count(*) FROM raw.orders").fetchone()
        assert row == (10,)
