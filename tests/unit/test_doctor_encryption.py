"""Databases on other machines are spoken with in the open only with a warning."""

from __future__ import annotations

import pytest

from tidegate.admin.doctor.databases import judge_encryption
from tidegate.admin.doctor.finding import FindingLevel


@pytest.mark.parametrize(
    ("host", "address", "mode", "encrypted", "level"),
    [
        ("localhost", "127.0.0.1", "prefer", False, None),
        ("127.0.5.5", "127.0.5.5", "disable", False, None),
        ("::1", "::1", "prefer", False, None),
        ("/run/postgresql", "", "prefer", False, None),
        ("@socket", "", "prefer", False, None),
        ("db.example.com", "10.1.2.3", "prefer", False, FindingLevel.WARN),
        ("db.example.com", "10.1.2.3", "disable", False, FindingLevel.WARN),
        ("db.example.com", "10.1.2.3", "prefer", True, FindingLevel.WARN),
        ("db.example.com", "2001:db8::1", "require", True, FindingLevel.OK),
        ("db.example.com", "10.1.2.3", "verify-full", True, FindingLevel.OK),
    ],
)
def test_a_session_with_another_machine_must_be_encrypted_by_its_address(
    host: str, address: str, mode: str, encrypted: bool, level: FindingLevel | None
) -> None:
    found = judge_encryption("shop", host, address, mode, encrypted=encrypted)
    assert [one.level for one in found] == ([] if level is None else [level])
