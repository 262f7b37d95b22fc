"""Which engine maintains the tables of a project's lakes."""

from __future__ import annotations

from tidegate.lake.engine import Engine, SparkEngine
from tidegate.lake.thrift_engine import ThriftEngine
from tidegate.pipeline.context import Context
from tidegate.spark.session import SparkSessions


def engine_of(context: Context) -> Engine:
    """What `maintenance.engine` says; without it the project's own Spark."""
    address = context.settings.maintenance.engine
    if address is None:
        return SparkEngine(context.spark)
    if address.startswith("thrift://"):
        return ThriftEngine(address)
    elsewhere = context.settings.spark.model_copy(update={"remote": address, "master": None})
    return SparkEngine(SparkSessions(elsewhere, context.settings.state_directory))
