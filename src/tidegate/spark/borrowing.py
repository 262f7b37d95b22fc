"""A Spark that was there before us: used, but neither changed nor stopped."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def borrow(conf: Mapping[str, str]) -> SparkSession | None:
    """A session of our own in the Spark that this process runs already, if it does.

    It has settings of its own, so that those of the user's sessions stay as they are.
    """
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    builder: Any = SparkSession.builder
    session: SparkSession = builder.getOrCreate().newSession()
    for key, value in conf.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session


def is_stopped(session: Any) -> bool:
    """Whether somebody has stopped it meanwhile, or its JVM is gone."""
    from pyspark.sql import SparkSession

    if not isinstance(session, SparkSession):
        return bool(session.is_stopped)
    return not _answers(session.sparkContext)


def forget_dead_jvm() -> None:
    """Let pyspark start a JVM again: it would go on asking for one that has died."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None or _answers(context):
        return
    with SparkContext._lock:
        if SparkContext._gateway is not None:
            with suppress(Exception):
                SparkContext._gateway.shutdown()
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkSession._instantiatedSession = None


def _answers(context: Any) -> bool:
    """Whether its JVM is there and has not been told to stop."""
    try:
        return context._jsc is not None and not context._jsc.sc().isStopped()
    except Exception:
        return False
