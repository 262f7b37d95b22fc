"""Projects whose batches are staged in this process, by the very code of Spark's tasks.

For tests of what happens to rows before and after they travel; how they travel is tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from integration.conftest import MakePlace, Place
from tidegate.model.load import StagedWrite
from tidegate.project import Project
from tidegate.spark.copying import Copy, Sessions, _copy_share
from tidegate.spark.grouping import Stager
from tidegate.spark.outcome import raised
from tidegate.spark.session import SparkSessions

Make = Callable[..., tuple[Project, Place]]


class InProcess(Stager):
    """Stages each share of a batch, one after the other."""

    def stage(self, copy: Copy) -> tuple[StagedWrite, ...]:
        with Sessions() as sessions:
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


def open_without_spark(place: Place) -> Project:
    return without_spark(place.open())


def without_spark(project: Project) -> Project:
    settings = project.settings
    project.context.spark = NoSpark(settings.spark, settings.state_directory)
    project.context.stager = InProcess(lambda: project.context.spark)
    return project


def add_checks(place: Place, reject_limit: str = "100%", **checks: str) -> None:
    """Declare checks for the sync of a project, which must be opened again after this."""
    lines = [f'reject_limit = "{reject_limit}"', "[sync.orders.checks]"]
    lines += [f'{name} = "{condition}"' for name, condition in checks.items()]
    file = place.folder / "tidegate.toml"
    file.write_text(file.read_text().rstrip() + "\n" + "\n".join(lines) + "\n")


@pytest.fixture
def make(make_place: MakePlace) -> Make:
    """A maker of projects that load without Spark."""

    def made(*syncs: Mapping[str, Any], **options: Any) -> tuple[Project, Place]:
        place = make_place(*syncs, **options)
        return open_without_spark(place), place

    return made
