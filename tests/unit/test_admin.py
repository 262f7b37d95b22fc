"""Rules of administration: adoption, ownership, state files, vacuum and encryption."""

from __future__ import annotations

import io
import itertools
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.admin.adopted_table import StartingPoint, check_mode, check_point
from tidegate.admin.doctor.databases import judge_encryption
from tidegate.admin.doctor.finding import FindingLevel
from tidegate.admin.inventory import LedgerEntry, Ownership, RecordedSync
from tidegate.admin.state_file import StateHeader, check_state, read_rows, write_state
from tidegate.admin.vacuum_horizon import (
    MANY_TRANSACTIONS,
    HolderKind,
    QueueRows,
    VacuumHolder,
    find_late,
)
from tidegate.config.sync import TargetTemplate
from tidegate.core.errors import StateDamaged, UsageError
from tidegate.core.identity import DatabaseIdentity, resource_name
from tidegate.core.relation import Relation

AT = StartingPoint(at="1")
MAX = StartingPoint(from_target_max=True)
NONE = StartingPoint()


@pytest.mark.parametrize("point", [AT, MAX, NONE])
@pytest.mark.parametrize("mode", ["merge", "delete_insert"])
@pytest.mark.parametrize("key", [("id",), None])
def test_modes_that_replace_rows_by_key_absorb_any_overlap(
    mode: str, key: tuple[str, ...] | None, point: StartingPoint
) -> None:
    check_mode("orders", mode, key, point)


@pytest.mark.parametrize("point", [AT, MAX, NONE])
def test_replace_has_nothing_to_go_on_from(point: StartingPoint) -> None:
    with pytest.raises(UsageError, match="whole table each time") as refusal:
        check_mode("orders", "replace", None, point)
    assert refusal.value.hint == "just run it: tidegate run orders"


@pytest.mark.parametrize("key", [None, ()])
def test_a_plain_append_begins_only_where_a_person_says(key: tuple[str, ...] | None) -> None:
    check_mode("orders", "append", key, AT)
    check_mode("orders", "append", key, NONE)
    with pytest.raises(UsageError, match="skipped or doubled"):
        check_mode("orders", "append", key, MAX)


@pytest.mark.parametrize("point", [AT, MAX, NONE])
def test_an_append_with_a_key_has_a_table_of_its_own(point: StartingPoint) -> None:
    with pytest.raises(UsageError, match="behind a view"):
        check_mode("orders", "append", ("id",), point)


def test_options_that_contradict_each_other_are_refused() -> None:
    check_point("orders", StartingPoint(from_target_max=True, back="1h"))
    for point in (StartingPoint("1", True), StartingPoint("1", back="1h"), StartingPoint(back="1")):
        with pytest.raises(UsageError):
            check_point("orders", point)


HERE, ELSEWHERE = DatabaseIdentity("1", "here"), DatabaseIdentity("1", "elsewhere")
TABLE = Relation("raw", "c")


def recorded(project: str, name: str, database: DatabaseIdentity = HERE) -> RecordedSync:
    return RecordedSync(project, name, resource_name(database, TABLE))


def template(text: str) -> TargetTemplate:
    found = TargetTemplate.parse(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("pipeline", "project"),
    [("a.c", "a"), ("a.b.c", "a.b"), ('a.b."x.y"', "a.b"), ('a.b."x"".y"', "a.b")],
)
def test_without_evidence_a_sync_has_no_dot(pipeline: str, project: str) -> None:
    assert Ownership("a").owners(pipeline) == {project}


def test_a_job_tells_whose_a_pipeline_is() -> None:
    ownership = Ownership.of("a.b", {}, [recorded("a", "b.c"), recorded("a.b", "x")])
    assert ownership.owners("a.b.c") == {"a"}
    assert ownership.owns("a.b.x")


def test_the_table_tells_two_projects_with_one_pipeline_apart() -> None:
    ownership = Ownership.of("a", {}, [recorded("a", "b.c"), recorded("a.b", "c", ELSEWHERE)])
    assert ownership.owns("a.b.c", LedgerEntry(HERE, TABLE))
    assert ownership.owners("a.b.c", LedgerEntry(ELSEWHERE, TABLE)) == {"a.b"}


