"""What a lake's table must hold, read without Spark and without Tidegate: SQL and pyiceberg."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from acceptance.oracle import Row

CATALOG = "lake"
SCHEMA = "tidegate_lake_shop_lake"
# What a snapshot that was picked from a branch says of the one that it stands for.
UPDATE_IDS = ("tidegate.update-id", "published-wap-id")


@dataclass(frozen=True, slots=True)
class Lake:
    """The embedded lake of a scene's project: its catalog and ledger, and its files."""

    control: str
    folder: Path

    def table(self, name: str) -> StaticTable | None:
        """A table as it is now; None when there is none."""
        if not self._has_catalog():
            return None
        found = self._rows(
            "SELECT metadata_location FROM iceberg_tables"
            " WHERE catalog_name = %s AND table_namespace = 'raw' AND table_name = %s",
            CATALOG,
            name,
        )
        return StaticTable.from_metadata(str(found[0][0])) if found else None

    def read_rows(self, name: str, columns: Sequence[str], key: Sequence[str]) -> list[Row]:
        """Every column of every row in the text form that Postgres gives it."""
        table = self.table(name)
        if table is None:
            return []
        values = [table.scan().to_arrow()[column].to_pylist() for column in columns]
        rows = [tuple(map(_text, row)) for row in zip(*values, strict=True)]
        return sorted(rows, key=lambda row: [str(row[columns.index(one)]) for one in key])

    def count(self, name: str) -> int:
        table = self.table(name)
        return 0 if table is None else table.scan().count()

    def main(self, name: str) -> list[Snapshot]:
        """The snapshots that main is made of."""
        table = self.table(name)
        if table is None or table.current_snapshot() is None:
            return []
        return list(ancestors_of(table.current_snapshot(), table.metadata))

    def loads(self, name: str) -> list[str]:
        """The update_ids of the loads that main is made of, newest first."""
        summaries = [one.summary for one in self.main(name)]
        found = [
            next((one[key] for key in UPDATE_IDS if key in one.additional_properties), None)
            for one in summaries
            if one is not None
        ]
        return [one for one in found if one is not None]

    def branches(self, name: str) -> list[str]:
        table = self.table(name)
        return [] if table is None else [ref for ref in table.refs() if ref != "main"]

    def open_intents(self) -> int:
        return len(self._rows("SELECT update_id FROM intents WHERE NOT abandoned"))

    def assert_published(self, *names: str) -> None:
        """Loads and snapshots match one to one, no attempt has a branch, none is half in."""
        for name in names:
            counted = Counter(self.loads(name))
            assert max(counted.values(), default=1) == 1, "a load is in twice"
            markers = {
                update_id
                for (update_id,) in self._rows(
                    "SELECT update_id FROM table_updates WHERE target_table = %s", f"raw.{name}"
                )
            }
            empty = {
                update_id
                for (update_id,) in self._rows(
                    "SELECT update_id FROM watermark_log WHERE rows = 0 AND update_id IS NOT NULL"
                )
            }
            assert set(counted) <= markers, "a load is in main and has no marker"
            assert markers - set(counted) <= empty, "a marker has no load in main"
            assert self.branches(name) == []
        assert self.open_intents() == 0

    def assert_watermark(self, source: str, name: str, cursor: str) -> None:
        """A run that came to its end has got to the newest row."""
        ((reached,),) = self._rows(
            "SELECT high_watermark FROM etl_state WHERE table_name = %s", f"raw.{name}"
        )
        newest = sql.SQL("SELECT max({})::text FROM {}").format(
            sql.Identifier(cursor), sql.Identifier("public", name)
        )
        with psycopg.connect(source, autocommit=True, options="-c TimeZone=UTC") as connection:
            assert connection.execute(newest).fetchone() == (reached,)

    def staged(self, *names: str) -> list[str]:
        """Staged files that no snapshot of their table has."""
        found: list[str] = []
        for name in names:
            table = self.table(name)
            if table is None:
                continue
            data = self.data(name)
            kept = table.inspect.all_data_files()["file_path"].to_pylist()
            names_kept = {Path(path).name for path in kept}
            found += [
                str(file.relative_to(data))
                for file in data.glob("tidegate-*/*.parquet")
                if file.name not in names_kept
            ]
        return found

    def data(self, name: str) -> Path:
        """Where the files of a table are."""
        table = self.table(name)
        assert table is not None
        return Path(urlsplit(table.location()).path) / "data"

    def _has_catalog(self) -> bool:
        return self._rows("SELECT to_regclass('iceberg_tables') IS NOT NULL") == [(True,)]

    def _rows(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.control, autocommit=True) as connection:
            connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(SCHEMA)))
            return connection.execute(query, parameters).fetchall()  # type: ignore[arg-type]


def _text(value: object) -> str | None:
    if isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
        return f"{text}+00" if value.tzinfo else text
    return None if value is None else str(value)
