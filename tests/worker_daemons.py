"""The daemons of Spark's Python workers, forked from a process that is warm.

Every session of a Spark Connect server has a daemon of its own, and so has every Spark that a test
starts. `serve` is that process; `ask` is what Spark starts in place of Python.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

_STREAMS = (0, 1, 2)
_LARGEST = 1 << 20


def serve(path: str, look_seconds: str = "45") -> None:
    """Fork a daemon for everyone who asks; those that are idle for two looks leave."""
    from tidegate.spark.daemon import prepare

    prepare()
    from pyspark import daemon

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            asking, _ = listening.accept()
            message, streams, _, _ = socket.recv_fds(asking, _LARGEST, len(_STREAMS))
            if message and os.fork() == 0:
                break
            for stream in streams:
                os.close(stream)
            asking.close()
    for number, stream in zip(_STREAMS, streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    # Closed with the daemon, though not with its workers: who asked waits for that.
    os.set_inheritable(asking.fileno(), False)
    os.register_at_fork(after_in_child=asking.close)
    _be_like(json.loads(message))
    _end_when_idle(float(look_seconds))
    daemon.manager()


def _end_when_idle(look_seconds: float) -> None:
    """Leave when there was no worker at two looks in a row; Spark starts another when it must.

    Spark itself ends idle workers after a minute, and the daemon of a session only with itself.
    """
    idle = False

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal idle
        me = os.getpid()
        working = bool(Path(f"/proc/{me}/task/{me}/children").read_text())
        if idle and not working and _waits(frame):
            os._exit(0)
        idle = not working

    signal.signal(signal.SIGALRM, look)
    # Not inherited by the workers.
    signal.setitimer(signal.ITIMER_REAL, look_seconds, look_seconds)


def _waits(frame: FrameType | None) -> bool:
    """Whether a daemon has nobody at its door: who has just come in would wait for ever."""
    if frame is None or frame.f_code.co_name != "manager":
        return False
    came_last = frame.f_locals.get("sock")
    return came_last is None or came_last.fileno() == -1


def _be_like(asking: Mapping[str, Any]) -> None:
    """Have the environment, the folder and the modules of who was started as a daemon."""
    from tidegate.core import failpoints

    os.environ.clear()
    os.environ.update(asking["environment"])
    os.chdir(asking["folder"])
    failpoints._armed = failpoints._parse(os.environ.get("TIDEGATE_FAILPOINT", ""))
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # Spark's own zip files are what is imported here already.
    new = [place for place in given if place and place not in sys.path and ".zip" not in place]
    sys.path[:1] = [asking["folder"], *new]


def ask(path: str) -> None:
    """Be a daemon by proxy, for as long as it lives."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as serving:
        serving.connect(path)
        message = {"environment": dict(os.environ), "folder": str(Path.cwd())}
        socket.send_fds(serving, [json.dumps(message).encode()], list(_STREAMS))
        for stream in _STREAMS:
            os.close(stream)
        serving.recv(1)


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])
