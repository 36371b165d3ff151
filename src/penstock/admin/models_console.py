# SPDX-License-Identifier: Apache-2.0
"""Answers of the routes of the web console, for `/openapi.json`. `overview` and `topic_table` make it."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, Field

from penstock.admin.models import LONG_MAX, Count, Long, Model, Number, Properties, Status


class MemoryRow(Model):
    """A row of the memory budget; a limit of 0: none."""

    row: str
    owner: str
    key: str | None = None
    usedBytes: Long  # noqa: N815 -- names of the JSON
    limitBytes: Long  # noqa: N815
    refused: Count


class BrokerOverview(Model):
    """Traffic, health, memory of one broker, and what waits there, by reason."""

    broker: Count
    name: str
    version: str
    status: Status
    reasons: list[str]
    notes: list[str]  # what will need somebody soon
    takenAtMs: Long  # noqa: N815
    topics: Count
    msgRateIn: Number  # noqa: N815
    msgRateOut: Number  # noqa: N815
    msgBacklog: Count  # noqa: N815
    connections: Count
    muted: Count
    memory: list[MemoryRow]
    holds: dict[str, Count]
    groups: list[dict[str, Any]]


class Overview(Model):
    """All brokers of the cluster."""

    brokers: list[BrokerOverview]
    unanswered: list[Count]  # numbers of brokers that did not answer


class Traffic(Model):
    """Traffic of a topic, or of several in sum. Rates are per second; a topic that is not loaded has none."""

    msgRateIn: Number  # noqa: N815
    msgThroughputIn: Number  # noqa: N815
    msgRateOut: Number  # noqa: N815
    msgThroughputOut: Number  # noqa: N815
    msgBacklog: Count  # noqa: N815
    publishers: Count
    consumers: Count
    subscriptions: Count


class TopicRow(Traffic):
    """One topic, or one partition."""

    name: str
    loaded: bool


class TopicPage(Model):
    """A page of topics, and the sums of all that were found."""

    total: Count
    sums: dict[str, Number]
    topics: list[TopicRow]
    takenAtMs: Long  # noqa: N815
    unanswered: list[Count]


class TenantRow(Traffic):
    """One tenant, with the sums of its topics."""

    tenant: str
    adminRoles: list[str]  # noqa: N815
    resourceGroup: str | None  # noqa: N815
    topics: Count


class TenantPage(Model):
    """A page of tenants, by name."""

    total: Count
    tenants: list[TenantRow]
    takenAtMs: Long  # noqa: N815
    unanswered: list[Count]


# Messages of a page; characters of a pattern or a text that is searched; bytes that a value may be cut to.
PAGE_MAX: Final = 200
SEARCH_CHARS_MAX: Final = 256
SHOWN_BYTES_MAX: Final = 64 * 1024
Searched: TypeAlias = Annotated[str, Field(max_length=SEARCH_CHARS_MAX)]


class MessageQuery(BaseModel):
    """A page of messages: where it begins, and which messages are meant."""

    begin: str = Field(
        "earliest",
        alias="from",
        pattern=r"^(earliest|latest|\d{1,19}:\d{1,19}(:\d{1,9})?)$",
        description="`earliest`, `latest` (behind the last message), the position of a message, or `next` of a page",
    )
    since: int | None = Field(None, ge=0, le=LONG_MAX, description="Instead: the first one published at this time")
    back: int = Field(0, ge=0, le=PAGE_MAX, description="Begin so many entries before that")
    limit: int = Field(50, ge=1, le=PAGE_MAX, description="Messages to return")
    key: Searched = Field("", description="Only with such a key; * and ? stand for others")
    having: Searched = Field("", alias="property", description="Only with such a property: NAME=PATTERN")
    text: Searched = Field("", description="Only with this text in the value, in any case")
    decoded: bool = Field(False, description="Decode values by the schema that their producer has named, as JSON")
    shown: int | None = Field(
        None, ge=0, le=SHOWN_BYTES_MAX, description="Bytes of each value and of its properties; not given: all"
    )


class MessageRow(Model):
    """A message; `value` is null for a tombstone. With `cut`, the value has the first bytes of `size`."""

    id: str
    publishTime: Long  # noqa: N815
    eventTime: Long | None = None  # noqa: N815
    deliverAt: Long | None = None  # noqa: N815
    producer: str
    key: str | None = None
    keyBase64: str | None = None  # noqa: N815
    keyBytes: Count | None = None  # noqa: N815 -- of a key of which only the beginning is here
    properties: dict[str, str] | None = None
    propertiesBytes: Count | None = None  # noqa: N815 -- of properties of which only the first are here
    value: str | None = None
    valueBase64: str | None = None  # noqa: N815
    size: Count
    cut: bool | None = None
    encrypted: bool
    schemaType: str | None = None  # noqa: N815 -- by which it is decoded, or would be
    schemaVersion: Count | None = None  # noqa: N815
    undecoded: str | None = None  # why it is shown as it is stored
    chunk: bool | None = None  # a piece of a message that was sent in several entries


class MessagePage(Model):
    """Messages in their order, and where the next page begins: `LEDGER:ENTRY`, or `LEDGER:ENTRY:INDEX` in a batch."""

    messages: list[MessageRow]
    next: str
    atEnd: bool  # noqa: N815 -- nothing is behind this page now
    behind: Count  # entries behind it
    lookedAt: Count  # noqa: N815 -- messages, those that were not chosen included
    unreadable: Count  # entries


class NewMessage(Model):
    """A message to send. Without `value` and `valueBase64` it deletes its key. Times are in ms since 1970."""

    value: str | None = None
    valueBase64: str | None = None  # noqa: N815
    key: str | None = None
    keyBase64: str | None = None  # noqa: N815
    properties: Properties = Field(default_factory=dict)
    eventTime: Count = 0  # noqa: N815
    deliverAt: Count = 0  # noqa: N815


class SentMessage(Model):
    """Where a message was stored."""

    topic: str
    id: str


class Redriven(Model):
    """Numbers of dead letters that were sent, by topic; how many are left; and why it has stopped before them."""

    sent: dict[str, Count]
    left: Count
    stopped: str | None


class SettingRow(Model):
    """A setting of a broker: its value, and where that comes from."""

    group: str
    key: str
    value: str
    source: str
    dynamic: bool


class Who(Model):
    """The caller, as the broker knows it.

    `role` is null where nobody is authenticated. A superuser administers all tenants, which are not listed.
    """

    role: str | None
    superuser: bool
    tenants: list[str]
    more: bool
