"""What an action of maintenance would do or has done to a table, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.model.figures import counted, in_bytes
from tidegate.model.maintenance import Action

_ACTIONS = frozenset(one.value for one in Action)


def is_maintenance(action: str) -> bool:
    """Whether a step of a job is an action of maintenance."""
    return action in _ACTIONS


def effect_text(effect: Any) -> str:
    """What changes, as "12 → 1 data files, 4.1 KB → 2 KB"; an effect or its document."""
    if not isinstance(effect, dict):
        from dataclasses import asdict

        effect = asdict(effect)
    before, after = effect["before"], effect["after"]
    text = (
        f"{before['files']:,} → {after['files']:,} {effect['of']}, "
        f"{in_bytes(before['bytes'])} → {in_bytes(after['bytes'])}"
    )
    snapshots = effect.get("snapshots")
    if snapshots:
        return f"{text}, {counted(snapshots, 'snapshot')} fewer"
    rewritten = effect.get("rewritten")
    return (
        f"{text}, {rewritten:,} rewritten" if rewritten and rewritten != before["files"] else text
    )


def action_line(detail: Mapping[str, Any]) -> str:
    """How an action went, and how it had been foretold."""
    if detail.get("status") != "done" or not detail.get("actual"):
        error = f": {detail['error']}" if detail.get("error") else ""
        return f"{detail.get('status', 'unknown')}{error}"
    predicted = detail.get("predicted")
    foretold = "" if not predicted else f"; foretold {effect_text(predicted)}"
    return f"{effect_text(detail['actual'])} in {detail.get('seconds', 0):.1f} s{foretold}"
