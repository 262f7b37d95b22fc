"""One thing that is wrong with a lake's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidegate.model.maintenance import Action


class Severity(StrEnum):
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that is wrong with a table."""

    name: str
    severity: Severity
    message: str
    evidence: Mapping[str, Any]
    """`value` and `limit`, and what else was counted"""
    action: Action | None
    """what helps; None where nothing does that can be done to a table"""

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "severity": self.severity.value,
            "message": self.message,
            "evidence": dict(self.evidence),
            "action": None if self.action is None else self.action.value,
        }
