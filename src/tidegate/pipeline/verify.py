"""Does the target hold what the declaration would have loaded up to the watermark?

The target is read in one snapshot, together with its watermark, and the source in one that is
taken later: what changed in between carries a cursor above that watermark. The keys of source
rows above the watermark are left out on both sides, since the target has an older version of
them or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

from tidegate.control.jobs import Jobs
from tidegate.destinations import merge
from tidegate.destinations.target import check_existing, check_present
from tidegate.ledger.watermarks import Watermarks
from tidegate.model.batch import Batch, BatchKind
from tidegate.model.cursor import NullPolicy
from tidegate.model.job import SYNC
from tidegate.model.sync import Sync
from tidegate.model.verification import Difference, Verdict, Verification
from tidegate.model.watermark import Watermark
from tidegate.pipeline.changed import refuse_changed
from tidegate.pipeline.compare import Comparison, Hashing, Side, compare
from tidegate.pipeline.context import Context
from tidegate.pipeline.declaration import passthrough_shape, resolve_source
from tidegate.pipeline.loaded import loaded_condition, pending_condition
from tidegate.pipeline.reading import read_only
from tidegate.pipeline.sessions import Sessions
from tidegate.pipeline.sides import LeftOut, send_left_out, target_rows, target_snapshot
from tidegate.pipeline.stage import passed_columns
from tidegate.pipeline.verify_transformed import compare_transformed
from tidegate.postgres.catalog import describe_table
from tidegate.postgres.connect import Connection, translate
from tidegate.postgres.identifiers import column_list
from tidegate.sources.postgres import PostgresSource


def verify_sync(context: Context, sync: Sync) -> Verification:
    """Compare one sync's source and target; starts Spark only for a transformation."""
    try:
        with Sessions(context) as sessions:
            return _Verifying(sessions, sync).verify()
    except psycopg.Error as error:
        raise translate(error, f"verifying {sync.name}") from error


