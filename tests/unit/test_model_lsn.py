"""Positions in the log, as texts and as numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.watermark import lsn_text, lsn_value


def test_a_position_is_written_as_postgres_does() -> None:
    assert lsn_text(0x16_B374D848) == "16/B374D848"
    assert lsn_text(0x5) == "0/5"
    assert lsn_value("16/B374D848") == 0x16_B374D848
    assert lsn_value("0/00000005") == 5


@given(st.integers(0, 2**64 - 1))
def test_a_position_comes_back_as_it_went(value: int) -> None:
    assert lsn_value(lsn_text(value)) == value
