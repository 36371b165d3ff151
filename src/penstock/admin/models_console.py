# SPDX-License-Identifier: Apache-2.0
"""Answers of the routes of the web console, for `/openapi.json`. `overview` and `topic_table` make it."""

from __future__ import annotations

from typing import Any

from penstock.admin.models import Count, Long, Model, Number, Status


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
