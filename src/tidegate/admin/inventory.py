"""What was created in a database, and by which project."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any
from uuid import UUID

from psycopg import sql

from tidegate.config.sync import TargetTemplate
from tidegate.core.identity import DatabaseIdentity, pipeline_name, resource_name, staging_prefix
from tidegate.core.relation import Relation
from tidegate.iceberg.table import lake_resource
from tidegate.jobs.control_database import SCHEMA_SCRIPTS
from tidegate.jobs.job import SYNC
from tidegate.ledger.ledger import Ledger
from tidegate.load.context import Context
from tidegate.postgres.catalog import database_identity, describe_table
from tidegate.postgres.connection import Connection
from tidegate.postgres.databases import CONTROL
from tidegate.postgres.queries import qualified, script, statement

# The last part may be the quoted name of a table with dots.
_LAST_PART = re.compile(r'\.(?:"(?:[^"]|"")*"|[^."]*)\Z')


@dataclass(frozen=True, slots=True)
class RecordedSync:
    """A sync that a project has run, and the table that it locked for that."""

    project: str
    name: str
    resource: str


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The table of a watermark, in the database of its ledger or in the lake of this catalog."""

    database: DatabaseIdentity
    relation: Relation
    catalog: str | None = None

    @property
    def resource(self) -> str:
        """What a job on it locks."""
        if self.catalog is not None:
            return lake_resource(self.catalog, self.relation)
        return resource_name(self.database, self.relation)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Tells the pipelines of one project from those of others.

    What jobs have recorded decides. Where they are silent, a table of a group that the project
    declares is its own, and any other name is read as project and sync without a dot.
    """

    project: str
    groups: Mapping[str, TargetTemplate] = field(default_factory=dict)
    recorded: Mapping[str, frozenset[RecordedSync]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, project: str, groups: Mapping[str, TargetTemplate], recorded: Iterable[RecordedSync]
    ) -> Ownership:
        """Sort what was recorded by pipeline."""
        found: dict[str, set[RecordedSync]] = {}
        for one in recorded:
            found.setdefault(pipeline_name(one.project, one.name), set()).add(one)
        return cls(project, groups, {key: frozenset(syncs) for key, syncs in found.items()})

    def owners(self, pipeline: str, table: LedgerEntry | None = None) -> frozenset[str]:
        """The projects that keep state under this name, for one table or at all."""
        found = self.recorded_owners(pipeline, table)
        if found:
            return found
        if any(self._covers(name, pipeline, table) for name in self.groups):
            return frozenset({self.project})
        return frozenset({_LAST_PART.sub("", pipeline)})

    def recorded_owners(self, pipeline: str, table: LedgerEntry | None = None) -> frozenset[str]:
        """The projects whose jobs had this name; none where no job is left."""
        syncs = self.recorded.get(pipeline, frozenset())
        if table is not None:
            # A restored database has another identity, and then the name has to do.
            syncs = frozenset(one for one in syncs if one.resource == table.resource) or syncs
        return frozenset(one.project for one in syncs)

    def owns(self, pipeline: str, table: LedgerEntry | None = None) -> bool:
        """Whether the state is this project's and nobody else's."""
        return self.owners(pipeline, table) == {self.project}

    def _covers(self, group: str, pipeline: str, table: LedgerEntry | None) -> bool:
        inside = pipeline.startswith(pipeline_name(self.project, group) + ".")
        return inside and (table is None or self.groups[group].covers(table.relation))


_CREATED = re.compile(
    r"CREATE (?:OR REPLACE )?(?:UNLOGGED )?(?:TABLE|SEQUENCE|VIEW|TYPE|FUNCTION|PROCEDURE)"
    r"(?: IF NOT EXISTS)? \{schema\}\.(\w+)"
)
_STAGING = re.compile(r"stg_([0-9a-f]{12})_[0-9a-f]{16}_[0-9a-f]{28}")
# A table of one of our names is ours when it has these columns.
_SIGNS = {
    "etl_state": {"pipeline_name", "table_name", "high_watermark", "generation", "version"},
    "watermark_log": {"pipeline_name", "table_name", "moved_by", "reason"},
    "fences": {"resource", "control_id", "token", "attempt_id"},
}
_LAKE_SIGNS = {
    "intents": {"target_table", "update_id", "attempt_id", "base_snapshot_id"},
    "staged_folders": {"folder", "attempt_id", "target_table", "location"},
    "catalog_moves": {"attempt_id", "session", "backend_pid", "backend_start"},
}
# These are there where a project has events.
_EVENT_SIGNS = {
    "event_changes": {"id", "changes"},
    "event_batches": {"attempt_id", "committed_at", "claimed", "facts"},
}
_EVENT_FUNCTION = "event_moment"
LEDGER_TABLES = tuple(_SIGNS)
# Without these nobody finds the tables of an embedded lake any more.
_CATALOG = frozenset(_CREATED.findall(script("ledger/iceberg_catalog")))


class Role(StrEnum):
    """What a schema of ours is for."""

    LEDGER = "ledger"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class InstalledObject:
    """One thing that goes: an object, or rows of one that stays."""

    kind: str
    name: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class InstalledSchema:
    """One schema of ours; `kept` are others' objects in it, `shared_with` its other users."""

    connection: str
    role: Role
    schema: str
    whole: bool
    parts: tuple[InstalledObject, ...]
    kept: tuple[str, ...]
    shared_with: tuple[str, ...]

    @property
    def objects(self) -> tuple[InstalledObject, ...]:
        return tuple(part for part in self.parts if part.kind != "rows")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose things are looked for; without a control plane no fence is ours."""

    pipelines: Ownership
    control_id: UUID | None

    @property
    def project(self) -> str:
        return self.pipelines.project


def find_ledger(
    context: Context, connection: Connection, name: str, owner: Owner, *, shared: bool
) -> InstalledSchema | None:
    """The ledger in one database, or None where there is none."""
    ledger = context.ledger(name)
    objects = list_objects(connection, ledger.schema)
    tables = {
        table for _, table, kind in objects if kind == "r" and _signed(connection, ledger, table)
    }
    staging = [table for _, table, kind in objects if kind == "r" and _STAGING.fullmatch(table)]
    if not tables and not staging:
        return None
    complete = tables >= set(_SIGNS)
    catalog = context.catalog(name).identity if ledger.lake else None
    states = list_states(connection, ledger, owner, catalog) if complete else []
    users = _users(connection, ledger, owner, states, staging) if complete else ()
    whole = not users or shared
    markers = ledger.find_markers(connection)
    own_markers = markers is not None and _made_by_us(connection, markers)
    parts: list[InstalledObject] = []
    if whole:
        parts += [_table(connection, Relation(ledger.schema, one)) for one in sorted(tables)]
    elif complete:
        parts += _ledger_rows(connection, ledger, owner, states)
    if markers is not None and own_markers and whole:
        parts.append(_table(connection, markers))
    elif markers is not None and complete:
        parts.append(_marker_rows(connection, ledger, markers, states, everybody=whole))
    functions = {
        name for _, name, kind in objects if kind is None and tables & set(_EVENT_SIGNS)
    } & {_EVENT_FUNCTION}
    if whole:
        parts += [
            InstalledObject("function", str(Relation(ledger.schema, one))) for one in functions
        ]
    ours = None if owner.control_id is None else staging_prefix(owner.control_id)
    parts += [
        InstalledObject("staging table", str(Relation(ledger.schema, one)))
        for one in staging
        if whole or (ours is not None and one.startswith(ours))
    ]
    known = {*tables, *staging, *functions, *_names_beside(context, ledger.schema)}
    if markers is not None and own_markers and markers.schema == ledger.schema:
        known.add(markers.name)
    kept = tuple(
        f"{words} (the lake's catalog)" if ledger.catalog and table in _CATALOG else words
        for words, table, _ in objects
        if table not in known
    )
    present = tuple(part for part in parts if part.kind != "rows" or part.rows)
    return InstalledSchema(name, Role.LEDGER, ledger.schema, whole, present, kept, users)


def find_control(
    context: Context, connection: Connection, owner: Owner, *, shared: bool
) -> InstalledSchema | None:
    """The control schema, or None where there is none."""
    plane = context.plane
    if plane.version(connection) == 0:
        return None
    rows = connection.execute(
        plane.statement("admin/control_inventory", "list_projects"), {}
    ).fetchall()
    observed = _observed(context, connection)
    projects = {project for (project,) in rows}.union(*map(owner.pipelines.owners, observed))
    users = tuple(f"project {project}" for project in sorted(projects - {owner.project}))
    whole = not users or shared
    made = made_in_control()
    objects = list_objects(connection, plane.schema)
    if whole:
        parts = tuple(
            _table(connection, Relation(plane.schema, name))
            if kind in ("r", "p")
            else InstalledObject(words.split()[0], str(Relation(plane.schema, name)))
            for words, name, kind in objects
            if name in made
        )
    else:
        counts = connection.execute(
            plane.statement("admin/control_inventory", "count_rows_of_project"),
            {"project": owner.project, "pipelines": own_observed(context, connection, owner)},
        ).fetchone()
        assert counts is not None
        names = ("jobs", "job_audit", "cursor_observations", "tasks", "notices")
        parts = tuple(
            InstalledObject("rows", str(Relation(plane.schema, name)), count)
            for name, count in zip(names, counts, strict=True)
            if count
        )
    beside = _is_beside(context, plane.schema)
    kept = tuple(words for words, name, _ in objects if name not in made and not beside(name))
    return InstalledSchema(CONTROL, Role.CONTROL, plane.schema, whole, parts, kept, users)


def own_observed(context: Context, connection: Connection, owner: Owner) -> list[str]:
    """The pipelines of the project of which the horizon remembers something."""
    return [one for one in _observed(context, connection) if owner.pipelines.owns(one)]


def _observed(context: Context, connection: Connection) -> list[str]:
    rows = connection.execute(
        context.plane.statement("admin/control_inventory", "list_observed"), {}
    )
    return [pipeline for (pipeline,) in rows]


@cache
def made_in_control() -> frozenset[str]:
    """The names of all that the control schema is made of."""
    texts = (script(file) for file in SCHEMA_SCRIPTS)
    return frozenset(name for text in texts for name in _CREATED.findall(text))


def list_objects(connection: Connection, schema: str) -> list[tuple[str, str, str | None]]:
    """(description, name, kind of relation) of everything that lies in a schema by itself."""
    rows = connection.execute(statement("admin/ledger_inventory", "list_objects"), {"name": schema})
    return [(words, name or "", kind) for _, _, words, name, kind in rows]


def _signed(connection: Connection, ledger: Ledger, table: str) -> bool:
    signs = (_SIGNS | (_LAKE_SIGNS if ledger.lake else _EVENT_SIGNS)).get(table)
    found = None if signs is None else describe_table(connection, Relation(ledger.schema, table))
    return signs is not None and found is not None and signs <= set(found.column_names)


def _made_by_us(connection: Connection, markers: Relation) -> bool:
    """Luigi's table has update_id alone as its key, and no time zone."""
    table = describe_table(connection, markers)
    if table is None or table.primary_key != ("update_id", "target_table"):
        return False
    inserted = table.column("inserted")
    return inserted is not None and inserted.type == "timestamp with time zone"


