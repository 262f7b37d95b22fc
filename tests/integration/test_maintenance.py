"""Maintenance of a lake's table: what it does, what is taken for an orphan, and what never is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb
from pyiceberg.table.update import SetSnapshotRefUpdate

from databases import Databases
from integration.conftest import MakePlace, Place, WarmSpark
from integration.filled_lakes import open_table, orders
from integration.lakes import change
from integration.maintained import (
    TARGET,
    add_file,
    age,
    data_files,
    grow,
    ids,
    leave_file,
    location,
    maintain,
    order_of,
    orphans_of,
    small_files_place,
    snapshots,
)
from integration.shared_places import shared_places
from tidegate.core.errors import BusyError, MaintenanceFailed, UsageError
from tidegate.core.relation import Endpoint
from tidegate.core.table_actions import Action, ExpireSnapshots
from tidegate.job_kinds import check_maintenance
from tidegate.ledger.iceberg import Intent, Intents, StagedFolder, StagedFolders
from tidegate.load.targets.iceberg.target import IcebergTarget
from tidegate.maintenance import actions
from tidegate.maintenance.actions import NeededSnapshots, bound_expiry
from tidegate.maintenance.runner import Maintained, maintain_here
from tidegate.project import Project

MERGE_ON_READ = (
    "ALTER TABLE lake.raw.orders SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read',"
    " 'write.delete.granularity' = 'partition')"
)
READER = {"name": "copy", "source": "lake:raw.orders", "target": "warehouse:raw.copy", "key": "id"}
ALL_OF_THEM = ExpireSnapshots(older_than_seconds=0)
GONE = (None, True)
LIVE, DEAD, UNKNOWN = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture(scope="module")
def place(kept_databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One table for all tests; each begins with what it finds."""
    with shared_places(kept_databases, tmp_path_factory.mktemp("maintained")) as make:
        yield small_files_place(make, 3, databases=1)


@pytest.fixture(scope="module")
def project(place: Place, warm_spark: WarmSpark) -> Project:
    project = place.open(warm_spark)
    project.context.control_id()
    return project


def insert(*numbers: int) -> str:
    listed = ", ".join(f"({one}, {one}, now())" for one in numbers)
    return (
        "INSERT INTO lake.raw.orders SELECT /*+ REPARTITION(1) */ * FROM VALUES "
        f"{listed} AS new(id, total, updated_at)"
    )


def delete(*numbers: int) -> list[str]:
    return [f"DELETE FROM lake.raw.orders WHERE id = {one}" for one in numbers]


def details(done: Maintained) -> dict[str, dict[str, Any]]:
    return {one.action: one.detail for one in done.actions}


def files(detail: dict[str, Any]) -> tuple[int, int]:
    return detail["files_before"], detail["files_after"]


def test_a_table_of_many_small_files_is_put_in_order_and_each_action_is_recorded(
    place: Place, project: Project
) -> None:
    grow(place, 3)
    first = max(ids(place)) + 1
    change(project, MERGE_ON_READ, insert(*range(first, first + 10)), *delete(first, first + 2))
    assert len(open_table(place).inspect.delete_files()) == 2
    old = leave_file(place, "data/old.parquet")
    stale = leave_file(place, "metadata/stale.avro")
    young = leave_file(place, "data/young.parquet", days=2.0)
    before, known, count = ids(place), len(snapshots(place)), data_files(place)

    done = maintain(project, order_of())
    assert (done.status, done.error) == ("done", None)
    assert [one.action for one in done.actions] == [one.value for one in Action]
    assert ids(place) == before
    assert data_files(place) == 1
    assert len(open_table(place).inspect.delete_files()) == 0
    assert (old.exists(), stale.exists(), young.exists()) == (False, False, True)
    found = details(done)
    # What the data files had to forget was dropped with them.
    assert [one["status"] for one in found.values()] == ["done", "done", "done", "skipped", "done"]
    assert found["expire_snapshots"]["actual"]["snapshots"] == known - 1
    assert files(found["rewrite_data_files"]) == (count, 1)
    assert found["rewrite_manifests"]["files_after"] == 2
    assert all(one["error"] is None and one["seconds"] > 0 for one in found.values())
    for name in ("expire_snapshots", "remove_orphan_files", "rewrite_manifests"):
        predicted, actual = found[name]["predicted"], found[name]["actual"]
        assert predicted["before"] == actual["before"], name
        assert predicted["after"]["files"] == actual["after"]["files"], name
        assert predicted["snapshots"] == actual["snapshots"], name
    removed = found["remove_orphan_files"]
    assert files(removed)[0] - files(removed)[1] == 2
    assert removed["bytes_before"] - removed["bytes_after"] == 2 * len(b"left over")
    young.unlink()


