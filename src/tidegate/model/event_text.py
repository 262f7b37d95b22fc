"""The text of an event as JSON: what it says, and whether jsonb would take it whole."""

from __future__ import annotations

import json
import re
from decimal import Decimal, DecimalException
from typing import Any

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