@dataclass(frozen=True, slots=True)
class PipelineState:
    """What a ledger keeps of one pipeline and table, and whose it is."""

    pipeline: str
    table: str
    projects: frozenset[str]
    is_ours: bool


def list_states(
    connection: Connection, ledger: Ledger, owner: Owner, catalog: str | None = None
) -> list[PipelineState]:
    """Every state in a ledger; none is ours whose table another control plane has fenced."""
    rows = connection.execute(
        statement("admin/ledger_inventory", "list_pipelines", schema=ledger.schema_identifier),
        {"control_id": owner.control_id},
    ).fetchall()
    database = database_identity(connection)
    found: list[PipelineState] = []
    for pipeline, table, fenced in rows:
        place = LedgerEntry(database, Relation.parse(table), catalog)
        projects = owner.pipelines.owners(pipeline, place)
        found.append(
            PipelineState(pipeline, table, projects, projects == {owner.project} and not fenced)
        )
    return found


def own_states(states: Iterable[PipelineState]) -> dict[str, Any]:
    """The project's own states, as the statements take them."""
    ours = [one for one in states if one.is_ours]
    return {"pipelines": [one.pipeline for one in ours], "tables": [one.table for one in ours]}


def _users(
    connection: Connection,
    ledger: Ledger,
    owner: Owner,
    states: list[PipelineState],
    staging: list[str],
) -> tuple[str, ...]:
    rows = connection.execute(
        statement("admin/ledger_inventory", "list_planes", schema=ledger.schema_identifier), {}
    ).fetchall()
    projects = {project for one in states for project in one.projects}
    planes = {plane for (plane,) in rows if plane != owner.control_id}
    prefixes = {plane.hex[:12] for plane in (*planes, owner.control_id) if plane is not None}
    matches = (_STAGING.fullmatch(table) for table in staging)
    strangers = {match[1] for match in matches if match} - prefixes
    return (
        *(f"project {project}" for project in sorted(projects - {owner.project})),
        *(f"control plane {plane}" for plane in sorted(planes)),
        *(f"control plane {prefix}…" for prefix in sorted(strangers)),
    )


