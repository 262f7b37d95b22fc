"""The built wheel works on its own: no file of the repository is needed to init and run.

Passwords come from where libpq looks, reach the workers, and show up nowhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from acceptance import oracle
from acceptance.processes import Process

REPOSITORY = Path(__file__).parents[2]
PASSWORD = "s3cret-of-this-test"
KEY = "key: of=this #test"


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel installed, and only the dependencies shared."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, REPOSITORY],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("tidegate-*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", purelib, wheel],
        check=True,
    )
    # Added folders are searched after the environment's own, and .pth files in them are not
    # followed, so the editable install of this repository stays out of sight.
    Path(purelib, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def make_reader(database: str) -> dict[str, str]:
    """A role with a password of its own that may read the source."""
    for statement in (
        "DROP ROLE IF EXISTS clerk",
        f"CREATE ROLE clerk LOGIN PASSWORD '{PASSWORD}' IN ROLE pg_read_all_stats",
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric,"
        " updated_at timestamptz NOT NULL DEFAULT now())",
        "INSERT INTO orders SELECT g, g FROM generate_series(1, 100) g",
        "GRANT SELECT ON orders TO clerk",
    ):
        oracle.rows(database, statement)
    return {key: str(value) for key, value in conninfo_to_dict(database).items()}


def command_lines(process: Process) -> str:
    """The command lines of a process and all that it started, as `ps` shows them."""
    files = [Path(f"/proc/{pid}/cmdline") for pid in process.members()]
    return "\n".join(file.read_bytes().replace(b"\0", b" ").decode() for file in files)


def test_the_wheel_can_init_and_run_with_a_password_file_and_shows_no_password(
    clean_python: Path, tmp_path: Path, make_database: Callable[..., str]
) -> None:
    address = make_reader(make_database("shop"))
    services, passwords, scratch = (tmp_path / one for one in ("services", "passwords", "scratch"))
    services.write_text(
        f"[shop]\nhost={address['host']}\nport={address['port']}\n"
        f"dbname={address['dbname']}\nuser=clerk\n"
    )
    passwords.write_text(f"{address['host']}:{address['port']}:*:clerk:{PASSWORD}\n")
    passwords.chmod(0o600)
    scratch.mkdir()
    folder = tmp_path / "project"
    folder.mkdir()
    clean = {
        "PYTHONPATH": "",
        "PYTHONSAFEPATH": "1",
        "TMPDIR": str(scratch),
        "PGSERVICEFILE": str(services),
        "PGPASSFILE": str(passwords),
    }

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [clean_python, *arguments],
            cwd=folder,
            env={**os.environ, **clean},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    program = ("-m", "tidegate.cli.main")
    where = python("-c", "import tidegate; print(tidegate.__file__)")
    assert not Path(where).is_relative_to(REPOSITORY)
    made = python(*program, "init", "star", "--template", "events")
    assert "views/mv_revenue_summary.sql" in made
    python(*program, "init", "--source", "service=shop")
    with (folder / "tidegate.toml").open("a") as settings:
        settings.write(f'[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "{KEY}"\n')
    flag = tmp_path / "staged"
    process = Process(
        [str(clean_python), *program, "run", "--all"],
        tmp_path / "run",
        {**clean, "TIDEGATE_FAILPOINT": f"stage.done=wait:{flag}"},
        folder,
    )
    try:
        process.wait_for(flag.exists, "the rows to be staged")
        shown = command_lines(process)
        spilled = [one.stat().st_mode & 0o777 for one in scratch.glob("tidegate-spark-*")]
        flag.unlink()
        ended = process.wait()
        assert "100 rows equal" in python(*program, "verify", "--all")
    finally:
        process.kill_all()
        python(*program, "db", "stop")
    assert ended.code == 0, ended
    assert "100 rows" in ended.out
    assert "java" in shown
    said = shown + ended.out + ended.err
    logs = "".join(file.read_text() for file in (folder / ".tidegate" / "logs").iterdir())
    assert PASSWORD not in said + logs
    assert KEY not in shown
    assert "spark.hadoop" not in shown
    assert "spark.authenticate" not in shown
    assert not list((folder / ".tidegate" / "spark").glob("tmp*.properties"))
    # What Spark spills nobody else can read, and it is gone with the process.
    assert spilled == [0o700]
    assert not list(scratch.glob("tidegate-spark-*"))
