"""The procedures of maintenance as they are called, and paths as they are compared."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tidegate.core.relation import Relation
from tidegate.core.table_actions import RewriteDataFiles, RewritePositionDeleteFiles
from tidegate.iceberg.catalog import Catalog
from tidegate.iceberg.table import EMBEDDED
from tidegate.maintenance import procedures
from tidegate.maintenance.orphan_files import plain_path
from tidegate.maintenance.procedures import is_transient

ODD = Relation("ra`w", "or'ders")
NAME = "table => '`ra``w`.`or\\'ders`'"


@pytest.fixture
def catalog() -> Catalog:
    return Catalog("my`lake", EMBEDDED, {}, Path(), "s", control=str, lease=lambda: None)  # type: ignore[arg-type,return-value]


def test_a_moment_is_told_with_its_zone_and_never_later_than_it_is(catalog: Catalog) -> None:
    moment = datetime(2026, 3, 1, 1, 0, 0, 999_999, timezone(timedelta(hours=2)))
    assert procedures.expire_snapshots(catalog, ODD, moment, 3) == (
        f"CALL `my``lake`.system.expire_snapshots({NAME}, "
        "older_than => TIMESTAMP '2026-02-28 23:00:00.999 UTC', retain_last => 3)"
    )


def test_orphans_are_only_ever_told(catalog: Catalog) -> None:
    statement = procedures.find_orphan_files(catalog, ODD, datetime.now().astimezone())
    assert statement.startswith(f"CALL `my``lake`.system.remove_orphan_files({NAME}, ")
    assert statement.endswith(", dry_run => true)")


def test_what_is_asked_of_a_rewrite_is_said_and_nothing_else(catalog: Catalog) -> None:
    call = f"CALL `my``lake`.system.rewrite_data_files({NAME}, strategy => "
    plain = procedures.rewrite_data_files(catalog, ODD, RewriteDataFiles())
    assert (
        plain == f"{call}'binpack', options => map('min-input-files', '5', "
        "'delete-file-threshold', '1'))"
    )
    asked = RewriteDataFiles(1024, 2, sort=True, partial_progress=True, delete_file_threshold=0)
    assert procedures.rewrite_data_files(catalog, ODD, asked, dangling=True) == (
        f"{call}'sort', options => map('min-input-files', '2', 'target-file-size-bytes', '1024', "
        "'partial-progress.enabled', 'true', 'remove-dangling-deletes', 'true'))"
    )
    deletes = RewritePositionDeleteFiles()
    assert procedures.rewrite_position_delete_files(catalog, ODD, deletes, everything=True) == (
        f"CALL `my``lake`.system.rewrite_position_delete_files({NAME}, "
        "options => map('min-input-files', '5', 'rewrite-all', 'true'))"
    )
    assert procedures.rewrite_manifests(catalog, ODD) == (
        f"CALL `my``lake`.system.rewrite_manifests({NAME})"
    )


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("file:/lake/a", "/lake/a"),
        ("file:///lake/a", "/lake/a"),
        ("s3a://bucket/a b#c?d%20", "/a b#c?d%20"),
        ("hdfs://host:8020/a", "/a"),
        ("/lake/x:/y", "/lake/x:/y"),
    ],
)
def test_a_path_is_the_same_whoever_writes_it_down(location: str, path: str) -> None:
    assert plain_path(location) == path


def test_only_what_others_or_the_network_did_is_worth_another_try() -> None:
    assert is_transient(RuntimeError("org.apache.iceberg.exceptions.CommitFailedException: x"))
    assert is_transient(RuntimeError("ERROR: another commit came first"))
    assert not is_transient(RuntimeError("java.io.FileNotFoundException: no such file"))