@pytest.mark.chaos
def test_position_deletes_of_one_file_are_put_together(place: Place, project: Project) -> None:
    first = max(ids(place)) + 1
    new = range(first, first + 200)
    change(project, MERGE_ON_READ, insert(*new), *delete(new[0], new[2], new[4]))
    before = ids(place)
    done = details(maintain(project, order_of(Action.REWRITE_POSITION_DELETE_FILES)))
    assert files(done["rewrite_position_delete_files"]) == (3, 1)
    assert ids(place) == before


def test_snapshots_that_a_sync_still_needs_are_kept_until_it_has_gone_on(
    make_place: MakePlace, warm_spark: WarmSpark
) -> None:
    place = small_files_place(make_place, 3, READER, databases=1)
    project = place.open(warm_spark)
    assert project.run("copy").rows == 3
    stands = snapshots(place)[-1]
    add_file(place, 10)
    add_file(place, 11)
    after = snapshots(place)[-3:]

    expiring = order_of(Action.EXPIRE_SNAPSHOTS)
    (kept,) = details(maintain(project, expiring)).values()
    assert snapshots(place) == after
    assert after[0] == stands
    assert kept["actual"]["snapshots"] == kept["predicted"]["snapshots"] == 2
    assert "on are kept: sync copy needs them" in kept["notes"][0]

    # Main itself says how long its snapshots are kept.
    table = open_table(place)
    main = table.metadata.refs["main"].snapshot_id
    rule = SetSnapshotRefUpdate(
        ref_name="main", type="branch", snapshot_id=main, max_snapshot_age_ms=1
    )
    table.catalog.commit_table(table, (), (rule,))
    (refused,) = details(maintain(project, expiring)).values()
    assert refused["status"] == "failed"
    assert "would be forgotten that sync copy still needs" in refused["error"]
    assert snapshots(place) == after

    assert project.run("copy").rows == 2
    copied = place.target.execute("SELECT id FROM raw.copy ORDER BY id")
    assert copied == [(0,), (1,), (2,), (10,), (11,)]
    (free,) = details(maintain(project, expiring)).values()
    assert (free["status"], free["notes"]) == ("done", [])
    assert snapshots(place) == after[-1:]


def test_what_fails_is_told_and_what_comes_after_it_is_done_all_the_same(
    place: Place, project: Project
) -> None:
    grow(place, 3)
    before = ids(place)
    (path, *_) = open_table(place).inspect.data_files()["file_path"].to_pylist()
    lost = Path(urlsplit(path).path)
    content = lost.read_bytes()
    lost.unlink()
    done = maintain(
        project,
        order_of(Action.EXPIRE_SNAPSHOTS, Action.REWRITE_DATA_FILES, Action.REWRITE_MANIFESTS),
    )
    assert done.status == "failed"
    assert isinstance(done.error, MaintenanceFailed)
    assert done.error.message.startswith("1 of 3 actions failed: rewrite_data_files: ")
    assert lost.name in done.error.message
    assert done.error.message.endswith("; done: expire_snapshots, rewrite_manifests")
    assert [(one.action, one.detail["status"]) for one in done.actions] == [
        ("expire_snapshots", "done"),
        ("rewrite_data_files", "failed"),
        ("rewrite_manifests", "done"),
    ]
    failed = done.actions[1].detail
    assert (failed["actual"], failed["predicted"]["after"]["files"]) == (None, 1)
    told = place.control.execute(
        f"SELECT status, error FROM tidegate_control.jobs WHERE job_id = '{done.job_id}'"
    )
    assert told == [("failed", str(done.error))]
    lost.write_bytes(content)
    assert maintain(project, order_of(Action.REWRITE_DATA_FILES)).status == "done"
    assert (ids(place), data_files(place)) == (before, 1)


