"""`[events]`: where raw events are kept, and how they become facts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, model_validator

from tidegate.model.schedule import Schedule
from tidegate.settings import checks as values
from tidegate.settings.durations import parse_duration
from tidegate.settings.explain import Conflict
from tidegate.settings.section import Section
from tidegate.settings.sizes import size_from


class EventSettings(Section):
    """`[events]`: the events of this project; without a `connection` it has none."""

    connection: values.TextOrNone = None
    """the Postgres that holds raw events, facts and views"""
    model: values.Text = "events.toml"
    """the file that says what events become, beside tidegate.toml"""
    raw_table: values.Text = "public.raw_events"
    schedule: values.TextOrNone = "*/5 * * * *"
    batch_size: Annotated[int, BeforeValidator(values.whole(1, 1_000_000))] = 20_000
    """how many events are claimed, and committed, together"""
    time_budget: values.PositiveDuration = "4 minutes"
    """when the second phase stops claiming"""
    spark_from: Annotated[int, BeforeValidator(values.whole(0, 1_000_000))] = 2_000
    """smaller batches are parsed by the process itself while no Spark runs"""
    max_event: Annotated[int, BeforeValidator(size_from("1KB"))] = 256 * 1024
    """a larger event is recorded, and fails"""
    max_age: values.PositiveDuration = "1826 days"
    """an event older than this when it was received fails"""
    max_ahead: values.PositiveDuration = "31 days"
    """so does one that is this far in the future"""
    months_ahead: Annotated[int, BeforeValidator(values.whole(0, 24))] = 2
    """partitions that are made before anything needs them"""
    keep_months: Annotated[int, BeforeValidator(values.whole(0, 1200))] = 0
    """older partitions of the facts are detached; 0 keeps all"""

    @model_validator(mode="after")
    def _due_some_day(self) -> EventSettings:
        if self.schedule is not None:
            try:
                Schedule(self.schedule)
            except ValueError as error:
                raise Conflict("schedule", f'is "{self.schedule}"; expected {error}') from None
        return self

    @property
    def time_budget_seconds(self) -> float:
        return parse_duration(self.time_budget)

    @property
    def max_age_seconds(self) -> float:
        return parse_duration(self.max_age)

    @property
    def max_ahead_seconds(self) -> float:
        return parse_duration(self.max_ahead)