@dataclass(slots=True)
class _Verifying:
    sessions: Sessions
    sync: Sync

    def verify(self) -> Verification:
        sync = self.sync
        connection = self.sessions.source(sync.source.connection)
        source = resolve_source(connection, sync)
        target = self.sessions.target(sync.target.connection)
        watermark = self._watermark(target)
        if watermark.version == 0 and not self._last_result():
            return Verification(
                sync.name,
                sync.source_name,
                str(sync.target),
                Verdict.NEVER_RAN,
                hint=f"tidegate run {sync.name}",
            )
        refuse_changed(watermark, source, sync)
        if describe_table(target, sync.target.relation) is None:
            check_present(target, sync.target.relation, watermark, sync.project)
            with read_only(connection):
                waiting = _count(
                    connection, source, pending_condition(source, watermark, nulls=False)
                )
            return self._report(watermark, Comparison(0, 0, None), LeftOut(waiting, 0))
        if sync.transform is not None:
            watermark, comparison, left_out = compare_transformed(
                self.sessions, sync, source, lambda: self._nulls_loaded(connection, source)
            )
            return self._report(watermark, comparison, left_out, used_spark=True)
        return self._compare_passed(connection, source, target)

    def _compare_passed(
        self, connection: Connection, source: PostgresSource, target: Connection
    ) -> Verification:
        with target_snapshot(target):
            watermark = self._watermark(target)
            table = describe_table(target, self.sync.target.relation)
            assert table is not None
            shape = passthrough_shape(target, source)
            check_existing(target, self.sync.target.relation, shape, self.sync.rules)
            with read_only(connection):
                hashing = Hashing.between(connection, target)
                nulls = self._nulls_loaded(connection, source)
                left_out = send_left_out(connection, target, source, watermark, nulls=nulls)
                newest = self.sync.duplicates == "newest" and not shape.key_is_unique
                select = dict(zip(shape.names, passed_columns(source), strict=True))
                expected = sql.SQL("SELECT {} FROM {} WHERE {}").format(
                    sql.SQL(", ").join(
                        sql.SQL("{} AS {}").format(one, sql.Identifier(name))
                        for name, one in select.items()
                    ),
                    source.relation,
                    loaded_condition(source, watermark, nulls=nulls),
                )
                if newest:
                    waiting = pending_condition(source, watermark, nulls=nulls)
                    expected = merge.newest_rows(_without(expected, source, waiting), shape)
                names = [sql.Identifier(name) for name in shape.names]
                key = [sql.Identifier(name) for name in shape.key]
                ours = sql.SQL("SELECT {} FROM ({}) e").format(hashing.row(key, names), expected)
                theirs = target_rows(table, shape, hashing, left_out=left_out)
                comparison = compare(Side(connection, ours), Side(target, theirs), hashing)
        return self._report(watermark, comparison, left_out)

    def _report(
        self,
        watermark: Watermark,
        comparison: Comparison,
        left_out: LeftOut,
        *,
        used_spark: bool = False,
    ) -> Verification:
        difference = comparison.difference
        notes: list[str] = []
        if left_out.without_cursor:
            notes.append(f"{left_out.without_cursor:,} rows without a cursor were not compared")
        return Verification(
            sync=self.sync.name,
            source=self.sync.source_name,
            target=str(self.sync.target),
            verdict=Verdict.EQUAL if difference is None else Verdict.UNEQUAL,
            watermark=watermark.value,
            source_rows=comparison.expected_rows,
            target_rows=comparison.found_rows,
            not_yet_loaded=left_out.not_yet_loaded,
            used_spark=used_spark,
            difference=difference,
            hint=None if difference is None else _way_out(self.sync, difference),
            notes=tuple(notes),
        )

    def _watermark(self, target: Connection) -> Watermark:
        ledger = self.sessions.context.ledger(self.sync.target.connection)
        return Watermarks(ledger).get(target, self.sync.pipeline, str(self.sync.target.relation))

    def _last_result(self) -> dict[str, object]:
        control = self.sessions.control()
        if control is None:
            return {}
        jobs = Jobs(self.sessions.context.plane)
        return jobs.last_result(control, self.sync.project, SYNC, self.sync.name)

    def _nulls_loaded(self, connection: Connection, source: PostgresSource) -> bool:
        """Rows without a cursor count as loaded while they are as the last run left them."""
        if source.null_policy is not NullPolicy.INCLUDE:
            return False
        known = self._last_result().get("fingerprints", {})
        before = known.get(BatchKind.NULLS.value, {}) if isinstance(known, dict) else {}
        now = source.fingerprint(connection, Batch(BatchKind.NULLS))
        return bool(before.get("fingerprint") == now)


def _without(rows: sql.Composable, source: PostgresSource, pending: sql.Composable) -> sql.Composed:
    """Where a key may occur twice, it may be both loaded and not: leave it out here as well."""
    key = column_list(source.key)
    return sql.SQL("{} AND ({}) NOT IN (SELECT {} FROM {} WHERE {})").format(
        rows, key, key, source.relation, pending
    )


def _count(connection: Connection, source: PostgresSource, where: sql.Composable) -> int:
    row = connection.execute(
        sql.SQL("SELECT count(*) FROM {} WHERE {}").format(source.relation, where)
    ).fetchone()
    assert row is not None
    return int(row[0])


def _way_out(sync: Sync, difference: Difference) -> str:
    reasons: list[str] = []
    if difference.missing:
        reasons.append("missing rows came in below the watermark (late, or stamped low)")
    if difference.extra:
        reasons.append("extra rows were deleted at the source, or written by somebody else")
    if difference.different:
        reasons.append(
            "different rows were changed without a higher cursor, or changed in the target"
        )
    if sync.transform is not None:
        reasons.append(
            "a transformation that looks beyond single rows also differs from batch to batch"
        )
    return (
        f"{'; '.join(reasons)}. To load everything again: tidegate run {sync.name} --full-refresh"
    )
