"""JSON text and typed values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, DecimalException
from typing import Any
from uuid import UUID

from tidegate.events.model import EventField, FieldType

MAX_DEPTH = 128
"""levels of arrays and objects; more would lean on the stack of whoever reads them"""

# What Postgres can hold in a numeric: digits before the point, and behind it.
MAX_WHOLE_DIGITS = 131_072
MAX_SCALE = 16_383
_MAX_EXPONENT = 2**30 - 1

_LONG = 100_000
_BRACKET_OR_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_KINDS = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "true or false",
    type(None): "null",
}


class Unreadable(Exception):
    """Why an event, or a value of it, cannot be read; the same words for the same trouble."""


class OutOfRange:
    """A number that no column can hold."""


OUT_OF_RANGE = OutOfRange()


class EventText:
    """Reads the text of events, one at a time.

    After `read`, `fits_jsonb` says whether jsonb takes the text, and `has_odd_text` whether some
    string in it holds a NUL or half of a surrogate pair, which no text column takes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._fast = json.JSONDecoder(parse_float=self._float, parse_constant=_refuse_constant)
        self._careful = json.JSONDecoder(
            parse_float=self._number, parse_int=self._number, parse_constant=_refuse_constant
        )
        self.fits_jsonb = True
        self.has_odd_text = False

    def read(self, body: str) -> Any:
        """The value that the text stands for; numbers are int or Decimal, none is rounded."""
        self.fits_jsonb = True
        self.has_odd_text = False
        if len(body) * 4 > self._max_bytes and _size(body) > self._max_bytes:
            raise Unreadable(f"larger than {self._max_bytes} bytes")
        if body.count("{") + body.count("[") > MAX_DEPTH and _depth(body) > MAX_DEPTH:
            raise Unreadable(f"nested deeper than {MAX_DEPTH} levels")
        value = self._parse(body)
        if ("\\u" in body and _has_odd_escape(body)) or not (body.isascii() or _is_utf8(body)):
            self.fits_jsonb = False
            self.has_odd_text = True
        return value

    def _parse(self, body: str) -> Any:
        try:
            if len(body) < _LONG:
                return self._fast.decode(body)
        except json.JSONDecodeError:
            pass  # said once more below
        except ValueError:
            pass  # an int of more digits than Python takes by default
        try:
            return self._careful.decode(body)
        except json.JSONDecodeError as error:
            raise Unreadable(f"not JSON: {error.msg.rstrip(': ')}") from None

    def _float(self, text: str) -> Any:
        # Called for each of them, also where a later member of the same name replaces it.
        if len(text) < 300 and "e" not in text and "E" not in text:
            return Decimal(text)
        return self._number(text)

    def _number(self, text: str) -> Any:
        if len(text) < 300 and text.lstrip("-").isdigit():
            return int(text)
        try:
            number = Decimal(text)
        except DecimalException:
            number = None
        if number is None or not fits_numeric(number):
            self.fits_jsonb = False
            return OUT_OF_RANGE
        return number


def fits_numeric(number: Decimal) -> bool:
    """Whether Postgres can hold it as a numeric."""
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -MAX_SCALE:
        return False
    return number.adjusted() < MAX_WHOLE_DIGITS if number else exponent < _MAX_EXPONENT


def has_odd_text(value: Any) -> bool:
    """Whether a string in it holds a NUL or half of a surrogate pair."""
    if isinstance(value, str):
        return "\0" in value or any("\ud800" <= one <= "\udfff" for one in value)
    if isinstance(value, dict):
        return any(has_odd_text(one) for pair in value.items() for one in pair)
    return isinstance(value, list) and any(has_odd_text(one) for one in value)


def kind_of(value: Any) -> str:
    """What JSON calls it."""
    return _KINDS.get(type(value), "a number")


def _refuse_constant(name: str) -> Any:
    raise Unreadable(f"not JSON: {name} is no number")


def _size(body: str) -> int:
    return len(body.encode(errors="surrogatepass"))


def _is_utf8(body: str) -> bool:
    try:
        body.encode()
    except UnicodeEncodeError:
        return False
    return True


