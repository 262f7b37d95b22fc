"""Interrupting and measuring the Spark work of one attempt."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tidegate.core.log import log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TAGS = "spark.job.tags"


def work_tag(attempt_id: str) -> str:
    """What the Spark jobs of an attempt are called."""
    return f"tidegate-{attempt_id}"


def part_tag(attempt_id: str) -> str:
    """What a Spark job is called that does a part of an attempt's work, maybe beside others'."""
    return f"tidegate-part-{attempt_id}"


@contextmanager
def shared(session: SparkSession, attempt_ids: Iterable[str]) -> Iterator[None]:
    """Jobs that this thread starts in here are these attempts' together: measured, never ended."""
    if not is_classic(session):
        yield
        return
    context = session.sparkContext
    before = context.getLocalProperty(_TAGS)
    parts = [part_tag(one) for one in dict.fromkeys(attempt_ids)]
    # All at once: each call to the JVM takes its time.
    context.setLocalProperty(_TAGS, ",".join([before, *parts] if before else parts))
    try:
        yield
    finally:
        # A session that was stopped meanwhile has no tags any more.
        with suppress(Exception):
            context.setLocalProperty(_TAGS, before)  # type: ignore[arg-type]


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """Jobs that this thread starts in here carry the tag; one that is left behind is ended."""
    classic = is_classic(session)
    if classic:
        # A tag of the session would be known to this thread only.
        session.sparkContext.addJobTag(tag)
    else:
        session.addTag(tag)
    try:
        yield
    except BaseException:
        interrupt(session, tag)
        raise
    finally:
        # A session that was stopped meanwhile has no tags any more.
        with suppress(Exception):
            if classic:
                session.sparkContext.removeJobTag(tag)
            else:
                session.removeTag(tag)


def interrupt(session: SparkSession, tag: str) -> None:
    """End the jobs that carry the tag, from any thread."""
    with suppress(Exception):
        if is_classic(session):
            session.sparkContext.cancelJobsWithTag(tag)
        else:
            session.interruptTag(tag)


def is_classic(session: SparkSession) -> bool:
    """Whether the session's JVM is at hand, as opposed to a Spark Connect server."""
    # Spark Connect has a class of its own, which is no subclass.
    from pyspark.sql import SparkSession

    return isinstance(session, SparkSession)


_LATE_MS = 20
_MOST_STAGES = 200
_ADDED = {
    "tasks": "numCompleteTasks",
    "failed_tasks": "numFailedTasks",
    "executor_run_ms": "executorRunTime",
    "executor_cpu_ms": "executorCpuTime",
    "jvm_gc_ms": "jvmGcTime",
    "input_bytes": "inputBytes",
    "output_bytes": "outputBytes",
    "shuffle_read_bytes": "shuffleReadBytes",
    "shuffle_write_bytes": "shuffleWriteBytes",
    "spilled_bytes": "diskBytesSpilled",
}
_NANOSECONDS = {"executor_cpu_ms"}


def spark_measures(attempt_id: str) -> dict[str, Any] | None:
    """What the Spark jobs of an attempt took; None without any, or when Spark does not say.

    Only a Spark whose driver is this process is asked, and it is never started for that.
    """
    context = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    active = getattr(context, "_active_spark_context", None)
    if active is None:
        return None
    try:
        return _measured(active, attempt_id)
    except Exception as error:
        log.info("spark_measures_not_read", attempt=attempt_id, error=type(error).__name__)
        return None


def _measured(context: Any, attempt_id: str) -> dict[str, Any] | None:
    spark, arrays = context._jsc.sc(), context._jvm.java.util.Arrays
    # Spark keeps its books in a thread of its own, which may be a moment behind.
    with suppress(Exception):
        spark.listenerBus().waitUntilEmpty(_LATE_MS)
    tracker, store = spark.statusTracker(), spark.statusStore()
    own, shared = (
        _numbers(arrays.toString(tracker.getJobIdsForTag(tag))[1:-1])
        for tag in (work_tag(attempt_id), part_tag(attempt_id))
    )
    if not own and not shared:
        return None
    together, stages = 0, set[int]()
    for job_id in sorted(own | shared):
        job = store.job(job_id)
        stages |= _numbers(job.stageIds().mkString(","))
        if job_id in shared:
            together += job.jobTags().mkString(",").count(part_tag("")) > 1
    return _counts(len(own | shared), together) | _sums(store, stages)


def _counts(jobs: int, together: int) -> dict[str, Any]:
    return {"jobs": jobs} | ({"shared_jobs": together} if together else {})


def _sums(store: Any, stage_ids: set[int]) -> dict[str, Any]:
    """The newest stages, each asked for a dozen numbers; of those before it is said that they were.

    A stage that found its work done already has run no tasks, and does not count.
    """
    found = dict.fromkeys(["stages", *_ADDED, "peak_memory_bytes"], 0)
    asked = sorted(stage_ids)[-_MOST_STAGES:]
    read = 0
    for stage_id in asked:
        with suppress(Exception):  # Spark forgets its oldest stages
            stage = store.lastStageAttempt(stage_id)
            read += 1
            if stage.numCompleteTasks() + stage.numFailedTasks() == 0:
                continue
            found["stages"] += 1
            for name, getter in _ADDED.items():
                value = int(getattr(stage, getter)())
                found[name] += value // 1_000_000 if name in _NANOSECONDS else value
            peak = int(stage.peakExecutionMemory())
            found["peak_memory_bytes"] = max(found["peak_memory_bytes"], peak)
    return found | ({"partial": True} if read < len(stage_ids) else {})


def _numbers(text: str) -> set[int]:
    return {int(one) for one in text.split(",") if one.strip()}
