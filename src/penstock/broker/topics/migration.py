# SPDX-License-Identifier: Apache-2.0
"""Sends clients on to another cluster: which namespaces are moved there, and when a client may go.

Why in the broker: clients keep the address that they were given. A client is told its new cluster on the connection
that it has (TOPIC_MIGRATED, PIP-188), and is the same producer or consumer there.
Where: topics say when they are loaded or change; handlers of PRODUCER, SUBSCRIBE and LOOKUP ask; `administration`
stores what is to happen.

Theory of operation
    As in Apache Pulsar, a namespace or the whole cluster is `migrated`: producers go at once, unless the topic has not
    been replicated completely; consumers go when producers are gone and their subscription has no backlog.
    `penstock migrate` copies messages and places first. For that a namespace is *held*: all clients are disconnected,
    and wait, while acknowledgements and ends stay what they are. Then it is *moved*: everybody goes, with or without
    a backlog. A hold ends by itself: the command that asked for it may be killed.
    Both are members of the namespace's JSON, so that all brokers see them, and see them again after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.broker.policies.policy_values import CLUSTERS, MIGRATED, MIGRATION
from penstock.broker.topics.topic import subscribed_topic
from penstock.broker.topics.topic_life import KNOWS_MIGRATION, UNSOLICITED, disconnect_producers
from penstock.core.errors import ServiceNotReady
from penstock.core.system_topics import is_coordinator, is_system_topic
from penstock.core.units import NS_PER_MS
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.log_reads import LogReads
    from penstock.broker.publishing.ports import ProducerClient
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog

# Of a namespace's own member: the name of a hold, its end (ms since 1970), and whether subscriptions were carried over.
HOLD: Final = "hold"
HELD_UNTIL: Final = "heldUntilMs"
MOVED: Final = "moved"
# The member of a cluster's own migration that has its URLs, as in Pulsar.
TARGET: Final = "migratedClusterUrl"
# The longest that clients can be made to wait: they give up after half a minute.
HOLD_S_MAX: Final = 25
# Pause between looks at subscriptions that still have a backlog. Of many topics so many are looked at in a turn of the
# loop, a few milliseconds, with pauses in between.
_LOOK_S: Final = 0.5
_LOOKED_AT: Final = 200
_NEXT_S: Final = 0.05


class _Hold(NamedTuple):
    """A hold, as it is stored, and its end by the monotonic clock."""

    name: str | None
    until_ms: int
    end_ns: int


class Stage(NamedTuple):
    """Future of the clients of a namespace."""

    held_ms: int  # for how long they wait still; 0: they do not
    urls: codec.MigratedUrls | None  # where to; None: they stay
    moved: bool  # subscriptions were carried over: consumers go with a backlog, too

    @property
    def shuts(self) -> bool:
        """Whether nobody may use the namespace here."""
        return self.held_ms > 0 or (self.moved and self.urls is not None)


class Migration:
    """Sends clients on. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        cluster: str,
        loaded: Callable[[], Sequence[Topic]],
        reads: LogReads,
        changes: Changes,
        clock: Clock,
    ) -> None:
        """Receive what this uses. Args: cluster: the name of this one. loaded: returns the loaded topics."""
        self._catalog = catalog
        self._cluster = cluster
        self._loaded = loaded
        self._reads = reads
        self._changes = changes
        self._clock = clock
        self._released: dict[str, asyncio.Event] = {}  # by namespace, while clients wait for the end of its hold
        self._ends: dict[str, asyncio.TimerHandle] = {}  # of holds
        self._holds: dict[str, _Hold] = {}  # by namespace, as they were seen first
        self._draining: dict[Topic, None] = {}  # topics with consumers that go when they have no backlog
        self._looking = False

    # -- stages -------------------------------------------------------------------------------------------------------

    def stage(self, namespace: str) -> Stage | None:
        """Return what is to happen to a namespace; None: nothing."""
        policies = self._catalog.namespaces().get(namespace)
        own = self._catalog.documents(CLUSTERS).get(self._cluster, {}).get(MIGRATION)
        if policies is None or not (own or policies.get(MIGRATION)):
            self._holds.pop(namespace, None)
            return None
        ours: Mapping[str, Any] = policies.get(MIGRATION) or {}
        held_ms = self.held_for_ms(namespace, ours)
        urls = None
        if own and (own.get(MIGRATED) or policies.get(MIGRATED)):
            target = own.get(TARGET) or {}
            urls = codec.MigratedUrls(target.get("brokerServiceUrl"), target.get("brokerServiceUrlTls"))
        if not held_ms and (urls is None or not any(urls)):
            return None
        return Stage(held_ms, urls, bool(ours.get(MOVED)))

    def held_for_ms(self, namespace: str, ours: Mapping[str, Any]) -> int:
        """Return for how long a namespace is held still, by its own member; 0: it is not.

        From when this broker has seen the hold first, the wall clock does not count: it may be set.
        """
        until_ms, now_ns = int(ours.get(HELD_UNTIL) or 0), self._clock.monotonic_ns()
        if not until_ms:
            self._holds.pop(namespace, None)
            return 0
        seen = self._holds.get(namespace)
        if seen is None or (seen.name, seen.until_ms) != (ours.get(HOLD), until_ms):
            left_ms = min(until_ms - self._clock.wall_ms(), 1000 * HOLD_S_MAX)
            seen = self._holds[namespace] = _Hold(ours.get(HOLD), until_ms, now_ns + left_ms * NS_PER_MS)
        return max(0, (seen.end_ns - now_ns) // NS_PER_MS)

    def moved_to(self, name: TopicName) -> codec.MigratedUrls | None:
        """Return where a topic is served now, of which nothing is needed here; None: here."""
        stage = self.stage(_namespace_of(name))
        if stage is None or stage.held_ms or not stage.moved or _stays(str(name)):
            return None
        return stage.urls

    def namespace_changed(self, namespace: str | None) -> None:
        """Apply what was stored about a namespace; None: about any."""
        if namespace is None:
            concerned = {name for name, policies in self._catalog.namespaces().items() if policies.get(MIGRATION)}
            for one in concerned | self._ends.keys() | self._released.keys():
                self.namespace_changed(one)
            return
        if (end := self._ends.pop(namespace, None)) is not None:
            end.cancel()
        stage = self.stage(namespace)
        if stage is not None and stage.held_ms:
            self._end_later(namespace, stage)
        elif (released := self._released.pop(namespace, None)) is not None:
            released.set()
        of_it = f"://{namespace}/"
        for topic in self._loaded():
            if of_it in topic.text:
                self.topic_changed(topic)

    def topic_changed(self, topic: Topic) -> None:
        """Apply to a topic that is loaded, or whose policies may have changed, what is to happen to it."""
        stage = None if topic.system or _stays(topic.text) else self.stage(_namespace_of(topic.name))
        topic.shut = stage is not None and stage.shuts
        if stage is not None and not (topic.fenced or topic.closed):
            namespace = _namespace_of(topic.name)
            if stage.held_ms and namespace not in self._ends:  # Loaded after a restart.
                self._end_later(namespace, stage)
            self._changes.finish(self._send_on(topic, stage))

    def _end_later(self, namespace: str, stage: Stage) -> None:
        loop = asyncio.get_running_loop()
        self._ends[namespace] = loop.call_later(stage.held_ms / 1000, self.namespace_changed, namespace)

    # -- clients that are connected -----------------------------------------------------------------------------------

    async def _send_on(self, topic: Topic, stage: Stage) -> None:
        """Disconnect the clients that may go, and tell them where to."""
        urls = None if stage.held_ms else stage.urls
        if stage.shuts:
            for subscription in list(topic.subscriptions.values()):
                _disconnect_consumers(subscription, urls)
            await disconnect_producers(topic, self._reads, urls)
            return
        if _is_replicated(topic):
            await disconnect_producers(topic, self._reads, urls)
            for subscription in list(topic.subscriptions.values()):
                if _is_done(topic, subscription):
                    _disconnect_consumers(subscription, urls)
        if topic.producers or any(_clients(one) for one in topic.subscriptions.values()):
            self._look_soon(topic)

    def _look_soon(self, topic: Topic) -> None:
        self._draining[topic] = None
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        for topic in list(islice(self._draining, _LOOKED_AT)):
            del self._draining[topic]
            self.topic_changed(topic)
        self._looking = bool(self._draining)
        if self._looking:
            asyncio.get_running_loop().call_later(_NEXT_S, self._look)

    # -- clients that come --------------------------------------------------------------------------------------------

    async def admit(self, name: TopicName) -> None:
        """Wait while the topic's namespace is held. Raises ServiceNotReady when it was moved.

        The client then looks the topic up again, and is redirected by that. TOPIC_MIGRATED before the error would say
        the same, but the C++ client, and Python's, hang for ever when they get both while they connect again.
        """
        namespace = _namespace_of(name)
        if (stage := self.stage(namespace)) is None or _stays(str(name)):
            return
        while stage is not None and stage.held_ms:
            released = self._released.setdefault(namespace, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(stage.held_ms / 1000):
                    await released.wait()
            stage = self.stage(namespace)
        if stage is not None and stage.moved and stage.urls is not None:
            raise ServiceNotReady(_moved_text(str(name), stage.urls))

    def check_producer(self, session: ProducerClient, topic: Topic, resource_id: int) -> None:
        """Raises ServiceNotReady for a producer that has to go; the client knows where."""
        urls = self._urls(topic)
        if urls is not None and _is_replicated(topic):
            if session.protocol_version >= KNOWS_MIGRATION:
                session.reply(codec.topic_migrated(resource_id, urls, producer=True))
            raise ServiceNotReady(_moved_text(topic.text, urls))

    def sends_on(self, session: ProducerClient, subscription: Subscription, consumer_id: int) -> bool:
        """Whether a consumer that comes was sent on, as by Apache Pulsar: told where to and closed, without an answer.

        Others go later. Raises ServiceNotReady for a client that does not know TOPIC_MIGRATED.
        """
        topic = subscribed_topic(subscription)
        urls = self._urls(topic)
        if urls is None:
            return False
        if not (_is_replicated(topic) and not topic.producers and _is_done(topic, subscription)):
            self._look_soon(topic)
            return False
        if session.protocol_version < KNOWS_MIGRATION:
            raise ServiceNotReady(_moved_text(topic.text, urls))
        session.reply(codec.topic_migrated(consumer_id, urls, producer=False))
        session.reply(codec.close_consumer(consumer_id, UNSOLICITED))
        return True

    def _urls(self, topic: Topic) -> codec.MigratedUrls | None:
        stage = None if topic.system or _stays(topic.text) else self.stage(_namespace_of(topic.name))
        return None if stage is None else stage.urls


def _moved_text(topic: str, urls: codec.MigratedUrls) -> str:
    return f"{topic} has moved to the cluster at {urls.plain or urls.tls}; connect there"


def _namespace_of(name: TopicName) -> str:
    return f"{name.tenant}/{name.namespace}"


def _stays(topic: str) -> bool:
    """Whether it belongs to the brokers themselves."""
    return is_system_topic(topic) or is_coordinator(topic)


def _clients(subscription: Subscription) -> bool:
    return bool(subscription.consumers) and subscription.replicator is None


def _is_replicated(topic: Topic) -> bool:
    """Whether nothing has to be sent to other clusters any more."""
    return not any(one.replicator is not None and one.backlog for one in topic.subscriptions.values())


def _is_done(topic: Topic, subscription: Subscription) -> bool:
    """Whether a subscription has nothing left that its consumers would miss."""
    return not subscription.backlog and not topic.holds_back


def _disconnect_consumers(subscription: Subscription, urls: codec.MigratedUrls | None) -> None:
    if not _clients(subscription):
        return
    for consumer in list(subscription.consumers):
        if urls is not None and consumer.session.protocol_version >= KNOWS_MIGRATION:
            consumer.outlet.write_frame(codec.topic_migrated(consumer.consumer_id, urls, producer=False))
        consumer.session.disconnect_consumer(consumer)