def test_a_table_that_is_not_there_and_orders_that_nobody_could_have_given_are_refused(
    place: Place,
) -> None:
    project = place.open()
    target = Endpoint.parse("lake:raw.nothing")
    done = maintain_here(project.context, target, order_of(), actor="test")
    assert done.status == "failed"
    assert "lake:raw.nothing does not exist" in str(done.error)
    assert not project.context.spark.started
    expire = "expire_snapshots"
    wrong: list[object] = [None, {}, [], {"drop_table": {}}, {expire: {"older": 1}}, {expire: 1}]
    for order in wrong:
        with pytest.raises(UsageError, match=r"the job lake:raw\.orders is malformed"):
            check_maintenance(str(TARGET), {"target": str(TARGET), "order": order})
    given = order_of(expire_snapshots=ExpireSnapshots(60.0, 2))
    check_maintenance(str(TARGET), {"target": str(TARGET), "order": given.document()})


def made_at(place: Place, snapshot_id: int) -> datetime:
    found = open_table(place).snapshot_by_id(snapshot_id)
    assert found is not None
    return datetime.fromtimestamp(found.timestamp_ms / 1000, UTC)


def bound(project: Project, options: ExpireSnapshots = ALL_OF_THEM) -> NeededSnapshots:
    project.context.control_id()
    destination = project.context.destination(TARGET)
    assert isinstance(destination, IcebergTarget)
    return bound_expiry(project.context, destination, options, datetime.now(UTC))


def plan_load(place: Place, name: str, snapshot_id: int) -> None:
    """A job of this name has planned a load up to a snapshot, and has not ended."""
    place.control.execute(
        sql.SQL(
            "WITH job AS (INSERT INTO tidegate_control.jobs"
            " (job_id, project, kind, name, payload, plan, lock_at, submitted_by)"
            " VALUES (gen_random_uuid(), 'shop', 'sync', {}, '{{}}', {}, 'never', 'test')"
            " RETURNING job_id) INSERT INTO tidegate_control.job_queue (job_id, kind, project)"
            " SELECT job_id, 'sync', 'shop' FROM job"
        ).format(name, Jsonb({"batch": {"high": str(snapshot_id)}}))
    )


def test_what_a_load_reads_or_names_is_kept_and_where_nobody_needs_anything_nothing_is(
    make_place: MakePlace,
) -> None:
    place = small_files_place(make_place, 4, READER, databases=1)
    project = place.open()
    found = bound(project, ExpireSnapshots(older_than_seconds=60))
    assert found.notes == ()
    assert abs(datetime.now(UTC) - timedelta(seconds=60) - found.older_than).total_seconds() < 30

    # A load that is not settled names its snapshots; one that was given up does not.
    first, second, third, fourth = snapshots(place)
    ledger = project.context.ledger("lake")
    given_up = Intent("old", "a" * 32, 1, first, None, None)
    with ledger.connect() as connection:
        for intent in (given_up, Intent("new", "b" * 32, 2, third, fourth, None)):
            Intents(ledger).note(connection, "raw.orders", intent)
        Intents(ledger).abandon(connection, "raw.orders", given_up)
    found = bound(project)
    assert found.older_than == made_at(place, third)
    assert found.notes[0].endswith("on are kept: load new needs them")

    # A load that is under way reads them.
    plan_load(place, "other", first)
    plan_load(place, "copy", second)
    found = bound(project)
    assert found.older_than == made_at(place, second)
    assert found.notes[0].endswith("on are kept: load new, sync copy needs them")