def _depth(body: str) -> int:
    depth = deepest = 0
    for match in _BRACKET_OR_STRING.finditer(body):
        first = body[match.start()]
        if first in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first != '"':
            depth -= 1
    return deepest


def _has_odd_escape(body: str) -> bool:
    """Looked for in the text itself: jsonb refuses it even where a later member replaces it."""
    second_at: int | None = None  # where the other half of a pair must stand
    for match in _ESCAPE.finditer(body):
        code = int(match[1], 16) if match[1] else -1
        is_second = 0xDC00 <= code <= 0xDFFF
        if code == 0 or is_second != (match.start() == second_at):
            return True
        if second_at is not None and not is_second:
            return True
        second_at = match.end() if 0xD800 <= code <= 0xDBFF else None
    return second_at is not None


Read = Callable[[Any], Any]

MAX_KEY_BYTES = 2_000
"""of a text (or digits of a numeric) that is a primary key: an index entry takes 2,700 or so"""

_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_BIGINT = 2**63
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,6})?")
_UUID = re.compile(
    r"[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{12}"
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]"
    r"((?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?)"
    r"(?: ?([Zz]|[-+][0-9]{2}(?::?[0-9]{2})?))?"
)


def reader_of(field: EventField, *, is_key: bool = False, is_hashed: bool = False) -> Read:
    """The function that reads values of a field; it raises Unreadable with the reason.

    It returns str, bool, int, Decimal, float, UUID, date, datetime in UTC, or, for jsonb, its text.
    """
    match field.type:
        case FieldType.NUMERIC if field.precision is not None:
            return _numeric_reader(field.precision, field.scale or 0)
        case FieldType.NUMERIC:
            return _read_numeric_key if is_key else read_numeric
        case FieldType.TEXT:
            is_bounded = is_key or field.max_length is not None
            return _bounded_text_reader(field.max_length, is_key) if is_bounded else read_text
        case FieldType.JSONB if is_hashed:
            return json_text
        case _:
            return _READERS[field.type]


def default_of(field: EventField, read: Read) -> Any:
    """What stands in for a missing value of a field, read as if an event had it."""
    if field.default is None:
        return None
    if field.type in (FieldType.BOOLEAN, FieldType.JSONB):
        try:
            return read(json.loads(field.default, parse_float=Decimal))
        except ValueError:
            raise Unreadable(f"not a {field.type} but a string") from None
    value = read(field.default)
    if has_odd_text(value):
        raise Unreadable("a text that Postgres cannot hold")
    return value


def read_text(value: Any) -> str:
    if type(value) is not str:
        raise Unreadable(f"not a text but {kind_of(value)}")
    return value


def _bounded_text_reader(max_length: int | None, is_key: bool) -> Read:
    characters = max_length or MAX_KEY_BYTES
    surely_fits = min(characters, MAX_KEY_BYTES // 4 if is_key else characters)

    def read(value: Any) -> str:
        if type(value) is str and len(value) <= surely_fits:
            return value
        text = read_text(value)
        if len(text) > characters:
            raise Unreadable(f"longer than {characters} characters")
        if is_key and len(text.encode(errors="surrogatepass")) > MAX_KEY_BYTES:
            raise Unreadable(f"longer than {MAX_KEY_BYTES} bytes")
        return text

    return read


def read_boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise Unreadable(f"not true or false but {kind_of(value)}")
    return value


def read_bigint(value: Any) -> int:
    if type(value) is not int:
        number = _number(value, "bigint")
        if not number:
            return 0
        # A number as large as 1e100000 must not become an int of so many digits.
        if number.adjusted() > 18:
            raise Unreadable("out of range of a bigint")
        value = int(number)
        if value != number:
            raise Unreadable("not a whole number")
    if not -_BIGINT <= value < _BIGINT:
        raise Unreadable("out of range of a bigint")
    return int(value)


def _numeric_reader(precision: int, scale: int) -> Read:
    digits = precision - scale

    def read(value: Any) -> Decimal:
        number = read_numeric(value)
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)
        if -exponent > scale:
            raise Unreadable(f"more than {scale} digits after the point")
        if number and number.adjusted() >= digits:
            raise Unreadable(f"more than {digits} digits before the point")
        return number

    return read


