"""The keywords of `tg.publish`, checked as the keys of a sync are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from tidegate.settings import checks as values
from tidegate.settings.durations import parse_duration
from tidegate.settings.explain import Conflict, Origin, explain, key_of, refuse
from tidegate.settings.section import Section


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
            raise Conflict(
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
            explain(dict(one), Origin(where="publish"), key_of(one["loc"]), ())
            for one in error.errors(include_url=False)
        ]
    refuse(found)
    raise AssertionError("a validation error without errors")
