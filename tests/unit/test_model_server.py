"""What has become of a server since it was remembered with a watermark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.postgres.server_identity import Fate, Server, switch_point

HISTORY = "1\t0/3000148\tno recovery target specified\n\n2\t0/50000A0\tno recovery target\n"
SEEN = Server("7001", "5", 1, "0/3000000")


@pytest.mark.parametrize(
    ("change", "history", "expected"),
    [
        ({}, None, Fate.SAME),
        ({"lsn": "1/0"}, None, Fate.SAME),
        ({"lsn": "0/2FFFFFF"}, None, Fate.SET_BACK),
        ({"lsn": "0/2FFFFFF", "is_standby": True}, None, Fate.SAME),
        ({"timeline": 0, "lsn": "0/0", "is_standby": True}, None, Fate.SAME),
        ({"system": "7002"}, None, Fate.OTHER_SERVER),
        ({"system": ""}, None, Fate.SAME),
        ({"database": "6"}, None, Fate.OTHER_DATABASE),
        ({"timeline": 2, "lsn": "0/4000000"}, HISTORY, Fate.FOLLOWED),
        ({"timeline": 3, "lsn": "0/6000000"}, HISTORY, Fate.FOLLOWED),
        ({"timeline": 2, "lsn": "0/4000000"}, HISTORY.replace("3000148", "2000"), Fate.BRANCHED),
        ({"timeline": 2, "lsn": "0/4000000"}, "", Fate.BRANCHED),
        ({"timeline": 2, "lsn": "0/4000000"}, None, Fate.UNTOLD),
        ({"timeline": 2, "lsn": "0/2000000"}, None, Fate.BRANCHED),
    ],
)
def test_what_has_become_of_a_server(
    change: dict[str, object], history: str | None, expected: Fate
) -> None:
    now = replace(SEEN, **change)  # type: ignore[arg-type]
    assert SEEN.fate(now, lambda _: history)[0] is expected
    assert Server.from_json(SEEN.to_json()) == SEEN


def test_an_older_timeline_is_one_that_others_have_left() -> None:
    before = replace(SEEN, timeline=2)
    assert before.fate(replace(SEEN, lsn="1/0"), lambda _: HISTORY)[0] is Fate.BRANCHED


def test_a_history_tells_where_each_timeline_was_left() -> None:
    assert switch_point(HISTORY, 1) == "0/3000148"
    assert switch_point(HISTORY, 2) == "0/50000A0"
    assert switch_point(HISTORY, 3) is None
    assert switch_point("", 1) is None
