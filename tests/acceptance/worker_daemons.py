"""The daemons of Spark's Python workers, forked from a process that is warm.

Every session of a Spark Connect server has a daemon of its own, and so has every run of a test.
`serve` is that process; `ask` is what the server starts in place of Python.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

_STREAMS = (0, 1, 2)
_LARGEST = 1 << 20


def serve(path: str) -> None:
    """Fork a daemon for everyone who asks."""
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
    os.environ.clear()
    os.environ.update(json.loads(message))
    daemon.manager()


def ask(path: str) -> None:
    """Be a daemon by proxy, for as long as it lives."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as serving:
        serving.connect(path)
        socket.send_fds(serving, [json.dumps(dict(os.environ)).encode()], list(_STREAMS))
        for stream in _STREAMS:
            os.close(stream)
        serving.recv(1)


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](sys.argv[2])
