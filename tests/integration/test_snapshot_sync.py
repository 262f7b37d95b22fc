"""changes = "snapshot": rows are found by the transaction that wrote them, however late it ended."""

from __future__ import annotations

from integration.conftest import MakeProject, Place

ORDERS = {
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "changes": "snapshot",
}


def seed(place: Place, rows: int = 10) -> None:
    place.source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text)",
        f"INSERT INTO orders SELECT i, 'n' || i FROM generate_series(1, {rows}) i",
    )


def same(place: Place, source: str = "orders", target: str = "raw.orders") -> bool:
    """Whether both tables hold the same rows, printed."""
    text = "SELECT t::text FROM {} t ORDER BY 1"
    return place.source.execute(text.format(source)) == place.target.execute(text.format(target))


def test_rows_of_a_transaction_that_was_open_come_with_the_run_after_it_ended(
    make_project: MakeProject,
) -> None:
    project, place = make_project(ORDERS, databases=2)
    seed(place)
    first = project.run("orders")
    assert (first.status, first.rows) == ("done", 10)
    assert same(place)
    with place.source.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders VALUES (101, 'late')")
        late.execute("SAVEPOINT a")
        late.execute("INSERT INTO orders VALUES (102, 'under a savepoint')")
        late.execute("RELEASE SAVEPOINT a")
        late.execute(
            "DO $$ BEGIN BEGIN INSERT INTO orders VALUES (103, 'in a block');"
            " UPDATE orders SET name = 'changed' WHERE id = 3;"
            " EXCEPTION WHEN OTHERS THEN NULL; END; END $$"
        )
        place.source.execute("INSERT INTO orders VALUES (201, 'quick')")
        second = project.run("orders")
        assert second.rows == 1
        third = project.run("orders")
        assert third.found_nothing
        late.execute("COMMIT")
    fourth = project.run("orders")
    assert fourth.outcome.changed == 4
    assert same(place)
    assert project.run("orders").found_nothing
