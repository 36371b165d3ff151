# SPDX-License-Identifier: Apache-2.0
"""A producer as the broker sees it: who it is and what it has counted.

Where: a session makes one for each PRODUCER; its topic holds it while it is connected.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock.broker.publishing.access_modes import AccessMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.publishing.ports import ProducerClient, PublishedTopic

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Producer:
    """One connected writer of one topic.

    `careful`: what it sends is looked at entry by entry (deduplication, encryption, bounds of the topic), see
    `publish_checks`; for most producers nothing is to be looked for.
    """

    __slots__ = (
        "access_mode",
        "bytes_in",
        "careful",
        "charged_bytes",
        "connected_at_ms",
        "encrypted",
        "epoch",
        "messages_in",
        "metadata",
        "name",
        "producer_id",
        "schema_version",
        "session",
        "topic",
        "topic_epoch",
        "user_provided_name",
    )

    def __init__(
        self,
        *,
        session: ProducerClient,
        producer_id: int,
        name: str,
        topic: PublishedTopic,
        epoch: int,
        access_mode: AccessMode = AccessMode.SHARED,
        encrypted: bool = False,
        metadata: Mapping[str, str] = NOTHING,
        user_provided_name: bool = False,
        connected_at_ms: int = 0,
        schema_version: bytes = b"",
    ) -> None:
        self.session = session
        self.producer_id = producer_id
        self.name = name
        self.topic = topic
        self.epoch = epoch
        self.access_mode = access_mode
        self.encrypted = encrypted
        self.metadata = metadata
        self.user_provided_name = user_provided_name
        self.connected_at_ms = connected_at_ms
        self.schema_version = schema_version
        self.charged_bytes = 0  # to the memory of sessions, see `membership`
        self.topic_epoch: int | None = None
        self.careful = False
        self.messages_in = 0
        self.bytes_in = 0

    @property
    def address(self) -> str:
        """Where its client is, as `host:port`."""
        return self.session.connection.peer
