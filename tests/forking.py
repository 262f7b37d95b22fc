"""The process that `forked` forks: it imports what a command may need, then waits to be asked."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

LENGTH = 4
_STREAMS = 3
_WITH_SPARK = ("pyspark.sql", "pyspark.sql.connect.session", "pandas", "pyarrow", "rich.table")


def main() -> None:
    """Fork for every request, until nobody can ask any more."""
    _import_all()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        # Those who wait for the commands are waited for by nobody.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            head, descriptors, _, _ = socket.recv_fds(requests, LENGTH, _STREAMS + 1)
            if not head:
                return
            request = json.loads(_read(requests, int.from_bytes(head, "big")))
            if os.fork() == 0:
                break
            for descriptor in descriptors:
                os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, answers = descriptors
    child = os.fork()
    if child:
        _report(child, answers, streams)
    os.close(answers)
    _run(request, streams)


def _import_all() -> None:
    import in_process  # noqa: F401
    import tidegate

    for module in pkgutil.walk_packages(tidegate.__path__, "tidegate."):
        importlib.import_module(module.name)
    for name in _WITH_SPARK:
        importlib.import_module(name)
    # What is there now is never looked at again, and so stays shared.
    gc.freeze()


def _read(requests: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        parts += requests.recv(size - len(parts))
    return parts


def _report(child: int, answers: int, streams: list[int]) -> NoReturn:
    """Say who the command is, and how it ended; its reader must not wait for us."""
    for descriptor in streams:
        os.close(descriptor)
    os.write(answers, f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _run(request: Mapping[str, Any], streams: list[int]) -> NoReturn:
    """Be what `tidegate` would be, or Python with a script."""
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])

    import in_process
    from tidegate.cli.main import main
    from tidegate.core import failpoints

    if in_process.VARIABLE in os.environ:
        in_process.install()
    failpoints._armed = failpoints._parse(os.environ.get("TIDEGATE_FAILPOINT", ""))
    sys.path[0] = request["folder"]
    script, *_ = sys.argv = request["arguments"]
    code = 1
    try:
        if script == "tidegate":
            main()
        else:
            runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End as Python does, but for taking apart every module that was imported."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
