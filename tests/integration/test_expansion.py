"""A group becomes one sync per table: which tables, with which key, cursor and mode."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from integration.groups import SHOP, STAMPED, expand, left_out, record
from tidegate.errors import (
    ConnectionFailed,
    DeclarationError,
    TargetGone,
    UsageError,
)
from tidegate.model.cursor import NullPolicy
from tidegate.model.relation import Endpoint, Relation
from tidegate.model.rules import Mode
from tidegate.pipeline.changed import refuse_changed
from tidegate.pipeline.declaration import resolve_source
from tidegate.project import Project


def test_every_table_gets_the_key_cursor_and_mode_that_its_catalog_entry_speaks_for(
    make_place: Any,
) -> None:
    place = make_place(SHOP)
    place.source.execute(
        f"CREATE TABLE stamped ({STAMPED})",
        "CREATE TABLE composite (a int, b int, changed_at timestamptz NOT NULL,"
        " PRIMARY KEY (b, a))",
        "CREATE TABLE by_index (code text NOT NULL UNIQUE, maybe int UNIQUE,"
        " updated_at timestamptz NOT NULL)",
        "CREATE TABLE nullable (id int PRIMARY KEY, updated_at timestamptz)",
        "CREATE TABLE unstamped (id int PRIMARY KEY)",
        "CREATE TABLE created_only (id bigserial PRIMARY KEY, created_at timestamptz NOT NULL)",
        "CREATE TABLE keyless (a int, updated_at timestamptz NOT NULL)",
        "CREATE TABLE nothing (a int)",
        "CREATE TABLE epoch (id int PRIMARY KEY, updated_at bigint NOT NULL)",
    )
    found = {
        name.removeprefix("shop."): (sync.mode, sync.key, sync.cursor, sync.null_cursor)
        for name, sync in expand(place).items()
    }
    merge, whole = Mode.MERGE, Mode.REPLACE
    assert found == {
        "stamped": (merge, ("id",), "updated_at", None),
        "composite": (merge, ("b", "a"), "changed_at", None),
        "by_index": (merge, ("code",), "updated_at", None),
        "nullable": (merge, ("id",), "updated_at", NullPolicy.INCLUDE),
        "unstamped": (whole, ("id",), None, None),
        "created_only": (whole, ("id",), None, None),
        "keyless": (whole, (), None, None),
        "nothing": (whole, (), None, None),
        "epoch": (merge, ("id",), "updated_at", None),
    }
    # Each of them can be resolved as it stands.
    with place.source.connect() as session:
        for sync in expand(place).values():
            assert resolve_source(session, sync).key == sync.key


def test_names_are_exact_whatever_they_hold(make_place: Any) -> None:
    place = make_place(SHOP)
    odd = ["My Table", "v1.orders", 'say "hi"', "größe", "50%_off", "{schema}", "a*b", "x" * 63]
    for name in odd:
        quoted = name.replace('"', '""')
        place.source.execute(f'CREATE TABLE "{quoted}" (id int PRIMARY KEY)')
    found = expand(place)
    assert {sync.target.relation for sync in found.values()} == {Relation("raw", n) for n in odd}
    assert {sync.source.relation for sync in found.values()} == {Relation("public", n) for n in odd}
    assert {"shop.My Table", 'shop."v1.orders"', 'shop."say ""hi"""', "shop.a*b"} <= found.keys()
    # A shell eats the quotes.
    assert expand(place, "shop.v1.orders").keys() == {'shop."v1.orders"'}
    for name, sync in found.items():
        assert expand(place, name) == {name: sync}
        with place.source.connect() as session:
            resolve_source(session, sync)


def test_a_target_that_grows_too_long_is_refused_and_the_others_are_not(make_place: Any) -> None:
    place = make_place({**SHOP, "target": "warehouse:raw.{table}_copy"})
    place.source.execute(
        f"CREATE TABLE {'x' * 60} (id int PRIMARY KEY)", "CREATE TABLE short (id int PRIMARY KEY)"
    )
    found = expand(place)
    with place.source.connect() as session:
        resolve_source(session, found["shop.short"])
        with pytest.raises(DeclarationError, match="longer than 63 bytes"):
            resolve_source(session, found[f"shop.{'x' * 60}"])