def test_what_two_projects_share_is_nobodys_own() -> None:
    ownership = Ownership.of("a", {}, [recorded("a", "b.c"), recorded("a.b", "c")])
    assert ownership.owners("a.b.c", LedgerEntry(HERE, TABLE)) == {"a", "a.b"}
    assert not ownership.owns("a.b.c", LedgerEntry(HERE, TABLE))
    assert not ownership.owns("a.b.c")


def test_a_database_that_was_restored_is_known_by_the_name_of_the_pipeline() -> None:
    ownership = Ownership.of("a", {}, [recorded("a", "b.c")])
    assert ownership.owns("a.b.c", LedgerEntry(DatabaseIdentity("2", "here"), TABLE))


def test_a_table_of_a_declared_group_is_the_projects_unless_a_job_says_otherwise() -> None:
    groups = {"b": template("warehouse:raw.{table}")}
    assert Ownership("a", groups).owns("a.b.c", LedgerEntry(HERE, TABLE))
    assert not Ownership("a", groups).owns("a.b.c", LedgerEntry(HERE, Relation("other", "c")))
    assert not Ownership("a", groups).owns("a.bb.c", LedgerEntry(HERE, TABLE))
    others = Ownership.of("a", groups, [recorded("a.b", "c")])
    assert others.owners("a.b.c", LedgerEntry(HERE, TABLE)) == {"a.b"}


HEADER = StateHeader(
    "shop",
    UUID("00000000-0000-0000-0000-00000000002a"),
    datetime(2026, 11, 15, 8, 30, tzinfo=UTC),
    17,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ROWS = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=4)
SECTIONS = st.dictionaries(st.text("abcdefghij_", min_size=1, max_size=12), ROWS, max_size=4)
Sections = dict[str, list[dict[str, Any]]]


def write(sections: Sections, header: StateHeader = HEADER) -> bytes:
    texts = ((name, (json.dumps(row) for row in rows)) for name, rows in sections.items())
    return b"".join(write_state(header, texts))


def read(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    return [(section, json.loads(row)) for section, row in read_rows(io.BytesIO(data))]


A_FILE = write({"jobs": [{"job_id": 1, "name": "orders €"}, {"job_id": 2}], "schedules": []})


@given(SECTIONS)
def test_what_is_written_is_read(sections: Sections) -> None:
    data = write(sections)
    assert check_state(io.BytesIO(data)) == HEADER
    assert read(data) == [(name, row) for name, rows in sections.items() for row in rows]


@given(SECTIONS)
def test_a_state_file_is_one_json_document(sections: Sections) -> None:
    document = json.loads(write(sections))
    assert document["sections"] == sections
    assert document["rows"] == sum(map(len, sections.values()))
    assert (document["version"], document["project"], document["fence_token"]) == (1, "shop", 17)


def test_any_flipped_bit_is_refused() -> None:
    for place, bit in itertools.product(range(len(A_FILE)), range(8)):
        damaged = bytearray(A_FILE)
        damaged[place] ^= 1 << bit
        with pytest.raises(StateDamaged) as caught:
            check_state(io.BytesIO(damaged))
        assert "kept as it is" in (caught.value.hint or ""), (place, bit)


def test_any_file_that_is_cut_off_is_refused() -> None:
    for length in range(len(A_FILE)):
        with pytest.raises(StateDamaged):
            check_state(io.BytesIO(A_FILE[:length]))


@given(SECTIONS, st.data())
def test_any_other_byte_and_any_cut_is_refused_in_any_file(
    sections: Sections, data: st.DataObject
) -> None:
    whole = write(sections)
    place = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(1, 255))
    length = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:place] + bytes([whole[place] ^ other]) + whole[place + 1 :]
    for damaged in (flipped, whole[:length], whole + whole[place:]):
        with pytest.raises(StateDamaged):
            check_state(io.BytesIO(damaged))


@given(st.binary(max_size=200))
def test_anything_else_is_no_state_file(data: bytes) -> None:
    with pytest.raises(StateDamaged):
        check_state(io.BytesIO(data))


