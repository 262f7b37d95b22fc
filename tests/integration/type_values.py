"""Values of every Postgres type, made at random from a seed, with the odd ones never far away.

All but xml, for which the embedded server has no library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

Make = Callable[[Random], str]

NULLS, ODD = 0.15, 0.3


@dataclass(frozen=True, slots=True)
class Kind:
    """A type, how to make its values as text, and the odd values that break things."""

    type: str
    make: Make
    odd: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """odd values that a DataFrame cannot hold"""

    def value(self, random: Random, *, through_spark: bool) -> str | None:
        dice = random.random()
        if dice < NULLS:
            return None
        odd = self.odd if through_spark else self.odd + self.refused
        if dice < NULLS + ODD and odd:
            return random.choice(odd)
        return self.make(random)


def integer(bits: int) -> Make:
    return lambda random: str(random.randrange(-(1 << (bits - 1)), 1 << (bits - 1)))


def digits(whole: int, fraction: int) -> Make:
    """A number of at most so many digits before and after the point."""

    def make(random: Random) -> str:
        before = random.randrange(10 ** random.randint(0, whole)) if whole else 0
        after = "".join(random.choice("0123456789") for _ in range(random.randint(0, fraction)))
        return f"{random.choice(('', '-'))}{before}{'.' + after if after else ''}"

    return make


def real(random: Random) -> str:
    return repr(random.choice((random.uniform(-1, 1), random.gauss(0, 1e30), random.random())))


def character(random: Random) -> str:
    """Any character that Postgres takes: all planes, without NUL and surrogates."""
    plane = random.choice((0x80, 0x80, 0x800, 0x10000, 0x110000))
    while True:
        code = random.randrange(1, plane)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def text(most: int) -> Make:
    return lambda random: "".join(character(random) for _ in range(random.randint(0, most)))


def plain_text(random: Random) -> str:
    return "".join(random.choice("abc xyz") for _ in range(random.randint(0, 5)))


def octets(random: Random) -> str:
    return "\\x" + random.randbytes(random.randint(0, 40)).hex()


def bits(most: int, least: int = 0) -> Make:
    return lambda random: "".join(random.choice("01") for _ in range(random.randint(least, most)))


def date(random: Random) -> str:
    year = random.choice((random.randint(1, 9999), random.randint(1900, 2100), 1582, 20000))
    before_christ = random.random() < 0.2 and year < 4700
    day = f"{year:04}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"
    return day + (" BC" if before_christ else "")


def time(random: Random) -> str:
    fraction = random.choice(("", ".000001", ".999999", f".{random.randrange(10**6):06}"))
    return (
        f"{random.randrange(24):02}:{random.randrange(60):02}:{random.randrange(60):02}{fraction}"
    )


def timetz(random: Random) -> str:
    offset = f"{random.randint(0, 14):02}:{random.choice((0, 30, 45)):02}"
    return f"{time(random)}{random.choice('+-')}{offset}"


def timestamp(zone: str = "") -> Make:
    def make(random: Random) -> str:
        day, _, era = date(random).partition(" ")
        return f"{day} {time(random)}{zone}{' ' + era if era else ''}"

    return make


def interval(random: Random) -> str:
    sign = random.choice(("", "-"))
    return (
        f"{random.randint(-9999, 9999)} years {random.randint(-11, 11)} mons"
        f" {random.randint(-999999, 999999)} days {sign}{random.randrange(9999)}:{time(random)[3:]}"
    )


def uuid(random: Random) -> str:
    return f"{random.getrandbits(128):032x}"


def thing(random: Random, depth: int = 3) -> object:
    if depth == 0 or random.random() < 0.4:
        return random.choice(
            (None, True, random.randint(-(10**20), 10**20), random.random(), plain_text(random))
        )
    if random.random() < 0.5:
        return [thing(random, depth - 1) for _ in range(random.randint(0, 3))]
    return {plain_text(random): thing(random, depth - 1) for _ in range(random.randint(0, 3))}


def document(random: Random) -> str:
    return json.dumps(thing(random), indent=random.choice((None, 1)))


def address(random: Random) -> str:
    if random.random() < 0.5:
        numbers = ".".join(str(random.randrange(256)) for _ in range(4))
        return f"{numbers}/{random.randint(0, 32)}"
    groups = ":".join(f"{random.randrange(1 << 16):x}" for _ in range(8))
    return f"{groups}/{random.randint(0, 128)}"


def network(random: Random) -> str:
    length = random.randint(0, 32)
    number = random.getrandbits(length) << (32 - length) if length else 0
    return f"{'.'.join(str(number >> shift & 255) for shift in (24, 16, 8, 0))}/{length}"


def hex_pairs(count: int) -> Make:
    return lambda random: ":".join(f"{random.randrange(256):02x}" for _ in range(count))


def span(make: Make, compare: Callable[[str], object]) -> Make:
    """A range of two values in their order."""

    def made(random: Random) -> str:
        low, high = sorted((make(random), make(random)), key=compare)  # type: ignore[arg-type]
        low, high = random.choice((low, "")), random.choice((high, ""))
        quoted = [f'"{end}"' if end else "" for end in (low, high)]
        return f"{random.choice('[(')}{quoted[0]},{quoted[1]}{random.choice('])')}"

    return made


def point(random: Random) -> str:
    return f"({random.uniform(-1e9, 1e9)!r},{random.random()!r})"


def array(kind: Kind) -> Kind:
    """Arrays of a kind: empty, of one or two dimensions, with NULLs, with bounds of their own."""

    def element(random: Random, *, plain: bool) -> str:
        odd = kind.odd if plain else kind.odd + kind.refused
        value = random.choice(odd) if odd and random.random() < ODD else kind.make(random)
        if random.random() < NULLS:
            return "NULL"
        return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'

    def row(random: Random, length: int) -> str:
        return "{" + ",".join(element(random, plain=False) for _ in range(length)) + "}"

    def make(random: Random) -> str:
        shape = random.random()
        if shape < 0.15:
            return "{}"
        length = random.randint(1, 4)
        if shape < 0.6:
            return row(random, length)
        if shape < 0.75:
            low = random.randint(-3, 3)
            return f"[{low}:{low + length - 1}]={row(random, length)}"
        return "{" + ",".join(row(random, length) for _ in range(random.randint(1, 3))) + "}"

    return Kind(f"{kind.type}[]", make)


def composite(*kinds: Kind) -> Make:
    def field(value: str | None) -> str:
        if value is None:
            return ""
        return '"' + value.replace("\\", "\\\\").replace('"', '""') + '"'

    return lambda random: (
        "(" + ",".join(field(one.value(random, through_spark=False)) for one in kinds) + ")"
    )


def words(random: Random) -> str:
    return " ".join(random.choice(("fat", "cat", "rat")) + f":{n}" for n in range(1, 4))


SMALL, INT, BIG = (
    Kind(name, integer(size)) for name, size in (("smallint", 16), ("integer", 32), ("bigint", 64))
)
NUMERIC = Kind(
    "numeric",
    digits(60, 40),
    ("NaN", "Infinity", "-Infinity", "0.000", "1.10", "9" * 1000, "-0." + "7" * 900, "1e1000"),
)
DOUBLE = Kind("double precision", real, ("NaN", "Infinity", "-Infinity", "-0", "5e-324", "1e308"))
TEXT = Kind("text", text(12), ("", " ", "NULL", "\\N", "\\", '"', "a\tb\nc\r", "\u202e", "🎉" * 3))
BYTES = Kind("bytea", octets, ("\\x", "\\x00", "\\x000000", "\\x00ff5c27"))
INFINITIES = ("infinity", "-infinity")
DATE = Kind(
    "date", date, ("4713-01-01 BC", "5874897-12-31", "1899-12-31", "10000-01-01"), INFINITIES
)
TIME = Kind("time without time zone", time, ("00:00:00", "24:00:00"))
TIMESTAMP = Kind(
    "timestamp without time zone",
    timestamp(),
    ("4713-01-01 00:00:00 BC", "294246-12-31 23:59:59.999999", "1899-12-31 23:59:59.999999"),
    (*INFINITIES, "294276-12-31 23:59:59.999999"),
)
TIMESTAMPTZ = Kind(
    "timestamp with time zone",
    timestamp("+00"),
    ("4713-01-01 00:00:00+00 BC", "294246-12-31 23:59:59.999999+00", "1582-10-10 00:00:00+00"),
    (*INFINITIES, "294276-12-31 23:59:59.999999+00"),
)
INTERVAL = Kind("interval", interval, ("infinity", "-infinity", "0", "-00:00:00.000001"))
UUID = Kind("uuid", uuid, ("0" * 32, "f" * 32))
JSON = Kind(
    "json",
    document,
    # What jsonb refuses or changes: NUL, lone surrogates, repeated keys, spaces, large numbers.
    ('"\\u0000"', '"\\ud800"', '{"b":1,  "a":2, "b":3}', "1e400", " null ", "1.0"),
)
JSONB = Kind("jsonb", document, ("null", '""', "{}", "1.0", "1e100", '{"b": 1, "a": 2}'))
MOOD = Kind("mood", lambda random: random.choice(("happy", "so so", "ü")))
INET = Kind("inet", address, ("::1", "0.0.0.0/0"))
PAIR = Kind("pair", composite(INT, TEXT), ("(,)",))
BIT = Kind("bit(3)", bits(3, 3))
INTRANGE = Kind("int4range", span(lambda r: str(r.randint(-9999, 9999)), int), ("empty", "(,)"))
TIMERANGE = Kind(
    "tstzrange", span(lambda r: f"{r.randint(1000, 9999)}-01-01 {time(r)}+00", str), ("empty",)
)
MONEY = Kind("money", digits(12, 2), ("-92233720368547758.08", "92233720368547758.07", "$1,234.50"))

KINDS: Sequence[Kind] = (
    Kind("boolean", lambda random: random.choice(("true", "false"))),
    SMALL,
    INT,
    BIG,
    NUMERIC,
    DOUBLE,
    TEXT,
    BYTES,
    DATE,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    INTERVAL,
    UUID,
    JSON,
    JSONB,
    MOOD,
    INET,
    PAIR,
    BIT,
    INTRANGE,
    TIMERANGE,
    MONEY,
    Kind("numeric(10,2)", digits(8, 2), ("-0.01", "99999999.99"), ("NaN",)),
    Kind("numeric(38,10)", digits(28, 10), ("9" * 28 + "." + "9" * 10, "-0.0000000001"), ("NaN",)),
    Kind("numeric(38,38)", digits(0, 38), ("0." + "9" * 38,), ("NaN",)),
    Kind("numeric(38,0)", digits(38, 0), ("9" * 38, "-" + "9" * 38), ("NaN",)),
    Kind("numeric(39,10)", digits(29, 10), ("9" * 29, "NaN")),
    Kind("numeric(3,5)", lambda random: f"0.00{random.randrange(1000):03}", ("NaN",)),
    Kind("numeric(5,-3)", lambda random: f"{random.randrange(10**5)}000", ("NaN",)),
    Kind("real", lambda random: repr(random.gauss(0, 1e10)), ("NaN", "Infinity", "-0", "1e-45")),
    Kind("character varying(7)", text(7), ("", " ", "🎉" * 7)),
    Kind("character(5)", text(5), ("", "a", "   ", "  b", "🎉" * 5)),
    Kind("name", plain_text, ("",)),
    Kind('"char"', lambda random: random.choice("abc"), ("", "\\377")),
    Kind("time(2) without time zone", time),
    Kind("time with time zone", timetz, ("24:00:00+00", "00:00:00-15:59:59")),
    Kind("timestamp(0) without time zone", timestamp(), (), INFINITIES),
    Kind("timestamp(3) with time zone", timestamp("+00"), (), INFINITIES),
    Kind("interval year to month", lambda random: f"{random.randint(-99, 99)} mons"),
    Kind("interval(2)", interval),
    Kind("bit varying(5)", bits(5), ("",)),
    Kind("bit varying", bits(90), ("",)),
    Kind("cidr", network, ("0.0.0.0/0", "::/0")),
    Kind("macaddr", hex_pairs(6)),
    Kind("macaddr8", hex_pairs(8)),
    Kind("point", point, ("(NaN,Infinity)",)),
    Kind("box", lambda random: f"{point(random)},{point(random)}"),
    Kind("circle", lambda random: f"<{point(random)},{random.random()!r}>"),
    Kind("line", lambda random: f"{{1,{random.random()!r},{random.random()!r}}}"),
    Kind("lseg", lambda random: f"[{point(random)},{point(random)}]"),
    Kind("path", lambda random: random.choice(("[{}]", "({})")).format(point(random))),
    Kind("polygon", lambda random: f"({point(random)},{point(random)})"),
    Kind("tsvector", words, ("", "'a b':1A,2B")),
    Kind("tsquery", lambda random: "'fat' & !'cat'" if random.random() < 0.5 else "'a' <2> 'b':*"),
    Kind("jsonpath", lambda random: f'$."a"[{random.randrange(9)} to last]?(@ > 1)'),
    Kind("pg_lsn", lambda random: f"{random.getrandbits(20):X}/{random.getrandbits(30):X}"),
    Kind("pg_snapshot", lambda random: f"10:{random.randint(21, 99)}:11,20"),
    Kind("xid8", lambda random: str(random.getrandbits(63))),
    Kind("oid", lambda random: str(random.getrandbits(32))),
    Kind("oidvector", lambda random: " ".join(str(random.getrandbits(32)) for _ in range(3))),
    Kind("regclass", lambda random: random.choice(("pg_class", "pg_type", "t"))),
    Kind("regtype", lambda random: random.choice(("integer", "mood", "mood[]"))),
    Kind("positive", lambda random: str(random.randint(1, 2**31 - 1))),
    Kind("very_positive", lambda random: str(random.randint(2, 2**31 - 1))),
    Kind("short", lambda random: plain_text(random)[:4]),
    Kind("amounts", array(Kind("numeric(8,2)", digits(6, 2))).make, ("{}",)),
    Kind("temper", MOOD.make),
    Kind("nested", composite(PAIR, array(INT), MOOD)),
    Kind("spread", span(lambda r: str(r.randint(-99, 99)), int), ("empty",)),
    Kind("nummultirange", lambda random: f"{{[1,{random.randint(2, 9)}.50),(10,]}}", ("{}",)),
    Kind("datemultirange", lambda random: "{[2026-01-01,infinity)}", ("{}",)),
    *(
        array(kind)
        for kind in (
            SMALL,
            BIG,
            NUMERIC,
            DOUBLE,
            TEXT,
            BYTES,
            DATE,
            TIME,
            TIMESTAMP,
            TIMESTAMPTZ,
            INTERVAL,
            UUID,
            JSON,
            JSONB,
            MOOD,
            INET,
            PAIR,
            BIT,
            INTRANGE,
            TIMERANGE,
            MONEY,
            Kind("numeric(10,2)", digits(8, 2), ("NaN",)),
            Kind("character(3)", text(3), ("", " a")),
            Kind("character varying(4)", text(4), ("",)),
            Kind("positive", lambda random: str(random.randint(1, 99))),
        )
    ),
)

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
