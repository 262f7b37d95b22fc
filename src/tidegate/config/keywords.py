"""Keywords of tg.publish and @tg.task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from tidegate.config import value_types as values
from tidegate.config.sections import Failures, Priority, ResourceNames
from tidegate.config.setting_errors import (
    SettingConflict,
    SettingOrigin,
    SettingProblem,
    explain,
    key_of,
    refuse,
)
from tidegate.config.settings import SYNC_NAME
from tidegate.config.value_types import Section
from tidegate.core.cron import Schedule
from tidegate.core.units import parse_duration


class PublishSettings(Section):
    """What a publish was asked for."""

    target: values.Relation
    update_id: values.Text
    key: values.Columns | None = None
    cursor: values.Text | None = None
    mode: Literal["merge", "append", "delete_insert", "replace"] = "merge"
    duplicates: Literal["refuse", "newest"] = "refuse"
    checks: values.Checks = Field(default_factory=dict)
    reject_limit: values.Share = 0.05
    before_sql: values.Statements = ()
    after_sql: values.Statements = ()
    partitions: values.Partitions = 32
    wait: values.Duration = "10 minutes"
    allow_removal: bool = False

    @property
    def wait_seconds(self) -> float:
        """How long to wait for whoever has the table."""
        return parse_duration(self.wait)

    @model_validator(mode="after")
    def _newest_by_something(self) -> PublishSettings:
        if self.duplicates == "newest" and self.cursor is None:
            raise SettingConflict(
                "duplicates", 'is "newest", but no cursor says which of two rows is the newer one'
            )
        return self


def read_publish(given: Mapping[str, Any]) -> PublishSettings:
    """Return the keywords with their defaults; SettingsError lists all that is wrong."""
    # What is None was not given; update_id must be, so that it is told what it should be.
    kept = {
        name: value for name, value in given.items() if value is not None or name == "update_id"
    }
    try:
        return PublishSettings.model_validate(kept)
    except ValidationError as error:
        found = [
            explain(dict(one), SettingOrigin(where="publish"), key_of(one["loc"]), ())
            for one in error.errors(include_url=False)
        ]
    refuse(found)
    raise AssertionError("a validation error without errors")


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
                raise SettingConflict("schedule", f"must be {error}") from None
        return self


def read_task(name: str, given: Mapping[str, Any], where: str) -> TaskSettings:
    """Return the keywords with their defaults; SettingsError lists all that is wrong."""
    origin, key = SettingOrigin(where=where), ("task", name)
    if not SYNC_NAME.fullmatch(name):
        rule = "begin with a letter, then up to 62 letters, digits and underscores"
        refuse(
            [SettingProblem(key, f"{origin.place(key)} is not a usable name for a task; {rule}")]
        )
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
