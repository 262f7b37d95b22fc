"""Whose a pipeline is: its name alone does not tell, since projects and syncs may hold dots.

`a.b.c` may be table c of group b in project a, or sync c of project a.b.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.model.group import TargetTemplate
from tidegate.model.identity import DatabaseIdentity, pipeline_name, resource_name
from tidegate.model.lake import lake_resource
from tidegate.model.relation import Relation

# The last part may be the quoted name of a table with dots.
_LAST_PART = re.compile(r'\.(?:"(?:[^"]|"")*"|[^."]*)\Z')


@dataclass(frozen=True, slots=True)
class RecordedSync:
    """A sync that a project has run, and the table that it locked for that."""

    project: str
    name: str
    resource: str


@dataclass(frozen=True, slots=True)
class StateTable:
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

    def owners(self, pipeline: str, table: StateTable | None = None) -> frozenset[str]:
        """The projects that keep state under this name, for one table or at all."""
        found = self.recorded_owners(pipeline, table)
        if found:
            return found
        if any(self._covers(name, pipeline, table) for name in self.groups):
            return frozenset({self.project})
        return frozenset({_LAST_PART.sub("", pipeline)})

    def recorded_owners(self, pipeline: str, table: StateTable | None = None) -> frozenset[str]:
        """The projects whose jobs had this name; none where no job is left."""
        syncs = self.recorded.get(pipeline, frozenset())
        if table is not None:
            # A restored database has another identity, and then the name has to do.
            syncs = frozenset(one for one in syncs if one.resource == table.resource) or syncs
        return frozenset(one.project for one in syncs)

    def owns(self, pipeline: str, table: StateTable | None = None) -> bool:
        """Whether the state is this project's and nobody else's."""
        return self.owners(pipeline, table) == {self.project}

    def _covers(self, group: str, pipeline: str, table: StateTable | None) -> bool:
        inside = pipeline.startswith(pipeline_name(self.project, group) + ".")
        return inside and (table is None or self.groups[group].covers(table.relation))
