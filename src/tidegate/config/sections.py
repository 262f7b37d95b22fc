"""[project], [spark], [worker], [ledger], [sync], [cdc], [scheduler]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_serializer, model_validator

from tidegate.config import value_types as values
from tidegate.config.maintenance import MaintenanceSettings
from tidegate.config.service_sections import (
    EventSettings,
    HistorySettings,
    NotifySettings,
    ServeSettings,
)
from tidegate.config.setting_errors import SettingConflict
from tidegate.config.sync import TargetTemplate
from tidegate.config.value_types import Section
from tidegate.core.cron import Schedule
from tidegate.core.relation import split_parts
from tidegate.core.units import Backoff, parse_duration, parse_size

_LEAST = 1024 * 1024


def _size(value: object) -> int:
    found = parse_size(value)
    if found < _LEAST:
        raise ValueError('a size of 1MB at least, such as "1GB"')
    return found


Retained = Annotated[int, BeforeValidator(_size)]


class CdcSettings(Section):
    """`[cdc]`: what holds for every sync with changes = "cdc"."""

    warn_retained: Retained = 1024**3
    """how much of its log a source may keep for us before it is worth a word"""
    max_retained: Retained = 10 * 1024**3
    """how much of it is too much"""
    start_timeout: values.PositiveDuration = "10 minutes"
    """how long a slot waits for the transactions that are open when it is made"""

    @model_validator(mode="after")
    def _warning_comes_first(self) -> CdcSettings:
        if self.warn_retained > self.max_retained:
            raise SettingConflict(
                "warn_retained", "is larger than cdc.max_retained; it must come first"
            )
        return self

    @property
    def start_timeout_seconds(self) -> float:
        return parse_duration(self.start_timeout)


Places = Annotated[int, BeforeValidator(values.whole(1, 10_000))]
"""how many jobs at a time may use a named resource"""


def _names(value: object) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or any(
        not isinstance(one, str) or not one.strip() for one in given
    ):
        raise ValueError('a name or a list of names, for example ["shop"]')
    return tuple(dict.fromkeys(given))


def _priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -1000 <= value <= 1000:
        raise ValueError("a whole number from -1000 to 1000")
    return value


ResourceNames = Annotated[tuple[str, ...], BeforeValidator(_names)]
Priority = Annotated[int, BeforeValidator(_priority)]
Failures = Annotated[int, BeforeValidator(values.whole(1, 10_000))]


class SchedulerSettings(Section):
    """`[scheduler]`: the scheduler."""

    poll: values.PositiveDuration = "1s"
    disable_after: Failures = 5
    disable_window: values.PositiveDuration = "1 hour"
    disable_for: values.PositiveDuration = "1 hour"
    state_path: values.TextOrNone = None

    @property
    def poll_seconds(self) -> float:
        """How often a scheduler looks whether something is due."""
        return parse_duration(self.poll)

    @property
    def disable_window_seconds(self) -> float:
        """Within how long so many failures are too many."""
        return parse_duration(self.disable_window)

    @property
    def disable_for_seconds(self) -> float:
        """For how long what failed too often is left alone."""
        return parse_duration(self.disable_for)


_DEFAULT_MASTER = "local[*]"


class ProjectSettings(Section):
    """`[project]`: who we are and where our own tables live."""

    name: values.ProjectName
    control: values.ControlLocation = SecretStr("embedded")
    control_schema: values.Schema = "tidegate_control"
    pipelines: values.Text = "pipelines.py"
    state: values.Text = ".tidegate"


class SparkSettings(Section):
    """`[spark]`: a master to start, or a Spark Connect server to use; never both."""

    master: values.TextOrNone = _DEFAULT_MASTER
    remote: values.Remote = None
    conf: values.SparkConf = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _one_of_both(self) -> SparkSettings:
        if self.remote is None:
            return self
        if self.master not in (None, _DEFAULT_MASTER):
            raise SettingConflict("remote", "and spark.master are both set; remove one of them")
        object.__setattr__(self, "master", None)  # remote wins; still under construction here
        return self

    @field_serializer("remote")
    def _mask_remote(self, remote: str | None) -> str | None:
        # sc://host/;token=... carries its token in the URL.
        return remote.split(";", 1)[0] + ";***" if remote and ";" in remote else remote

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        yield "master", self.master
        yield "remote", self._mask_remote(self.remote)


class WorkerSettings(Section):
    """`[worker]`: how long a claim lasts and how patient its statements are."""

    lease: values.PositiveDuration = "180s"
    heartbeat: values.PositiveDuration = "30s"
    publish_timeout: values.PositiveDuration = "1 hour"
    lock_timeout: values.PositiveDuration = "10s"
    keep_jobs: values.PositiveDuration = "30 days"
    max_attempts: values.Attempts = 5
    concurrency: values.Concurrency = 8
    horizon_warning: values.PositiveDuration = "5 minutes"
    poll: values.PositiveDuration = "5s"
    sweep: values.PositiveDuration = "5s"
    retry_after: values.PositiveDuration = "5s"
    retry_at_most: values.PositiveDuration = "10 minutes"

    @model_validator(mode="after")
    def _heartbeat_fits_lease(self) -> WorkerSettings:
        if self.heartbeat_seconds * 3 > self.lease_seconds:
            raise SettingConflict(
                "heartbeat",
                f'is "{self.heartbeat}"; it must be at most a third of worker.lease '
                f'("{self.lease}"), so that two lost beats do not lose the lease',
            )
        return self

    @property
    def lease_seconds(self) -> float:
        """How long a claim holds without a heartbeat."""
        return parse_duration(self.lease)

    @property
    def heartbeat_seconds(self) -> float:
        """How often the claim is renewed."""
        return parse_duration(self.heartbeat)

    @property
    def poll_seconds(self) -> float:
        """How often a worker looks for jobs that nobody announced."""
        return parse_duration(self.poll)

    @property
    def sweep_seconds(self) -> float:
        """How often a worker looks for what the dead have left."""
        return parse_duration(self.sweep)

    @property
    def backoff(self) -> Backoff:
        """How long a job waits after an error or a crash."""
        return Backoff(parse_duration(self.retry_after), parse_duration(self.retry_at_most))

    @property
    def publish_timeout_seconds(self) -> float:
        """How long publishing may take."""
        return parse_duration(self.publish_timeout)

    @property
    def lock_timeout_seconds(self) -> float:
        """How long a statement waits for a lock."""
        return parse_duration(self.lock_timeout)

    @property
    def horizon_warning_seconds(self) -> float:
        """How long something may hold back vacuum in the control database unnoticed."""
        return parse_duration(self.horizon_warning)

    @property
    def keep_jobs_seconds(self) -> float:
        """How long finished jobs are remembered."""
        return parse_duration(self.keep_jobs)


class LedgerSettings(Section):
    """`[ledger]`: our tables in the destination database."""

    schema_name: values.Schema = Field(default="tidegate", alias="schema")
    marker_table: values.Identifier = "table_updates"
    timestamps: Literal["database", "client"] = "database"


class SyncDefaults(Section):
    """`[defaults]`: what every sync has unless it says otherwise."""

    mode: Literal["merge", "append", "delete_insert", "replace"] = "merge"
    changes: Literal["cursor", "snapshot", "cdc"] = "cursor"
    deletes: Literal["hard", "soft"] = "hard"
    lookback: values.Lookback | None = None
    settle: values.Duration = "60s"
    null_cursor: Literal["raise", "include", "exclude"] | None = None
    cursor_timezone: values.TimeZone | None = None
    duplicates: Literal["refuse", "newest"] = "refuse"
    batch_rows: values.Rows = 500_000
    partitions: values.Partitions | None = None
    schedule: values.Text | None = None
    timezone: values.TimeZone = "UTC"
    catch_up: Literal["none", "last", "all"] = "last"
    priority: Priority = 0
    resources: ResourceNames = ()
    disable_after: Failures | None = None
    reject_limit: values.Share = 0.05
    drift: Literal["evolve", "freeze"] = "evolve"

    @model_validator(mode="after")
    def _due_some_day(self) -> SyncDefaults:
        if self.schedule is not None:
            try:
                Schedule(self.schedule, self.timezone)
            except ValueError as error:
                raise SettingConflict(
                    "schedule", f'is "{self.schedule}"; expected {error}'
                ) from None
        return self

    @property
    def settle_seconds(self) -> float:
        """How far behind the source's clock to stay where the horizon cannot be seen."""
        return parse_duration(self.settle)


