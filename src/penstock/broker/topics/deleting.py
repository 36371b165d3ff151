# SPDX-License-Identifier: Apache-2.0
"""Deletes namespaces with their topics, and finishes deletions that were interrupted.

Why: a broker that does not answer, or a crash, would leave half of a namespace or of a partitioned topic, for ever. The
intent is noted (`deletions`) first.
Where: `administration.namespaces` deletes by it; `unfinished` finishes by it.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.topics.partitions import in_turns
from penstock.core.errors import (
    AlreadyExists,
    MetadataFailed,
    NamespaceNotFound,
    NotFound,
    ServiceNotReady,
)
from penstock.core.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.changes import Changes, Submit
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.topic_life import Deletions, TopicLife
    from penstock.storage.catalog import Catalog

DOMAINS: Final = ("persistent", "non-persistent")


class Deleting:
    """Deletions of many topics. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        topics: TopicDirectory,
        resources: NamespaceResources,
        partitions: Partitions,
        life: TopicLife,
        deletions: Deletions,
        refresh_namespace: Callable[[str], object],
    ) -> None:
        """Args: refresh_namespace: called when the policies of a namespace have gone."""
        self._catalog = catalog
        self._changes = changes
        self._topics = topics
        self._resources = resources
        self._partitions = partitions
        self._life = life
        self._deletions = deletions
        self._refresh_namespace = refresh_namespace

    async def namespace(self, namespace: NamespaceName) -> None:
        """Delete a namespace with its topics, even if the caller is cancelled.

        Raises:
            NamespaceNotFound: it does not exist, or another request deletes it.
            ServiceNotReady: a broker does not answer; the rest is deleted when it does.
        """
        await self._changes.finish(self._namespace(namespace))

    def check_deletable(self, namespace: NamespaceName) -> None:
        """Raises NamespaceNotFound, also while another request deletes it: it may be created again after that."""
        self._resources.check_exists(namespace)
        if str(namespace) in self._resources.deleting or self._deletions.is_elsewhere(str(namespace)):
            raise NamespaceNotFound(str(namespace))

    async def _namespace(self, namespace: NamespaceName) -> None:
        self.check_deletable(namespace)
        text = str(namespace)
        self._resources.deleting.add(text)
        try:
            await self._deletions.begin(text)
            async with self._changes.lock:
                pass  # A partitioned topic that was being created exists now, and is deleted below.
            for domain in DOMAINS:
                for name in list(self._partitions.of_namespace(text, domain)):
                    with contextlib.suppress(NotFound):  # Another request is deleting it.
                        await self._partitions.finish_deletion(TopicName.parse(name), force=True)
                await self._topics.wait_until_loaded(f"{domain}://{text}/")
                rest = map(TopicName.parse, list(self._topics.names.of(domain, text)))
                await in_turns(lambda topic: self._life.delete_if_there(topic, force=True), rest)
            await self._changes.store_alone(partial(self._decide_deletion, text))
        except ServiceNotReady as error:
            if not self._deletions.is_noted(text):
                raise
            raise ServiceNotReady(f"the rest of {text} is deleted when all brokers answer: {error}") from error
        except BaseException:
            with contextlib.suppress(MetadataFailed):
                await self._deletions.end(text)
            raise
        finally:
            self._resources.deleting.discard(text)
        self._refresh_namespace(text)

    def _decide_deletion(self, namespace: str) -> Submit:
        partitioned = (self._partitions.of_namespace(namespace, domain) for domain in DOMAINS)
        if self._topics.names.of("persistent", namespace) or any(map(list, partitioned)):
            raise AlreadyExists(f"topics of {namespace} were created meanwhile; delete it again")
        return partial(self._catalog.delete_namespace, namespace)

    def unfinished(self) -> list[str]:
        """Namespaces and partitioned topics that `finish` is to be called for."""
        return [name for name in self._deletions.ours() if name not in self._resources.deleting]

    async def finish(self, name: str) -> None:
        """Finish an interrupted deletion. Raises PenstockError if that is not possible now."""
        try:
            if "://" in name:
                await self._partitions.finish_deletion(TopicName.parse(name), force=True)
            else:
                await self._namespace(NamespaceName.parse(name))
        except NotFound:
            if name not in self._resources.deleting:
                await self._deletions.end(name)  # It went with its namespace or tenant.
