"""`verify` of a sync with a transformation: run again with Spark, compared in the target."""

from __future__ import annotations

from typing import Any

import pytest

from integration.orders import CREATE, FILL, contents
from tidegate.model.verification import Difference, Verdict, Verification
from tidegate.pipeline import context as context_module
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
    real = context_module.reading
    ran: list[int] = []

    def run_first(*arguments: Any) -> Any:
        # The run reads as well.
        monkeypatch.setattr(context_module, "reading", real)
        place.source.execute("UPDATE orders SET total = 5, updated_at = now() WHERE id < 3")
        ran.append(project.run("orders").rows)
        return real(*arguments)

    monkeypatch.setattr(context_module, "reading", run_first)
    found = verify(project)
    assert ran == [2]
    assert (found.verdict, found.source_rows, found.not_yet_loaded) == (Verdict.EQUAL, 9, 0)


def declared(more: str, *, cursor: bool = True) -> str:
    text = transformed(more=more)
    return text if cursor else text.replace(', cursor="updated_at"', "")


def test_a_replaced_table_is_transformed_whole_and_a_changed_source_is_told_apart(
    make_project: Any,
) -> None:
    pipelines = declared(', mode="replace"', cursor=False)
    project, place = make_project(databases=2, pipelines=pipelines)
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    assert (verify(project).verdict, verify(project).source_rows) == (Verdict.EQUAL, 9)
    place.target.execute("UPDATE raw.orders SET double = 1 WHERE id = 5")
    assert difference(verify(project)).different_keys == ("(5)",)
    place.source.execute("DELETE FROM orders WHERE id = 6")
    found = verify(project)
    assert (found.verdict, found.intact) == (Verdict.CHANGED, False)


@pytest.mark.parametrize("key", [True, False])
def test_transformed_rows_that_are_appended_are_compared_by_their_mode(
    make_project: Any, key: bool
) -> None:
    more = ', mode="append"' + (', key="id"' if key else "")
    more += ', checks={"no_four": "id <> 4"}, reject_limit=1.0'
    project, place = make_project(databases=2, pipelines=declared(more))
    place.source.execute(*CREATE, FILL)
    project.run("orders")
    change = "UPDATE orders SET total = 50, updated_at = '2026-02-01' WHERE id = 2"
    place.source.execute(change)
    project.run("orders")
    place.source.execute("INSERT INTO orders VALUES (11, 1)")
    found = verify(project)
    assert (found.verdict, found.rejected, found.not_yet_loaded) == (Verdict.EQUAL, 1, 1)
    assert found.source_rows == (8 if key else 9)
    table = "raw.orders_raw" if key else "raw.orders"
    place.target.execute(
        f"DELETE FROM {table} WHERE id = 7", f"UPDATE {table} SET double = 1 WHERE id = 8"
    )
    wrong = difference(verify(project))
    assert (wrong.missing, wrong.different) == ((1, 1) if key else (2, 0))
