# SPDX-License-Identifier: Apache-2.0
"""Admin operations on topics: create, delete, partition, truncate, terminate, compact.

An operation on a partitioned topic is applied to its partitions where Pulsar does so. Related operations are in
`subscription_admin`, `message_admin`, `delayed_admin`, `schema_admin` and `policy_admin`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.elsewhere import of_topic
from penstock.broker.topics.partitioned import KIND
from penstock.core.errors import AlreadyExists, NotAllowed, TopicNotFound
from penstock.core.position import Position
from penstock.core.system_topics import COORDINATORS, is_system_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.administration.finder import Finder
    from penstock.broker.changes import Changes, Submit
    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.policies.retention import Retention
    from penstock.broker.topics.compaction import Compactor
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_life import TopicLife
    from penstock.core.names import NamespaceName, TopicName
    from penstock.storage.catalog import Catalog


class TopicAdmin:
    """Topics, partitioned or not. Errors have Pulsar's texts and statuses."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        topics: TopicDirectory,
        resources: NamespaceResources,
        partitions: Partitions,
        life: TopicLife,
        retention: Retention[Topic],
        compaction: Compactor,
        finder: Finder,
        elsewhere: Elsewhere,
        coordinators: int,
    ) -> None:
        self._catalog = catalog
        self._changes = changes
        self._topics = topics
        self._resources = resources
        self._partitions = partitions
        self._life = life
        self._retention = retention
        self._compaction = compaction
        self._finder = finder
        self._elsewhere = elsewhere
        self._coordinators = coordinators  # of transactions; 0 if there are none

    # -- topics without partitions ------------------------------------------------------------------------------------

    async def create(self, name: TopicName, properties: Mapping[str, str] | None = None) -> None:
        """Create a topic. Raises AlreadyExists, NotAllowed."""
        _check_not_system(name)
        self._resources.check_namespace(name.namespace_name)
        if self._topics.exists(name) or self._partitions.count(name):
            raise AlreadyExists("This topic already exists")
        self._partitions.check_usable(name, exists=False)
        await self._topics.create_placed(name, dict(properties or {}))

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic. Raises TopicNotFound, AlreadyExists; PreconditionFailed if in use and not `force`."""
        self._resources.check_exists(name.namespace_name)  # Another broker asks for this, which deletes the namespace.
        if self._partitions.count(name):
            raise AlreadyExists(
                f"{name} is a partitioned topic, instead of calling delete topic, please call delete-partitioned-topic."
            )
        await self._life.delete(name, force=force)

    def get_properties(self, name: TopicName) -> dict[str, str]:
        """Properties of a topic or partitioned topic. Raises TopicNotFound."""
        _check_stored(name, "Getting properties")
        self._resources.check_namespace(name.namespace_name)
        document = self._catalog.documents(KIND).get(str(name))
        if document is not None:
            return dict(document.get("properties") or {})
        record = self._catalog.topic(str(name))
        if record is None:
            raise TopicNotFound(str(name))
        return dict(record.properties)

    async def update_properties(self, name: TopicName, properties: Mapping[str, str]) -> None:
        """Add or replace properties of a topic. Raises TopicNotFound."""
        await self._change_properties(name, lambda there: {**there, **properties})

    async def remove_property(self, name: TopicName, key: str) -> None:
        """Remove a property. Raises TopicNotFound."""
        await self._change_properties(name, lambda there: {one: value for one, value in there.items() if one != key})

    async def _change_properties(self, name: TopicName, how: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Replace properties by `how(properties)`, under the lock of changes."""
        self.get_properties(name)  # raises if the topic does not exist
        if self._partitions.count(name):
            await self._partitions.change(
                name, lambda document: document.update(properties=how(document["properties"]))
            )
            return

        def changed() -> Submit:
            before = self.get_properties(name)
            return partial(self._catalog.set_topic_properties, str(name), how(before), expected=before)

        await self._changes.store_alone(changed)

    # -- partitioned topics -------------------------------------------------------------------------------------------

    def list_partitioned(self, namespace: NamespaceName, *, persistent: bool = True, system: bool = False) -> list[str]:
        """Full names of the partitioned topics of a namespace. Raises TenantNotFound, NamespaceNotFound."""
        self._resources.check_namespace(namespace)
        names = self._partitions.of_namespace(str(namespace), "persistent" if persistent else "non-persistent")
        return sorted(name for name in names if system or not is_system_topic(name))

    async def create_partitioned(
        self, name: TopicName, count: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a partitioned topic with `count` partitions. Raises NotAllowed, and as `partitions.create` does."""
        _check_not_system(name)
        await self._changes.finish(self._partitions.create(name, count, properties))

    async def update_partitioned(self, name: TopicName, count: int) -> None:
        """Increase the number of partitions. Raises NotAllowed, and as `partitions.grow` does."""
        _check_not_system(name)
        self._resources.check_namespace(name.namespace_name)
        await self._changes.finish(self._partitions.grow(name, count))

    async def get_partitioned(self, name: TopicName, *, check_auto_creation: bool = False) -> dict[str, Any]:
        """Number of partitions (0: not partitioned) and properties.

        With `check_auto_creation` a missing topic may be created, as for a client. Raises TopicNotFound.
        """
        if self._coordinators and str(name) == COORDINATORS:
            return {"partitions": self._coordinators}
        if check_auto_creation:
            count = await self._partitions.for_client(name, create=True)
        else:
            self._resources.check_namespace(name.namespace_name)
            count = self._partitions.count(name)
            if not count and not self._topics.exists(name):
                raise TopicNotFound(str(name))
        properties = (self._catalog.documents(KIND).get(str(name)) or {}).get("properties")
        return {"partitions": count, **({"properties": dict(properties)} if properties else {})}

    async def create_missed_partitions(self, name: TopicName) -> None:
        """Create missing partitions. Raises NotFound if it is not partitioned."""
        self._resources.check_namespace(name.namespace_name)
        await self._changes.finish(self._partitions.create_missed(name))

    async def delete_partitioned(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a partitioned topic with its partitions. Raises as `partitions.delete` does."""
        self._resources.check_namespace(name.namespace_name)
        await self._changes.finish(self._partitions.delete(name, force=force))

    # -- partitioned or not -------------------------------------------------------------------------------------------

    async def unload(self, name: TopicName) -> None:
        """Unload the topic; its clients reconnect. Raises TopicNotFound."""
        await self._finder.on_each_name(name, self._life.unload)

    async def terminate(self, name: TopicName) -> Position:
        """Stop accepting messages permanently; returns the last position. Raises TopicNotFound, NotAllowed."""
        _check_stored(name, "Termination")
        topic = await self._finder.topic(name, "Termination")
        return Position(topic.ledger_id, await self._life.terminate(topic))

    async def terminate_partitions(self, name: TopicName) -> dict[int, Position]:
        """As `terminate`, for all partitions; returns their last positions by partition index."""
        _check_stored(name, "Termination")
        if not self._partitions.count(name):
            raise NotAllowed(
                f"Termination of a non-partitioned topic is not allowed using partitioned-terminate: {name}"
            )
        await self._partitions.create_missed(name)
        ends: dict[int, Position] = {}

        async def end(topic: Topic) -> None:
            ends[topic.partition] = Position(topic.ledger_id, await self._life.terminate(topic))

        for partition in self._finder.existing(name):
            await end(await self._topics.load(partition))
        for partition, broker in self._finder.elsewhere(name).items():
            last = await self._elsewhere.ask(broker, "POST", of_topic(partition, "/terminate"))
            ends[partition.partition] = Position(last["ledgerId"], last["entryId"])
        return dict(sorted(ends.items()))

    async def truncate(self, name: TopicName) -> None:
        """Delete all messages, for every subscription. Raises TopicNotFound, NotAllowed."""
        _check_stored(name, "Truncation")
        await self._finder.on_each(name, lambda topic: self._changes.finish(self._life.truncate(topic)))

    async def trim(self, name: TopicName) -> None:
        """Delete messages that no subscription needs and retention does not keep. Raises TopicNotFound, NotAllowed."""
        _check_stored(name, "Trimming")
        await self._finder.on_each(name, self._retention.trim)

    async def compact(self, name: TopicName) -> None:
        """Start to compact a topic, or all its partitions. Raises TopicNotFound, AlreadyExists, NotAllowed."""

        async def begin(topic: Topic) -> None:
            self._compaction.start(topic)

        await self._finder.on_each(name, begin)

    async def compaction_status(self, name: TopicName) -> dict[str, str]:
        """State of the last compaction of a topic. Raises TopicNotFound."""
        topic = await self._finder.topic(name, "Compaction status")
        progress = self._compaction.progress(topic.text)
        return {"status": progress.status, "lastError": progress.last_error}


def _check_not_system(name: TopicName) -> None:
    if is_system_topic(str(name)):  # It would not count for the maximum number of topics.
        raise NotAllowed(f"{name} is a topic of the brokers: only they create it, and its partitions")


def _check_stored(name: TopicName, doing: str) -> None:
    if not name.is_persistent:
        raise NotAllowed(f"{doing} of a non-persistent topic is not allowed")
