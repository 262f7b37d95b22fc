"""The pipeline in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tidegate.config import Settings
from tidegate.core.errors import TidegateError
from tidegate.spark.session import SparkSessions

PATIENCE_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Opening:
    """Which sync of which project, and what stands in for its databases."""

    root: Path
    sync: str
    batch_rows: int
    overrides: dict[str, Any] = field(default_factory=dict)
    profile: str | None = None

    def line(self) -> str:
        return json.dumps(
            {
                "root": str(self.root),
                "sync": self.sync,
                "batch_rows": self.batch_rows,
                "overrides": self.overrides,
                "profile": self.profile,
            }
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: done, failed, or killed."""

    status: str
    rows: int = 0
    changed: int = 0
    loads: int = 0
    error: str = ""
    hint: str | None = None
    kind: str = ""

    @property
    def killed(self) -> bool:
        return self.status == "killed"

    @property
    def done(self) -> bool:
        return self.status == "done"


class PipelineProcess:
    """A started child; each `run` is one run of the sync in it."""

    def __init__(
        self,
        opening: Opening,
        log: Path,
        failpoint: str | None = None,
        extra_environment: Mapping[str, str] | None = None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        environment = {k: v for k, v in os.environ.items() if k != "TIDEGATE_FAILPOINT"}
        environment.update(extra_environment or {})
        if failpoint:
            environment["TIDEGATE_FAILPOINT"] = failpoint
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidegate.testing.child"],
                cwd=opening.root,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        self._send(opening.line())

    def run(self, *, full_refresh: bool = False) -> Ended:
        """One run; returns when it is over, one way or the other."""
        self._send(json.dumps({"full_refresh": full_refresh}))
        assert self._process.stdout is not None
        timer = threading.Timer(PATIENCE_SECONDS, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            expired = not timer.is_alive()
            timer.cancel()
        if not line:
            return self._without_answer(expired)
        return Ended(**json.loads(line))

    def close(self) -> None:
        """Let the process leave by itself, then see that nothing of it stays."""
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        # Its JVM is in the same group; a killed one would linger and take memory meanwhile.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        # A process that is gone already says so through its answer.
        with suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _without_answer(self, expired: bool) -> Ended:
        code = self._process.wait()
        if expired:
            return Ended("failed", error=f"the run took longer than {PATIENCE_SECONDS:.0f} s")
        if code == -signal.SIGKILL:
            return Ended("killed")
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise TidegateError(
            f"the run's process ended with code {code} and no word",
            "it said: " + ("\n  ".join(lines[-5:]) or "nothing"),
        )

    def __enter__(self) -> PipelineProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


Conf = Callable[[], Mapping[str, str]]
"""what Spark must start with beside the user's settings"""


def start_warm_spark(settings: Settings, conf: Conf = dict) -> dict[str, str]:
    """The environment by which other processes find the JVM; empty when Spark is not local."""
    if settings.spark.remote or not (settings.spark.master or "").startswith("local"):
        return {}
    from pyspark import SparkContext

    internals: Any = SparkContext
    if internals._gateway is None:
        sessions = SparkSessions(settings.spark, settings.state_directory, conf)
        sessions.get()
        # The JVM stays, and ends with this process.
        sessions.stop()
    parameters = internals._gateway.gateway_parameters
    return {_PORT: str(parameters.port), _SECRET: str(parameters.auth_token)}


def stop_predecessor() -> None:
    """In a new process: stop what a killed one left running in the shared JVM."""
    if _PORT not in os.environ:
        return
    from pyspark import SparkContext

    internals: Any = SparkContext
    internals._ensure_initialized()
    _stop_active(internals)


def _stop_active(internals: Any) -> None:
    companion = getattr(internals._jvm.org.apache.spark, "SparkContext$")
    active = getattr(companion, "MODULE$").getActive()
    if active.isDefined():
        active.get().stop()
    internals._jvm.org.apache.spark.sql.classic.SparkSession.clearDefaultSession()
    internals._jvm.org.apache.spark.sql.classic.SparkSession.clearActiveSession()


@contextmanager
def lend_spark(
    sessions: SparkSessions, settings: Settings, conf: Conf = dict
) -> Iterator[dict[str, str]]:
    """Let other processes use the JVM of this one for a while; the session starts anew after."""
    sessions.stop()
    from pyspark import SparkContext

    internals: Any = SparkContext
    if internals._active_spark_context is not None:
        yield {}  # somebody else's, which must not be stopped: each process starts its own JVM
        return
    try:
        yield start_warm_spark(settings, conf)
    finally:
        if internals._gateway is not None:
            _stop_active(internals)
