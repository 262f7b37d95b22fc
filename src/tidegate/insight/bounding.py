"""Limits for a person's transaction: nothing waits for ever, nothing blocks others for long."""

from __future__ import annotations

from tidegate.postgres.connect import Connection
from tidegate.runtime.job_context import JobContext

_IDLE_SECONDS = 30.0


def bound_transaction(connection: Connection, context: JobContext) -> None:
    """Set timeouts that end with the transaction; a stopped process must not block others."""
    worker = context.settings.worker
    for name, seconds in (
        ("lock_timeout", worker.lock_timeout_seconds),
        ("statement_timeout", worker.lease_seconds),
        ("idle_in_transaction_session_timeout", _IDLE_SECONDS),
    ):
        connection.execute(
            "SELECT set_config(%s, %s, true)", (name, f"{max(1, int(seconds * 1000))}ms")
        )
