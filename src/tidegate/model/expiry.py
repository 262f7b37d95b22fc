"""Which snapshots Iceberg forgets: the rules of expire_snapshots."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tidegate.model.lake import MAIN


@dataclass(frozen=True, slots=True)
class AgedSnapshot:
    """A snapshot, its parent, and when it was made."""

    snapshot_id: int
    parent_id: int | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or a tag, with what it says itself of how long it is kept."""

    name: str
    snapshot_id: int
    is_branch: bool = True
    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None
    min_snapshots: int | None = None


@dataclass(frozen=True, slots=True)
class Expiry:
    """What holds where a branch or tag says nothing of its own."""

    now_ms: int
    older_than_ms: int
    """a moment"""
    retain_last: int = 1
    max_ref_age_ms: int | None = None

    def expired(
        self,
        snapshots: Collection[AgedSnapshot],
        refs: Collection[Ref],
        keep: Collection[int] = (),
    ) -> frozenset[int]:
        """Those that go; none of `keep`."""
        known = {one.snapshot_id: one for one in snapshots}
        held = [ref for ref in refs if self._holds(ref, known)]
        kept = {ref.snapshot_id for ref in held} | set(keep)
        referred = {ref.snapshot_id for ref in held}
        for ref in held:
            if ref.is_branch:
                kept.update(self._last(ref, known))
                referred.update(one.snapshot_id for one in _ancestors(ref.snapshot_id, known))
        kept.update(
            one.snapshot_id
            for one in snapshots
            if one.snapshot_id not in referred and one.at_ms >= self.older_than_ms
        )
        return frozenset(known) - kept

    def _holds(self, ref: Ref, known: Mapping[int, AgedSnapshot]) -> bool:
        """Whether a branch or tag is still there afterwards."""
        if ref.name == MAIN:
            return True
        if ref.snapshot_id not in known:
            return False
        most = self.max_ref_age_ms if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        return most is None or self.now_ms - known[ref.snapshot_id].at_ms <= most

    def _last(self, ref: Ref, known: Mapping[int, AgedSnapshot]) -> Iterator[int]:
        """The last of a branch, and what is young enough before the first that is not."""
        older_than = self.older_than_ms
        if ref.max_snapshot_age_ms is not None:
            older_than = self.now_ms - ref.max_snapshot_age_ms
        least = self.retain_last if ref.min_snapshots is None else ref.min_snapshots
        for number, one in enumerate(_ancestors(ref.snapshot_id, known)):
            if number >= least and one.at_ms < older_than:
                return
            yield one.snapshot_id


def _ancestors(snapshot_id: int, known: Mapping[int, AgedSnapshot]) -> Iterator[AgedSnapshot]:
    found = known.get(snapshot_id)
    while found is not None:
        yield found
        found = None if found.parent_id is None else known.get(found.parent_id)