def test_what_is_not_a_table_of_its_own_is_left_out_with_the_reason(make_place: Any) -> None:
    place = make_place({**SHOP, "exclude": ["tmp_*", "public.secret"]})
    place.source.execute(
        f"CREATE TABLE orders ({STAMPED})",
        "CREATE TABLE events (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE events_old PARTITION OF events DEFAULT",
        "CREATE VIEW v AS SELECT * FROM orders",
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM orders",
        "CREATE TABLE tmp_1 (a int)",
        "CREATE TABLE secret (a int)",
        "CREATE SCHEMA other",
        "CREATE TABLE other.elsewhere (id int)",
        'CREATE TABLE "a\nb" (a int)',
    )
    assert expand(place).keys() == {"shop.orders", "shop.events"}
    found = left_out(place)
    assert found.keys() == {
        "public.events_old",
        "public.v",
        "public.m",
        "public.tmp_1",
        "public.secret",
        'public."a\nb"',
    }
    assert "a partition" in found["public.events_old"]
    assert found["public.v"].startswith("a view")
    assert found["public.m"].startswith("a materialized view")
    assert found["public.tmp_1"] == 'exclude = "tmp_*"'
    with pytest.raises(UsageError, match=r"left out \(a partition") as raised:
        expand(place, "shop.events_old")
    assert "shop.events" in str(raised.value.hint)


def test_tables_that_the_role_may_not_read_are_left_out(make_place: Any) -> None:
    place = make_place(SHOP)
    role = f"reader_{uuid.uuid4().hex[:8]}"
    place.source.execute(
        f"CREATE TABLE orders ({STAMPED})",
        f"CREATE TABLE salaries ({STAMPED})",
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret'",
        f"GRANT SELECT ON orders TO {role}",
    )
    file = place.folder / "tidegate.toml"
    reader = make_conninfo(place.source.conninfo, user=role, password="secret")
    before = f"shop = {json.dumps(place.source.conninfo)}"
    file.write_text(file.read_text().replace(before, f"shop = {json.dumps(reader)}"))
    assert expand(place).keys() == {"shop.orders"}
    assert left_out(place) == {"public.salaries": "this role may not read it"}
    place.source.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_view_is_loaded_where_include_names_it_itself(make_place: Any) -> None:
    view = "CREATE VIEW order_totals AS SELECT id, updated_at FROM orders"
    for include, loaded in (
        (["*"], {"shop.orders"}),
        (["order*"], {"shop.orders"}),
        (["*", "order_totals"], {"shop.orders", "shop.order_totals"}),
        (["public.order_totals"], {"shop.order_totals"}),
    ):
        place = make_place({**SHOP, "include": include})
        place.source.execute(f"CREATE TABLE orders ({STAMPED})", view)
        found = expand(place)
        assert found.keys() == loaded
    sync = found["shop.order_totals"]
    assert (sync.mode, sync.key, sync.cursor) == (Mode.REPLACE, (), None)
    # With a key that somebody vouches for, it is merged by its cursor.
    place = make_place({**SHOP, "include": ["order_totals"], "key": "id"})
    place.source.execute(f"CREATE TABLE orders ({STAMPED})", view)
    sync = expand(place)["shop.order_totals"]
    assert (sync.mode, sync.key, sync.cursor) == (Mode.MERGE, ("id",), "updated_at")


def test_what_the_group_declares_goes_for_the_tables_that_have_it(make_place: Any) -> None:
    place = make_place(
        {
            **SHOP,
            "cursor": "touched",
            "lookback": "5 minutes",
            "null_cursor": "exclude",
            "exclude_columns": ["secret"],
            "batch_rows": 7,
        }
    )
    place.source.execute(
        "CREATE TABLE a (id int PRIMARY KEY, touched timestamptz, updated_at timestamptz,"
        " secret int)",
        f"CREATE TABLE b ({STAMPED})",
        "CREATE TABLE c (id int PRIMARY KEY, touched bigint NOT NULL)",
        "CREATE TABLE d (id int PRIMARY KEY, secret int)",
    )
    found = expand(place)
    a, b, c, d = (found[f"shop.{name}"] for name in "abcd")
    assert (a.cursor, a.null_cursor, a.exclude_columns) == (
        "touched",
        NullPolicy.EXCLUDE,
        ("secret",),
    )
    assert (b.cursor, b.lookback, b.exclude_columns) == ("updated_at", "5 minutes", ())
    assert (c.cursor, c.lookback) == ("touched", None)
    assert "does not fit touched" in " ".join(c.notes)
    assert (d.mode, d.exclude_columns) == (Mode.REPLACE, ("secret",))
    assert {sync.batch_rows for sync in found.values()} == {7}
    assert "cursor" in b.proposed
    assert "cursor" not in a.proposed