def test_another_version_is_named_and_says_who_reads_it() -> None:
    later = A_FILE.replace(b'"version":1', b'"version":2')
    with pytest.raises(StateDamaged, match="version 2; this Tidegate reads version 1") as caught:
        check_state(io.BytesIO(later))
    assert "the Tidegate that wrote it" in (caught.value.hint or "")


def test_rows_may_be_more_than_memory_holds() -> None:
    seen = 0

    def rows() -> Any:
        nonlocal seen
        for _ in range(1_000):
            seen += 1
            yield '{"n":1}'

    pieces = write_state(HEADER, [("jobs", rows())])
    for _ in range(3):
        next(pieces)
    assert seen == 1


LIMIT = 300.0


def holder(
    seconds: float | None,
    transactions: int = 5,
    kind: HolderKind = HolderKind.SESSION,
    state: str = "active",
    *,
    only_catalogs: bool = False,
) -> VacuumHolder:
    return VacuumHolder(
        kind, only_catalogs, 1, "ana", "psql", None, state, None, None, seconds, transactions
    )


OLD, YOUNG = holder(LIMIT), holder(LIMIT - 1, MANY_TRANSACTIONS)
IN_USE = holder(None, MANY_TRANSACTIONS - 1, HolderKind.SLOT)
FAR_BEHIND = holder(None, MANY_TRANSACTIONS, HolderKind.SLOT)
ABANDONED = holder(None, 1, HolderKind.SLOT, "inactive")
OF_NO_WEIGHT = holder(None, 0, HolderKind.SLOT, "inactive")
POLLED = holder(None, 1, HolderKind.SLOT, "inactive", only_catalogs=True)


@pytest.mark.parametrize(
    ("found", "late"),
    [
        ([], None),
        ([OLD], OLD),
        ([YOUNG], None),
        ([FAR_BEHIND], FAR_BEHIND),
        ([ABANDONED], ABANDONED),
        ([OF_NO_WEIGHT], None),
        ([POLLED], None),
        # A slot in use says nothing about who comes after it; a young session does.
        ([IN_USE, OLD], OLD),
        ([IN_USE, YOUNG, OLD], None),
        ([YOUNG, OLD], None),
    ],
)
def test_the_oldest_holder_is_late_by_its_age_or_by_the_transactions_behind_it(
    found: list[VacuumHolder], late: VacuumHolder | None
) -> None:
    assert find_late(found, LIMIT) is late


@pytest.mark.parametrize(
    ("dead", "live", "crowded"),
    [(10_000, 0, False), (10_001, 0, True), (10_001, 1_001, False), (10_011, 1_001, True)],
)
def test_a_queue_is_crowded_by_many_dead_rows_for_each_live_one(
    dead: int, live: int, crowded: bool
) -> None:
    assert QueueRows(dead, live).is_crowded is crowded


@pytest.mark.parametrize(
    ("host", "address", "mode", "encrypted", "level"),
    [
        ("localhost", "127.0.0.1", "prefer", False, None),
        ("127.0.5.5", "127.0.5.5", "disable", False, None),
        ("::1", "::1", "prefer", False, None),
        ("/run/postgresql", "", "prefer", False, None),
        ("@socket", "", "prefer", False, None),
        ("db.example.com", "10.1.2.3", "prefer", False, FindingLevel.WARN),
        ("db.example.com", "10.1.2.3", "disable", False, FindingLevel.WARN),
        ("db.example.com", "10.1.2.3", "prefer", True, FindingLevel.WARN),
        ("db.example.com", "2001:db8::1", "require", True, FindingLevel.OK),
        ("db.example.com", "10.1.2.3", "verify-full", True, FindingLevel.OK),
    ],
)
def test_a_session_with_another_machine_must_be_encrypted_by_its_address(
    host: str, address: str, mode: str, encrypted: bool, level: FindingLevel | None
) -> None:
    found = judge_encryption("shop", host, address, mode, encrypted=encrypted)
    assert [one.level for one in found] == ([] if level is None else [level])
