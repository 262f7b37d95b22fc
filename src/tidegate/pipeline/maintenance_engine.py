"""Where a project's lakes are maintained."""

from __future__ import annotations

from tidegate.lake.engine import Engine, SparkEngine
from tidegate.pipeline.context import Context


def engine_of(context: Context) -> Engine:
    """What the settings ask for."""
    return SparkEngine(context.spark)
