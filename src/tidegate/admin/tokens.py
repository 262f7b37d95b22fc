"""Tokens of the service: given out once, kept only as hashes."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import errors as pg

from tidegate.core.errors import UsageError
from tidegate.core.identity import Scope
from tidegate.jobs.control_database import ControlDatabase
from tidegate.postgres.connection import Connection

PREFIX = "tg_"
_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")


@dataclass(frozen=True, slots=True)
class ApiToken:
    """One token, as everybody may see it."""

    token_id: UUID
    name: str
    scope: Scope
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    used_at: datetime | None
    is_expired: bool

    @property
    def is_good(self) -> bool:
        return self.revoked_at is None and not self.is_expired


@dataclass(frozen=True, slots=True)
class FoundToken:
    """Whether a project ever had a token, and the one that was shown, if it is good."""

    any_exists: bool
    token: ApiToken | None


@dataclass(frozen=True, slots=True)
class ApiTokens:
    """The tokens of a control plane."""

    plane: ControlDatabase

    def create(
        self,
        connection: Connection,
        project: str,
        name: str,
        scope: Scope,
        *,
        actor: str,
        expires_seconds: float | None = None,
    ) -> tuple[ApiToken, str]:
        """A new token, and its text, which nobody can read again."""
        if not _NAME.match(name):
            raise UsageError(
                f"{name!r} is no name for a token",
                "use letters, digits, dots, dashes and underscores, 63 at most",
            )
        text = PREFIX + secrets.token_urlsafe(_BYTES)
        try:
            row = connection.execute(
                self.plane.statement("admin/api_tokens", "create_token"),
                {
                    "token_id": uuid.uuid4(),
                    "project": project,
                    "name": name,
                    "hash": digest(text),
                    "scope": scope.value,
                    "actor": actor,
                    "expires": expires_seconds,
                },
            ).fetchone()
        except pg.UniqueViolation:
            raise UsageError(
                f"there is a token {name} already; nothing was changed",
                f"choose another name, or end that one with: tidegate token revoke {name}",
            ) from None
        assert row is not None
        return _token(row), text

    def list(self, connection: Connection, project: str) -> list[ApiToken]:
        rows = connection.execute(
            self.plane.statement("admin/api_tokens", "list_tokens"), {"project": project}
        )
        return [_token(row) for row in rows]

    def find(self, connection: Connection, project: str, text: str) -> FoundToken:
        """Who shows this text; noted as used, once a minute at most."""
        wanted = digest(text)
        row = connection.execute(
            self.plane.statement("admin/api_tokens", "find_token"),
            {"project": project, "hash": wanted},
        ).fetchone()
        assert row is not None
        any_exists, *columns, kept = row
        if kept is None or not hmac.compare_digest(bytes(kept), wanted):
            return FoundToken(any_exists, None)
        token = _token(columns)
        return FoundToken(any_exists, token if token.is_good else None)

    def any_exists(self, connection: Connection, project: str) -> bool:
        """Whether anybody was ever given a token; one that opens nothing any more counts."""
        return self._standing(connection, project)[0]

    def any_good(self, connection: Connection, project: str) -> bool:
        """Whether there is a token that opens something."""
        return self._standing(connection, project)[1]

    def forget_all(self, connection: Connection, project: str) -> int:
        """Open the door: from now on this machine needs none. Good ones must be revoked first."""
        if self.any_good(connection, project):
            raise UsageError(
                "there are tokens that are good still; nothing was changed",
                "revoke them first: tidegate token list, tidegate token revoke NAME",
            )
        return connection.execute(
            self.plane.statement("admin/api_tokens", "forget_tokens"), {"project": project}
        ).rowcount

    def _standing(self, connection: Connection, project: str) -> tuple[bool, bool]:
        row = connection.execute(
            self.plane.statement("admin/api_tokens", "has_tokens"), {"project": project}
        ).fetchone()
        assert row is not None
        return bool(row[0]), bool(row[1])

    def revoke(self, connection: Connection, project: str, name: str, *, actor: str) -> ApiToken:
        row = connection.execute(
            self.plane.statement("admin/api_tokens", "revoke_token"),
            {"project": project, "name": name, "actor": actor},
        ).fetchone()
        if row is None:
            raise UsageError(
                f"there is no token {name}; nothing was changed", "see: tidegate token list"
            )
        return _token(row)


def digest(text: str) -> bytes:
    """What is kept of a token; 32 random bytes need no salt."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _token(row: Any) -> ApiToken:
    token_id, name, scope, *rest = row
    return ApiToken(token_id, name, Scope(scope), *rest)