def read_numeric(value: Any) -> Decimal:
    """Trailing zeros do not count: 1.0, 1.00 and 1 are the same value, and the same text."""
    number = _number(value, "numeric")
    if not number:
        return Decimal(0)
    number = number.normalize(_EXACT)
    if number.as_tuple().exponent > 0:  # type: ignore[operator]
        if number.adjusted() < 40:
            return number.quantize(Decimal(1), context=_EXACT)
        if not fits_numeric(number):
            raise Unreadable("out of range of a numeric")
    return number


def _read_numeric_key(value: Any) -> Decimal:
    number = read_numeric(value)
    if len(number.as_tuple().digits) > MAX_KEY_BYTES:
        raise Unreadable(f"longer than {MAX_KEY_BYTES} digits")
    return number


def read_double(value: Any) -> float:
    if type(value) is not int and type(value) is not Decimal:
        value = _number(value, "double precision")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise Unreadable("out of range of a double precision")
    return number or 0.0  # not -0.0, which is equal and hashes otherwise


def read_uuid(value: Any) -> UUID:
    if type(value) is not str:
        raise Unreadable(f"not a uuid but {kind_of(value)}")
    if not _UUID.fullmatch(value):
        raise Unreadable("not a uuid")
    return UUID(value)


def read_date(value: Any) -> date:
    if type(value) is not str:
        raise Unreadable(f"not a date but {kind_of(value)}")
    try:
        if _DATE.fullmatch(value):
            return date.fromisoformat(value)
    except ValueError:
        raise Unreadable("no such day") from None
    raise Unreadable("not a date such as 2026-11-30")


def read_timestamp(value: Any) -> datetime:
    """A moment, to the microsecond; one that does not say its zone could be any of them."""
    if type(value) is not str:
        raise Unreadable(f"not a timestamp but {kind_of(value)}")
    match = _TIMESTAMP.fullmatch(value)
    if match is None:
        raise Unreadable("not a timestamp such as 2026-11-30T12:00:00Z")
    day, time, zone = match.groups()
    if zone is None:
        raise Unreadable("a timestamp without a time zone")
    try:
        if zone in "Zz":
            return datetime.fromisoformat(f"{day}T{time}+00:00")
        return datetime.fromisoformat(f"{day}T{time}{zone}").astimezone(UTC)
    except ValueError:
        raise Unreadable("no such moment") from None
    except OverflowError:
        raise Unreadable("outside of the years 1 to 9999") from None


def read_json(value: Any) -> str:
    """The text of it, with the members of objects in order."""
    try:
        # Much faster, and the same where no number has a point.
        return _ENCODER.encode(value)
    except TypeError:
        return json_text(value)


def json_text(value: Any) -> str:
    """JSON with one text for equal values: members sorted, numbers without needless digits."""
    if isinstance(value, dict):
        members = sorted(value.items())
        return "{" + ",".join(f"{_quote(name)}:{json_text(one)}" for name, one in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, Decimal | int) and not isinstance(value, bool):
        return str(read_numeric(value))
    return _quote(value)


def _quote(value: Any) -> str:
    try:
        return _ENCODER.encode(value)
    except TypeError:
        raise Unreadable("out of range of a jsonb") from None


def _number(value: Any, wanted: str) -> Decimal:
    kind = type(value)
    if kind is Decimal:
        return value  # type: ignore[no-any-return]
    if kind is int:
        return Decimal(value)
    if kind is str:
        if len(value) > 1_000 or not _NUMBER.fullmatch(value):
            raise Unreadable(f"not a {wanted} but a string")
        number = Decimal(value)
        if fits_numeric(number):
            return number
    elif kind in (bool, dict, list):
        raise Unreadable(f"not a {wanted} but {kind_of(value)}")
    raise Unreadable(f"out of range of a {wanted}")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), sort_keys=True, check_circular=False
)
_READERS: dict[FieldType, Read] = {
    FieldType.BOOLEAN: read_boolean,
    FieldType.BIGINT: read_bigint,
    FieldType.DOUBLE: read_double,
    FieldType.UUID: read_uuid,
    FieldType.DATE: read_date,
    FieldType.TIMESTAMPTZ: read_timestamp,
    FieldType.JSONB: read_json,
}
