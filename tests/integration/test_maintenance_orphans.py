"""Orphans of a lake's table: what is taken for one, and what never is."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from psycopg import sql

from integration.conftest import MakePlace, Place
from integration.filled_lakes import open_table, orders
from integration.maintained import (
    TARGET,
    add_file,
    age,
    ids,
    leave_file,
    location,
    maintain,
    order_of,
    orphans_of,
    small_files_place,
)
from tidegate.ledger.staged_folders import StagedFolder, StagedFolders
from tidegate.model.maintenance import Action
from tidegate.pipeline import orphan_removal
from tidegate.project import Project
from tidegate.runtime.maintaining_here import Maintained
from tidegate.spark.session import SparkSessions

GONE = (None, True)
LIVE, DEAD, UNKNOWN = "a" * 32, "b" * 32, "c" * 32


def remove(project: Project) -> Maintained:
    return maintain(project, order_of(Action.REMOVE_ORPHAN_FILES))


def at(monkeypatch: pytest.MonkeyPatch, point: str, do: Callable[[], object]) -> None:
    """Something happens, once, when the removal has got to a point."""
    passed: list[str] = []

    def reach(name: str) -> None:
        passed.append(name)
        if name == point and passed.count(name) == 1:
            do()

    monkeypatch.setattr(orphan_removal, "reach", reach)


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


def test_only_what_is_old_and_belongs_to_nobody_is_removed(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = small_files_place(make_place, 3)
    project = place.open(warm_spark)
    project.context.control_id()
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
    assert ids(place) == [0, 1, 2]
    assert not any(one.exists() for one in (old, dead, beside, *strange))
    assert all(one.exists() for one in (young, live, unknown))
    found = orphans_of(place, done)
    staged = ("staged by an attempt that may be at work", False)
    assert found.pop(live.name) == found.pop(unknown.name) == staged
    assert found == {one.name: GONE for one in (old, dead, beside, *strange)}
    (detail,) = [one.detail for one in done.actions]
    assert detail["notes"] == [f"2 files stay: {staged[0]}"]
    assert (detail["told"]["found"], detail["told"]["deleted"]) == (9, 7)


def test_no_file_is_removed_that_is_younger_than_the_oldest_running_job(
    make_place: MakePlace, warm_spark: SparkSessions
) -> None:
    place = small_files_place(make_place, 2)
    project = place.open(warm_spark)
    project.context.control_id()
    running_since(place, datetime.now(UTC) - timedelta(days=20))
    file = leave_file(place, "data/old.parquet")
    before = leave_file(place, "data/older.parquet", days=21)
    done = remove(project)
    assert done.status == "done"
    assert (file.exists(), before.exists()) == (True, False)
    place.control.execute("DELETE FROM tidegate_control.job_queue")
    assert remove(project).status == "done"
    assert not file.exists()


def test_what_becomes_the_tables_own_between_the_list_and_the_deletion_stays(
    make_place: MakePlace, warm_spark: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_files_place(make_place, 2)
    project = place.open(warm_spark)
    late = location(place) / "data" / "late.parquet"
    pq.write_table(orders([7]), late)
    age(late)
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
        assert {Path(path).name for (path,) in listed} == {
            one.name for one in (late, touched, gone, other)
        }

    at(monkeypatch, "orphans.listed", happen)
    done = remove(project)
    assert (done.status, done.error) == ("done", None)
    assert ids(place) == [0, 1, 7]
    assert (late.exists(), touched.exists(), other.exists()) == (True, True, False)
    assert orphans_of(place, done) == {
        late.name: ("the table knows it", False),
        touched.name: ("changed since it was found", False),
        gone.name: GONE,
        other.name: GONE,
    }


def test_a_commit_between_two_batches_is_seen(
    make_place: MakePlace, warm_spark: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_files_place(make_place, 2)
    project = place.open(warm_spark)
    late = location(place) / "data" / "z.parquet"
    pq.write_table(orders([7]), late)
    first = leave_file(place, "data/a.parquet")
    age(late)
    monkeypatch.setattr(orphan_removal, "_DELETED", 1)
    delete = orphan_removal.PlainFiles.delete

    def delete_and_commit(files: orphan_removal.PlainFiles, paths: list[str]) -> dict[str, str]:
        found = delete(files, paths)
        open_table(place).add_files([late.as_uri()])
        return found

    monkeypatch.setattr(orphan_removal.PlainFiles, "delete", delete_and_commit)
    done = remove(project)
    assert (done.status, done.error) == ("done", None)
    assert ids(place) == [0, 1, 7]
    assert not first.exists()
    assert orphans_of(place, done)[late.name] == ("the table knows it", False)


def test_a_file_that_cannot_be_deleted_is_told_and_the_others_go(
    make_place: MakePlace, warm_spark: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_files_place(make_place, 1)
    project = place.open(warm_spark)
    stuck = leave_file(place, "data/a.parquet")
    other = leave_file(place, "data/b.parquet")

    def become_a_folder() -> None:
        # Nobody can delete a file that is being deleted as one and is none, not even root.
        look = orphan_removal.PlainFiles.look

        def look_and_replace(files: orphan_removal.PlainFiles, paths: list[str]) -> list[object]:
            found = look(files, paths)
            stuck.unlink()
            (stuck / "in").mkdir(parents=True)
            return list(found)

        monkeypatch.setattr(orphan_removal.PlainFiles, "look", look_and_replace)

    at(monkeypatch, "orphans.listed", become_a_folder)
    done = remove(project)
    assert done.status == "failed"
    assert "1 orphan files were deleted, but others could not be: 1 cannot be" in str(done.error)
    assert not other.exists()


def test_an_attempt_that_was_replaced_deletes_nothing(
    make_place: MakePlace, warm_spark: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_files_place(make_place, 1)
    project = place.open(warm_spark)
    file = leave_file(place, "data/old.parquet")
    ledger = project.context.ledger("lake")

    def raise_fence() -> None:
        with ledger.connect() as connection:
            connection.execute(
                sql.SQL("UPDATE {}.fences SET token = token + 1, attempt_id = 'newer'").format(
                    ledger.schema_identifier
                )
            )

    at(monkeypatch, "orphans.listed", raise_fence)
    assert remove(project).status == "stale"
    assert file.exists()
    add_file(place, 5)
