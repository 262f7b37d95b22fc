"""What a load mode is: what targets, plan and verify ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from psycopg import sql

from tidegate.config.sync import Duplicates, Rules
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape
from tidegate.load.targets.iceberg.statement import IcebergStatement
from tidegate.load.targets.postgres.steps import ApplyStep, PostgresSteps
from tidegate.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class TableForm:
    """The table of a database that takes the rows: the target, or one behind a view of its name."""

    suffix: str = ""
    """of its name, where a view has the name of the target"""
    added: Mapping[str, str] = field(default_factory=dict)
    """columns of its own, beside those of the load, and their definitions"""
    holds_versions: bool = False
    """a key may occur more than once; the view shows the row that counts"""
    index: Callable[[Relation, Shape], sql.Composed] | None = None
    view: Callable[[Relation, Shape, Sequence[str]], sql.Composed] | None = None
    """the view over it, with these of its columns"""
    check: Callable[[Connection, Relation, Shape], bool] | None = None
    """whether it is there with its view; refuses what stands in their place"""

    def place(self, target: Relation) -> Relation:
        """Where the rows of a target lie."""
        return Relation(target.schema, target.name + self.suffix)


PLAIN = TableForm()


class Request(StrEnum):
    """What a mode may refuse."""

    DELETES = "deletes"
    """rows that say of others that they are deleted"""
    FORGET_TASK = "forget task"
    """to do a task again whose rows are in"""
    REWIND = "rewind"
    """to load rows again that are in"""
    SKIP_PART = "skip part"
    """to begin anew among rows of one cursor of which some are in"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that a mode refuses, the message and the way out; names in braces are filled in."""

    request: Request
    message: str
    way_out: str
    only_without_key: bool = False


def _plain_table(key: Sequence[str] | None) -> TableForm:
    return PLAIN


def _no_warning(cursor: str | None, *, key_is_proven: bool) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMode:
    """One way to load: what it does in each kind of target, and what it means elsewhere."""

    postgres: Callable[[PostgresSteps], list[ApplyStep]]
    """the statements that put staged rows into a table of a database"""
    iceberg: Callable[[IcebergStatement], str]
    """the one statement that puts them into an Iceberg table which has rows that may change"""
    loads_whole: bool = False
    """every load is all of the source, and what it does not hold is removed"""
    only_adds: bool = False
    """rows go beside what is there; without a key, what is loaded again is there twice"""
    needs_key: bool = False
    folds_repeats: bool = True
    """rows of one batch with one key are one row, as opposed to versions of it"""
    needs_unique_index: bool = False
    """where there is a key, Postgres finds the rows that are there by it"""
    repairable: bool = False
    """verify can load again just what differs"""
    table: Callable[[Sequence[str] | None], TableForm] = _plain_table
    """by the key"""
    hides_updates: Callable[..., str | None] = _no_warning
    """what plan says of rows below the cursor of what is there; given the cursor, key_is_proven"""
    refusals: tuple[Refusal, ...] = ()

    def doubles(self, key: Sequence[str] | None) -> bool:
        """Whether rows that are loaded again are there twice."""
        return self.only_adds and not key

    def reinserts(self, key: Sequence[str]) -> bool:
        """Whether rows that are there are deleted, to be inserted again."""
        return not self.only_adds and not (self.needs_unique_index and key)

    def tolerates_repeats(self, duplicates: Duplicates) -> bool:
        """Whether rows of one batch with one key do no harm."""
        return duplicates is Duplicates.NEWEST or not self.folds_repeats

    def folds(self, shape: Shape, rules: Rules) -> bool:
        """Whether the newest of several rows with one key is to be found first."""
        wanted = self.folds_repeats and rules.duplicates is Duplicates.NEWEST
        return wanted and shape.may_repeat_keys

    def refused(
        self, request: Request, key: Sequence[str] | None = None, **names: object
    ) -> tuple[str, str] | None:
        """The message and the way out, if this mode refuses a request."""
        for one in self.refusals:
            if one.request is request and not (one.only_without_key and key):
                return one.message.format(**names), one.way_out.format(**names)
        return None