class SyncSettings(SyncDefaults):
    """`[sync.NAME]`: one movement from a source relation to a destination relation."""

    source: values.Source
    target: values.Relation
    include: values.Patterns = ()
    exclude: values.Patterns = ()
    key: values.Columns | None = None
    cursor: values.Text | None = None
    columns: values.Columns | None = None
    exclude_columns: values.Columns = ()
    where: values.Sql | None = None
    query: values.Sql | None = None
    before_sql: values.Statements = ()
    after_sql: values.Statements = ()
    checks: values.Checks = Field(default_factory=dict)
    partition_by: values.Columns = ()
    sort_by: values.Columns = ()
    table_properties: values.TableProperties = Field(default_factory=dict)

    @property
    def is_group(self) -> bool:
        """Whether the source is a pattern, so that this stands for many tables."""
        _, _, relation = self.source.partition(":")
        parts = split_parts(relation.strip())
        return any(not quoted and ("*" in part or "?" in part) for part, quoted in parts)

    @model_validator(mode="after")
    def _one_table_or_many(self) -> SyncSettings:
        template = TargetTemplate.parse(self.target)
        fields = template.fields if template is not None else frozenset()
        connection = self.source.partition(":")[0]
        if not self.is_group:
            many = f'source names one table; for many write source = "{connection}:public.*"'
            for name in ("include", "exclude"):
                if getattr(self, name):
                    raise SettingConflict(name, f"is set, but {many}")
            if fields:
                raise SettingConflict(
                    "target",
                    f'is "{self.target}", but {many}; if the braces are part of the name, put '
                    "double quotes around it",
                )
        elif "table" not in fields:
            raise SettingConflict(
                "target",
                f'is "{self.target}" for every table of "{self.source}"; put {{table}} into it, '
                f'such as "{self.target.partition(":")[0]}:raw.{{table}}"',
            )
        elif self.mode == "replace" and self.cursor is not None:
            raise SettingConflict("cursor", 'is set beside mode = "replace"; remove one of them')
        return self

    @model_validator(mode="after")
    def _one_way_to_read(self) -> SyncSettings:
        if self.query is None and ":" not in self.source:
            raise SettingConflict(
                "source",
                f'is "{self.source}"; expected "connection:schema.table", or a query beside it',
            )
        if self.query is not None:
            if ":" in self.source:
                raise SettingConflict(
                    "source",
                    f'is "{self.source}" beside a query; expected the connection alone, '
                    f'"{self.source.partition(":")[0]}"',
                )
            for name in ("columns", "exclude_columns", "where"):
                if getattr(self, name):
                    raise SettingConflict(name, "is set beside a query; write it into the query")
        if self.columns and self.exclude_columns:
            raise SettingConflict("exclude_columns", "and columns are both set; remove one of them")
        return self


class SafetySettings(Section):
    """`[safety]`: what may be removed unasked, and how long others are kept waiting."""

    max_removed: values.Share = 0.5
    lock_timeout: values.PositiveDuration = "5s"

    @property
    def lock_timeout_seconds(self) -> float:
        """How long a reading session waits for a lock, and is waited for."""
        return parse_duration(self.lock_timeout)


# Sections whose keys are fixed; [connections], [resources] and [sync] hold names the user chose.
FIXED: dict[str, type[Section]] = {
    "project": ProjectSettings,
    "spark": SparkSettings,
    "worker": WorkerSettings,
    "ledger": LedgerSettings,
    "defaults": SyncDefaults,
    "maintenance": MaintenanceSettings,
    "serve": ServeSettings,
    "scheduler": SchedulerSettings,
    "notify": NotifySettings,
    "history": HistorySettings,
    "cdc": CdcSettings,
    "events": EventSettings,
    "safety": SafetySettings,
}
SECTIONS = (*FIXED, "connections", "resources", "sync")
