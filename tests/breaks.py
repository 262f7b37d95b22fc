"""Hand-made mistakes in the code that must not have any, each of which the tests must notice.

Every break is tried in a copy of the checkout; the checkout itself is never touched.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "docs", "pyproject.toml")
"""what the tests need of the checkout"""
SECONDS = 180
_PATIENCE = 30
_FAILED = re.compile(r"^(?:FAILED|ERROR) tests/integration/(.+?)(?: - ([\w.]+).*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Break:
    """A mistake: `old` stands once in `file`, and `tests` go red when `new` stands there."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    """a file, and what the names of the tests in it hold, as for pytest's -k"""


# fmt: off
BREAKS = (
    # Fences
    Break("a token that is taken already is given to a twin",
          "src/tidegate/ledger/sql/fences.sql", "(f.token < excluded.token\n",
          "(f.token <= excluded.token\n", "tests/integration/test_fences.py -k a_lower_token"),
    Break("another control plane takes the table",
          "src/tidegate/ledger/sql/fences.sql", "WHERE f.control_id = excluded.control_id\n",
          "WHERE true\n", "tests/integration/test_fences.py -k another_control_plane"),
    Break("a publisher does not lock the fence row",
          "src/tidegate/ledger/sql/fences.sql", "WHERE resource = %(resource)s FOR UPDATE",
          "WHERE resource = %(resource)s",
          "tests/integration/test_fences.py -k a_publisher_that_hangs"),
    Break("a fence is compared by its token alone",
          "src/tidegate/ledger/fences.py", "Fence(fence.resource, *row) != fence:",
          "row[1] != fence.token:", "tests/integration/test_fences.py -k needs_equality"),
    Break("an older attempt ends a newer publisher",
          "src/tidegate/ledger/fences.py",
          "held.control_id == fence.control_id and held.token < fence.token:",
          "held.control_id == fence.control_id:",
          "tests/integration/test_fences.py -k cannot_end_a_newer"),
    Break("a publish does not look at its fence",
          "src/tidegate/load/targets/postgres/target.py", "self.fences.lock(connection, fence)\n",
          "self.fences.current(connection, fence.resource)\n",
          "tests/integration/test_postgres_destination.py -k replaced_attempt"),
    # Markers, staging and the one commit
    Break("a load leaves no marker",
          "src/tidegate/load/targets/postgres/target.py",
          "markers.touch(connection, publication.update_id, self.relation)\n",
          "markers.exists(connection, publication.update_id, self.relation)\n",
          "tests/integration/test_postgres_destination.py -k brings_rows_marker"),
    Break("a load that is in is put in again",
          "src/tidegate/load/targets/postgres/target.py",
          "if markers.exists(connection, publication.update_id, self.relation):",
          "if publication.watermark is None:",
          "tests/integration/test_postgres_destination.py -k publishing_twice"),
    Break("the marker of one table counts for all",
          "src/tidegate/ledger/sql/table_updates.sql",
          "AND (target_table = ANY(%(targets)s) OR target_table IS NULL)\n)",
          "AND (%(targets)s::text[] IS NOT NULL OR target_table IS NULL)\n)",
          "tests/integration/test_markers.py -k loads_into_two_tables"),
    Break("staged rows are not counted before they are put in",
          "src/tidegate/load/targets/postgres/target.py",
          "self._check_counts(connection, publication.writes, fence)",
          "self._tables(publication.writes, fence)",
          "tests/integration/test_postgres_destination.py -k vanished"),
    Break("the watermark moves in a commit of its own",
          "src/tidegate/load/targets/postgres/target.py",
          "        Watermarks(self.ledger).move(\n            connection,\n",
          "        Watermarks(self.ledger).move(\n            self.connect('tidegate'),\n",
          "tests/integration/test_postgres_destination.py -k a_commit_that_is_refused"),
    Break("a lost session is a failed publish",
          "src/tidegate/load/targets/postgres/target.py",
          "if not session_lost(error):\n                    raise translate",
          "if error:\n                    raise translate",
          "tests/integration/test_postgres_destination.py -k in_the_middle"),
    Break("a commit whose answer is lost has failed",
          "src/tidegate/postgres/connection.py", "if not has_committed(connect, xid, doing):",
          "if xid:", "tests/integration/test_answers_lost.py -k counts_as_done"),
    # Watermarks
    Break("a watermark moves from any version",
          "src/tidegate/ledger/sql/etl_state.sql",
          "AND version = %(version)s AND generation = %(generation)s\n",
          "AND generation = %(generation)s\n",
          "tests/integration/test_watermarks.py -k outdated_version"),
    Break("cursors are compared as text",
          "src/tidegate/ledger/sql/etl_state.sql", "high_watermark::{type} <= %(value)s::{type}",
          "high_watermark <= %(value)s", "tests/integration/test_watermarks.py -k never_goes_down"),
    Break("a move changes the watermark and not its version",
          "src/tidegate/ledger/sql/etl_state.sql",
          "version = version + 1, rows_synced = rows_synced + %(rows)s,",
          "rows_synced = rows_synced + %(rows)s,",
          "tests/integration/test_watermarks.py -k many_movers"),
    # Claims, and what an attempt may write
    Break("two claimers take one job",
          "src/tidegate/jobs/sql/job_queue.sql",
          "    LIMIT {limit}\n    FOR UPDATE OF q SKIP LOCKED\n", "    LIMIT {limit}\n",
          "tests/integration/test_jobs.py -k claimers_at_once"),
    Break("a job is claimed whose table another has",
          "src/tidegate/jobs/sql/jobs.sql",
          "AND (p.lock_resource IS NULL OR p.job_id IN (SELECT job_id FROM locked))", "AND true",
          "tests/integration/test_job_locks.py -k in_a_batch"),
    Break("a beat renews whatever attempt has the job",
          "src/tidegate/jobs/sql/job_queue.sql",
          "ON m.job_id = q.job_id AND m.attempt_id = q.attempt_id\n", "ON m.job_id = q.job_id\n",
          "tests/integration/test_jobs.py -k a_stale_attempt"),
    Break("a stale attempt takes the job of its successor out of the queue",
          "src/tidegate/jobs/sql/jobs.sql",
          "JOIN ended e ON e.job_id = q.job_id AND e.attempt_id = q.attempt_id",
          "JOIN ended e ON e.job_id = q.job_id",
          "tests/integration/test_jobs.py -k a_stale_attempt"),
    Break("a stale attempt stores its plan",
          "src/tidegate/jobs/sql/jobs.sql",
          "SET plan = %(plan)s\nWHERE job_id = %(job_id)s AND attempt_id = %(attempt_id)s",
          "SET plan = %(plan)s\nWHERE job_id = %(job_id)s",
          "tests/integration/test_jobs.py -k a_stale_attempt"),
    Break("a cancel leaves the attempt its job",
          "src/tidegate/jobs/sql/jobs.sql",
          "SET attempt_id = NULL, lease_until = now() + %(patience)s * interval '1 second'",
          "SET lease_until = now() + %(patience)s * interval '1 second'",
          "tests/integration/test_job_cancels.py -k nobody_else_writes"),
    # Reclaims
    Break("the job of a live worker is reclaimed",
          "src/tidegate/jobs/sql/job_queue.sql",
          "OR pg_try_advisory_xact_lock_shared(w.lock_key))", "OR w.lock_key IS NOT NULL)",
          "tests/integration/test_jobs.py -k a_live_worker"),
    Break("a reclaim goes by the job and not by the attempt",
          "src/tidegate/jobs/sql/job_queue.sql",
          "AND q.attempt_id = %(attempt_id)s\n      AND (q.lease_until < now()",
          "AND q.attempt_id IS NOT NULL\n      AND (q.lease_until < now()",
          "tests/integration/test_jobs.py -k leaves_its_successor_alone"),
    Break("the dead are not fenced out before their job is given away",
          "src/tidegate/jobs/reclaim.py",
          "    raise_fence_above(plane, connection, control_id, destination)\n",
          "    control_id = control_id or uuid4()\n",
          "tests/integration/test_fences.py -k is_fenced_out"),
    # Changes from the log
    Break("the slot is advanced before the rows are published",
          "src/tidegate/load/sources/cdc/source.py",
          "        landed = self._landed\n",
          "        landed = self._landed\n"
          "        self.origin.changes.reached(str(batch.high), None, self._check_alive)\n",
          "tests/integration/test_cdc_sync.py -k refuses_the_rows"),
    Break("the slot follows its quickest reader",
          "src/tidegate/load/sql/slots.sql", "SELECT min(lsn)::text", "SELECT max(lsn)::text",
          "tests/integration/test_cdc_sync.py -k waits_for_the_slower"),
    Break("the position of the commit is taken for its end",
          "src/tidegate/load/sources/cdc/pgoutput.py", "_, _, end, committed = _commit(data, 1)",
          "_, end, _, committed = _commit(data, 1)",
          "tests/integration/test_cdc_sync.py -k what_changed_follows"),
    Break("a transaction that commits right behind another is passed over",
          "src/tidegate/load/sources/cdc/landing.py", "passes = True, final < self.after",
          "passes = True, final <= self.after",
          "tests/integration/test_changes.py -k right_behind"),
    # What a lake publishes
    Break("main is moved without an intent",
          "src/tidegate/load/targets/iceberg/publish.py",
          "head, applied)\n            self._note(intent)\n",
          "head, applied)\n            self._check_watermark()\n",
          "tests/integration/test_lake_healing.py -k a_full_load_of_nothing_is_found"),
    Break("what main holds already is not recorded before the next load",
          "src/tidegate/load/targets/iceberg/target.py",
          "holding.healing.settle(connection, table)",
          "holding.fences.lock(connection, fence)",
          "tests/integration/test_lake_healing.py -k a_full_load_of_nothing_is_found"),
    Break("files are published without counting their rows",
          "src/tidegate/load/targets/iceberg/publish.py",
          "holding.check_counts(table.location, publication.writes)",
          "holding.check_fence(publication.fence)",
          "tests/integration/test_lake_destination.py -k vanished"),
    Break("what was staged upon another main is published",
          "src/tidegate/load/targets/iceberg/publish.py",
          "if base is None or table.main not in (None, base):", "if base is None:",
          "tests/integration/test_lake_races.py -k do_not_return"),
    Break("a snapshot that is picked up has no id of its own",
          "src/tidegate/load/targets/iceberg/publish.py",
          "return {**marks, STAGED_ID: publication.update_id}", "return marks",
          "tests/integration/test_lake_races.py -k keep_writing"),
    Break("a commit to the catalog does not hold the fence",
          "src/tidegate/ledger/sql/iceberg_catalog.sql", "WHERE attempt_id = attempt FOR SHARE;",
          "WHERE attempt_id = attempt;",
          "tests/integration/test_lake_races.py -k raised_during_a_commit"),
    # What is read, and what may be loaded
    Break("a table that got other files before it was locked is read",
          "src/tidegate/load/sources/reading.py",
          "if any(oid not in behind or behind[oid].node != node for oid, node in found.items()):",
          "if any(oid not in behind for oid in found):",
          "tests/integration/test_reading.py -k a_copy_point_whose"),
    Break("who may not lock a table first reads a snapshot from before its files",
          "src/tidegate/load/sources/reading.py",
          "if any(oid not in behind or behind[oid].node != node for oid, node in found.items()):",
          "if imported and any(oid not in behind or behind[oid].node != found[oid] for oid in"
          " found):", "tests/integration/test_reading.py -k known_by_its_files"),
    Break("another database of the same server is the same source",
          "src/tidegate/load/declaration_changes.py",
          "if fate in (Fate.OTHER_SERVER, Fate.OTHER_DATABASE):", "if fate is Fate.OTHER_SERVER:",
          "tests/integration/test_source_identity.py -k restored_elsewhere"),
    Break("only syncs of one project are kept apart",
          "src/tidegate/ledger/sql/etl_state.sql",
          "WHERE table_name = %(table)s AND pipeline_name <> %(pipeline)s AND version > 0",
          "WHERE table_name = %(table)s AND pipeline_name <> %(pipeline)s AND version > 0 AND"
          " split_part(pipeline_name, '.', 1) = split_part(%(pipeline)s, '.', 1)",
          "tests/integration/test_target_owners.py -k belongs_to_one_sync"),
    Break("a merge may remove whatever it likes",
          "src/tidegate/load/targets/postgres/apply.py",
          "if limit is not None and limit.concerns(removed):\n            left",
          "if limit is not None and not removed:\n            left",
          "tests/integration/test_removal.py -k more_than_a_half"),
)
# fmt: on


