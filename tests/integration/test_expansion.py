"""A group becomes one sync per table: which tables, with which key, cursor and mode."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from integration.conftest import MakePlace, MakeProject, Place
from integration.groups import SHOP, STAMPED, expand, left_out, record
from tidegate.config.sync import Mode
from tidegate.core.errors import (
    ConnectionFailed,
    DeclarationError,
    SettingsError,
    TargetGone,
    UsageError,
)
from tidegate.core.relation import Endpoint, Relation
from tidegate.core.watermark import NullPolicy
from tidegate.load.declaration_changes import refuse_changed_declaration
from tidegate.load.sources.resolve import resolve_source
from tidegate.project import Project


@pytest.fixture(scope="module")
def scene(places: MakePlace) -> Place:
    """One database, in which each test has a schema of its own."""
    return places()


def group(schema: str, **others: Any) -> dict[str, Any]:
    return {**SHOP, "source": f"shop:{schema}.*", **others}


def create(place: Place, schema: str, *tables: str, **columns: str) -> None:
    """A schema with tables: those named are stamped, those with columns have these."""
    place.source.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    for name in tables:
        place.source.execute(f"CREATE TABLE {schema}.{name} ({STAMPED})")
    for name, text in columns.items():
        place.source.execute(f"CREATE TABLE {schema}.{name} ({text})")


def connect_also(place: Place, name: str, conninfo: str) -> None:
    file = place.folder / "tidegate.toml"
    line = f"[connections]\n{name} = {json.dumps(conninfo)}\n"
    file.write_text(file.read_text().replace("[connections]\n", line))


def test_every_table_gets_a_key_cursor_and_mode(places: MakePlace, scene: Place) -> None:
    place = places(group("chosen"), beside=scene)
    create(
        place,
        "chosen",
        "stamped",
        composite="a int, b int, changed_at timestamptz NOT NULL, PRIMARY KEY (b, a)",
        by_index="code text NOT NULL UNIQUE, maybe int UNIQUE, updated_at timestamptz NOT NULL",
        nullable="id int PRIMARY KEY, updated_at timestamptz",
        unstamped="id int PRIMARY KEY",
        created_only="id bigserial PRIMARY KEY, created_at timestamptz NOT NULL",
        keyless="a int, updated_at timestamptz NOT NULL",
        nothing="a int",
        epoch="id int PRIMARY KEY, updated_at bigint NOT NULL",
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


def test_names_are_exact_whatever_they_hold(places: MakePlace, scene: Place) -> None:
    place = places(group("odd"), beside=scene)
    odd = ["My Table", "v1.orders", 'say "hi"', "größe", "50%_off", "{schema}", "a*b", "x" * 63]
    place.source.execute("CREATE SCHEMA odd")
    for name in odd:
        quoted = name.replace('"', '""')
        place.source.execute(f'CREATE TABLE odd."{quoted}" (id int PRIMARY KEY)')
    found = expand(place)
    assert {sync.target.relation for sync in found.values()} == {Relation("raw", n) for n in odd}
    assert {sync.source.relation for sync in found.values()} == {Relation("odd", n) for n in odd}
    assert {"shop.My Table", 'shop."v1.orders"', 'shop."say ""hi"""', "shop.a*b"} <= found.keys()
    # A shell eats the quotes.
    assert expand(place, "shop.v1.orders").keys() == {'shop."v1.orders"'}
    for name, sync in found.items():
        assert expand(place, name) == {name: sync}
        with place.source.connect() as session:
            resolve_source(session, sync)
    # A target that grows too long is refused, and the others are not.
    place = places(group("odd", target="warehouse:raw.{table}_copy"), beside=scene)
    found = expand(place)
    with place.source.connect() as session:
        resolve_source(session, found["shop.größe"])
        with pytest.raises(DeclarationError, match="longer than 63 bytes"):
            resolve_source(session, found[f"shop.{'x' * 63}"])


def test_what_is_no_table_of_its_own_is_left_out(places: MakePlace, scene: Place) -> None:
    place = places(group("mixed", exclude=["tmp_*", "mixed.secret"]), beside=scene)
    create(place, "mixed", "orders", tmp_1="a int", secret="a int")
    create(place, "other", "elsewhere")
    place.source.execute(
        "SET search_path = mixed",
        "CREATE TABLE events (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE events_old PARTITION OF events DEFAULT",
        "CREATE VIEW v AS SELECT * FROM orders",
        "CREATE MATERIALIZED VIEW m AS SELECT * FROM orders",
        'CREATE TABLE "a\nb" (a int)',
    )
    assert expand(place).keys() == {"shop.orders", "shop.events"}
    found = left_out(place)
    assert found.keys() == {
        f"mixed.{name}" for name in ("events_old", "v", "m", "tmp_1", "secret", '"a\nb"')
    }
    assert "a partition" in found["mixed.events_old"]
    assert found["mixed.v"].startswith("a view")
    assert found["mixed.m"].startswith("a materialized view")
    assert found["mixed.tmp_1"] == 'exclude = "tmp_*"'
    with pytest.raises(UsageError, match=r"left out \(a partition") as raised:
        expand(place, "shop.events_old")
    assert "shop.events" in str(raised.value.hint)


