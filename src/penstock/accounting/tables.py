# SPDX-License-Identifier: Apache-2.0
"""The tables of accounting: their columns, types, units and versions.

Why in one place: the stream writes by it, and `docs/reference/accounting.md` is generated from it. Columns are only
ever added, at the end; `SCHEMA_VERSION` is raised with each, and each row has the version that it was written with.

Types are `string`, `strings`, `long`, `double`, `boolean`, `timestamp` (UTC) and `decimal`. All tables are partitioned
by `day`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA_VERSION: Final = 3
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
# Of a group and a minute: what is not added up, but as it was recorded.
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
    (_MINUTE, _BROKER, *_USED, *_WRITTEN, _CHUNKS),
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
