# SPDX-License-Identifier: Apache-2.0
"""The tables of accounting: their columns, types, units and versions.

Why in one place: the stream writes by it, and `docs/reference/accounting.md` is generated from it. Columns are only
ever added, at the end; `SCHEMA_VERSION` is raised with each, and each row has the version that it was written with.

Types are `string`, `strings`, `long`, `double`, `boolean`, `timestamp` (UTC) and `decimal`. All tables are partitioned
by `day`.
"""

from __future__ import annotations

import csv
import io
import tomllib
from dataclasses import dataclass
from decimal import Decimal, DecimalException, localcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# ---------------------------------------------------------------------------------------------------------------------
# What usage costs, by a price list that the user gives.
#
# A price list says what so much of a counter costs: for everybody, for a tenant, or for a namespace. The most special
# price counts. A counter of a tenant without any price is a hole: its rows have no cost and say so, or are an error.

# Of topics.
USED: Final = ("published_messages", "published_bytes", "dispatched_messages", "dispatched_bytes")
# Not everybody sells connections: without a price they are no hole.
UNPRICED_AT_WILL: Final = frozenset(("connected_ms",))
PRICED_OF_ROLES: Final = (*USED, "connected_ms")
PRICED: Final = (*USED, "stored_byte_hours", "connected_ms")
PRICES_MAX: Final = 100_000
# As the column of the table: 38 digits, 12 of them behind the point.
COST_DIGITS: Final = 38
COST_SCALE: Final = 12
# So that 2^62 bytes have a cost that fits.
PRICE_MAX: Final = 10_000_000

