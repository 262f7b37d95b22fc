"""Which engine maintains the tables of a project's lakes."""

from __future__ import annotations

from tidegate.lake.engine import Engine, SparkEngine
from tidegate.lake.thrift_engine import ThriftEngine
from tidegate.pipeline.context import Context
from tidegate.settings import Settings, SparkSettings
from tidegate.spark.session import SparkSessions


def engine_of(context: Context) -> Engine:
    """What `maintenance.engine` says; without it the project's own Spark.

    It is the same one every time, since it knows what it could interrupt.
    """
    address = context.settings.maintenance.engine
    if address is None:
        return SparkEngine(context.spark)
    if context.engine is None:
        context.engine = _engine(context.settings, address)
    return context.engine


def _engine(settings: Settings, address: str) -> Engine:
    if address.startswith("thrift://"):
        return ThriftEngine(address)
    # [spark] may be a Spark of this process.
    remote = SparkSettings(remote=address)
    return SparkEngine(SparkSessions(remote, settings.state_directory, beside=True))
