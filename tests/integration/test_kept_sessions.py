"""Sessions that jobs share one after the other: used again while they are good, and only then."""

from __future__ import annotations

import pytest

from integration.conftest import Database, MakePlace
from tidegate.jobs import heartbeat
from tidegate.jobs.heartbeat import KeptSessions


@pytest.fixture
def sessions(make_place: MakePlace) -> KeptSessions:
    context = make_place().open().context
    context.control_id()
    return KeptSessions(context.plane)


def pid(sessions: KeptSessions) -> int:
    with sessions.borrow() as connection:
        return connection.info.backend_pid


def test_sessions_are_used_again_while_they_are_good(
    sessions: KeptSessions, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pid(sessions) == pid(sessions)
    with sessions.borrow() as connection:
        assert pid(sessions) != connection.info.backend_pid

    # not after a job that failed or left a transaction open
    with pytest.raises(ValueError, match="broken"), sessions.borrow() as connection:
        raise ValueError("broken")
    assert connection.closed
    with sessions.borrow() as left:
        left.execute("BEGIN")
    assert left.closed

    # nor when the server has ended it meanwhile
    monkeypatch.setattr(heartbeat, "_TRUSTED_SECONDS", 0.0)
    before = pid(sessions)
    assert pid(sessions) == before
    database.execute(f"SELECT pg_terminate_backend({before}, 10000)")
    assert pid(sessions) != before
    sessions.close()


def test_what_is_given_back_after_the_end_is_closed(sessions: KeptSessions) -> None:
    with sessions.borrow() as idle:
        pass
    with sessions.borrow() as first, sessions.borrow() as second:
        assert idle is first
    with sessions.borrow() as used:
        sessions.close()
        assert not used.closed
    assert used.closed
    assert {first.closed, second.closed} == {True}
