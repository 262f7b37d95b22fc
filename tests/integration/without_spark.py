"""Projects that have no Spark: their batches are staged in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from in_process import InProcess, NoSpark
from integration.conftest import MakePlace, Place
from tidegate.project import Project

Make = Callable[..., tuple[Project, Place]]


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
