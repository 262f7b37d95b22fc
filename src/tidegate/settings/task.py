"""The keywords of `@tg.task`, checked as the keys of a sync are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from tidegate.model.schedule import Schedule
from tidegate.settings import checks as values
from tidegate.settings.durations import parse_duration
from tidegate.settings.explain import Conflict, Origin, Problem, explain, key_of, refuse
from tidegate.settings.section import Section
from tidegate.settings.settings import SYNC_NAME


def _names(value: object) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or any(
        not isinstance(one, str) or not one.strip() for one in given
    ):
        raise ValueError('a name or a list of names, for example ["shop"]')
    return tuple(dict.fromkeys(given))


def _priority(value: object) -> int:
    expected = "a whole number from -1000 to 1000"
    if not isinstance(value, int) or isinstance(value, bool) or not -1000 <= value <= 1000:
        raise ValueError(expected)
    return value


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
    priority: Annotated[int, BeforeValidator(_priority)] = 0
    resources: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(default=())
    disable_after: Annotated[int, BeforeValidator(values.whole(1, 10_000))] | None = None
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
