"""Notices: short, complete, and unable to call anybody."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidegate.jobs.notices import Notice, NoticeEvent, notice_id, shorten, slack_message

AT = datetime(2026, 11, 15, 8, 41, tzinfo=UTC)
ID = UUID(int=7)


def notice(event: NoticeEvent = NoticeEvent.FAILURE, **options: object) -> Notice:
    return Notice(ID, event, "shop", "orders", AT, **options)  # type: ignore[arg-type]


def test_a_notice_says_what_happened() -> None:
    assert notice(error="no rows").text == "shop: orders failed: no rows"
    assert notice(failures=3).text == "shop: orders failed, 3 times in a row"
    assert notice(parameters={"day": "2026-11-01", "n": 1}).text == (
        "shop: orders day=2026-11-01 n=1 failed"
    )
    assert notice(NoticeEvent.RECOVERY, failures=1).text.endswith("after it had failed once")
    assert "enable orders" in notice(NoticeEvent.DISABLE, until="tomorrow").text


def test_the_same_matter_has_the_same_id_and_another_has_another() -> None:
    assert notice_id("failure", "shop", 1) == notice_id("failure", "shop", 1)
    parts = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c")]
    assert len({notice_id(*one) for one in parts}) == len(parts)


def test_a_document_is_json() -> None:
    document = notice(job_id=UUID(int=8), first_failed_at=AT, error="x").document
    assert json.loads(json.dumps(document)) == document
    assert document["at"] == "2026-11-15T08:41:00+00:00"


@given(st.text())
def test_nothing_in_a_message_for_slack_is_read_as_a_mention_or_a_link(error: str) -> None:
    message = slack_message(notice(error=error, job_id=ID).document)
    assert not {"<", ">"} & set(json.dumps(message, ensure_ascii=False))
    section = message["blocks"][0]["text"]["text"]
    assert len(section) <= 3_000


@given(st.text(max_size=3_000))
def test_an_error_is_shortened_and_never_empty(error: str) -> None:
    short = shorten(error)
    assert short is None or 0 < len(short) <= 1_000
    assert (short is None) == (not error.strip())
