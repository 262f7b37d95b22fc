"""Job ids may be abbreviated, and lists print as little of them as tells jobs apart."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import UsageError
from tidegate.core.identity import new_job_id
from tidegate.jobs.job_view import id_range, short_ids


@given(st.uuids(), st.integers(1, 36))
def test_every_beginning_of_an_id_covers_it(job_id: UUID, length: int) -> None:
    lowest, highest = id_range(str(job_id)[:length])
    assert lowest <= job_id <= highest
    assert id_range(job_id.hex.upper()) == (job_id, job_id)


@given(st.uuids(), st.uuids(), st.integers(1, 32))
def test_an_id_that_begins_otherwise_is_not_covered(one: UUID, other: UUID, length: int) -> None:
    lowest, highest = id_range(one.hex[:length])
    assert (lowest <= other <= highest) == (other.hex[:length] == one.hex[:length])


@pytest.mark.parametrize(
    "text", ["", "   ", "-", "orders", "019a%", "0" * 33, "\u0661", "0x1", "1 2"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        id_range(text)
    assert "is not the id of a job" in raised.value.message
    assert "tidegate job list" in str(raised.value.hint)


def test_short_ids_tell_jobs_of_one_moment_apart() -> None:
    ids = [new_job_id() for _ in range(200)]
    shown = short_ids(ids)
    assert len(set(shown.values())) == len(ids)
    for job_id, text in shown.items():
        lowest, highest = id_range(text)
        assert [one for one in ids if lowest <= one <= highest] == [job_id]
    assert short_ids(ids[:1]) == {ids[0]: str(ids[0])[:13]}
    assert short_ids([]) == {}