def _ledger_rows(
    connection: Connection, ledger: Ledger, owner: Owner, states: list[PipelineState]
) -> list[InstalledObject]:
    counts = connection.execute(
        statement("admin/ledger_inventory", "count_rows", schema=ledger.schema_identifier),
        {**own_states(states), "control_id": owner.control_id},
    ).fetchone()
    assert counts is not None
    names = ("etl_state", "watermark_log", "fences")
    return [
        InstalledObject("rows", str(Relation(ledger.schema, name)), count)
        for name, count in zip(names, counts, strict=True)
    ]


def _marker_rows(
    connection: Connection,
    ledger: Ledger,
    markers: Relation,
    states: list[PipelineState],
    *,
    everybody: bool,
) -> InstalledObject:
    row = connection.execute(
        statement(
            "admin/ledger_inventory",
            "count_own_markers",
            schema=ledger.schema_identifier,
            markers=qualified(markers),
        ),
        {**own_states(states), "everybody": everybody},
    ).fetchone()
    assert row is not None
    return InstalledObject("rows", str(markers), row[0])


def _table(connection: Connection, relation: Relation) -> InstalledObject:
    row = connection.execute(
        sql.SQL("SELECT count(*) FROM {}").format(qualified(relation))
    ).fetchone()
    assert row is not None
    return InstalledObject("table", str(relation), row[0])


def _is_beside(context: Context, schema: str) -> Callable[[str], bool]:
    """Whether a name is the ledger's, where it shares the schema of the control plane."""
    ledger = context.settings.ledger
    if ledger.schema_name != schema:
        return lambda _: False
    names = {*LEDGER_TABLES, ledger.marker_table}
    return lambda name: name in names or _STAGING.fullmatch(name) is not None


def _names_beside(context: Context, schema: str) -> frozenset[str]:
    """Names of the control plane, where it shares the schema."""
    return made_in_control() if context.plane.schema == schema else frozenset()


def read_ownership(context: Context, control: Connection) -> Ownership:
    """Read it from the control database, if there is one; the project's own code is not run."""
    plane, settings = context.plane, context.settings
    rows = []
    if plane.version(control) > 0:
        rows = control.execute(
            plane.statement("admin/control_inventory", "list_syncs"), {"kind": SYNC}
        ).fetchall()
    groups = {
        name: TargetTemplate.parse(one.target)
        for name, one in settings.sync.items()
        if one.is_group
    }
    return Ownership.of(
        settings.project.name,
        {name: target for name, target in groups.items() if target is not None},
        (RecordedSync(*row) for row in rows),
    )
