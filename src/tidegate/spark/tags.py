"""Spark work that can be interrupted without touching anything else in its session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

_TAGS = "spark.job.tags"

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