def test_tables_that_the_role_may_not_read_are_left_out(places: MakePlace, scene: Place) -> None:
    place = places({**SHOP, "source": "read:hidden.*"}, beside=scene)
    create(place, "hidden", "orders", "salaries")
    role = f"reader_{uuid.uuid4().hex[:8]}"
    place.source.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret'",
        f"GRANT USAGE ON SCHEMA hidden TO {role}",
        f"GRANT SELECT ON hidden.orders TO {role}",
    )
    reader = make_conninfo(place.source.conninfo, user=role, password="secret")
    connect_also(place, "read", reader)
    assert expand(place).keys() == {"shop.orders"}
    assert left_out(place) == {"hidden.salaries": "this role may not read it"}
    place.source.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_view_is_loaded_where_include_names_it_itself(places: MakePlace, scene: Place) -> None:
    create(scene, "viewed", "orders")
    scene.source.execute(
        "CREATE VIEW viewed.order_totals AS SELECT id, updated_at FROM viewed.orders"
    )
    for include, loaded in (
        (["*"], {"shop.orders"}),
        (["order*"], {"shop.orders"}),
        (["*", "order_totals"], {"shop.orders", "shop.order_totals"}),
        (["viewed.order_totals"], {"shop.order_totals"}),
    ):
        found = expand(places(group("viewed", include=include), beside=scene))
        assert found.keys() == loaded
    sync = found["shop.order_totals"]
    assert (sync.mode, sync.key, sync.cursor) == (Mode.REPLACE, (), None)
    # With a key that somebody vouches for, it is merged by its cursor.
    place = places(group("viewed", include=["order_totals"], key="id"), beside=scene)
    sync = expand(place)["shop.order_totals"]
    assert (sync.mode, sync.key, sync.cursor) == (Mode.MERGE, ("id",), "updated_at")


def test_declared_columns_go_for_tables_that_have_them(places: MakePlace, scene: Place) -> None:
    declared = {
        "cursor": "touched",
        "lookback": "5 minutes",
        "null_cursor": "exclude",
        "exclude_columns": ["secret"],
        "batch_rows": 7,
    }
    place = places(group("declared", **declared), beside=scene)
    create(
        place,
        "declared",
        "b",
        a="id int PRIMARY KEY, touched timestamptz, updated_at timestamptz, secret int",
        c="id int PRIMARY KEY, touched bigint NOT NULL",
        d="id int PRIMARY KEY, secret int",
    )
    found = expand(place)
    a, b, c, d = (found[f"shop.{name}"] for name in "abcd")
    assert (a.cursor, a.null_cursor) == ("touched", NullPolicy.EXCLUDE)
    assert a.exclude_columns == ("secret",)
    assert (b.cursor, b.lookback, b.exclude_columns) == ("updated_at", "5 minutes", ())
    assert (c.cursor, c.lookback) == ("touched", None)
    assert "does not fit touched" in " ".join(c.notes)
    assert (d.mode, d.exclude_columns) == (Mode.REPLACE, ("secret",))
    assert {sync.batch_rows for sync in found.values()} == {7}
    assert "cursor" in b.proposed
    assert "cursor" not in a.proposed


def test_modes_are_taken_where_they_are_possible(places: MakePlace, scene: Place) -> None:
    create(
        scene,
        "modes",
        "stamped",
        nullable="id int PRIMARY KEY, updated_at timestamptz",
        bare="id int PRIMARY KEY",
    )
    place = places(group("modes", mode="append"), beside=scene, defaults={"lookback": 0})
    modes = {name: (sync.mode, sync.key) for name, sync in expand(place).items()}
    assert modes == {
        "shop.stamped": (Mode.APPEND, None),
        "shop.nullable": (Mode.REPLACE, ()),
        "shop.bare": (Mode.REPLACE, ()),
    }
    place = places(group("modes", mode="replace"), beside=scene)
    assert {sync.mode for sync in expand(place).values()} == {Mode.REPLACE}


