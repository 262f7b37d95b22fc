"""Events made up for the template: users of some accounts look, try, buy and come back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from uuid import UUID

from tidegate.model.event_model import EventModel, FieldType
from tidegate.pipeline.event_samples import Tree

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


class Story:
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
