"""The keywords of `@tg.task`, checked as the keys of a sync are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationError, model_validator

from tidegate.model.schedule import Schedule
from tidegate.settings import checks as values
from tidegate.settings.durations import parse_duration
from tidegate.settings.explain import Conflict, Origin, Problem, explain, key_of, refuse
from tidegate.settings.scheduling import Failures, Priority, ResourceNames
from tidegate.settings.section import Section
from tidegate.settings.settings import SYNC_NAME


class TaskSettings(Section):
    """What a task was declared with, besides its functions."""

    target: values.Relation | None = None
    key: values.Columns | None = None
    mode: Literal["merge", "append", "delete_insert", "replace"] = "merge"
    retries: Annotated[int, BeforeValidator(values.whole(0, 999))] | None = None
    retry_delay: values.Duration | None = None
    schedule: values.Text | None = None
    timezone: values.TimeZone = "UTC"
    catch_up: Literal["none", "last", "all"] = "last"
    schedule_parameter: values.Text | None = None
    priority: Priority = 0
    resources: ResourceNames = ()
    disable_after: Failures | None = None
    partitions: values.Partitions = 32

    @property
    def retry_delay_seconds(self) -> float | None:
        return None if self.retry_delay is None else parse_duration(self.retry_delay)

    @model_validator(mode="after")
    def _due_some_day(self) -> TaskSettings:
        if self.schedule is not None:
            try:
                Schedule(self.schedule, self.timezone)
            except ValueError as error:
                raise Conflict("schedule", f"must be {error}") from None
        return self


def read_task(name: str, given: Mapping[str, Any], where: str) -> TaskSettings:
    """Return the keywords with their defaults; SettingsError lists all that is wrong."""
    origin, key = Origin(where=where), ("task", name)
    if not SYNC_NAME.fullmatch(name):
        rule = "begin with a letter, then up to 62 letters, digits and underscores"
        refuse([Problem(key, f"{origin.place(key)} is not a usable name for a task; {rule}")])
    kept = {part: value for part, value in given.items() if value is not None}
    try:
        return TaskSettings.model_validate(kept)
    except ValidationError as error:
        found = [
            explain(dict(one), origin, (*key, *key_of(one["loc"])), ())
            for one in error.errors(include_url=False)
        ]
    refuse(found)
    raise AssertionError("a validation error without errors")
