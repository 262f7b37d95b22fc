"""`verify` of a sync with a transformation: run again with Spark, compared in the target."""

from __future__ import annotations

from typing import Any

import pytest

from integration.orders import CREATE, FILL, contents
from tidegate.model.verification import Difference, Verdict, Verification
from tidegate.pipeline import verify_transformed
from tidegate.pipeline.verify import verify_sync
from tidegate.project import Project

TRANSFORMED = (
    "import tidegate as tg\n"
    '@tg.sync(source="shop:orders", target="warehouse:raw.orders", cursor="updated_at"{more})\n'
    "def orders(df):\n"
    "    return df.selectExpr({columns}).where({where!r})\n"
)


def transformed(
    columns: str = "'id', 'total * 2 AS double', 'updated_at'",
    where: str = "id <> 3",
    more: str = "",
) -> str:
    return TRANSFORMED.format(columns=columns, where=where, more=more)


def verify(project: Project) -> Verification:
    return verify_sync(project.context, project.sync("orders"))


def difference(found: Verification) -> Difference:
    assert found.verdict is Verdict.UNEQUAL
    assert found.difference is not None
    return found.difference


def staged_tables(place: Any) -> int:
    count: int = place.target.value("SELECT count(*) FROM pg_class WHERE relname ~ '^stg_'")
    return count


def test_a_transformation_is_run_again_and_compared_in_the_target(make_project: Any) -> None:
    project, place = make_project(databases=3, pipelines=transformed())
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    before = contents(place.source, place.target, place.control)
    found = verify(project)
    assert contents(place.source, place.target, place.control) == before
    assert (found.verdict, found.used_spark, found.source_rows) == (Verdict.EQUAL, True, 9)
    place.target.execute("UPDATE raw.orders SET double = 1 WHERE id = 5")
    place.source.execute("DELETE FROM orders WHERE id = 6")
    worse = verify(project)
    assert difference(worse).different_keys == ("(5)",)
    assert difference(worse).extra_keys == ("(6)",)
    assert staged_tables(place) == 0


def test_rows_above_the_watermark_are_left_out_under_a_changed_key_too(make_project: Any) -> None:
    pipelines = transformed("'id + 1000 AS id', 'total', 'updated_at'", "total >= 0")
    project, place = make_project(pipelines=pipelines)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    place.source.execute("UPDATE orders SET total = 50, updated_at = now() WHERE id = 2")
    found = verify(project)
    assert (found.verdict, found.source_rows, found.not_yet_loaded) == (Verdict.EQUAL, 9, 1)


def test_a_transformation_that_drops_every_row_equals_an_empty_target(make_project: Any) -> None:
    project, place = make_project(pipelines=transformed(where="id < 0"))
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    found = verify(project)
    assert (found.verdict, found.source_rows, found.target_rows) == (Verdict.EQUAL, 0, 0)


def test_staged_rows_that_a_sweep_took_are_staged_again(
    make_project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = make_project(pipelines=transformed())
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    real = verify_transformed.send_left_out
    swept: list[int] = []

    def sweep_first(*arguments: Any, **options: Any) -> Any:
        if not swept:
            destination = project.context.destination(project.sync("orders").target)
            swept.append(destination.sweep(set))
        return real(*arguments, **options)

    monkeypatch.setattr(verify_transformed, "send_left_out", sweep_first)
    assert verify(project).verdict is Verdict.EQUAL
    assert swept[0] > 0
    assert staged_tables(place) == 0


def test_a_run_during_a_transformation_is_noticed_and_compared_anew(
    make_project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, place = make_project(pipelines=transformed(), databases=2)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    real = verify_transformed.snapshot
    ran: list[int] = []

    def run_first(connection: Any) -> Any:
        if not ran:
            place.source.execute("UPDATE orders SET total = 5, updated_at = now() WHERE id < 3")
            ran.append(project.run("orders").rows)
        return real(connection)

    monkeypatch.setattr(verify_transformed, "snapshot", run_first)
    found = verify(project)
    assert ran == [2]
    assert (found.verdict, found.source_rows, found.not_yet_loaded) == (Verdict.EQUAL, 9, 0)
