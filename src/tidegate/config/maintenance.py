"""[maintenance], and what a person asks for laid over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_serializer

from tidegate.config import value_types as values
from tidegate.config.value_types import Section, keys_of
from tidegate.core import table_actions as model
from tidegate.core.errors import UsageError
from tidegate.core.relation import Relation
from tidegate.core.table_actions import (
    LEAST_ORPHAN_AGE_SECONDS,
    Action,
    ActionList,
    ActionOptions,
    Policy,
    Thresholds,
)
from tidegate.core.units import parse_duration, size_from


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


class ExpireSnapshotsSettings(ExpireSnapshotsOptions, Cadence):
    every: values.PositiveDuration = "1 day"


class RemoveOrphanFilesSettings(RemoveOrphanFilesOptions, Cadence):
    every: values.PositiveDuration = "7 days"


class RewriteDataFilesSettings(RewriteDataFilesOptions, Cadence):
    every: values.PositiveDuration = "1 hour"


class RewritePositionDeleteFilesSettings(RewritePositionDeleteFilesOptions, Cadence):
    every: values.PositiveDuration = "1 hour"


class RewriteManifestsSettings(RewriteManifestsOptions, Cadence):
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
    expire_snapshots: ExpireSnapshotsSettings = Field(default_factory=ExpireSnapshotsSettings)
    remove_orphan_files: RemoveOrphanFilesSettings = Field(
        default_factory=RemoveOrphanFilesSettings
    )
    rewrite_data_files: RewriteDataFilesSettings = Field(default_factory=RewriteDataFilesSettings)
    rewrite_position_delete_files: RewritePositionDeleteFilesSettings = Field(
        default_factory=RewritePositionDeleteFilesSettings
    )
    rewrite_manifests: RewriteManifestsSettings = Field(default_factory=RewriteManifestsSettings)

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


_NAMES = frozenset(one.value for one in Action)
# Where the model counts in another unit than people write.
_FIELDS = {"older_than": "older_than_seconds", "target_file_size": "target_file_bytes"}


class BadActionOptions(UsageError):
    """An order asks for something that there is not; `errors` names each field."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        said = "; ".join(f"{one['field']}: {one['message']}" for one in errors)
        known = next((one["known"] for one in errors if "known" in one), None)
        super().__init__(said, f"known are {', '.join(known)}" if known else None)
        self.errors = errors


def read_action_options(
    policy: Policy, actions: Iterable[str], options: Mapping[str, Mapping[str, Any]]
) -> ActionList:
    """The order for these actions; what is not given is as the project says for the table."""
    errors: list[dict[str, Any]] = []
    chosen: dict[Action, ActionOptions] = {}
    for name in actions:
        if name in _NAMES:
            chosen[Action(name)] = policy.options[Action(name)]
        else:
            errors.append(_unknown("actions", f"there is no action {name!r}", Action))
    if not chosen and not errors:
        errors.append(_unknown("actions", "name one action or more", Action))
    for name, given in options.items():
        if name not in _NAMES:
            errors.append(_unknown(f"options.{name}", f"there is no action {name!r}", Action))
        elif Action(name) not in chosen:
            message = f"{name} is not among the actions"
            errors.append({"field": f"options.{name}", "message": message})
        else:
            action = Action(name)
            try:
                chosen[action] = _options_over(action, chosen[action], given)
            except ValidationError as error:
                errors += _fields(action, error)
    if errors:
        raise BadActionOptions(errors)
    return ActionList.of(chosen)


def _options_over(action: Action, below: ActionOptions, given: Mapping[str, Any]) -> ActionOptions:
    read = ACTION_OPTIONS[action].model_validate(dict(given))
    made: ActionOptions = read.options()  # type: ignore[attr-defined]
    names = [_FIELDS.get(one, one) for one in read.model_fields_set]
    return replace(below, **{name: getattr(made, name) for name in names})


def _fields(action: Action, error: ValidationError) -> list[dict[str, Any]]:
    found = []
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        field = ".".join(["options", action.value, *(str(part) for part in one["loc"])])
        if one["type"] == "extra_forbidden":
            keys = keys_of(ACTION_OPTIONS[action])
            found.append(_unknown(field, f"{action.value} has no such option", keys))
        else:
            message = str(one["msg"]).removeprefix("Value error, ")
            found.append({"field": field, "message": message})
    return found


def _unknown(field: str, message: str, known: Iterable[str]) -> dict[str, Any]:
    return {"field": field, "message": message, "known": [str(one) for one in known]}
