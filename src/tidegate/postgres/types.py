"""How Postgres types appear in Spark, and what Spark types become in Postgres.

| Postgres                          | Spark               | back                  |
|-----------------------------------|---------------------|-----------------------|
| boolean                           | boolean             | itself                |
| smallint, integer, bigint         | short, int, long    | itself                |
| real, double precision            | float, double       | itself                |
| numeric(p, s), p ≤ 38, 0 ≤ s ≤ p  | decimal(p, s)       | itself                |
| text, varchar, char, name         | string              | itself                |
| bytea                             | binary              | itself                |
| date                              | date                | itself                |
| timestamp with time zone          | timestamp           | itself                |
| timestamp without time zone       | timestamp_ntz       | itself                |
| every other type                  | string (its text)   | cast from that text   |
"""

from __future__ import annotations

import re

_DIRECT = {
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "text": "string",
    "bytea": "binary",
    "date": "date",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
}
_TO_POSTGRES = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)\Z")
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)\Z")
_PRECISION = re.compile(r"\(\d+\)")
MAX_DECIMAL_DIGITS = 38


def spark_type(postgres_type: str) -> str:
    """The Spark type in which a column of this Postgres type arrives."""
    match = _NUMERIC.match(postgres_type)
    if match:
        precision, scale = int(match.group(1)), int(match.group(2))
        fits = scale <= precision <= MAX_DECIMAL_DIGITS
        return f"decimal({precision},{scale})" if fits else "string"
    return _DIRECT.get(_PRECISION.sub("", postgres_type), "string")


def lake_type(postgres_type: str) -> str:
    """The type in which a column arrives in a lake, in Spark's words; Iceberg has no short ints."""
    kind = spark_type(postgres_type)
    return "int" if kind == "smallint" else kind


def needs_text(postgres_type: str) -> bool:
    """Whether the value is read as its text because Spark has no equal type."""
    kind = spark_type(postgres_type)
    return kind.startswith("decimal") or (kind == "string" and postgres_type != "text")


def postgres_type(spark_simple_type: str) -> str | None:
    """The Postgres type for a Spark column; None when there is none."""
    match = _DECIMAL.match(spark_simple_type)
    if match:
        return f"numeric({match.group(1)},{match.group(2)})"
    return _TO_POSTGRES.get(spark_simple_type)