def test_a_reader_whose_state_cannot_be_told_or_a_table_that_cannot_be_healed_stops_it(
    make_place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_files_place(make_place, 2, READER, databases=1)
    toml = place.folder / "tidegate.toml"
    text = toml.read_text().replace('"warehouse:raw.copy"', '"gone:raw.copy"')
    toml.write_text(f'{text}\n[connections.gone]\nurl = "postgresql://127.0.0.1:1/x"\n')
    done = maintain(place.open(), order_of(Action.EXPIRE_SNAPSHOTS))
    assert done.status == "failed"
    assert 'connection "gone"' in done.actions[0].detail["error"]
    assert len(snapshots(place)) == 2

    def refuse(*_: object) -> None:
        raise BusyError("what an earlier attempt staged cannot be taken back", "run again")

    monkeypatch.setattr(IcebergTarget, "heal", refuse)
    done = maintain(place.open(), order_of())
    assert isinstance(done.error, MaintenanceFailed)
    assert (done.status, done.actions) == ("failed", [])
    # No other attempt is promised.
    states = place.control.execute("SELECT status FROM tidegate_control.jobs")
    assert states == [("failed",), ("failed",)]


def remove(project: Project) -> Maintained:
    return maintain(project, order_of(Action.REMOVE_ORPHAN_FILES))


def at(monkeypatch: pytest.MonkeyPatch, point: str, do: Callable[[], object]) -> None:
    """Something happens, once, when the removal has got to a point."""
    passed: list[str] = []

    def reach(name: str) -> None:
        passed.append(name)
        if name == point and passed.count(name) == 1:
            do()

    monkeypatch.setattr(actions, "reach", reach)


def stage(place: Place, project: Project, attempt_id: str, *, ended: bool | None) -> Path:
    """What an attempt has staged, long ago, and whether that attempt is known to have ended."""
    ledger = project.context.ledger("lake")
    folder = f"tidegate-{attempt_id}-12345678"
    with ledger.connect() as connection:
        StagedFolders(ledger).note(
            connection,
            str(TARGET.relation),
            StagedFolder(folder, attempt_id, open_table(place).location()),
        )
    if ended is not None:
        place.control.execute(
            sql.SQL(
                "WITH job AS (INSERT INTO tidegate_control.jobs"
                " (job_id, project, kind, name, payload, lock_at, submitted_by)"
                " VALUES (gen_random_uuid(), 'shop', 'sync', 'x', '{{}}', 'never', 'test')"
                " RETURNING job_id) INSERT INTO tidegate_control.job_attempts"
                " (attempt_id, job_id, worker_id, fence, finished_at)"
                " SELECT {}, job_id, 'w', 1, {} FROM job"
            ).format(attempt_id, datetime.now(UTC) if ended else None)
        )
    return leave_file(place, f"data/{folder}/{attempt_id[0]}.parquet")


def running_since(place: Place, moment: datetime) -> None:
    """Somebody has been at work for long, on whatever table."""
    place.control.execute(
        sql.SQL(
            "WITH job AS (INSERT INTO tidegate_control.jobs (job_id, project, kind, name, payload,"
            " lock_at, submitted_by, status, started_at)"
            " VALUES (gen_random_uuid(), 'other', 'sync', 'long', '{{}}', 'never', 'test',"
            " 'running', {}) RETURNING job_id) INSERT INTO tidegate_control.job_queue"
            " (job_id, kind, project, claimed_at, claimed_by)"
            " SELECT job_id, 'sync', 'other', now(), 'w' FROM job"
        ).format(moment)
    )


def test_only_what_is_old_and_belongs_to_nobody_is_removed(place: Place, project: Project) -> None:
    before = ids(place)
    # The table's own files may be as old as they like.
    age(*(one for one in location(place).rglob("*") if one.is_file()))
    old = leave_file(place, "data/old.parquet")
    strange = [leave_file(place, f"data/a b{sign}c'd.parquet") for sign in "#%?ü"]
    beside = leave_file(place, "data/a b")
    young = leave_file(place, "data/young.parquet", days=0.5)
    live = stage(place, project, LIVE, ended=False)
    dead = stage(place, project, DEAD, ended=True)
    unknown = stage(place, project, UNKNOWN, ended=None)

    done = remove(project)
    assert (done.status, done.error) == ("done", None)
    assert ids(place) == before
    assert not any(one.exists() for one in (old, dead, beside, *strange))
    assert all(one.exists() for one in (young, live, unknown))
    found = orphans_of(place, done)
    staged = ("staged by an attempt that may be at work", False)
    assert found.pop(live.name) == found.pop(unknown.name) == staged
    removed = (old, dead, beside, *strange)
    assert {one.name: found[one.name] for one in removed} == {one.name: GONE for one in removed}
    (detail,) = [one.detail for one in done.actions]
    assert detail["notes"] == [f"2 files stay: {staged[0]}"]
    assert detail["told"]["found"] - detail["told"]["deleted"] == 2
    for one in (young, live, unknown):
        one.unlink()

    # No file is removed that is younger than the oldest running job.
    running_since(place, datetime.now(UTC) - timedelta(days=20))
    file = leave_file(place, "data/old.parquet")
    older = leave_file(place, "data/older.parquet", days=21)
    assert remove(project).status == "done"
    assert (file.exists(), older.exists()) == (True, False)
    place.control.execute("DELETE FROM tidegate_control.job_queue")
    assert remove(project).status == "done"
    assert not file.exists()


def test_what_becomes_the_tables_own_between_the_list_and_the_deletion_stays(
    place: Place, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ids(place)
    new = [before[-1] + 1, before[-1] + 2]
    late, later = (location(place) / "data" / f"{name}.parquet" for name in ("late", "z"))
    for file, number in zip((late, later), new, strict=True):
        pq.write_table(orders([number]), file)
        age(file)
    touched = leave_file(place, "data/touched.parquet")
    gone = leave_file(place, "data/gone.parquet")
    other = leave_file(place, "data/other.parquet")

    def happen() -> None:
        open_table(place).add_files([late.as_uri()])
        os.utime(touched)
        gone.unlink()
        # Noted, and not deleted yet.
        assert other.exists()
        listed = place.control.execute("SELECT path FROM tidegate_control.orphan_files")
        assert {one.name for one in (late, later, touched, gone, other)} <= {
            Path(path).name for (path,) in listed
        }

    at(monkeypatch, "orphans.listed", happen)
    monkeypatch.setattr(actions, "_DELETED", 1)
    delete_files = actions.PlainFiles.delete

    def delete_and_commit(files: actions.PlainFiles, paths: list[str]) -> dict[str, str]:
        """A commit between two batches."""
        found = delete_files(files, paths)
        if new[1] not in ids(place):
            open_table(place).add_files([later.as_uri()])
        return found

    monkeypatch.setattr(actions.PlainFiles, "delete", delete_and_commit)
    done = remove(project)
    assert (done.status, done.error) == ("done", None)
    assert ids(place) == [*before, *new]
    assert (touched.exists(), other.exists()) == (True, False)
    found = orphans_of(place, done)
    assert {one.name: found[one.name] for one in (late, later, touched, gone, other)} == {
        late.name: ("the table knows it", False),
        later.name: ("the table knows it", False),
        touched.name: ("changed since it was found", False),
        gone.name: GONE,
        other.name: GONE,
    }
    touched.unlink()


def test_a_file_that_cannot_be_deleted_is_told_and_the_others_go(
    place: Place, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = leave_file(place, "data/a.parquet")
    other = leave_file(place, "data/b.parquet")

    def become_a_folder() -> None:
        # Nobody can delete a file that is being deleted as one and is none, not even root.
        look = actions.PlainFiles.look

        def look_and_replace(files: actions.PlainFiles, paths: list[str]) -> list[object]:
            found = look(files, paths)
            stuck.unlink()
            (stuck / "in").mkdir(parents=True)
            return list(found)

        monkeypatch.setattr(actions.PlainFiles, "look", look_and_replace)

    at(monkeypatch, "orphans.listed", become_a_folder)
    done = remove(project)
    assert done.status == "failed"
    assert "orphan files were deleted, but others could not be: 1 cannot be" in str(done.error)
    assert not other.exists()
    (stuck / "in").rmdir()
    stuck.rmdir()


def test_an_attempt_that_was_replaced_deletes_nothing(
    place: Place, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = leave_file(place, "data/old.parquet")
    ledger = project.context.ledger("lake")

    def raise_fence(by: int) -> None:
        with ledger.connect() as connection:
            connection.execute(
                sql.SQL("UPDATE {}.fences SET token = token + {}, attempt_id = 'newer'").format(
                    ledger.schema_identifier, by
                )
            )

    at(monkeypatch, "orphans.listed", lambda: raise_fence(1))
    assert remove(project).status == "stale"
    assert file.exists()
    add_file(place, max(ids(place)) + 1)
    file.unlink()
    raise_fence(-1)
