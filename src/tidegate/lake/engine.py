"""What maintains a lake's tables: Spark here or elsewhere, spoken to in statements alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from tidegate.lake.catalog import Catalog
from tidegate.lake.session import LakeSession, lake_session
from tidegate.spark.session import SparkSessions

# Orphans are looked for by a shuffle over a few thousand paths: hundreds of tasks do not help.
_SHUFFLES = ("spark.sql.shuffle.partitions", "4")


class EngineSession(Protocol):
    """A session of one attempt; its commits are refused once the attempt was replaced."""

    def run(self, statement: str) -> Iterator[dict[str, object]]:
        """Run a statement at once; its answer comes row by row, by the names of its columns."""


class Engine(Protocol):
    """Where the statements of maintenance are run."""

    @property
    def kind(self) -> str: ...

    def session(
        self, catalog: Catalog, attempt_id: str
    ) -> AbstractContextManager[EngineSession]: ...

    def interrupt(self, attempt_id: str) -> None:
        """Give up the work of an attempt, if there is any; from any thread."""


@dataclass(frozen=True, slots=True)
class SparkSession:
    """A session of Spark as an engine's."""

    lake: LakeSession

    def run(self, statement: str) -> Iterator[dict[str, object]]:
        # A procedure has run when this returns; what it tells may be long.
        return map(_by_name, self.lake.read(statement).toLocalIterator())


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """The project's own Spark: in this process, on a cluster, or behind Spark Connect."""

    sessions: SparkSessions
    kind: str = "spark"

    @contextmanager
    def session(self, catalog: Catalog, attempt_id: str) -> Iterator[EngineSession]:
        with lake_session(self.sessions, catalog, attempt_id, maintains=True) as session:
            session.spark.conf.set(*_SHUFFLES)
            yield SparkSession(session)

    def interrupt(self, attempt_id: str) -> None:
        self.sessions.interrupt(attempt_id)


def _by_name(row: object) -> dict[str, object]:
    found: dict[str, object] = row.asDict()  # type: ignore[attr-defined]
    return found
