"""The warm daemons of the tests leave when they are idle, so that hundreds do not pile up."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tidegate
from acceptance.processes import until
from warm_python import DAEMONS

SOON = "0.2"


@contextmanager
def serving(folder: Path) -> Iterator[Path]:
    path = folder / "daemons"
    process = subprocess.Popen(
        [sys.executable, str(DAEMONS), "serve", str(path), SOON],
        env={**os.environ, "PYTHONPATH": str(Path(tidegate.__file__).parents[1])},
    )
    try:
        until(path.exists, "the server of daemons")
        yield path
    finally:
        process.kill()
        process.wait()


@contextmanager
def asked(path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """What Spark starts, and the port at which it asks for workers."""
    process = subprocess.Popen(
        [sys.executable, "-IS", str(DAEMONS), "ask", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "SPARK_REUSE_WORKER": "1"},
    )
    assert process.stdout is not None
    try:
        yield process, struct.unpack("!i", process.stdout.read(4))[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.close()


def worker(port: int) -> tuple[socket.socket, int]:
    """A worker that waits for its first task, and its process id."""
    connection = socket.create_connection(("127.0.0.1", port))
    return connection, struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))[0]


def test_an_idle_daemon_leaves_and_one_with_a_worker_stays(tmp_path: Path) -> None:
    with serving(tmp_path) as path, asked(path) as (busy, port):
        connection, pid = worker(port)
        with connection:
            with asked(path) as (idle, _):
                until(lambda: idle.poll() is not None, "the idle one to leave")
            # It has been looked at before the other, and as often.
            assert busy.poll() is None
            os.kill(pid, 0)
            second, _ = worker(port)
            second.close()
        until(lambda: busy.poll() is not None, "the other to leave after its workers")
        with pytest.raises(ConnectionRefusedError):
            worker(port)
