"""Values of every Postgres type: the odd ones, and others at random where there are many.

All but xml, for which the embedded server has no library.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

Make = Callable[[Random], str]


@dataclass(frozen=True, slots=True)
class Kind:
    """A type, odd values, those that a DataFrame cannot hold, and how to make more."""

    type: str
    values: tuple[str, ...]
    refused: tuple[str, ...] = ()
    make: Make | None = None

    def some(self, random: Random, count: int, *, through_spark: bool) -> list[str | None]:
        """Every value there is, then random ones, then NULL: so many in all."""
        found: list[str | None] = [*self.values] if through_spark else [*self.values, *self.refused]
        if self.make is not None:
            found += [self.make(random) for _ in range(count - len(found) - 1)]
        assert len(found) < count, self.type
        return found + [None] * (count - len(found))


def kind(type: str, *values: str, refused: tuple[str, ...] = (), make: Make | None = None) -> Kind:
    return Kind(type, values, refused, make)


def array(of: Kind) -> Kind:
    """Empty, of one or two dimensions, with NULLs, with bounds of its own."""
    values = of.values + of.refused
    quoted = ['"' + re.sub(r'(["\\])', r"\\\1", value) + '"' for value in values]
    one, last = quoted[0], quoted[-1]
    return kind(
        f"{of.type}[]",
        "{}",
        "{" + ",".join([*quoted, "NULL"]) + "}",
        f"{{{{{one},NULL}},{{{last},{one}}}}}",
        f"[-2:-1]={{NULL,{last}}}",
    )


def integer(bits: int) -> Kind:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    name = {16: "smallint", 32: "integer", 64: "bigint"}[bits]
    return kind(name, str(low), str(high), make=lambda random: str(random.randint(low, high)))


def digits(random: Random) -> str:
    """A number of up to sixty digits before the point and forty after it."""
    before, after = (random.randrange(10 ** random.randint(0, most)) for most in (60, 40))
    return f"{random.choice(('', '-'))}{before}.{after}"


def text(random: Random) -> str:
    """Any characters that Postgres takes: all planes, without NUL and surrogates."""
    planes = random.choices((0x80, 0x80, 0x800, 0x10000, 0x110000), k=random.randint(0, 12))
    codes = [random.randrange(1, plane) for plane in planes]
    return "".join(chr(code) for code in codes if not 0xD800 <= code <= 0xDFFF)


def moment(random: Random) -> str:
    day = f"{random.randint(1, 9999):04}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"
    time = f"{random.randrange(24):02}:{random.randrange(60):02}:07.{random.randrange(10**6):06}"
    return f"{day} {time}+00"


ENDS = ("infinity", "-infinity")
NAN = ("NaN",)
MOOD = kind("mood", "happy", "so so", "ü")
INET = kind("inet", "192.168.0.1/24", "::1", "0.0.0.0/0", "fe80::1/64")
PAIR = kind("pair", "(1,a)", "(,)", '(,"x y")', '(-1,"a ""q"" \\\\")')
INTRANGE = kind("int4range", "empty", "(,)", "[1,10)", "(,5)")
JSONB = kind("jsonb", "null", '""', "{}", "1.0", "1e100", '{"b": 1, "a": [1.50, null]}')
DATE = kind("date", "4713-01-01 BC", "0044-03-15 BC", "1582-10-10", "1899-12-31", "10000-01-01",
            "5874897-12-31", refused=ENDS)  # fmt: skip
TIMESTAMP = kind(
    "timestamp without time zone", "4713-01-01 00:00:00 BC", "294246-12-31 23:59:59.999999",
    "1899-12-31 23:59:59.999999", "2026-03-29 02:30:00.000001", make=lambda r: moment(r)[:-3],
    refused=(*ENDS, "294276-12-31 23:59:59.999999"),
)  # fmt: skip
TIMESTAMPTZ = kind(
    "timestamp with time zone", "4713-01-01 00:00:00+00 BC", "294246-12-31 23:59:59.999999+00",
    "1582-10-10 00:00:00+00", "2026-03-29 02:30+01", make=moment,
    refused=(*ENDS, "294276-12-31 23:59:59.999999+00"),
)  # fmt: skip
# Of these there are arrays, too.
COMMON = [
    integer(16),
    integer(64),
    kind("numeric", *NAN, "Infinity", "-Infinity", "0.000", "1.10", "9" * 1000, "-0." + "7" * 900,
         "1e1000", make=digits),
    kind("double precision", *NAN, "Infinity", "-Infinity", "-0", "5e-324", "1e308", "0.1",
         make=lambda random: repr(random.gauss(0, 10 ** random.randint(-300, 300)))),
    kind("text", "", " ", "NULL", "\\N", "\\", '"', "a\tb\nc\r", "a\\b'\"", "\u202e", "🎉" * 3,
         make=text),
    kind("bytea", "\\x", "\\x00", "\\x000000", "\\x00ff5c27",
         make=lambda random: "\\x" + random.randbytes(random.randint(0, 40)).hex()),
    DATE,
    kind("time without time zone", "00:00:00", "24:00:00", "12:34:56.789012"),
    TIMESTAMP,
    TIMESTAMPTZ,
    kind("interval", *ENDS, "0", "-00:00:00.000001", "1 year 2 mons -3 days 04:05:06.789"),
    kind("uuid", "0" * 32, "f" * 32, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    # What jsonb refuses or changes: NUL, lone surrogates, repeated keys, spaces, large numbers.
    kind("json", '"\\u0000"', '"\\ud800"', '{"b":1,  "a":2, "b":3}', "1e400", " null ", "1.0"),
    JSONB,
    MOOD,
    INET,
    PAIR,
    kind("bit(3)", "101"),
    INTRANGE,
    kind("tstzrange", "empty", '["2026-01-01 00:00:00+00",infinity]', '(,"0044-01-01 BC")'),
    kind("money", "-92233720368547758.08", "92233720368547758.07", "$1,234.50"),
    kind("character(3)", "", " a", "abc"),
    kind("character varying(4)", "", "🎉" * 4),
    kind("positive", "1", "2147483647"),
    # What names nothing is printed as -, and what names something that is gone as its number.
    kind("regclass", "pg_class", "t", "-", "4000000000"),
]  # fmt: skip
KINDS = [
    kind("boolean", "true", "false"),
    integer(32),
    *COMMON,
    *map(array, COMMON),
    array(kind("numeric(10,2)", "NaN", "1.10")),
    kind("numeric(10,2)", "-0.01", "99999999.99", refused=NAN),
    kind("numeric(38,10)", "9" * 28 + "." + "9" * 10, "-0.0000000001", refused=NAN),
    kind("numeric(38,38)", "0." + "9" * 38, refused=NAN),
    kind("numeric(38,0)", "9" * 38, "-" + "9" * 38, refused=NAN),
    kind("numeric(39,10)", "9" * 29, *NAN),
    kind("numeric(3,5)", "0.00123", *NAN),
    kind("numeric(5,-3)", "12345000", *NAN),
    kind("real", *NAN, "Infinity", "-0", "1e-45", "1.1"),
    kind("name", "", "a name"),
    kind('"char"', "", "x", "\\377"),
    kind("time(2) without time zone", "12:34:56.78"),
    kind("time with time zone", "24:00:00+00", "00:00:00-15:59:59", "12:34:56.789012+05:30"),
    kind("timestamp(0) without time zone", "2026-03-29 02:30:01", refused=ENDS),
    kind("timestamp(3) with time zone", "2026-03-29 02:30:00.123+00", refused=ENDS),
    kind("interval year to month", "-7 mons"),
    kind("interval(2)", "1 day 00:00:01.23"),
    kind("bit varying(5)", "", "10101"),
    kind("bit varying", "", "10" * 45),
    kind("cidr", "0.0.0.0/0", "::/0", "10.0.0.0/8"),
    kind("macaddr", "08:00:2b:01:02:03"),
    kind("macaddr8", "08:00:2b:01:02:03:04:05"),
    kind("point", "(NaN,Infinity)", "(1.5,-2)"),
    kind("box", "(1,2),(0,-1.5)"),
    kind("circle", "<(1,2),0.1>"),
    kind("line", "{1,0.1,0.2}"),
    kind("lseg", "[(1,2),(0.1,3)]"),
    kind("path", "[(1,2)]", "((1,2),(0.1,3))"),
    kind("polygon", "((0,0),(1,1),(1,0))"),
    kind("tsvector", "", "'a b':1A,2B", "'a':1 'fat':2"),
    kind("tsquery", "'fat' & !'cat'", "'a' <2> 'b':*"),
    kind("jsonpath", '$."a"[1 to last]?(@ > 1)'),
    kind("pg_lsn", "16/B374D848"),
    kind("pg_snapshot", "10:21:11,20"),
    kind("xid8", "9223372036854775807"),
    kind("oid", "4294967295"),
    kind("oidvector", "1 2 4294967295"),
    kind("regtype", "integer", "mood[]", "-", "4000000000"),
    kind("regproc", "array_cat", "-"),
    kind("regoperator", "+(integer,integer)", "0"),
    kind("regrole", "postgres", "-"),
    kind("very_positive", "2"),
    kind("short", "", "abcd"),
    kind("amounts", "{}", "{1.10,NULL}"),
    kind("temper", "so so"),
    kind("nested", '("(1,""a b"")","{1,NULL}",ü)', "(,,)"),
    kind("spread", "empty", "[1.5,2)"),
    kind("nummultirange", "{}", "{[1,2.50),(10,]}"),
    kind("datemultirange", "{}", "{[2026-01-01,infinity)}"),
]

OWN_TYPES = (
    "CREATE TYPE mood AS ENUM ('so so', 'happy', 'ü')",
    "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
    "CREATE DOMAIN very_positive AS positive CHECK (VALUE > 1)",
    "CREATE DOMAIN short AS varchar(4)",
    "CREATE DOMAIN amounts AS numeric(8,2)[]",
    "CREATE DOMAIN temper AS mood",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE TYPE nested AS (p pair, n int[], m mood)",
    "CREATE TYPE spread AS RANGE (subtype = float8)",
)
