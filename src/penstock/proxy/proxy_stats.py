# SPDX-License-Identifier: Apache-2.0
"""Answers of `/proxy-stats`, like those of Apache Pulsar's proxy: rates of connections to brokers, and of topics.

Why in pages: an answer is as long as there are connections or topics. Each page is read anew, so that nothing is kept
between them, and no turn of the loop reads all. Rates are those of the last whole minute or more; before, since the
start. They are computed for a request only: traffic does not pay for them.
Where: the routes of `admin.proxy_api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.core.errors import PreconditionFailed
from penstock.core.units import KIB, NS_PER_MS
from penstock.proxy.rates import Rates
from penstock.proxy.session import Session

if TYPE_CHECKING:
    from penstock.net.listener import Connections
    from penstock.proxy.proxy import Services
    from penstock.proxy.relay import Relay
    from penstock.proxy.usage import TopicUsage, UsageCounts

Json: TypeAlias = dict[str, Any]

# A page ends after so many rows, or characters of topics' names.
PAGE_ROWS: Final = 200
PAGE_CHARACTERS: Final = 64 * KIB
# Memory of the rates of a topic.
RATES_BYTES: Final = 600
# Levels of Pulsar's `proxyLogLevel`: there, topics are only counted at the highest.
LEVELS: Final = range(3)
TOPICS_LEVEL: Final = LEVELS[-1]


class Page(NamedTuple):
    """Some rows, and where the next page begins; None: there is none."""

    rows: dict[str, Json]
    after: int | None


class ProxyStats:
    """Answers. All methods are called on the proxy's loop.

    Attributes:
        level: `proxyLogLevel`, as far as penstock has it: whether statistics of topics are shown.
    """

    def __init__(self, services: Services, connections: Connections) -> None:
        self._services = services
        self._connections = connections
        self.level = TOPICS_LEVEL if services.usage is not None else 0

    async def set_level(self, level: int) -> None:
        """Show statistics of topics, or not. Raises PreconditionFailed."""
        if level not in LEVELS:
            raise PreconditionFailed("Proxy log level can be only in range [0-2]")
        if level == TOPICS_LEVEL:
            self._counts()
        self.level = level

    async def get_level(self) -> int:
        return self.level

    async def connections(self, after: int) -> Page:
        """Return clients that are connected to a broker, of those that connected after this one, by their numbers."""
        now_ns = self._services.clock.monotonic_ns()
        page: dict[str, Json] = {}
        for connection in self._connections.all():
            session = connection.handler
            if connection.id <= after or not isinstance(session, Session) or session.relay is None:
                continue
            if len(page) == PAGE_ROWS:
                return Page(page, after)
            if session.relay.is_connected:
                page[str(connection.id)] = self._connection(
                    connection.peer, connection.read_count, session.relay, now_ns
                )
            after = connection.id
        return Page(page, None)

    @staticmethod
    def _connection(peer: str, reads: int, relay: Relay, now_ns: int) -> Json:
        if relay.rates is None:
            relay.rates = Rates(2, relay.since_ns)
        requests, nbytes = relay.rates.per_s((reads, relay.passed_bytes), now_ns)
        return {
            "requestRate": requests,
            "byteRate": nbytes,
            "clientAddress": f"/{peer}",  # as Java writes an address without a host's name
            "brokerAddress": f"{relay.target.host}:{relay.target.port}",
        }

    async def topics(self, after: int) -> Page:
        """Return topics that were first used after this time. Raises PreconditionFailed: they are not counted."""
        if self.level < TOPICS_LEVEL:
            raise PreconditionFailed("Proxy doesn't have logging level 2")
        counts, clock = self._counts(), self._services.clock
        now_ns, now_ms = clock.monotonic_ns(), clock.wall_ms()
        page: dict[str, Json] = {}
        characters = 0
        for topic in counts.topics():
            if topic.since_ms <= after:
                continue
            if len(page) == PAGE_ROWS or characters > PAGE_CHARACTERS:
                return Page(page, after)
            rates = topic.rates or _begun(topic, counts, now_ns - (now_ms - topic.since_ms) * NS_PER_MS)
            per_s = rates.per_s(topic.totals[:4], now_ns)
            page[topic.text] = dict(zip(("msgRateIn", "msgByteIn", "msgRateOut", "msgByteOut"), per_s, strict=True))
            characters += len(topic.text)
            after = topic.since_ms
        return Page(page, None)

    def _counts(self) -> UsageCounts:
        if self._services.usage is None:
            raise PreconditionFailed("this proxy does not count what topics use: set usageRecordsEnabled=true")
        return self._services.usage


def _begun(topic: TopicUsage, counts: UsageCounts, since_ns: int) -> Rates:
    """Return rates of a topic, which are kept if there is memory for them."""
    rates = Rates(4, since_ns)
    if counts.memory.try_charge(RATES_BYTES):
        topic.charged_bytes += RATES_BYTES
        topic.rates = rates
    return rates
