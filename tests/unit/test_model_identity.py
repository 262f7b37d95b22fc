"""Identities: of loads, tables, staging tables and attempts."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.batch import Batch, BatchKind
from tidegate.core.errors import DeclarationError
from tidegate.core.identity import (
    DatabaseIdentity,
    load_update_id,
    new_attempt_id,
    new_write_id,
    pipeline_name,
    resource_name,
    staging_prefix,
    staging_table,
)
from tidegate.core.relation import Endpoint, Relation
from tidegate.verify.backfill import BackfillRange

# What Postgres takes as a name: anything but NUL, up to 63 bytes.
names = (
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1)
    .filter(lambda name: len(name.encode()) <= 63)
    .filter(lambda name: name.strip() != "")
)
relations = st.builds(Relation, names, names)
attempts = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
inputs = st.fixed_dictionaries(
    {
        "pipeline": st.text(max_size=5),
        "source": st.text(max_size=5),
        "target": st.text(max_size=5),
        "generation": st.integers(0, 3),
        "version": st.integers(0, 3),
        "batch": st.builds(
            Batch,
            kind=st.sampled_from(BatchKind),
            low=st.none() | st.text(max_size=2),
            high=st.none() | st.text(max_size=2),
            key_low=st.none() | st.tuples(st.text(max_size=2)),
            key_high=st.none() | st.tuples(st.text(max_size=2)),
            closes_tie=st.booleans(),
        ),
    }
)


@given(inputs, inputs)
def test_loads_have_one_id_if_and_only_if_they_are_the_same(
    left: dict[str, Any], right: dict[str, Any]
) -> None:
    assert (load_update_id(**left) == load_update_id(**right)) == (left == right)


def test_the_id_of_a_load_is_the_same_in_every_release() -> None:
    found = load_update_id(
        pipeline="shop.orders",
        source="7423/shop/public.orders",
        target="raw.orders",
        generation=1,
        version=2,
        batch=Batch(BatchKind.RANGE, None, "2026-11-01 00:00:00+00", rows=5),
    )
    assert found == "shop.orders-g1-v2-c807be180992249d4d9b81416949e95068ce8e71"


@pytest.mark.parametrize(
    ("batch", "digest"),
    [
        (Batch(BatchKind.RANGE, "10", "20", rows=3, is_last=True), "9137c2c4c600eabc"),
        (Batch(BatchKind.TIE, "10", "20", ("a", "1"), ("b", "2"), rows=3), "f7a5ef2663cfb5c0"),
        (Batch(BatchKind.TIE, "10", "20", ("b", "2"), closes_tie=True), "1f25a81758595b62"),
        (Batch(BatchKind.LOOKBACK, "5", "10"), "c5029e3f7102472d"),
        (Batch(BatchKind.NULLS), "ef66cc1a6eede899"),
        (Batch(BatchKind.FULL, None, "20"), "8900c949c08c2e0a"),
        (Batch(BatchKind.FRAME), "730de5517251f862"),
        (Batch(BatchKind.SNAPSHOTS, "7001", "7002"), "0bdffde2d067fa0c"),
        (Batch(BatchKind.CHANGES, "0/10", "0/20"), "1f163cbd0f235420"),
        (
            Batch(
                BatchKind.WRITTEN,
                "700",
                "800",
                ("1",),
                ("9",),
                reached="2026-11-01",
                tables=(16384, 16390),
            ),
            "53973130885105e0",
        ),
        (Batch(BatchKind.REPAIR, part="[1, 9)"), "5b133b0975c7e59d"),
        (Batch(BatchKind.BACKFILL, "1", "5"), "cce40ebcf6645ce2"),
    ],
    ids=lambda value: str(value) if isinstance(value, Batch) else "",
)
def test_every_kind_of_batch_keeps_its_id(batch: Batch, digest: str) -> None:
    found = load_update_id(
        pipeline="shop.orders",
        source="7301/5/public.orders",
        target="public.orders",
        generation=2,
        version=7,
        batch=batch,
    )
    assert found.startswith(f"shop.orders-g2-v7-{digest}")


def test_a_chunk_of_a_backfill_keeps_its_id() -> None:
    wanted = BackfillRange("1", "9", "4", ("1", "5"))
    found = wanted.update_id(
        wanted.chunks[0],
        pipeline="shop.orders",
        source="7301/5/public.orders",
        target="public.orders",
        generation=2,
        turn=1,
    )
    assert found == "shop.orders-backfill-g2-t1-09198fcd474b00a611c372b472298d64ae9a2b22"


@given(relations)
def test_a_relation_is_read_back_from_what_it_prints(relation: Relation) -> None:
    assert Relation.parse(str(relation)) == relation


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,62}", fullmatch=True), relations)
def test_an_endpoint_is_read_back_from_what_it_prints(connection: str, relation: Relation) -> None:
    endpoint = Endpoint(connection, relation)
    assert Endpoint.parse(str(endpoint)) == endpoint


@given(relations, relations)
def test_two_relations_never_print_alike(left: Relation, right: Relation) -> None:
    assert (str(left) == str(right)) == (left == right)


def test_a_bare_table_name_means_the_public_schema() -> None:
    assert Relation.parse("orders") == Relation("public", "orders")


@pytest.mark.parametrize("text", ["", ".", "a.", ".b", "a.b.c", 'a."b', 'a"b', "a\0b", '""'])
def test_what_is_no_table_name_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="is not a table name"):
        Relation.parse(text)


@pytest.mark.parametrize("name", ["x" * 64, "ü" * 32])
def test_a_name_that_postgres_would_cut_off_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="longer than 63 bytes"):
        Relation.parse(f"raw.{name}")
    assert Relation.parse("x" * 63).name == "x" * 63


@pytest.mark.parametrize("text", ["orders", ":orders", "  :orders"])
def test_an_endpoint_without_a_connection_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="names no connection"):
        Endpoint.parse(text)


@given(st.uuids(), attempts)
def test_a_staging_table_s_name_fits_and_starts_with_its_attempt(
    control_id: UUID, attempt_id: str
) -> None:
    table = staging_table(control_id, attempt_id, new_write_id())
    assert len(table.encode()) <= 63
    assert table.startswith(staging_prefix(control_id, attempt_id))
    assert staging_prefix(control_id, attempt_id).startswith(staging_prefix(control_id))


def test_staging_prefixes_tell_attempts_and_control_planes_apart() -> None:
    planes = [uuid4() for _ in range(50)]
    prefixes = [staging_prefix(plane, new_attempt_id()) for plane in planes for _ in range(20)]
    assert len(set(prefixes)) == len(prefixes)
    assert not any(a != b and a.startswith(b) for a in prefixes[:100] for b in prefixes)


def test_writes_and_attempts_are_never_named_twice() -> None:
    assert len({new_write_id() for _ in range(1000)}) == 1000
    assert len({new_attempt_id() for _ in range(1000)}) == 1000


def test_a_table_is_one_resource_whatever_its_connection_is_called() -> None:
    database = DatabaseIdentity("7423", "shop")
    assert resource_name(database, Relation("raw", "a.b")) == 'postgres:7423/shop/raw."a.b"'
    assert pipeline_name("my.shop", "orders").rpartition(".") == ("my.shop", ".", "orders")
