"""`[maintenance]`: what is done to a lake's tables by itself, and with which options.

What holds for one table is laid over what holds for its namespace, its catalog and all:
[maintenance.for."lake:raw.orders"] over [maintenance.for."lake:raw"] over
[maintenance.for."lake"] over [maintenance].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_serializer

from tidegate.model import maintenance as model
from tidegate.model.maintenance import LEAST_ORPHAN_AGE_SECONDS, Action, ActionOptions
from tidegate.model.policy import Policy, Thresholds
from tidegate.model.relation import Relation
from tidegate.settings import checks as values
from tidegate.settings.durations import parse_duration
from tidegate.settings.section import Section
from tidegate.settings.sizes import size_from


def _orphan_age(value: object) -> str:
    if parse_duration(value) < LEAST_ORPHAN_AGE_SECONDS:
        raise ValueError("a duration of 1 day at least: younger files may belong to a writer")
    return values.duration(value)


def _engine(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(("sc://", "thrift://")):
        raise ValueError('"sc://host:15002" or "thrift://host:10009"; without it [spark] is used')
    return value


OrphanAge = Annotated[str, BeforeValidator(_orphan_age)]
Size = Annotated[int, BeforeValidator(size_from("1MB"))]
Engine = Annotated[str | None, BeforeValidator(_engine)]
Count = Annotated[int, BeforeValidator(values.whole(0))]
Positive = Annotated[int, BeforeValidator(values.whole(1))]


class ExpireSnapshotsOptions(Section):
    older_than: values.Duration = "5 days"
    retain_last: Positive = 1

    def options(self) -> ActionOptions:
        return model.ExpireSnapshots(parse_duration(self.older_than), self.retain_last)


class RemoveOrphanFilesOptions(Section):
    older_than: OrphanAge = "3 days"

    def options(self) -> ActionOptions:
        return model.RemoveOrphanFiles(parse_duration(self.older_than))


class RewriteDataFilesOptions(Section):
    target_file_size: Size | None = None
    min_input_files: Positive = 5
    sort: bool = False
    partial_progress: bool = False
    delete_file_threshold: Count = 1

    def options(self) -> ActionOptions:
        return model.RewriteDataFiles(
            self.target_file_size,
            self.min_input_files,
            self.sort,
            self.partial_progress,
            self.delete_file_threshold,
        )


class RewritePositionDeleteFilesOptions(Section):
    min_input_files: Positive = 5

    def options(self) -> ActionOptions:
        return model.RewritePositionDeleteFiles(self.min_input_files)


class RewriteManifestsOptions(Section):
    def options(self) -> ActionOptions:
        return model.RewriteManifests()


class Cadence(Section):
    """Whether policy may run an action, and how often at most."""

    enabled: bool = True
    every: values.PositiveDuration


class ExpireSnapshots(ExpireSnapshotsOptions, Cadence):
    every: values.PositiveDuration = "1 day"


class RemoveOrphanFiles(RemoveOrphanFilesOptions, Cadence):
    every: values.PositiveDuration = "7 days"


class RewriteDataFiles(RewriteDataFilesOptions, Cadence):
    every: values.PositiveDuration = "1 hour"


class RewritePositionDeleteFiles(RewritePositionDeleteFilesOptions, Cadence):
    every: values.PositiveDuration = "1 hour"


class RewriteManifests(RewriteManifestsOptions, Cadence):
    every: values.PositiveDuration = "1 day"


class ThresholdSettings(Section):
    """From where on a table is not well; 0 switches a check off."""

    small_files: Count = 20
    snapshots: Count = 100
    snapshot_age: values.Duration = "7 days"
    manifests: Count = 50
    position_delete_files: Count = 10
    equality_delete_files: Count = 10
    deleted_share: values.Share = 0.1
    dangling_delete_files: Count = 1
    partition_skew: Count = 20
    orphan_files: Count = 100

    def thresholds(self) -> Thresholds:
        given = self.model_dump()
        return Thresholds(
            snapshot_age_seconds=parse_duration(given.pop("snapshot_age")),
            **given,
        )


class TableMaintenance(Section):
    """What can be said for all tables, and for some of them anew."""

    automatic: bool = False
    thresholds: ThresholdSettings = Field(default_factory=ThresholdSettings)
    expire_snapshots: ExpireSnapshots = Field(default_factory=ExpireSnapshots)
    remove_orphan_files: RemoveOrphanFiles = Field(default_factory=RemoveOrphanFiles)
    rewrite_data_files: RewriteDataFiles = Field(default_factory=RewriteDataFiles)
    rewrite_position_delete_files: RewritePositionDeleteFiles = Field(
        default_factory=RewritePositionDeleteFiles
    )
    rewrite_manifests: RewriteManifests = Field(default_factory=RewriteManifests)

    def policy(self) -> Policy:
        actions = {action: getattr(self, action.value) for action in Action}
        return Policy(
            automatic=self.automatic,
            thresholds=self.thresholds.thresholds(),
            every_seconds={one: parse_duration(held.every) for one, held in actions.items()},
            options={one: held.options() for one, held in actions.items()},
            disabled=frozenset(one for one, held in actions.items() if not held.enabled),
        )


class MaintenanceSettings(TableMaintenance):
    """`[maintenance]` itself: what holds for all tables, and what only once."""

    engine: Engine = Field(default=None, repr=False)
    refresh: values.PositiveDuration = "5 minutes"
    """how often the table cache is brought up to date"""
    tables: dict[str, TableMaintenance] = Field(default_factory=dict, alias="for")

    @field_serializer("engine")
    def _mask_engine(self, engine: str | None) -> str | None:
        return None if engine is None else f"{engine.partition('://')[0]}://***"

    @property
    def refresh_seconds(self) -> float:
        return parse_duration(self.refresh)

    def policy_of(self, catalog: str, relation: Relation) -> Policy:
        """What holds for one table."""
        own = {"engine", "refresh", "tables"}
        found: dict[str, Any] = self.model_dump(exclude_unset=True, exclude=own)
        for key in (catalog, f"{catalog}:{relation.schema}", f"{catalog}:{relation}"):
            if key in self.tables:
                found = _laid_over(found, self.tables[key].model_dump(exclude_unset=True))
        return TableMaintenance.model_validate(found).policy()


ACTION_OPTIONS: Mapping[Action, type[Section]] = {
    Action.EXPIRE_SNAPSHOTS: ExpireSnapshotsOptions,
    Action.REMOVE_ORPHAN_FILES: RemoveOrphanFilesOptions,
    Action.REWRITE_DATA_FILES: RewriteDataFilesOptions,
    Action.REWRITE_POSITION_DELETE_FILES: RewritePositionDeleteFilesOptions,
    Action.REWRITE_MANIFESTS: RewriteManifestsOptions,
}


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for key, value in above.items():
        held = found.get(key)
        both = isinstance(held, Mapping) and isinstance(value, Mapping)
        found[key] = _laid_over(held, value) if both else value  # type: ignore[arg-type]
    return found