_FIELDS: Final = frozenset(("tenant", "namespace", "counter", "per", "price"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of `per` messages or bytes. An empty tenant or namespace means all."""

    counter: str
    price: Decimal
    per: int = 1
    tenant: str = ""
    namespace: str = ""

    def __post_init__(self) -> None:
        if self.counter not in PRICED:
            raise ConfigurationError(f"price of {self.counter!r}: want one of {', '.join(PRICED)}")
        if not (self.price.is_finite() and 0 <= self.price < PRICE_MAX):
            raise ConfigurationError(f"price {self.price} of {self.counter}: want a number from 0 to {PRICE_MAX:,}")
        if not 0 < self.per <= 1 << 62:
            raise ConfigurationError(f"per={self.per} of {self.counter}: want a number above 0")
        if self.namespace and self.namespace.count("/") != 1:
            raise ConfigurationError(f"price for namespace {self.namespace!r}: want TENANT/NAMESPACE")


class PriceList:
    """Prices by counter, for all, for a tenant, or for a namespace. Two prices for the same are an error."""

    def __init__(self, currency: str, prices: Iterable[Price]) -> None:
        self.currency = currency
        self._prices: dict[tuple[str, str], Price] = {}
        for one in prices:
            whom = one.namespace or one.tenant
            if (one.counter, whom) in self._prices:
                raise ConfigurationError(f"two prices of {one.counter} for {whom or 'everybody'}")
            if len(self._prices) >= PRICES_MAX:
                raise ConfigurationError(f"want at most {PRICES_MAX} prices")
            self._prices[one.counter, whom] = one

    @property
    def all(self) -> Iterable[Price]:
        return self._prices.values()

    def price(self, counter: str, tenant: str, namespace: str) -> Price | None:
        """Return the most special price; None: there is a hole."""
        for whom in (namespace, tenant, ""):
            found = self._prices.get((counter, whom))
            if found is not None:
                return found
        return None

    def cost(self, counter: str, amount: int, tenant: str, namespace: str) -> Decimal | None:
        """Return what an amount costs, with 12 digits behind the point, rounded half even; None: there is a hole."""
        price = self.price(counter, tenant, namespace)
        if price is None:
            return None
        with localcontext(prec=60):
            return (amount * price.price / price.per).quantize(Decimal(1).scaleb(-COST_SCALE))


def of_toml(text: str) -> PriceList:
    """Read `currency = "EUR"` and tables `[[price]]`. Raises ConfigurationError."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"the price list is no TOML: {error}") from error
    rows = given.get("price", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError("the price list: want tables [[price]]")
    unknown = given.keys() - {"currency", "price"}
    if unknown:
        raise ConfigurationError(f"the price list has unknown keys: {', '.join(sorted(unknown))}")
    return PriceList(str(given.get("currency", "")), _prices(rows))


def of_csv(text: str) -> PriceList:
    """Read columns `counter,price,per,tenant,namespace,currency`; the last four may be missing.

    Raises:
        ConfigurationError: a row cannot be a price.
    """
    rows = list(csv.DictReader(io.StringIO(text)))
    currencies = {str(row.pop("currency", "") or "") for row in rows}
    if len(currencies) > 1:
        raise ConfigurationError(f"the price list has several currencies: {', '.join(sorted(currencies))}")
    return PriceList(next(iter(currencies), ""), _prices(rows))


def _prices(rows: Iterable[Mapping[str, Any]]) -> Iterable[Price]:
    for number, row in enumerate(rows, 1):
        given = {key: value for key, value in row.items() if value not in {"", None}}
        unknown = given.keys() - _FIELDS
        if unknown or not {"counter", "price"} <= given.keys():
            raise ConfigurationError(
                f"price {number}: want counter, price and perhaps per, tenant, namespace; "
                f"got {', '.join(map(str, row))}"
            )
        try:
            price, per = Decimal(str(given["price"])), int(given.get("per", 1))
        except (DecimalException, ValueError, TypeError) as error:
            raise ConfigurationError(f"price {number}: {given['price']!r} per {given.get('per', 1)!r}") from error
        yield Price(
            counter=str(given["counter"]),
            price=price,
            per=per,
            tenant=str(given.get("tenant", "")),
            namespace=str(given.get("namespace", "")),
        )


SCHEMA_VERSION: Final = 4
DAY: Final = "day"


class Column(NamedTuple):
    """A column, its unit and its meaning; a column that may be null has a type that ends in `?`."""

    name: str
    type: str
    unit: str
    text: str

    @property
    def optional(self) -> bool:
        return self.type.endswith("?")


class Table(NamedTuple):
    """A table.

    Attributes:
        key: rows with equal columns of these names belong together, and are added up when files are compacted. Without
            a key, rows are kept as they are.
        derived: made anew for a day from other tables, whenever these have changed.
    """

    name: str
    text: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    derived: bool = False


_MINUTE = Column("minute", "timestamp", "UTC", "Beginning of the minute.")
_BROKER = Column("broker", "string", "", "Broker that counted.")
_TENANT = Column("tenant", "string", "", "Tenant.")
_NAMESPACE = Column("namespace", "string", "", "Namespace, as `tenant/namespace`.")
_GROUP = Column("resource_group", "string", "", "Resource group.")
_VERSION = Column("version", "long", "", "Version of the table's columns when the row was written.")
_USED: Final = (
    Column("published_messages", "long", "messages", "Messages published; a chunked one counts once."),
    Column("published_bytes", "long", "bytes", "Their size as stored."),
    Column("dispatched_messages", "long", "messages", "Messages sent to consumers, redeliveries included."),
    Column("dispatched_bytes", "long", "bytes", "Their size."),
)
_LIMITED: Final = (
    Column("publish_limited_ms", "long", "ms", "For how long a producer has waited, added up over brokers."),
    Column("dispatch_limited_ms", "long", "ms", "For how long a subscription has waited, added up over brokers."),
)
_CHUNKS: Final = Column(
    "published_chunks", "long?", "chunks", "Chunks published beside the last one of each chunked message."
)
_ENDED: Final = (
    Column("committed_messages", "long?", "messages", "Messages of transactions that were committed; a chunk is one."),
    Column("committed_bytes", "long?", "bytes", "Their size."),
    Column("aborted_messages", "long?", "messages", "Messages of transactions that were aborted; a chunk is one."),
    Column("aborted_bytes", "long?", "bytes", "Their size."),
)
_WRITTEN: Final = (
    Column("late", "boolean", "", "Whether the minute was closed already when this was recorded: a correction."),
    _VERSION,
)
KINDS: Final = ("publish_messages", "publish_bytes", "dispatch_messages", "dispatch_bytes")
_RATES: Final = tuple(
    Column(
        f"{what}_{kind}",
        "double?",
        f"{kind.split('_')[1]}/s",
        f"{text}, {kind.replace('_', ' ')}, as recorded last; null: no limit.",
    )
    for what, text in (("quota", "Quota of all brokers"), ("share", "This broker's share of the quota"))
    for kind in KINDS
)
_EVIDENCE: Final = (
    *(
        Column(
            f"needed_{kind}",
            "double?",
            f"{kind.split('_')[1]}/s",
            f"Smallest share with which nothing would have waited here, {kind.replace('_', ' ')}, as far as the broker "
            "could see; null: not measured.",
        )
        for kind in KINDS
    ),
    Column("held_publish_messages", "double?", "messages", "What waited to be published when this was recorded."),
    Column("held_publish_bytes", "double?", "bytes", "Its size."),
)
# Of a group and a minute: figures that are not added up, but stay as they were recorded.
RECORDED: Final = tuple(one.name for one in (*_RATES, *_EVIDENCE))

TOPIC_USAGE: Final = Table(
    "topic_usage",
    "What each topic used in each minute. Rows of the same minute, broker and topic add up.",
    (
        _MINUTE,
        _BROKER,
        _TENANT,
        _NAMESPACE,
        Column("topic", "string", "", "Full name; of a partition, with its number."),
        Column("resource_groups", "strings", "", "Groups that limited the topic."),
        *_USED,
        Column("publish_limited_times", "long", "times", "How often a publish rate made a producer wait."),
        *_WRITTEN,
        _CHUNKS,
        *_ENDED,
    ),
    key=("minute", "broker", "tenant", "namespace", "topic", "resource_groups", "late", "version"),
)
GROUP_USAGE: Final = Table(
    "group_usage",
    "What each resource group used in each minute on each broker, and how long it was limited. Rows of the same "
    "minute, broker and group add up.",
    (_MINUTE, _BROKER, _GROUP, *_USED, *_LIMITED, *_RATES, *_WRITTEN, *_EVIDENCE),
    key=("minute", "broker", "resource_group", *RECORDED, "late", "version"),
)
BROKER_USAGE: Final = Table(
    "broker_usage",
    "What each broker says that all its topics used together. Sums equal those of `topic_usage`, unless a broker "
    "crashed while it recorded: deleted and non-persistent topics may miss that interval there.",
    (_MINUTE, _BROKER, *_USED, *_WRITTEN, _CHUNKS, *_ENDED),
    key=("minute", "broker", "late", "version"),
)
PRINCIPAL_USAGE: Final = Table(
    "principal_usage",
    "What the clients of each role used of each namespace in each minute, by subscription. Rows with equal names add "
    "up. Brokers count this in memory: what came after the last record before a crash is not in it.",
    (
        _MINUTE, _BROKER, _TENANT, _NAMESPACE,
        Column(
            "role", "string", "", "Role of the clients, of a proxy's the original one; empty without authentication."
        ),
        Column("subscription", "string", "", "Subscription of consumers; empty for producers."),
        *_USED,
        Column("connected_ms", "long", "ms", "For how long producers or consumers were connected, added up."),
        *_WRITTEN,
    ),
    key=("minute", "broker", "tenant", "namespace", "role", "subscription", "late", "version"),
)  # fmt: skip
STORAGE_USAGE: Final = Table(
    "storage_usage",
    "What each namespace stored over time, on each broker. Rows with equal names add up.",
    (
        _MINUTE, _BROKER, _TENANT, _NAMESPACE,
        Column("stored_byte_hours", "long", "byte-hours", "Size of its topics, times how long it was so."),
        *_WRITTEN,
    ),
    key=("minute", "broker", "tenant", "namespace", "late", "version"),
)  # fmt: skip
CLOSED_MINUTES: Final = Table(
    "closed_minutes",
    "Ranges of minutes that were closed: what is recorded of them later is marked `late`.",
    (
        Column("from_minute", "timestamp", "UTC", "Beginning of the first minute."),
        Column("until_minute", "timestamp", "UTC", "End of the last minute."),
        Column("brokers", "strings", "", "Brokers that have recorded everything until the end."),
        Column("absent", "strings", "", "Brokers that have not, and were not waited for any longer."),
        _VERSION,
    ),
)
REFUSED_RECORDS: Final = Table(
    "refused_records",
    "Records that could not be used. The next good record of the same counters contains what they would have said.",
    (
        Column("topic", "string", "", "Topic or partition that has them."),
        Column("reason", "string", "", "Why."),
        Column("records", "long", "records", "How many in a micro-batch."),
        Column("at", "timestamp", "UTC", "When the last of them was published."),
        _VERSION,
    ),
)
DECISIONS: Final = Table(
    "decisions",
    "Decision records as the brokers wrote them, each once.",
    (
        Column("at", "timestamp", "UTC", "When it was decided."),
        Column("broker", "string", "", "Broker that decided."),
        Column("epoch", "long", "", "Run of that broker."),
        Column("sequence", "long", "", "Number of the record in that run."),
        Column("kind", "string", "", "`begun`, `goes-on`, `ended`, `changed` or `refused`."),
        Column("limiter", "string", "", "What decided."),
        Column("reason", "string", "", "Why, in words."),
        _TENANT,
        _NAMESPACE,
        Column("topic", "string", "", "Topic."),
        _GROUP,
        Column("client", "string", "", "Address of the client."),
        Column("unit", "string", "", "Unit of `before` and `after`."),
        Column("before", "double?", "`unit`", "The limit, or what was asked for, before."),
        Column("after", "double?", "`unit`", "The limit after."),
        Column("since", "timestamp", "UTC", "When the episode began."),
        Column("times", "long", "times", "How often since then."),
        Column("held_ms", "long", "ms", "For how long since then somebody was held back."),
        Column("observed_only", "boolean", "", "Whether nobody was slowed (observe-only)."),
        _VERSION,
    ),
    key=(
        "at", "broker", "epoch", "sequence", "kind", "limiter", "reason", "tenant", "namespace", "topic",
        "resource_group", "client", "unit", "before", "after", "since", "times", "held_ms", "observed_only", "version",
    ),
)  # fmt: skip

NAMESPACE_USAGE: Final = Table(
    "namespace_usage",
    "What each tenant and namespace used in each minute, on all brokers.",
    (_MINUTE, _TENANT, _NAMESPACE, Column("topics", "long", "topics", "Topics that used something."), *_USED, _VERSION),
    derived=True,
)
EPISODES: Final = Table(
    "throttle_episodes",
    "Who was slowed or refused, by what, from when to when. `day` is that of the beginning.",
    (
        Column("since", "timestamp", "UTC", "When it began."),
        Column("until", "timestamp", "UTC", "When it was recorded last."),
        Column("ended", "boolean", "", "Whether its end was recorded; otherwise it goes on, or its broker stopped."),
        _BROKER,
        Column("limiter", "string", "", "What slowed or refused."),
        Column("reason", "string", "", "Why, in words."),
        _TENANT,
        _NAMESPACE,
        Column("topic", "string", "", "Topic."),
        _GROUP,
        Column("client", "string", "", "Address of the client."),
        Column("times", "long", "times", "How often."),
        Column("held_ms", "long", "ms", "For how long somebody was held back."),
        Column("observed_only", "boolean", "", "Whether nobody was slowed (observe-only)."),
        _VERSION,
    ),
    derived=True,
)
NOISY_NEIGHBOURS: Final = Table(
    "noisy_neighbours",
    "Topics that used at least a quarter of what their group published, in minutes in which the group was limited and "
    "others of the group published, too.",
    (
        _GROUP,
        _TENANT,
        Column("topic", "string", "", "Topic."),
        Column("minutes", "long", "minutes", "Limited minutes in which it used a quarter or more."),
        Column("published_bytes", "long", "bytes", "What it published in them."),
        Column("part", "double", "ratio", "Of what the group published in them."),
        Column("others", "long", "topics", "Other topics of the group that published in them, at most."),
        _VERSION,
    ),
    derived=True,
)
QUOTA_FIT: Final = Table(
    "quota_fit",
    "How well the quota of each group fits what was used, day by day.",
    (
        _GROUP,
        Column("kind", "string", "", "`publish_messages`, `publish_bytes`, `dispatch_messages` or `dispatch_bytes`."),
        Column("quota", "double", "per second", "The quota, as recorded last; only groups that have one."),
        Column("minutes", "long", "minutes", "Minutes in which the group used something."),
        Column("mean", "double", "per second", "Mean use of these minutes."),
        Column("p99", "double", "per second", "99 of 100 minutes used at most this."),
        Column("highest", "double", "per second", "The busiest minute."),
        Column("limited_minutes", "long", "minutes", "Minutes in which something waited for the class of traffic."),
        Column(
            "fit",
            "string",
            "",
            "`small`: more than 1 of 100 minutes was limited; `ample`: the busiest minute used less than half; `fits`.",
        ),
        _VERSION,
    ),
    derived=True,
)
_COST: Final = (
    Column("counter", "string", "", "What is priced: a counter of `topic_usage` or `storage_usage`."),
    Column("amount", "long", "of the counter", "How much was used."),
    Column("price", "decimal?", "currency", "Price of `per`; null: the price list has a hole."),
    Column("per", "long?", "of the counter", "What the price is for."),
    Column("cost", "decimal?", "currency", "What the amount costs; null: the price list has a hole."),
    Column("currency", "string", "", "As the price list says."),
    Column("unpriced", "boolean", "", "Whether the price list has a hole here."),
    _VERSION,
)
COSTS: Final = Table(
    "costs",
    "What each namespace's usage and storage of a day cost, by the price list.",
    (_TENANT, _NAMESPACE, *_COST),
    derived=True,
)
PRINCIPAL_COSTS: Final = Table(
    "principal_costs",
    "What each role's usage of each namespace cost on a day, by the price list: another view of `costs`, without "
    "storage, which has no role. Do not add them up.",
    (
        _TENANT,
        _NAMESPACE,
        Column("role", "string", "", "Role of the clients; empty without authentication."),
        *(one._replace(text="What is priced: a counter of `principal_usage`.") if one.name == "counter" else one
          for one in _COST),
    ),
    derived=True,
)  # fmt: skip

BASE: Final = (
    TOPIC_USAGE, GROUP_USAGE, BROKER_USAGE, PRINCIPAL_USAGE, STORAGE_USAGE, CLOSED_MINUTES, REFUSED_RECORDS, DECISIONS,
)  # fmt: skip
DERIVED: Final = (NAMESPACE_USAGE, EPISODES, NOISY_NEIGHBOURS, QUOTA_FIT, COSTS, PRINCIPAL_COSTS)
TABLES: Final[Mapping[str, Table]] = {table.name: table for table in (*BASE, *DERIVED)}