def copy_checkout(folder: Path) -> None:
    """What the tests need, with the times of its files: what was compiled is not compiled again."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy2(ROOT / name, folder / name)


def apply(found: Break, folder: Path) -> None:
    """Make the mistake in a copy."""
    file = folder / found.file
    text = file.read_text(encoding="utf-8")
    assert text.count(found.old) == 1, f"{found.name}: its old text does not stand in {file} once"
    file.write_text(text.replace(found.old, found.new), encoding="utf-8")


def run(folder: Path, breaks: Iterable[Break], seconds: float) -> tuple[int | None, str]:
    """The named tests in a copy: the exit code, None when they took too long, and what was said."""
    chosen = [found.tests.partition(" -k ") for found in breaks]
    files = sorted({file for file, _, _ in chosen})
    words = " or ".join(sorted({words for _, _, words in chosen}))
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", *files, "-k", words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "400"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        # As Ctrl-C does: its server and its Spark end with it.
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        return None, ""


def attempt(found: Break) -> tuple[str, bool]:
    """Make one mistake and say which test noticed."""
    with tempfile.TemporaryDirectory(prefix="tidegate-break-") as name:
        folder = Path(name)
        copy_checkout(folder)
        apply(found, folder)
        code, said = run(folder, [found], SECONDS)
    if code is None:
        return f"more than {SECONDS} s", True
    failed = _FAILED.search(said)
    if code == 1 and failed:
        return f"{failed[1]} ({failed[2]})", True
    return f"NOT CAUGHT (exit code {code})", False


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="breaks whose name has this in it")
    parser.add_argument("--list", action="store_true", help="say what there is, and try nothing")
    parser.add_argument("--no-baseline", action="store_true", help="not the unbroken copy first")
    options = parser.parse_args(arguments)
    chosen = [found for found in BREAKS if (options.only or "") in found.name]
    if options.list or not chosen:
        for found in chosen:
            print(f"{found.name} | {found.file} | {found.tests}")
        return 0 if chosen else 2
    if not options.no_baseline:
        with tempfile.TemporaryDirectory(prefix="tidegate-break-") as name:
            copy_checkout(Path(name))
            code, said = run(Path(name), chosen, SECONDS * len(chosen))
        if code != 0:
            print(f"{said}\nthe tests fail without any break")
            return 1
    # A background job of a shell ignores Ctrl-C, and so would its tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    missed = 0
    print("| break | file | caught by | seconds |\n| --- | --- | --- | --- |")
    for found in chosen:
        started = time.monotonic()
        by, is_caught = attempt(found)
        missed += not is_caught
        took = time.monotonic() - started
        print(f"| {found.name} | {found.file} | {by} | {took:.0f} |", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
