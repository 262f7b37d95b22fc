"""Names with quotes, spaces, upper case and reserved words work; SQL in a name stays a name."""

from __future__ import annotations

import pytest
from psycopg import sql

from integration.conftest import MakeProject
from tidegate.core.relation import Relation

NAMES = [
    """A "q" 'a' d.t 100%s %(x)s {} {x} \\ `t` $$ ü漢 """,
    '"; DROP TABLE public.victims; --',
    "x" * 63,
]
MORE_NAMES = [
    "select",
    " lead and trail ",
    "'; DROP TABLE public.victims; --",
    '" ; DROP SCHEMA public CASCADE; SELECT "',
    "$$; DROP TABLE public.victims; $$",
    "*/ DROP TABLE public.victims /*",
]


@pytest.mark.parametrize(
    "name", [*NAMES, *(pytest.param(name, marks=pytest.mark.chaos) for name in MORE_NAMES)]
)
def test_any_name_may_stand_anywhere(make_project: MakeProject, name: str) -> None:
    """Schema, table, key, cursor and column of the source; target, marker table and ledger."""
    source, target = Relation(name, name), Relation(f"{name[:50]} to", name)
    key, cursor, other = name, f"{name[:50]} c", f"{name[:50]} o"
    ledger, marker = f"{name[:50]} l", name.replace(".", "·")
    project, place = make_project(
        {
            "source": f"shop:{source}",
            "target": f"warehouse:{target}",
            "key": [key],
            "cursor": cursor,
            "batch_rows": 2,
            "partitions": 2,
        },
        databases=2,
        ledger={"schema": ledger, "marker_table": marker},
    )
    for database in (place.source, place.target):
        database.execute("CREATE TABLE public.victims ()")
    table = sql.Identifier(name, name)
    place.source.execute(
        sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)),
        sql.SQL("CREATE TABLE {} ({} text PRIMARY KEY, {} int NOT NULL, {} text)").format(
            table, *map(sql.Identifier, (key, cursor, other))
        ),
        sql.SQL("INSERT INTO {} VALUES ({a}, 1, {a}), ('b', 2, NULL), ('c', 2, ''), ('d', 2, '')")
        .format(table, a=sql.Literal(name)),
    )  # fmt: skip
    report = project.run("orders")
    assert report.rows == 4
    rows = sql.SQL("SELECT t::text FROM {} t ORDER BY 1")
    assert place.source.execute(rows.format(table)) == place.target.execute(
        rows.format(sql.Identifier(target.schema, target.name))
    )
    markers = sql.SQL("SELECT count(*) FROM {} WHERE target_table = {}").format(
        sql.Identifier(ledger, marker), sql.Literal(str(target))
    )
    assert place.target.value(markers) == len(report.loads)
    assert project.run("orders").found_nothing
    project.watermark("orders").rewind("1", reason=name)
    assert project.run("orders", full_refresh=True).rows == 4
    for database in (place.source, place.target):
        assert database.execute("SELECT to_regclass('public.victims') IS NOT NULL") == [(True,)]


PIPELINE = """
import tidegate as tg

@tg.sync(source={source!r}, target={target!r}, key=[{name!r}], cursor="c")
def orders(df):
    return df
"""


def test_any_name_passes_through_a_transformation(make_project: MakeProject) -> None:
    name = NAMES[0]
    relation = Relation("public", name)
    project, place = make_project(
        databases=2,
        pipelines=PIPELINE.format(
            source=f"shop:{relation}", target=f"warehouse:{relation}", name=name
        ),
    )
    table = sql.Identifier("public", name)
    place.source.execute(
        sql.SQL("CREATE TABLE {} ({} int PRIMARY KEY, c int NOT NULL)").format(
            table, sql.Identifier(name)
        ),
        sql.SQL("INSERT INTO {} VALUES (1, 1), (2, 2)").format(table),
    )
    assert project.run("orders").rows == 2
    rows = sql.SQL("SELECT * FROM {} ORDER BY c").format(table)
    assert place.target.execute(rows) == place.source.execute(rows)
