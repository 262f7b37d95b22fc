"""`tidegate`, or a script, in a real process of its own, forked from one that is warm.

Starting Python and importing Spark's client takes ten times as long as most commands do. A fork is
a process like any other: it leads a session, has an environment, a folder and streams of its own,
and can be stopped and killed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forking import LENGTH

SERVER = Path(__file__).with_name("forking.py")
_asking = threading.Lock()


class Forked:
    """One command, with the part of Popen's interface that tests use.

    Its first word is `tidegate`, or where a script of Python is.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        streams: tuple[int, int, int],
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder or Path.cwd()),
        }
        self._socket, theirs = socket.socketpair()
        with theirs:
            _ask(request, [*streams, theirs.fileno()])
        self._answers = self._socket.makefile("r", encoding="ascii")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, or None; a negative code is the signal that ended it."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("tidegate", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._socket], [], [], timeout)[0]:
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._socket.close()
        return self.returncode


class Piped(Forked):
    """One command whose input and output are ours."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        (their_in, self._in), (self._out, their_out), (self._err, their_err) = (
            os.pipe() for _ in range(3)
        )
        streams = (their_in, their_out, their_err)
        try:
            super().__init__(arguments, streams, environment, folder)
        finally:
            for descriptor in streams:
                os.close(descriptor)

    def communicate(self, said: str = "", timeout: float = 120) -> tuple[int, str, str]:
        """Say something short, and wait until all who hold the other ends have let them go."""
        with os.fdopen(self._in, "wb") as stdin, contextlib.suppress(BrokenPipeError):
            stdin.write(said.encode())
        printed = {self._out: b"", self._err: b""}
        deadline = time.monotonic() + timeout
        open_ends = set(printed)
        while open_ends:
            ready, _, _ = select.select(list(open_ends), [], [], deadline - time.monotonic())
            if not ready:
                self.kill()
                raise subprocess.TimeoutExpired("tidegate", timeout)
            for descriptor in ready:
                block = os.read(descriptor, 1 << 16)
                printed[descriptor] += block
                if not block:
                    open_ends.remove(descriptor)
                    os.close(descriptor)
        return self.wait(timeout), printed[self._out].decode(), printed[self._err].decode()


def run(
    *arguments: str,
    folder: Path | None = None,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """One command to its end, in our environment unless told otherwise."""
    command = ["tidegate", *arguments]
    given = os.environ if environment is None else environment
    code, out, err = Piped(command, given, folder or Path.cwd()).communicate(stdin)
    return subprocess.CompletedProcess(command, code, out, err)


def _ask(request: Mapping[str, Any], descriptors: list[int]) -> None:
    message = json.dumps(request).encode()
    with _asking:
        server = _server()
        # Descriptors travel with the first bytes.
        socket.send_fds(server, [len(message).to_bytes(LENGTH, "big")], descriptors)
        server.sendall(message)


@functools.cache
def _server() -> socket.socket:
    """Leads to the process that is forked; it ends when this one does."""
    ours, theirs = socket.socketpair()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TIDEGATE_", "SPARK_", "PYSPARK_"))
    }
    with theirs:
        subprocess.Popen(
            [sys.executable, str(SERVER), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Threads do not live on in a fork.
            env={**environment, "OPENBLAS_NUM_THREADS": "1"},
        )
    return ours
