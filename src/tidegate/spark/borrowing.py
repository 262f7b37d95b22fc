"""A Spark that was there before us: used, but neither changed nor stopped."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Whether somebody has stopped it meanwhile."""
    from pyspark.sql import SparkSession

    if isinstance(session, SparkSession):
        return session.sparkContext._jsc is None
    return bool(session.is_stopped)
