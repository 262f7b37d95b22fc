"""Batches staged in the process that loads them, by the very code of Spark's tasks.

For tests of what happens to rows before and after they travel, and of who may publish them. How
rows travel through Spark is tested where that is the matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.core.batch import StagedWrite
from tidegate.load import context
from tidegate.spark.binary_copy import Copy, CopySessions, _copy_share
from tidegate.spark.session import SparkSessions
from tidegate.spark.stager import Stager
from tidegate.spark.task_outcome import raised

VARIABLE = "TESTS_COPY_IN_PROCESS"
"""set for a command of Tidegate that is forked, to have it copy in its own process"""


class InProcess(Stager):
    """Stages each share of a batch, one after the other."""

    def stage(self, copy: Copy) -> tuple[StagedWrite, ...]:
        with CopySessions() as sessions:
            shares = range(len(copy.reader.statements))
            outcomes = [_copy_share(copy, share, sessions) for share in shares]
        for failed in (one for one in outcomes if one.get("kind")):
            raise raised(failed)
        return tuple(StagedWrite(one["write_id"], one["rows"]) for one in outcomes)


class NoSpark(SparkSessions):
    """Says how wide Spark would be, and refuses to start it."""

    def parallelism(self) -> int:
        return 1

    def get(self) -> Any:
        raise AssertionError("Spark was started")


def install(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Every project that this process opens from now on copies in it, and has no Spark."""
    replace(context, "Stager", InProcess)
    replace(context, "SparkSessions", NoSpark)
