"""Is everything here that a project needs, and if not, how does it get here?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import SettingsError, TidegateError
from tidegate.insight.doctor_cdc import check_changes
from tidegate.insight.doctor_engine import check_engine
from tidegate.insight.doctor_events import check_events
from tidegate.insight.doctor_lake import check_lakes
from tidegate.insight.doctor_machine import check_machine
from tidegate.insight.doctor_postgres import check_databases
from tidegate.model.check import Check, Level, fail, ok
from tidegate.model.sync import Sync
from tidegate.pipeline.context import Context
from tidegate.settings import Settings, SparkSettings, find_project, load_settings


@dataclass(frozen=True, slots=True)
class Examination:
    """Every check, and the project they are about, if there is one here."""

    project: str | None
    checks: tuple[Check, ...]

    @property
    def is_well(self) -> bool:
        return all(check.level is not Level.FAIL for check in self.checks)


def examine(
    folder: Path,
    *,
    load: Callable[[Path], Settings] = load_settings,
    declared: Callable[[Settings], Iterable[Sync]],
    environment: Mapping[str, str] | None = None,
) -> Examination:
    """Check the machine and, in a project, its settings, declarations and databases."""
    try:
        root = find_project(folder)
    except SettingsError:
        return Examination(
            None, tuple(check_machine(SparkSettings(), {"here": folder.resolve()}, environment))
        )
    try:
        settings = load(root)
    except TidegateError as error:
        machine = check_machine(SparkSettings(), {"project folder": root}, environment)
        broken = fail("settings", error.message, error.hint or "correct tidegate.toml")
        return Examination(None, (*machine, broken))
    folders = {"project folder": root, "state": settings.state_directory}
    checks = check_machine(settings.spark, folders, environment)
    checks.append(ok("settings", f"valid ({root / 'tidegate.toml'})"))
    syncs: list[Sync] = []
    try:
        syncs = list(declared(settings))
        refused = [sync for sync in syncs if sync.refused is not None]
        syncs = [sync for sync in syncs if sync.refused is None]
        checks += [_refused(sync) for sync in refused]
        checks.append(ok("declarations", f"{len(syncs)} syncs"))
    except TidegateError as error:
        checks.append(fail("declarations", error.message, error.hint or "correct the declaration"))
    context = Context(settings)
    checks += check_databases(context, syncs)
    checks += check_changes(context, syncs)
    checks += check_events(context)
    checks += check_lakes(context, syncs)
    checks += check_engine(context)
    return Examination(settings.project.name, tuple(checks))


def _refused(sync: Sync) -> Check:
    assert sync.refused is not None
    fix = sync.refused.hint or "correct the declaration"
    return fail(f"declarations: {sync.name}", sync.refused.message, fix)