def test_append_and_replace_are_taken_where_they_are_possible(make_place: Any) -> None:
    place = make_place({**SHOP, "mode": "append"}, defaults={"lookback": 0})
    place.source.execute(
        f"CREATE TABLE stamped ({STAMPED})",
        "CREATE TABLE nullable (id int PRIMARY KEY, updated_at timestamptz)",
        "CREATE TABLE bare (id int PRIMARY KEY)",
    )
    modes = {name: (sync.mode, sync.key) for name, sync in expand(place).items()}
    assert modes == {
        "shop.stamped": (Mode.APPEND, None),
        "shop.nullable": (Mode.REPLACE, ()),
        "shop.bare": (Mode.REPLACE, ()),
    }
    place = make_place({**SHOP, "mode": "replace"}, beside=place)
    assert {sync.mode for sync in expand(place).values()} == {Mode.REPLACE}


def test_several_schemas_are_part_of_the_names(make_place: Any) -> None:
    place = make_place(
        {**SHOP, "source": "shop:s*.*", "target": "warehouse:{schema}_raw.{table}"}, databases=2
    )
    for schema in ("sales", "stock", "public"):
        place.source.execute(
            f"CREATE SCHEMA IF NOT EXISTS {schema}", f"CREATE TABLE {schema}.orders ({STAMPED})"
        )
    found = expand(place)
    assert {name: str(sync.target) for name, sync in found.items()} == {
        "shop.sales.orders": "warehouse:sales_raw.orders",
        "shop.stock.orders": "warehouse:stock_raw.orders",
    }


def test_a_table_declared_on_its_own_leaves_the_group(make_place: Any) -> None:
    own = {"name": "mine", "source": "again:public.orders", "target": "warehouse:own.orders"}
    place = make_place(SHOP, own)
    place.source.execute(f"CREATE TABLE orders ({STAMPED})", f"CREATE TABLE items ({STAMPED})")
    file = place.folder / "tidegate.toml"
    again = f"[connections]\nagain = {json.dumps(place.source.conninfo)}\n"
    file.write_text(file.read_text().replace("[connections]\n", again))
    assert expand(place).keys() == {"shop.items", "mine"}
    assert left_out(place) == {"public.orders": "declared on its own, as sync mine"}


def test_copies_are_not_copied(make_place: Any) -> None:
    place = make_place({**SHOP, "source": "shop:*.*"})
    place.source.execute(
        f"CREATE TABLE orders ({STAMPED})",
        "CREATE SCHEMA raw",
        f"CREATE TABLE raw.orders ({STAMPED})",
        f"CREATE TABLE raw.gone_from_the_source ({STAMPED})",
    )
    with place.open() as project:
        project.context.ledger("warehouse").ensure()
    assert expand(place).keys() == {"shop.public.orders"}
    reasons = left_out(place)
    assert reasons["raw.gone_from_the_source"] == "it is a target, of shop"
    assert reasons["tidegate.etl_state"] == "one of Tidegate's own tables"


def test_a_table_stays_with_what_it_was_loaded_with(make_place: Any) -> None:
    place = make_place(SHOP)
    place.source.execute(
        f"CREATE TABLE orders ({STAMPED})",
        "CREATE TABLE items (a int NOT NULL UNIQUE, id int PRIMARY KEY)",
        "CREATE TABLE keyless (a int)",
    )
    record(place, "shop.orders", "raw.orders", source="shop:public.orders", cursor=None, key=["id"])
    record(place, "shop.items", "raw.items", source="shop:public.items", cursor=None, key=["a"])
    record(place, "shop.keyless", "raw.keyless", source="shop:public.keyless", cursor=None, key=[])
    place.source.execute("ALTER TABLE keyless ADD id serial PRIMARY KEY")
    found = expand(place)
    assert (found["shop.orders"].mode, found["shop.orders"].cursor) == (Mode.REPLACE, None)
    assert "--full-refresh" in " ".join(found["shop.orders"].notes)
    assert found["shop.items"].key == ("a",)
    assert found["shop.keyless"].key == ()
    with place.open() as project, place.source.connect() as session:
        for sync in found.values():
            watermark = project.watermark(sync.name).get()
            refuse_changed(watermark, resolve_source(session, sync), sync)
        # A full refresh takes what would be proposed today.
        fresh = {sync.name: sync for sync in project.expand(fresh=True)}
    assert fresh["shop.orders"].cursor == "updated_at"
    assert fresh["shop.items"].key == ("id",)
    assert fresh["shop.keyless"].key == ("id",)


