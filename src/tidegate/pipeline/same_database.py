"""Whether two connections lead to one database, as far as the settings show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.errors import TidegateError
from tidegate.lake.catalog import catalog_digest
from tidegate.model.lake import EMBEDDED
from tidegate.postgres.conninfo import check
from tidegate.settings import Settings

_DEFAULT_PORT = "5432"


def same_database(settings: Settings, one: str, other: str) -> bool:
    """Two names for one place: the same embedded database, or the same host, port and dbname."""
    if one == other:
        return True
    place = _place(settings, one)
    return place is not None and place == _place(settings, other)


def _lake(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The embedded catalog belongs to its connection; another may have several names."""
    kind = str(options.get("catalog", EMBEDDED))
    return ("iceberg", kind, name if kind == EMBEDDED else catalog_digest(kind, options))


def _place(settings: Settings, name: str) -> tuple[str, ...] | None:
    try:
        connection = settings.connection(name)
        if connection.embedded_database is not None:
            return ("embedded", connection.embedded_database)
        if connection.type == "iceberg":
            return _lake(name, connection.options)
        if connection.url is None:
            return None
        url = connection.url.get_secret_value()
        given = check(url)
    except TidegateError:
        return None  # its variables are not set; connecting will say so
    if "service" in given:
        return ("url", url)
    host = given.get("host") or given.get("hostaddr") or ""
    dbname = given.get("dbname") or given.get("user") or ""
    return ("server", host.lower(), given.get("port") or _DEFAULT_PORT, dbname)
