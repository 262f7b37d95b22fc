"""A JVM kept warm between the processes of a proof, since starting one takes most of a run's time.

Each process has a Spark context of its own in it. A killed one leaves its context and its tasks
behind, as it would on a cluster; the next process stops them first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tidegate.settings import Settings
from tidegate.spark.session import SparkSessions

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
