"""A shop whose target was filled by somebody else, for the tests of adopt."""

from __future__ import annotations

from integration.conftest import MakePlace, Place

ORDERS = {
    "source": "shop:public.orders",
    "target": "warehouse:raw.orders",
    "cursor": "updated_at",
}
# Rows 1 to 10 are a minute apart; the last three share a stamp.
STAMP = "'2026-01-01'::timestamptz + least(n, 8) * interval '1 minute'"
NINTH = "2026-01-01 00:07:00+00"
HIGHEST = "2026-01-01 00:08:00+00"


def fill(place: Place, loaded: str = "n <= 9", unique: bool = True) -> None:
    """Ten orders in the source; those that `loaded` names are in the target."""
    columns = "id bigint, total numeric(10,2), updated_at timestamptz NOT NULL DEFAULT now()"
    rows = f"SELECT n, n, {STAMP} FROM generate_series(1, 10) n"
    place.source.execute(
        f"CREATE TABLE orders ({columns}, PRIMARY KEY (id))",
        "CREATE INDEX ON orders (updated_at)",
        f"INSERT INTO orders {rows}",
    )
    place.target.execute(
        "CREATE SCHEMA raw",
        f"CREATE TABLE raw.orders ({columns}{', PRIMARY KEY (id)' if unique else ''})",
        f"INSERT INTO raw.orders {rows} WHERE {loaded}",
    )


def filled_place(make_place: MakePlace, loaded: str = "n <= 9", **options: object) -> Place:
    sync = {**ORDERS, **{key: value for key, value in options.items() if key != "unique"}}
    place = make_place(sync, databases=3)
    fill(place, loaded, unique=bool(options.get("unique", True)))
    return place


def state(place: Place) -> list[tuple[object, ...]]:
    """What the ledger says of the sync; nothing where there is no ledger."""
    if not place.target.value("SELECT to_regclass('tidegate.etl_state') IS NOT NULL"):
        return []
    return place.target.execute(
        "SELECT high_watermark, version, rows_synced, update_id FROM tidegate.etl_state"
    )