def test_schemas_are_part_of_names_and_targets_are_no_sources(make_place: MakePlace) -> None:
    target = "warehouse:{schema}_raw.{table}"
    place = make_place({**SHOP, "source": "shop:s*.*", "target": target})
    for schema in ("sales", "stock", "public", "stock_raw"):
        create(place, schema, "orders")
    create(place, "sales_raw", "gone_from_the_source")
    with place.open() as project:
        project.context.ledger("warehouse").ensure()
    found = expand(place)
    assert {name: str(sync.target) for name, sync in found.items()} == {
        "shop.sales.orders": "warehouse:sales_raw.orders",
        "shop.stock.orders": "warehouse:stock_raw.orders",
    }
    # Copies are not copied.
    place = make_place({**SHOP, "source": "shop:*.*"}, beside=place)
    create(place, "raw", "gone_from_the_source")
    reasons = left_out(place)
    assert reasons["raw.gone_from_the_source"] == "it is a target, of shop"
    assert reasons["tidegate.etl_state"] == "one of Tidegate's own tables"


def test_names_lead_to_syncs_groups_and_tables(places: MakePlace, scene: Place) -> None:
    # A table declared on its own leaves the group, and one of nowhere harms nobody.
    own = {"name": "mine", "source": "again:led.own", "target": "warehouse:own.other"}
    lost = {"name": "lost", "source": "nowhere:public.*", "target": "warehouse:lost.{table}"}
    place = places(group("led"), own, lost, beside=scene)
    connect_also(place, "again", place.source.conninfo)
    connect_also(place, "nowhere", "postgresql://nobody@127.0.0.1:1/x")
    create(place, "led", "orders", "items", "own")
    assert list(expand(place, "mine", "shop", "shop.orders")) == [
        "mine",
        "shop.items",
        "shop.orders",
    ]
    assert left_out(place) == {"led.own": "declared on its own, as sync mine"}
    with place.open() as project:
        assert project.names == ["shop", "mine", "lost"]
        assert project.sync("shop.orders").source == Endpoint("shop", Relation("led", "orders"))
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
        found = {sync.name: sync for sync in project.expand()}
        assert isinstance(found["lost"].refused, ConnectionFailed)
        assert found["mine"].refused is None
        assert project.sync("mine") == project.expand(["mine"])[0]
        with pytest.raises(ConnectionFailed):
            project.sync("lost.orders")


def test_a_table_stays_with_what_it_was_loaded_with(make_place: MakePlace) -> None:
    place = make_place(SHOP)
    create(
        place, "public", "orders", "changed", items="a int NOT NULL UNIQUE, id int PRIMARY KEY",
        keyless="a int",
    )  # fmt: skip
    for name, cursor, key in (
        ("orders", None, ["id"]),
        ("items", None, ["a"]),
        ("keyless", None, []),
        ("changed", "gone", ["id"]),
    ):
        source = f"shop:public.{name}"
        record(place, f"shop.{name}", f"raw.{name}", source=source, cursor=cursor, key=key)
    place.source.execute("ALTER TABLE keyless ADD id serial PRIMARY KEY")
    found = expand(place)
    changed = found.pop("shop.changed")
    assert (found["shop.orders"].mode, found["shop.orders"].cursor) == (Mode.REPLACE, None)
    assert "--full-refresh" in " ".join(found["shop.orders"].notes)
    assert found["shop.items"].key == ("a",)
    assert found["shop.keyless"].key == ()
    with place.open() as project, place.source.connect() as session:
        for sync in found.values():
            watermark = project.watermark(sync.name).get()
            refuse_changed_declaration(watermark, resolve_source(session, sync), sync)
        # What can no longer be loaded as before is refused with the ways out.
        watermark = project.watermark("shop.changed").get()
        resolved = resolve_source(session, changed)
        with pytest.raises(DeclarationError, match="its cursor was gone and is now") as raised:
            refuse_changed_declaration(watermark, resolved, changed)
        assert "tidegate run shop.changed --full-refresh" in str(raised.value.hint)
        assert "declare it on its own" in str(raised.value.hint)
        # A full refresh takes what would be proposed today.
        fresh = {sync.name: sync for sync in project.expand(fresh=True)}
    assert fresh["shop.orders"].cursor == "updated_at"
    assert fresh["shop.items"].key == ("id",)
    assert fresh["shop.keyless"].key == ("id",)


def test_a_group_in_python_gives_its_function_to_all(places: MakePlace, scene: Place) -> None:
    pipelines = """
import tidegate as tg

@tg.sync(source="shop:coded.*", target="warehouse:raw.{table}", exclude=["b"], lookback="1h")
def shop(df):
    return df
"""
    place = places(pipelines=pipelines, beside=scene)
    create(place, "coded", "a", "b", "c")
    found = expand(place)
    assert found.keys() == {"shop.a", "shop.c"}
    assert {sync.transform.__name__ for sync in found.values() if sync.transform} == {"shop"}
    assert found["shop.a"].lookback == "1h"


