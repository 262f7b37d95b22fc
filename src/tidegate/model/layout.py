"""How the files of a lake's table are laid out when it is made: partitions, order, properties."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.errors import DeclarationError

_TERM = re.compile(
    r"(?:(?P<function>\w+)\((?:(?P<width>\d+)\s*,\s*)?(?P<inner>[^()]+)\)|(?P<plain>.+))\Z"
)
_ORDER = re.compile(
    r"(?P<term>.+?)(?P<direction>\s+(?:asc|desc))?(?P<nulls>\s+nulls\s+(?:first|last))?\Z",
    re.IGNORECASE,
)  # fmt: skip
_OF_TIME = ("year", "month", "day", "hour")
_BY_WIDTH = ("bucket", "truncate")
_EXAMPLES = 'a column, or such as "day(created_at)", "bucket(16, id)", "truncate(4, name)"'


@dataclass(frozen=True, slots=True)
class Term:
    """A column, or a function of one: `day(created_at)`."""

    column: str
    function: str | None = None
    width: int | None = None

    @classmethod
    def parse(cls, text: str) -> Term:
        found = _TERM.match(text.strip())
        if found is None:
            raise DeclarationError(f"{text!r} is not a way to divide a table", f"write {_EXAMPLES}")
        if found["plain"] is not None:
            return cls(_unquoted(found["plain"]))
        name = found["function"].lower().removesuffix("s")
        width = None if found["width"] is None else int(found["width"])
        known = (name in _OF_TIME and width is None) or (name in _BY_WIDTH and bool(width))
        if not known:
            raise DeclarationError(f"{text!r} is not a way to divide a table", f"write {_EXAMPLES}")
        return cls(_unquoted(found["inner"]), name, width)

    def render(self, quote: Callable[[str], str]) -> str:
        """The term as a statement writes it."""
        column = quote(self.column)
        if self.function is None:
            return column
        if self.width is not None:
            return f"{self.function}({self.width}, {column})"
        return f"{self.function}s({column})"


@dataclass(frozen=True, slots=True)
class Order:
    """A term with a direction."""

    term: Term
    suffix: str = ""

    @classmethod
    def parse(cls, text: str) -> Order:
        found = _ORDER.match(text.strip())
        assert found is not None
        suffix = f"{found['direction'] or ''}{found['nulls'] or ''}"
        return cls(Term.parse(found["term"]), " ".join(suffix.upper().split()))

    def render(self, quote: Callable[[str], str]) -> str:
        return f"{self.term.render(quote)} {self.suffix}".strip()


@dataclass(frozen=True, slots=True)
class Layout:
    """What a table of a lake is made with; one that is there keeps what it has."""

    partition_by: tuple[Term, ...] = ()
    sort_by: tuple[Order, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(
        cls, partition_by: Iterable[str], sort_by: Iterable[str], properties: Mapping[str, str]
    ) -> Layout:
        return cls(
            tuple(map(Term.parse, partition_by)), tuple(map(Order.parse, sort_by)), properties
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names."""
        return tuple(
            dict.fromkeys(
                (
                    *(term.column for term in self.partition_by),
                    *(one.term.column for one in self.sort_by),
                )
            )
        )

    @property
    def divides_nothing(self) -> bool:
        """Whether any file may be added to such a table."""
        return not (self.partition_by or self.sort_by)

    @property
    def is_plain(self) -> bool:
        return self.divides_nothing and not self.properties


def _unquoted(name: str) -> str:
    name = name.strip()
    return name[1:-1] if len(name) > 2 and name[0] == name[-1] == '"' else name
