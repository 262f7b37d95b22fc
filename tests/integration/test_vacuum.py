"""`tidegate vacuum`: superseded versions go, and the view stays as it is, whatever happens."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from acceptance.processes import until
from forked import Piped
from integration.commands import BUSY, DONE, FAILED
from integration.conftest import Make, Place, open_without_spark
from integration.here import tidegate
from integration.left_behind import held
from tidegate.core.errors import BusyError, DestinationError, FenceLost
from tidegate.jobs.attempt import hold_table
from tidegate.jobs.job import VACUUM
from tidegate.ledger.fences import Fence
from tidegate.maintenance import vacuum as superseded
from tidegate.maintenance.vacuum import find_versions, remove_superseded
from tidegate.project import Project
from tidegate.verify.report import Verdict
from tidegate.verify.verify import verify_sync

VERSIONS = {
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "cursor": "updated_at",
    "mode": "append",
    "key": ["part", "id"],
}
OLDER = (
    "INSERT INTO raw.orders_raw (part, id, total, updated_at, update_id)"
    " SELECT part, id, -1, updated_at - interval '1 day', update_id FROM raw.orders_raw"
)

CHUNK = 2000
VACUUM_SCRIPT = f"""
from tidegate.cli.main import main
from tidegate.maintenance import vacuum
vacuum.CHUNK_ROWS = {CHUNK}
main()
"""


def seed(place: Place, rows: int = 6, *, key: str = ", PRIMARY KEY (part, id)") -> None:
    place.source.execute(
        "CREATE TABLE orders (id bigint, part text, total numeric, updated_at timestamptz NOT NULL"
        f" DEFAULT now(){key})",
        "CREATE INDEX ON orders (updated_at)",
        "INSERT INTO orders SELECT n, 'p' || n % 3, n, '2026-01-01'"
        f" FROM generate_series(1, {rows}) n",
    )


def touch(place: Place, day: int, where: str = "true") -> None:
    place.source.execute(
        f"UPDATE orders SET total = {day} * 100, updated_at = '2026-02-{day:02}' WHERE {where}"
    )


def shown(place: Place) -> list[tuple[Any, ...]]:
    return place.target.execute("SELECT * FROM raw.orders ORDER BY part, id")


def versions(place: Place) -> int:
    count: int = place.target.value("SELECT count(*) FROM raw.orders_raw")
    return count


def equal(project: Project) -> bool:
    found = verify_sync(project.context, project.sync("orders"))
    return found.verdict is Verdict.EQUAL


def test_only_the_newest_version_of_each_key_stays_and_the_next_run_goes_on(make: Make) -> None:
    """What it remembers of its lookback must outlive a vacuum, or it would load it again."""
    project, place = make({**VERSIONS, "lookback": "90 days"}, databases=3)
    seed(place)
    project.run("orders")
    for day in (1, 2):
        touch(place, day, "id % 2 = 0")
        project.run("orders")
    project.run("orders")
    before = shown(place)
    assert versions(place) == 12
    would = project.vacuum("orders", dry_run=True)
    assert (would.rows, would.dry_run, versions(place)) == (6, True, 12)
    done = project.vacuum("orders")
    assert done.rows == would.rows
    assert min(done.bytes, would.bytes) > 6 * 40
    assert shown(place) == before
    assert versions(place) == 6
    assert project.vacuum("orders").rows == 0
    assert equal(project)
    assert project.run("orders").found_nothing

    # Versions with one cursor go as well, where the key is unique.
    place.source.execute("UPDATE orders SET total = 7 WHERE id = 1")
    project.run("orders")
    assert versions(place) == 7
    assert project.vacuum("orders").rows == 1
    assert equal(project)


def test_rows_that_share_a_key_and_a_cursor_stay_both(make: Make) -> None:
    """Removing one, it would be read and appended again, and the view would show it."""
    project, place = make({**VERSIONS, "lookback": "90 days"})
    seed(place, key="")
    place.source.execute(
        "INSERT INTO orders VALUES (1, 'p1', 50, '2026-01-01')",
        "INSERT INTO orders VALUES (2, 'p2', 60, '2026-01-02')",
    )
    project.run("orders")
    before = shown(place)
    assert project.vacuum("orders").rows == 1
    project.run("orders")
    assert shown(place) == before


def test_the_command_says_what_went_or_why_nothing_did(make: Make) -> None:
    plain = {name: one for name, one in VERSIONS.items() if name != "key"}
    project, place = make(
        {**VERSIONS, "name": "merge", "mode": "merge", "target": "warehouse:raw.merge"},
        {**plain, "name": "append", "target": "warehouse:raw.append"},
        VERSIONS,
        worker={"lock_timeout": "200ms"},
    )
    seed(place)
    done = tidegate(place.folder, "vacuum", "--all")
    assert done.code == DONE
    assert done.out == (
        'merge: nothing to do, mode = "merge" keeps no superseded versions\n'
        "append: nothing to do, append without a key keeps no superseded versions\n"
        "orders: nothing to do, raw.orders_raw does not exist yet\n"
    )
    project.run("orders")
    place.target.execute(OLDER)
    would = tidegate(place.folder, "vacuum", "orders", "--dry-run")
    assert (would.code, versions(place)) == (DONE, 12)
    assert would.out.startswith("orders: would remove 6 superseded versions (")

    # While the table is held, locked or fenced, nothing goes.
    with held(place):
        assert tidegate(place.folder, "vacuum", "orders").code == BUSY
        assert tidegate(place.folder, "vacuum", "orders", "--dry-run").code == DONE
    with place.target.connect() as session, session.transaction():
        session.execute("LOCK raw.orders_raw IN SHARE MODE")
        with pytest.raises(BusyError, match="in use by another session"):
            project.vacuum("orders")
    found = find_versions(project.context, project.sync("orders"))
    assert not isinstance(found, str)
    stale = Fence("raw.orders", project.context.control_id(), 1, "stale")
    with pytest.raises(FenceLost):
        remove_superseded(project.context, found, stale, lambda: None)
    assert versions(place) == 12

    done = tidegate(place.folder, "vacuum", "orders", "--json")
    assert done.code == DONE
    assert done.document[0]["rows"] == 6
    assert tidegate(place.folder, "vacuum", "orders").out == "orders: no superseded versions\n"
    recorded = place.control.execute(
        "SELECT status, (result ->> 'removed_versions')::int FROM tidegate_control.jobs"
        " WHERE kind = 'vacuum' AND status = 'done' ORDER BY submitted_at"
    )
    assert recorded == [("done", 6), ("done", 0)]

    index = place.target.value(
        "SELECT indexrelid::regclass::text FROM pg_index"
        " WHERE indrelid = 'raw.orders_raw'::regclass AND NOT indisprimary"
    )
    place.target.execute(f"DROP INDEX {index}")
    with pytest.raises(DestinationError, match="no index that leads with part") as raised:
        project.vacuum("orders")
    assert "CREATE INDEX ON raw.orders_raw (part, id)" in str(raised.value)
    assert tidegate(place.folder, "vacuum", "orders").code == FAILED


def test_a_long_vacuum_keeps_its_lease(make: Make) -> None:
    project, place = make(VERSIONS, worker={"lease": "30s", "heartbeat": "100ms"})
    target, request = project.sync("orders").target, {"kind": VACUUM, "name": "orders"}
    lease = "SELECT lease_until FROM tidegate_control.job_queue"
    with hold_table(project.context, target, request, result={}, command="test") as hold:
        first = place.control.value(lease)
        until(lambda: place.control.value(lease) != first, "a beat")
        hold.check_alive()


def test_killed_between_two_chunks_the_view_is_whole_and_the_next_one_finishes(
    make: Make,
) -> None:
    project, place = make(VERSIONS, databases=2)
    rows = CHUNK + 500
    seed(place, rows)
    project.run("orders")
    touch(place, 1)
    project.run("orders")
    place.target.execute("ANALYZE raw.orders_raw")
    assert versions(place) == 2 * rows

    # A chunk is found by the indexes alone.
    found = find_versions(project.context, project.sync("orders"))
    assert not isinstance(found, str)
    statement = superseded.statements.superseded_statement(
        found.raw, found.shape, 0, 500, delete=True
    )
    with place.target.connect() as session:
        text = statement.as_string(session)
        plan = "\n".join(row[0] for row in session.execute(f"EXPLAIN {text}"))  # type: ignore[arg-type]
    assert "Seq Scan" not in plan
    assert "Sort" not in plan

    script = place.folder / "vacuum.py"
    script.write_text(VACUUM_SCRIPT)
    point = {**os.environ, "TIDEGATE_FAILPOINT": "vacuum.chunk=kill"}
    command = [str(script), "vacuum", "orders"]
    code, _, _ = Piped(command, point, place.folder).communicate()
    assert code == -signal.SIGKILL
    assert versions(place) == rows + 500
    assert equal(project)
    assert project.vacuum("orders").rows == 500
    assert versions(place) == rows
    assert equal(project)
    # Whatever the killed one left locked is free for a run as well.
    touch(place, 2, "id = 1")
    assert project.run("orders").rows == 1


@pytest.mark.chaos
def test_vacuuming_all_the_while_disturbs_no_load_and_no_reader(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superseded, "CHUNK_ROWS", 7)
    project, place = make(VERSIONS, databases=3)
    seed(place, 60)
    project.run("orders")
    ended = threading.Event()
    failures: list[BaseException] = []
    removed: list[int] = []
    counted: set[int] = set()

    def vacuum() -> None:
        other = open_without_spark(place)
        try:
            while not ended.is_set():
                try:
                    removed.append(other.vacuum("orders").rows)
                except BusyError:
                    continue
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        with place.target.connect() as session:
            while not ended.wait(0.01):
                row = session.execute("SELECT count(*) FROM raw.orders").fetchone()
                assert row is not None
                counted.add(row[0])

    threads = [threading.Thread(target=vacuum), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    try:
        for day in range(1, 9):
            touch(place, day, f"id % {day} = 0")
            while True:
                try:
                    project.run("orders")
                    break
                except BusyError:
                    continue
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert counted == {60}
    assert sum(removed) + project.vacuum("orders").rows > 0
    assert versions(place) == 60
    assert equal(project)
