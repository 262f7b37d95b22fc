"""Each mode says for itself what it does in a target, and what it refuses."""

from __future__ import annotations

import pytest
from psycopg import sql

from tidegate.config.sync import Duplicates, Mode, Rules
from tidegate.core.errors import DeclarationError
from tidegate.core.relation import Relation
from tidegate.core.shape import Shape, StagedColumn
from tidegate.load.modes import MODES, Request
from tidegate.load.target import refuse_deletes
from tidegate.load.targets.iceberg.commit import LakeApplication
from tidegate.load.targets.postgres.apply import Application

ORDERS = Relation("raw", "orders")
COLUMNS = (
    StagedColumn("id", "bigint", "bigint"),
    StagedColumn("total", "numeric", "numeric"),
    StagedColumn("at", "timestamptz", "timestamptz"),
)


def shape_of(key: tuple[str, ...], *, deleted: str | None = None) -> Shape:
    return Shape(COLUMNS, key, "at", key_is_unique=True, deleted=deleted)


def verbs(mode: Mode, key: tuple[str, ...], *, full: bool, first: bool = False) -> list[str]:
    rows = sql.SQL("SELECT * FROM staged")
    application = Application(ORDERS, rows, shape_of(key), Rules(mode=mode), "u1", full)
    texts = [step.statement.as_string(None) for step in application.steps(first=first)]
    return [
        "UPSERT" if "ON CONFLICT" in one else "DELETE" if one.startswith("DELETE") else "INSERT"
        for one in texts
    ]


def test_every_mode_that_can_be_declared_is_there() -> None:
    assert set(MODES) == set(Mode)


@pytest.mark.parametrize(
    ("mode", "key", "full", "expected"),
    [
        (Mode.MERGE, ("id",), False, ["UPSERT"]),
        (Mode.MERGE, ("id",), True, ["DELETE", "UPSERT"]),
        (Mode.REPLACE, ("id",), True, ["DELETE", "UPSERT"]),
        (Mode.REPLACE, (), True, ["DELETE", "INSERT"]),
        (Mode.DELETE_INSERT, ("id",), False, ["DELETE", "INSERT"]),
        (Mode.DELETE_INSERT, ("id",), True, ["DELETE", "DELETE", "INSERT"]),
        (Mode.APPEND, (), False, ["INSERT"]),
        (Mode.APPEND, (), True, ["DELETE", "INSERT"]),
        (Mode.APPEND, ("id",), False, ["INSERT"]),
    ],
)
def test_a_mode_chooses_its_steps_in_postgres(
    mode: Mode, key: tuple[str, ...], full: bool, expected: list[str]
) -> None:
    assert verbs(mode, key, full=full) == expected
    assert verbs(mode, key, full=full, first=True) == ["INSERT"]


@pytest.mark.parametrize(
    ("mode", "key", "full", "expected"),
    [
        (Mode.MERGE, ("id",), False, "MERGE INTO"),
        (Mode.REPLACE, ("id",), True, "MERGE INTO"),
        (Mode.REPLACE, (), True, "INSERT OVERWRITE"),
        (Mode.DELETE_INSERT, ("id",), False, "MERGE INTO"),
        (Mode.APPEND, (), False, "INSERT INTO"),
        (Mode.APPEND, (), True, "INSERT OVERWRITE"),
    ],
)
def test_a_mode_chooses_its_statement_in_iceberg(
    mode: Mode, key: tuple[str, ...], full: bool, expected: str
) -> None:
    application = LakeApplication(
        shape_of(key), Rules(mode=mode), full, has_rows=True, is_plain=True, is_classic=True
    )
    assert application.statement("lake.raw.orders", "staged").startswith(expected)


def test_only_append_with_a_key_keeps_versions_behind_a_view() -> None:
    versioned = {
        (mode, key)
        for mode in Mode
        for key in ((), ("id",))
        if MODES[mode].table(key).holds_versions
    }
    assert versioned == {(Mode.APPEND, ("id",))}
    assert str(MODES[Mode.APPEND].table(("id",)).place(ORDERS)) == "raw.orders_raw"


def test_rows_loaded_again_are_there_twice_only_where_nothing_identifies_them() -> None:
    assert [mode for mode in Mode if MODES[mode].doubles(())] == [Mode.APPEND]
    assert not any(MODES[mode].doubles(("id",)) for mode in Mode)
    append = MODES[Mode.APPEND]
    assert append.refused(Request.REWIND, (), sync="orders") is not None
    assert append.refused(Request.REWIND, ("id",), sync="orders") is None


def test_versions_of_one_batch_are_not_folded() -> None:
    repeated = Shape(COLUMNS, ("id",), "at", key_is_unique=False)
    newest = Rules(duplicates=Duplicates.NEWEST)
    assert not MODES[Mode.APPEND].folds(repeated, newest)
    assert MODES[Mode.APPEND].tolerates_repeats(Duplicates.REFUSE)
    assert MODES[Mode.MERGE].folds(repeated, newest)
    assert not MODES[Mode.MERGE].tolerates_repeats(Duplicates.REFUSE)


@pytest.mark.parametrize(
    ("mode", "full", "why"),
    [
        (Mode.APPEND, False, "mode append keeps every row"),
        (Mode.APPEND, True, "mode append keeps every row"),
        (Mode.REPLACE, False, "mode replace removes whatever it does not hold"),
        (Mode.REPLACE, True, "a full batch removes whatever it does not hold"),
        (Mode.MERGE, True, "a full batch removes whatever it does not hold"),
    ],
)
def test_deletes_are_refused_where_they_have_no_meaning(mode: Mode, full: bool, why: str) -> None:
    shape = shape_of(("id",), deleted="gone")
    with pytest.raises(DeclarationError, match=why):
        refuse_deletes(ORDERS, shape, Rules(mode=mode), full=full)