def test_a_run_of_one_table_and_of_one_that_fails(make_project: MakeProject) -> None:
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
    project.run("shop.orders", full_refresh=True)
    assert place.target.value("SELECT count(*) FROM raw.orders") == 9


def test_a_group_that_cannot_be_meant_is_refused(places: MakePlace, scene: Place) -> None:
    patterns = "a pattern or a list of patterns"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"target": "warehouse:raw.all"}, r"put \{table\} into it"),
        ({"target": 'warehouse:raw."{table}"'}, r"put \{table\} into it"),
        ({"source": "shop:public.orders"}, r'for many write source = "shop:public\.\*"'),
        ({"source": 'shop:public."*"'}, "source names one table"),
        ({"include": ["a.b.c"]}, patterns),
        ({"include": []}, patterns),
        ({"exclude": 7}, patterns),
        ({"mode": "replace", "cursor": "x"}, "cursor is set beside"),
        (
            {"source": "shop:public.a", "target": "warehouse:raw.a", "include": ["a"]},
            "include is set, but source names one table",
        ),
    ]
    for change, message in cases:
        with pytest.raises(SettingsError, match=message):
            places({**SHOP, **change}, beside=scene).open()


def test_a_pattern_that_matches_nothing_is_refused(places: MakePlace, scene: Place) -> None:
    create(scene, "few", "orders")
    other = {"name": "other", "source": "shop:few.o*", "target": "warehouse:raw.{table}"}
    place = places({**SHOP, "source": "shop:few.ordres_*"}, other, beside=scene)
    found = expand(place)
    refused = found.pop("shop").refused
    assert isinstance(refused, DeclarationError)
    assert "nothing matches shop:few.ordres_*" in refused.message
    assert "few.orders" in (refused.hint or "")
    # The other group goes on.
    assert found["other.orders"].refused is None
    refused = expand(places(group("few", exclude=["*"]), beside=scene))["shop"].refused
    assert refused is not None
    assert "everything that matches shop:few.* is left out" in refused.message
    assert 'few.orders: exclude = "*"' in (refused.hint or "")
    # A pattern in include that does nothing is pointed out.
    with places(group("few", include=["orders", "ordres"]), beside=scene).open() as project:
        expansion = project.expanded().groups[0]
    assert expansion.warnings == ('include = "ordres" matches nothing of shop:few.*',)


def test_two_syncs_with_one_target_are_refused_and_both_named(make_place: MakePlace) -> None:
    place = make_place(
        {**SHOP, "source": "shop:*.*"},
        {"name": "mine", "source": "shop:sales.fine", "target": "warehouse:raw.items"},
        databases=2,
    )
    create(place, "public", "orders", "items", "alone")
    create(place, "sales", "orders", "fine")
    found = expand(place)
    refused = {name: sync.refused.message for name, sync in found.items() if sync.refused}
    assert refused.keys() == {
        "shop.public.orders",
        "shop.sales.orders",
        "shop.public.items",
        "mine",
    }
    assert "shop.sales.orders (shop:sales.orders)" in refused["shop.public.orders"]
    assert "have one target, warehouse:raw.orders" in refused["shop.public.orders"]
    assert "mine (shop:sales.fine)" in refused["shop.public.items"]
    hint = found["shop.sales.orders"].refused
    assert hint is not None
    assert "{schema}" in str(hint.hint)
    # One table by itself is refused as well, although nothing else was asked for.
    assert expand(place, "shop.public.items")["shop.public.items"].refused is not None


def test_one_database_under_two_names_is_one_target(places: MakePlace, scene: Place) -> None:
    place = places(
        {"name": "a", "source": "shop:public.a", "target": "warehouse:raw.t"},
        {"name": "b", "source": "shop:public.b", "target": "again:raw.t"},
        {"name": "c", "source": "shop:public.c", "target": "elsewhere:raw.t"},
        beside=scene,
    )
    connect_also(place, "again", place.target.conninfo + " connect_timeout=9")
    connect_also(place, "elsewhere", "postgresql://nobody@127.0.0.1:1/x")
    with place.open() as project:
        refused = {sync.name for sync in project.expand() if sync.refused is not None}
        assert refused == {"a", "b"}
        with pytest.raises(DeclarationError, match=r"a \(shop:public.a\) and b \(shop:public.b\)"):
            project.run("a")
