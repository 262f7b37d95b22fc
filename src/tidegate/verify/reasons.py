"""From what is known of one row to why it is so, in a sentence and with a way out."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.config.sync import Sync
from tidegate.core.watermark import Horizon, NullPolicy, Watermark
from tidegate.load.modes import MODES
from tidegate.verify.report import Rejection, RowLoad, RowReason
from tidegate.verify.row import SourceRow, TargetRow

Answer = tuple[RowReason, str, str | None]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one row."""

    sync: Sync
    watermark: Watermark
    horizon: Horizon
    null_policy: NullPolicy | None
    source: SourceRow | None
    target: TargetRow | None
    differ: bool
    """as far as they can be compared"""
    compared: bool
    """a transformation that was not run leaves nothing to compare"""
    rejection: Rejection | None
    carrier: RowLoad | None
    cursor_order: int
    """the source's cursor against the target's: -1, 0 or 1"""
    source_changed: bool | None
    """of a source that is loaded whole: since its last load, if that is known"""
    made: int | None
    """how many rows the transformation made of it, if it was run"""
    nearest: list[str]
    edited_in: int | None = None
    """the commit of a lake that wrote the target's row and was nobody's load"""
    waits: bool = False
    """a change of it waits in the slot"""

    def explain(self) -> Answer:
        if self.source is None:
            return self._without_source()
        if not self.source.meets_where:
            return self._filtered()
        if self.watermark.version == 0:
            return RowReason.NOT_YET, f"sync {self.sync.name} has never run", self._run
        if MODES[self.sync.mode].loads_whole:
            return self._replaced()
        if self.sync.changes == "snapshot":
            return self._by_transaction()
        if self.sync.changes == "cdc":
            return self._by_changes()
        if self.source.cursor is None:
            return self._without_cursor()
        if self.source.is_pending and (self.differ or self.target is None or not self.compared):
            return self._pending()
        return self._below()

    def _without_source(self) -> Answer:
        sync = self.sync
        gone = "the source has no such row any more"
        if sync.query is not None:
            gone = "the query gives no such row any more"
        if self.target is not None:
            if self.edited_in is not None:
                sentence = (
                    "the source has no such row: somebody else wrote it into the lake, in snapshot "
                    f"{self.edited_in}"
                )
                return RowReason.EDITED, sentence, self._refresh
            if MODES[sync.mode].loads_whole:
                return RowReason.DELETED, f"{gone}; the next run removes it here", self._run
            if sync.changes == "cdc":
                return self._deleted_by_changes(gone)
            keeps = "append keeps what it has loaded"
            if MODES[sync.mode].repairable:
                by = "a cursor" if sync.changes == "cursor" else "transactions"
                keeps = f"{sync.mode} by {by} does not see deleted rows"
                return RowReason.DELETED, f"{gone}, but the target does: {keeps}", self._repair
            return RowReason.DELETED, f"{gone}, but the target does: {keeps}", self._refresh
        if self.rejection is not None:
            return RowReason.REJECTED, f"{gone}; it had been {self._rejected}", None
        near = f"the nearest are {' and '.join(self.nearest)}" if self.nearest else None
        return RowReason.UNKNOWN, "neither the source nor the target has such a row", near

    def _filtered(self) -> Answer:
        where = f"it does not meet where = {self.sync.where!r}"
        if self.target is None:
            return RowReason.FILTERED, f"{where}, so it is not loaded", None
        if MODES[self.sync.mode].loads_whole:
            return RowReason.FILTERED, f"{where} any more; the next run removes it here", self._run
        return (
            RowReason.FILTERED,
            f"{where} any more; the target holds the version that was loaded before",
            self._refresh,
        )

    def _replaced(self) -> Answer:
        if self.target is not None and not self.differ:
            return self._same()
        if self.edited_in is not None:
            return self._edited()
        if self.rejection is not None:
            return self._set_aside()
        if self.target is None and self.sync.transform is not None and not self.source_changed:
            return self._transformed()
        if self.source_changed is False:
            what = "somebody changed the row" if self.target else "somebody removed the row"
            sentence = f"the source is as the last run loaded it: {what} in the target"
            return RowReason.EDITED, sentence, self._refresh
        maybe = "" if self.source_changed else ", or the target was changed by somebody"
        return RowReason.CHANGED, f"the source has changed since the last run{maybe}", self._run

    def _without_cursor(self) -> Answer:
        cursor = self.sync.cursor
        if self.null_policy is NullPolicy.EXCLUDE:
            there = "" if self.target is None else "; the target holds what was loaded before"
            sentence = f'{cursor} is NULL, and null_cursor = "exclude" leaves such rows out{there}'
            return (
                RowReason.NO_CURSOR,
                sentence,
                f"fill in {cursor}, or set null_cursor = 'include'",
            )
        if self.null_policy is NullPolicy.RAISE:
            sentence = f'{cursor} is NULL, and null_cursor = "raise" stops the next run'
            return RowReason.NO_CURSOR, sentence, f"fill in {cursor}"
        if self.target is not None and not self.differ:
            return self._same()
        if self.rejection is not None:
            return self._set_aside()
        sentence = f"{cursor} is NULL; such rows are loaded with every run that finds a change"
        return RowReason.NO_CURSOR, sentence, self._run

    def _deleted_by_changes(self, gone: str) -> Answer:
        if self.waits:
            what = "marks" if self.sync.is_soft else "removes"
            return RowReason.DELETED, f"{gone}; the next run {what} it here", self._run
        if self.sync.is_soft:
            return RowReason.DELETED, f'{gone}; with deletes = "soft" it stays here, marked', None
        sentence = f"{gone}, and no change of it waits: somebody wrote it into the target"
        return RowReason.EDITED, sentence, self._repair

    def _by_changes(self) -> Answer:
        if self.target is not None and not self.differ:
            return self._same()
        if self.waits:
            waiting = "its last change waits in the source's log"
            if self.target is None:
                return RowReason.NOT_YET, waiting, self._run
            return RowReason.CHANGED, f"{waiting}; the target holds an older version", self._run
        if self.edited_in is not None:
            return self._edited()
        if self.target is None and self.sync.transform is not None:
            return self._transformed()
        what = "removed it from" if self.target is None else "changed it in"
        sentence = (
            f"no change of it waits in the source's log: somebody {what} the target, or a column "
            "was added with a default, which no log tells"
        )
        return RowReason.EDITED, sentence, self._repair

    def _by_transaction(self) -> Answer:
        assert self.source is not None
        mark = self.watermark.value
        if self.source.is_pending and (self.differ or self.target is None or not self.compared):
            since = "and nothing is loaded whole yet"
            if mark is not None:
                since = f"since the watermark (transaction {mark})"
            if self.target is None:
                return RowReason.NOT_YET, f"it was written {since}", self._run
            sentence = f"it was written {since}; the target holds an older version"
            return RowReason.CHANGED, sentence, self._run
        if self.target is not None and not self.differ:
            return self._same()
        if self.edited_in is not None:
            return self._edited()
        if self.rejection is not None:
            return self._set_aside()
        if self.target is None and self.sync.transform is not None:
            return self._transformed()
        what = "removed it from" if self.target is None else "changed it in"
        sentence = (
            f"it was written before the watermark (transaction {mark}): somebody {what} the target"
        )
        if self.sync.cursor is not None:
            late = f", or its {self.sync.cursor} lay further back than the lookback"
            return RowReason.LATE, sentence + late, self._again
        return RowReason.EDITED, sentence, self._refresh

    def _pending(self) -> Answer:
        assert self.source is not None
        at, mark = self.source.cursor, self.watermark.value or "at the start"
        older = "" if self.target is None else "; the target holds an older version"
        if self.source.above_horizon:
            reached = self.horizon.high or "the watermark"
            held = f", held back by {self.horizon.held_by}" if self.horizon.held_by else ""
            why = "" if held else f" ({self.horizon.because})"
            sentence = f"its {self.sync.cursor} {at} lies above the horizon {reached}{held}{why}"
            hint = "run again when that session has ended" if held else "run again in a moment"
            return RowReason.HELD_BACK, sentence + older, f"{hint}: {self._run}"
        if self.target is not None:
            sentence = f"its {self.sync.cursor} {at} lies above the watermark ({mark})"
            return RowReason.CHANGED, sentence + older, self._run
        sentence = f"its {self.sync.cursor} {at} lies above the watermark ({mark})"
        return RowReason.NOT_YET, sentence, self._run

    def _below(self) -> Answer:
        assert self.source is not None
        if self.target is not None and not self.differ:
            return self._same()
        if self.edited_in is not None:
            return self._edited()
        if self.rejection is not None:
            return self._set_aside()
        mark = f"the watermark ({self.watermark.value})"
        at = f"its {self.sync.cursor} {self.source.cursor}"
        if self.target is None:
            if self.sync.transform is not None:
                return self._transformed()
            if self.carrier is not None and self.carrier.update_id is None:
                by = f"{self.carrier.moved_by} moved the watermark past it ({self.carrier.reason})"
                return RowReason.SKIPPED, f"{at} lies below {mark}, but {by}", self._rewind
            sentence = (
                f"{at} lies below {mark}: it was committed late or stamped low, or somebody "
                "removed it from the target"
            )
            return RowReason.LATE, sentence, self._again
        if self.cursor_order > 0:
            sentence = f"{at} lies below {mark}, but is newer than the target's: it came in late"
            return RowReason.LATE, sentence, self._again
        if self.cursor_order < 0:
            sentence = f"{at} is older than the target's, which is kept: it went back at the source"
            return RowReason.CHANGED_UNSEEN, sentence, self._refresh
        sentence = (
            f"its {self.sync.cursor} is the same on both sides: the row changed without raising "
            "it, or somebody changed the target"
        )
        return RowReason.CHANGED_UNSEEN, sentence, self._again

    def _same(self) -> Answer:
        if not self.compared:
            sentence = "it is there; whether the transformation would make it so now was not seen"
            return RowReason.LOADED, sentence, "add --run-transform to compare it"
        if self.source is not None and self.source.is_pending:
            sentence = "source and target hold the same row; it will be read again"
            return RowReason.EQUAL, sentence, None
        return RowReason.EQUAL, "source and target hold the same row", None

    def _edited(self) -> Answer:
        sentence = f"somebody else wrote this row into the lake, in snapshot {self.edited_in}"
        return RowReason.EDITED, sentence, self._refresh

    def _set_aside(self) -> Answer:
        kept = "the target has no row for it"
        if self.target is not None:
            kept = "the target keeps its last good version"
        return (
            RowReason.REJECTED,
            f"it was {self._rejected}; {kept}",
            "mend it at the source, or change the check and load it again",
        )

    def _transformed(self) -> Answer:
        if self.made is None:
            return (
                RowReason.MAYBE_TRANSFORMED,
                "it was read, but the target has no such row: the transformation may drop it, or "
                "give it another key",
                "add --run-transform to see what it makes of this row",
            )
        if self.made == 0:
            return RowReason.TRANSFORMED, "the transformation makes no row of it", None
        return (
            RowReason.LATE,
            "the transformation makes a row of it, but the target has none: it came in late, or "
            "somebody removed it",
            self._again,
        )

    @property
    def _rejected(self) -> str:
        assert self.rejection is not None
        failed, at = ", ".join(self.rejection.failed), self.rejection.rejected_at
        return f"rejected by {failed} at {at:%Y-%m-%d %H:%M:%S%z} ({self.rejection.update_id})"

    @property
    def _run(self) -> str:
        return f"tidegate run {self.sync.name}"

    @property
    def _repair(self) -> str:
        return f"to put right what differs: tidegate verify {self.sync.name} --repair"

    @property
    def _refresh(self) -> str:
        return f"to load everything again: tidegate run {self.sync.name} --full-refresh"

    @property
    def _rewind(self) -> str:
        if MODES[self.sync.mode].doubles(self.sync.key):
            return self._refresh
        return f"to load it: tidegate watermark rewind {self.sync.name} VALUE --reason …"

    @property
    def _again(self) -> str:
        assert self.source is not None
        if self.source.in_lookback:
            return f"it lies within the lookback, so the next run loads it: {self._run}"
        return (
            f"see how many there are: tidegate verify {self.sync.name}; {self._rewind}; a longer "
            "lookback finds such rows by itself"
        )
