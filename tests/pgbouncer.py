"""A real pgbouncer for tests: the system's, or Debian's package unpacked into a cache folder.

Works without root and without package lists: apt keeps lists of its own in the cache then.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tidegate.postgres.embedded import HOST, USER, EmbeddedServer


@contextmanager
def pgbouncer(
    server: EmbeddedServer, cache: Path, folder: Path, settings: Mapping[str, str]
) -> Iterator[int]:
    """Run one in front of a server, and give its port; it takes any user name."""
    binary, libraries = find_pgbouncer(cache)
    port = _free_port()
    config = folder / f"pgbouncer-{port}.ini"
    lines = [
        "[databases]",
        f"* = host={HOST} port={server.port} user={USER} password={server.password()}",
        "[pgbouncer]",
        f"listen_addr = {HOST}",
        f"listen_port = {port}",
        "unix_socket_dir =",
        "auth_type = any",
        "log_connections = 0",
        "log_disconnections = 0",
        "log_stats = 0",
        *(f"{name} = {value}" for name, value in settings.items()),
    ]
    config.write_text("\n".join(lines) + "\n")
    config.chmod(0o600)
    # It refuses to serve as root, and changes its user after it has read the file.
    as_user = ["-u", "nobody"] if os.geteuid() == 0 else []
    process = subprocess.Popen(
        [str(binary), *as_user, str(config)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": libraries},
    )
    try:
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if "process up" in line:
                break
        else:
            raise AssertionError("pgbouncer did not start: " + "".join(said))
        yield port
    finally:
        process.kill()
        process.communicate()


def find_pgbouncer(cache: Path) -> tuple[Path, str]:
    """The binary, and the folders of libraries that it needs besides the system's."""
    installed = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if installed:
        return Path(installed), ""
    unpacked = cache / "unpacked"
    if not unpacked.is_dir():
        fresh = cache / f"unpacking-{os.getpid()}"
        _unpack(cache, fresh)
        try:
            fresh.rename(unpacked)
        except OSError:  # another process was quicker
            shutil.rmtree(fresh)
    folders = {str(path.parent) for path in (unpacked / "usr/lib").rglob("*.so*")}
    return unpacked / "usr/sbin/pgbouncer", ":".join(sorted(folders))


def _unpack(cache: Path, into: Path) -> None:
    own_lists = cache / "lists"
    options: list[str] = []
    if not _apt_cache("show", "pgbouncer", options=options):
        (own_lists / "partial").mkdir(parents=True, exist_ok=True)
        (cache / "archives/partial").mkdir(parents=True, exist_ok=True)
        options = [f"-oDir::State::lists={own_lists}", f"-oDir::Cache={cache}"]
        _run(["apt-get", *options, "-oDebug::NoLocking=1", "update"], cache)
    depends = _apt_cache("depends", "pgbouncer", options=options).splitlines()
    names = [line.split(":", 1)[1].strip() for line in depends if "Depends: lib" in line]
    downloads = into / "downloads"
    downloads.mkdir(parents=True)
    libraries = [name for name in names if name != "libc6" and not name.startswith("<")]
    _run(["apt-get", *options, "download", "pgbouncer", *libraries], downloads)
    for package in downloads.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(into)], downloads)
    shutil.rmtree(downloads)


def _apt_cache(verb: str, package: str, *, options: list[str]) -> str:
    command = ["apt-cache", *options, verb, package]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    # apt also fails to clear a folder of root's when it updates lists of its own; that is no harm.
    if done.returncode != 0 and "update" not in command:
        raise AssertionError(f"{' '.join(command)} failed: {done.stderr}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
