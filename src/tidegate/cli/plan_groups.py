"""How `tidegate plan` prints a group: one line per table, then what deserves a look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.cli.output import print_line, print_table

if TYPE_CHECKING:
    from tidegate.model.plan import GroupPlan, SyncPlan

_SHOWN = 4


def print_group(group: GroupPlan, tables: Sequence[SyncPlan], *, verbose: bool) -> None:
    """The choice for every table, and what the group leaves out."""
    count = f"{group.tables} table{'' if group.tables == 1 else 's'}"
    print_line(f"{group.group}: {group.source} → {group.target}, {count}")
    if tables:
        print_table(
            ("table", "mode", "key", "cursor", "rows", "to load", "guarantee", "warnings"),
            (
                (
                    one.table,
                    one.mode,
                    ", ".join(one.key.columns) or "none",
                    one.cursor.name if one.cursor is not None else "none",
                    f"{one.source_rows:,}",
                    _to_load(one),
                    one.guarantee.value,
                    len(one.warnings) or "",
                )
                for one in tables
            ),
        )
    for one in tables:
        if one.is_large:
            print_line(f"warning: {one.table}: {one.warnings[0]}")
    for text in group.warnings:
        print_line(f"warning: {text}")
    for reason, names in _by_reason(group).items():
        shown = names if verbose else names[:_SHOWN]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        print_line(f"left out: {', '.join(shown)}{more}: {reason}")
    if any(one.warnings or one.notes for one in tables) and not verbose:
        print_line(f"details: tidegate plan {group.group}.TABLE, or --verbose for all")


def _to_load(plan: SyncPlan) -> str:
    if plan.next_batch is None:
        return "nothing new"
    return f"{'' if plan.rows_are_exact else 'about '}{plan.rows:,}"


def _by_reason(group: GroupPlan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in group.left_out:
        found.setdefault(one.reason, []).append(one.table)
    return found