def test_what_can_no_longer_be_loaded_as_before_is_refused_with_the_ways_out(
    make_place: Any,
) -> None:
    place = make_place(SHOP)
    place.source.execute(f"CREATE TABLE orders ({STAMPED})")
    record(
        place, "shop.orders", "raw.orders", source="shop:public.orders", cursor="gone", key=["id"]
    )
    sync = expand(place)["shop.orders"]
    with place.open() as project, place.source.connect() as session:
        watermark = project.watermark("shop.orders").get()
        source = resolve_source(session, sync)
    with pytest.raises(DeclarationError, match="its cursor was gone and is now") as raised:
        refuse_changed(watermark, source, sync)
    assert "tidegate run shop.orders --full-refresh" in str(raised.value.hint)
    assert "declare it on its own" in str(raised.value.hint)


def test_names_lead_to_syncs_groups_and_tables(make_place: Any) -> None:
    own = {"name": "mine", "source": "shop:public.other", "target": "warehouse:own.other"}
    place = make_place(SHOP, own)
    place.source.execute(f"CREATE TABLE orders ({STAMPED})", f"CREATE TABLE items ({STAMPED})")
    assert list(expand(place, "mine", "shop", "shop.orders")) == [
        "mine",
        "shop.items",
        "shop.orders",
    ]
    with place.open() as project:
        assert project.names == ["shop", "mine"]
        assert project.sync("shop.orders").source == Endpoint("shop", Relation("public", "orders"))
        assert project.watermark("shop.orders").get().pipeline == "shop.shop.orders"
        for wrong, hint in (
            ("shop.ordres", "shop.orders"),
            ("shpo", "shop"),
            ("shpo.orders", "shop"),
            ("mine.x", "mine"),
        ):
            with pytest.raises(UsageError) as raised:
                project.sync(wrong)
            assert hint in str(raised.value.hint)
        with pytest.raises(UsageError, match="is a group of tables"):
            project.run("shop")


def test_plain_syncs_are_found_without_asking_any_database(make_place: Any) -> None:
    own = {"name": "mine", "source": "shop:public.other", "target": "warehouse:own.other"}
    place = make_place({**SHOP, "source": "nowhere:public.*"}, own)
    file = place.folder / "tidegate.toml"
    nowhere = '[connections]\nnowhere = "postgresql://nobody@127.0.0.1:1/x"\n'
    file.write_text(file.read_text().replace("[connections]\n", nowhere))
    with place.open() as project:
        assert project.sync("mine") == project.expand(["mine"])[0]
        found = {sync.name: sync for sync in project.expand()}
        assert isinstance(found["shop"].refused, ConnectionFailed)
        assert found["mine"].refused is None
        with pytest.raises(ConnectionFailed):
            project.sync("shop.orders")


def test_a_group_in_python_gives_its_function_to_every_table(make_place: Any) -> None:
    pipelines = """
import tidegate as tg

@tg.sync(source="shop:public.*", target="warehouse:raw.{table}", exclude=["b"], lookback="1h")
def shop(df):
    return df
"""
    place = make_place(pipelines=pipelines)
    for name in "abc":
        place.source.execute(f"CREATE TABLE {name} ({STAMPED})")
    found = expand(place)
    assert found.keys() == {"shop.a", "shop.c"}
    assert {sync.transform.__name__ for sync in found.values() if sync.transform} == {"shop"}
    assert found["shop.a"].lookback == "1h"


def test_a_run_of_one_table_and_of_one_that_fails(make_project: Any) -> None:
    project, place = make_project(SHOP, databases=2)
    assert isinstance(project, Project)
    place.source.execute(
        f"CREATE TABLE orders ({STAMPED})",
        'CREATE TABLE "v1.notes" (note text)',
        "INSERT INTO orders SELECT n, now() - interval '1 day' FROM generate_series(1, 9) n",
        "INSERT INTO \"v1.notes\" VALUES ('a'), ('a'), (NULL)",
    )
    for name in ("shop.orders", 'shop."v1.notes"'):
        assert project.run(name).status == "done"
    assert place.target.value("SELECT count(*) FROM raw.orders") == 9
    assert place.target.value('SELECT count(*) FROM raw."v1.notes"') == 3
    assert project.run("shop.orders").found_nothing
    # A column that would be a better choice today does not change what is loaded.
    place.source.execute(
        'ALTER TABLE "v1.notes" ADD id serial PRIMARY KEY',
        'ALTER TABLE "v1.notes" ADD updated_at timestamptz NOT NULL DEFAULT now()',
    )
    sync = project.sync('shop."v1.notes"')
    assert (sync.mode, sync.key) == (Mode.REPLACE, ())
    place.target.execute("TRUNCATE raw.orders")
    with pytest.raises(TargetGone, match=r"tidegate run shop\.orders --full-refresh"):
        project.run("shop.orders")
