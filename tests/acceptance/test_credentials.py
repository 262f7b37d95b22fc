"""Passwords come from where libpq looks, reach the workers, and show up nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from acceptance import oracle
from acceptance.processes import Process

PASSWORD = "s3cret-of-this-test"
KEY = "key: of=this #test"


def make_reader(database: str) -> dict[str, str]:
    """A role with a password of its own that may read the source."""
    for statement in (
        "DROP ROLE IF EXISTS clerk",
        f"CREATE ROLE clerk LOGIN PASSWORD '{PASSWORD}' IN ROLE pg_read_all_stats",
        "CREATE TABLE orders (id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now())",
        "INSERT INTO orders SELECT generate_series(1, 10)",
        "GRANT SELECT ON orders TO clerk",
    ):
        oracle.rows(database, statement)
    return {key: str(value) for key, value in conninfo_to_dict(database).items()}


def command_lines(process: Process) -> str:
    """The command lines of a process and all that it started, as `ps` shows them."""
    files = [Path(f"/proc/{pid}/cmdline") for pid in process.members()]
    return "\n".join(file.read_bytes().replace(b"\0", b" ").decode() for file in files)


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
        process.wait_for(flag.exists, "the rows to be staged")
        shown = command_lines(process)
        spilled = [one.stat().st_mode & 0o777 for one in scratch.glob("tidegate-spark-*")]
        flag.unlink()
        ended = process.wait()
    finally:
        process.kill_all()
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
    assert oracle.scalar(target, "SELECT count(*) FROM raw.orders") == 10
