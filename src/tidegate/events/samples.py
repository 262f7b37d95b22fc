"""Made-up events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from tidegate.events.model import EventField, EventModel, FieldType, JsonPath
from tidegate.events.values import MAX_DEPTH, reader_of

Tree = dict[str, Any]

_MISSING_SHARE = 0.1
_DIFFERENT = 20
_TICK = timedelta(microseconds=1)


class Samples:
    """Makes events as trees of typed values, no two with the same moment."""

    def __init__(self, model: EventModel, rng: Random, since: datetime, until: datetime) -> None:
        self._rng = rng
        self._since = since
        self._span = until - since
        self._fields = model.fields
        self._moment = model.partition_field
        # Each value of a key takes its attributes along, as a real thing would.
        self._with_key = {
            field.name: dimension.key[0]
            for dimension in model.dimensions
            for field in dimension.attributes
            if field.name not in {one.name for one in model.columns}
        }
        self._kept: dict[tuple[str, str], Any] = {}

    def make(self, number: int, count: int) -> Tree:
        """The event with this number of so many."""
        tree: Tree = {}
        # A slot of its own for each, so that no two events are the same by chance.
        slot = self._span / count
        jitter = timedelta(microseconds=self._rng.randrange(slot // _TICK or 1))
        put(tree, self._moment.path, self._since + slot * number + jitter)
        self.add(tree, self._fields)
        return tree

    def add(self, tree: Tree, fields: Iterable[EventField]) -> None:
        """Add values of fields to an event; some of those that may be missing are."""
        for field in fields:
            if field == self._moment:
                continue
            if not field.required and self._rng.random() < _MISSING_SHARE:
                continue
            key = self._with_key.get(field.name)
            if key is None:
                put(tree, field.path, self._value(field))
                continue
            kept = (field.name, str(key.path.find(tree)))
            if kept not in self._kept:
                self._kept[kept] = self._value(field)
            put(tree, field.path, self._kept[kept])

    def _value(self, field: EventField) -> Any:
        if field.examples:
            return _example(field, self._rng.choice(field.examples))
        rng = self._rng
        match field.type:
            case FieldType.BOOLEAN:
                return rng.random() < 0.5
            case FieldType.BIGINT:
                return rng.randrange(1_000)
            case FieldType.NUMERIC:
                scale = 2 if field.scale is None else field.scale
                digits = min(4, field.precision - scale) if field.precision else 4
                return Decimal(rng.randrange(10 ** (digits + scale))).scaleb(-scale)
            case FieldType.DOUBLE:
                return round(rng.gauss(100, 15), 3)
            case FieldType.UUID:
                return UUID(int=rng.randrange(_DIFFERENT), version=4)
            case FieldType.DATE:
                return (self._since + self._span * rng.random()).date()
            case FieldType.TIMESTAMPTZ:
                return self._since + self._span * rng.random()
            case FieldType.JSONB:
                return {"count": rng.randrange(100), "tag": f"tag-{rng.randrange(9)}"}
            case _:
                text = f"{field.name}-{rng.randrange(_DIFFERENT)}"
                return text[-field.max_length :] if field.max_length else text


def put(tree: Tree, path: JsonPath, value: Any) -> None:
    """Put a value where a path leads, making what lies on the way."""
    holder: Any = tree
    for step, following in zip(path.steps, path.steps[1:], strict=False):
        empty: Any = {} if isinstance(following, str) else []
        if isinstance(step, str):
            holder = holder.setdefault(step, empty)
        else:
            holder.extend([None] * (step + 1 - len(holder)))
            holder[step] = empty if holder[step] is None else holder[step]
            holder = holder[step]
    last = path.steps[-1]
    if isinstance(last, int):
        holder.extend([None] * (last + 1 - len(holder)))
    holder[last] = value


def _example(field: EventField, text: str) -> Any:
    """An example as the value that it stands for."""
    if field.type is FieldType.BOOLEAN:
        return text == "true"
    return reader_of(field)(text)


_READ_AS = {
    "$.type": FieldType.TEXT,
    "$.occurred_at": FieldType.TIMESTAMPTZ,
    "$.account.id": FieldType.TEXT,
    "$.user.id": FieldType.TEXT,
}
PATHS = frozenset(
    [
        *_READ_AS,
        "$.event_id",
        "$.session_id",
        "$.category",
        "$.amount",
        "$.currency",
        "$.properties",
        "$.account.name",
        "$.account.plan",
        "$.user.email",
        "$.user.signed_up_at",
        "$.geo.country",
        "$.geo.region",
        "$.geo.city",
        "$.experiment.name",
        "$.experiment.variant",
    ]
)
_CATEGORIES = {
    "signup": "acquisition",
    "page_viewed": "engagement",
    "product_viewed": "engagement",
    "experiment_viewed": "engagement",
    "feature_used": "engagement",
    "invite_sent": "engagement",
    "cart_filled": "revenue",
    "checkout_started": "revenue",
    "purchase": "revenue",
    "refund": "revenue",
}
# What follows after a view of a product, and how often it does.
_BUYING = (("cart_filled", 0.45), ("checkout_started", 0.6), ("purchase", 0.7))
_PLACES = (
    ("DE", "Berlin", "Berlin"),
    ("DE", "Bavaria", "Munich"),
    ("FR", "Île-de-France", "Paris"),
    ("JP", "Tokyo", "Tokyo"),
    ("US", "California", "San Francisco"),
    ("US", "New York", "New York"),
    ("BR", "São Paulo", "São Paulo"),
    ("SG", None, "Singapore"),
)
_CURRENCIES = {"DE": "EUR", "FR": "EUR", "JP": "JPY", "US": "USD", "BR": "BRL", "SG": "USD"}
_PLANS = ("free", "team", "business")
_EXPERIMENTS = (("checkout_button", ("control", "green")), ("pricing_page", ("control", "a", "b")))
_PRICES = (900, 1_900, 4_900, 9_900, 12_345)


@dataclass(frozen=True, slots=True)
class _User:
    number: int
    account: int
    place: tuple[str, str | None, str]
    began_at: datetime


def is_story(model: EventModel) -> bool:
    """Whether a model reads the events that are told here."""
    read = {str(field.path): field.type for field in model.fields}
    at = str(model.partition_field.path)
    return at == "$.occurred_at" and all(
        read.get(path) is type_ for path, type_ in _READ_AS.items()
    )


class SampleStory:
    """Makes events session by session; each has an id of its own."""

    def __init__(self, rng: Random, count: int, since: datetime, until: datetime) -> None:
        self._rng = rng
        self._until = until
        self._accounts = max(3, count // 2_000)
        users = max(10, count // 40)
        self._users = [self._user(number, since, until) for number in range(users)]
        self._seen: set[int] = set()
        self._session = 0

    def events(self) -> Iterator[Tree]:
        """Events without end."""
        while True:
            user = self._users[int(len(self._users) * self._rng.random() ** 1.5)]
            yield from self._visit(user)

    def _user(self, number: int, since: datetime, until: datetime) -> _User:
        rng = self._rng
        began_at = since + (until - since) * (rng.random() * 0.9)
        account = int(self._accounts * rng.random() ** 2)
        return _User(number, account, rng.choice(_PLACES), _cut(began_at))

    def _visit(self, user: _User) -> Iterator[Tree]:
        rng = self._rng
        self._session += 1
        is_first = user.number not in self._seen
        self._seen.add(user.number)
        left = self._until - user.began_at
        at = user.began_at if is_first else user.began_at + left * (rng.random() ** 2)
        kinds = ["signup"] if is_first else []
        kinds += ["page_viewed"] * rng.randrange(1, 3)
        name, variants = _EXPERIMENTS[user.number % len(_EXPERIMENTS)]
        # As a splitter would do it: always the same variant for the same user.
        variant = variants[user.number // 2 % len(variants)]
        if rng.random() < 0.5:
            kinds.append("experiment_viewed")
        if rng.random() < 0.4:
            kinds.append("feature_used")
            kinds += ["invite_sent"] if rng.random() < 0.3 else []
        if rng.random() < 0.5:
            kinds.append("product_viewed")
            more = 1.25 if variant not in ("control", "a") else 1.0
            for kind, chance in _BUYING:
                if rng.random() >= chance * more:
                    break
                kinds.append(kind)
            if kinds[-1] == "purchase" and rng.random() < 0.08:
                kinds.append("refund")
        price: Decimal | None = None
        for kind in kinds:
            tree = self._event(user, kind, _cut(at))
            if kind == "experiment_viewed":
                tree["experiment"] = {"name": name, "variant": variant}
            if kind in ("purchase", "refund"):
                price = price or Decimal(rng.choice(_PRICES) + rng.randrange(100)).scaleb(-2)
                tree["amount"] = price
                tree["currency"] = _CURRENCIES[user.place[0]]
            yield tree
            at += timedelta(seconds=1 + rng.expovariate(1 / 60))

    def _event(self, user: _User, kind: str, at: datetime) -> Tree:
        country, region, city = user.place
        tree: Tree = {
            "event_id": UUID(int=self._rng.getrandbits(128), version=4),
            "type": kind,
            "category": _CATEGORIES[kind],
            "occurred_at": at,
            "session_id": f"s-{self._session}",
            "account": {
                "id": f"acct-{user.account}",
                "name": f"Account {user.account}",
                "plan": _PLANS[user.account % len(_PLANS)],
            },
            "user": {
                "id": f"user-{user.number}",
                "email": f"user-{user.number}@example.com",
                "signed_up_at": user.began_at,
            },
            "geo": {"country": country, "city": city},
            "properties": {"page": f"/{kind}", "position": self._rng.randrange(10)},
        }
        if region is not None:
            tree["geo"]["region"] = region
        return tree


def _cut(moment: datetime) -> datetime:
    """To the millisecond, as most clients send it."""
    return moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


_ZONES = tuple(timezone(timedelta(minutes=60 * hours)) for hours in (-8, -3, 0, 2, 9))


def usual_text(tree: Tree) -> str:
    """An event as most clients would write it."""
    return json.dumps(tree, default=_plain, ensure_ascii=False, separators=(",", ":"))


def other_text(value: Any, rng: Random) -> str:
    """The same event in other words: members reordered, another zone, zeros at the end."""
    if isinstance(value, dict):
        members = list(value.items())
        rng.shuffle(members)
        inner = (f"{json.dumps(name)}: {other_text(one, rng)}" for name, one in members)
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(other_text(one, rng) for one in value) + "]"
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text + "0" * rng.randrange(3) if "." in text else text
    if isinstance(value, datetime):
        return json.dumps(value.astimezone(rng.choice(_ZONES)).isoformat(timespec="microseconds"))
    return json.dumps(value, default=_plain, ensure_ascii=rng.random() < 0.5)


def odd_text(tree: Tree) -> str:
    """A good event whose text jsonb refuses, for something that no model here reads."""
    return f'{{"\\u0000":"\\ud800",{usual_text(tree)[1:]}'


def broken_text(tree: Tree, model: EventModel, kind: str) -> str:
    """An event that must fail in this way, whatever the model reads beside its moment."""
    return _BROKEN[kind](tree, model)


def _with_moment(value: Any) -> Callable[[Tree, EventModel], str]:
    def text(tree: Tree, model: EventModel) -> str:
        put(tree, model.partition_field.path, value)
        return usual_text(tree)

    return text


def _nested(tree: Tree, model: EventModel) -> str:
    depth = MAX_DEPTH + 1
    return f'{{"deep":{"[" * depth}{"]" * depth},{usual_text(tree)[1:]}'


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        spec = "microseconds" if value.microsecond % 1_000 else "milliseconds"
        return value.astimezone(UTC).isoformat(timespec=spec).replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return float(value)  # exact for as few digits as are made up here
    return value.isoformat() if isinstance(value, date) else str(value)


_BROKEN: dict[str, Callable[[Tree, EventModel], str]] = {
    "not_json": lambda tree, _: usual_text(tree)[:-1],
    "not_text": lambda tree, _: "\\xff\\x00" + usual_text(tree),
    "not_an_object": lambda tree, _: f"[{usual_text(tree)}]",
    "empty": lambda _, __: "",
    "missing": _with_moment(None),
    "wrong_type": _with_moment(20_261_101),
    "no_such_day": _with_moment("2026-02-30T00:00:00Z"),
    "year_1": _with_moment("0001-01-01T00:00:00Z"),
    "year_9999": _with_moment("9999-12-31T23:59:59Z"),
    "nul": _with_moment("2026-11-01T00:00:00Z\0"),
    "deep": _nested,
}
BROKEN_KINDS = tuple(_BROKEN)
