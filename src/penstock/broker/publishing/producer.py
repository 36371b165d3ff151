# SPDX-License-Identifier: Apache-2.0
"""A connected producer: its identity and its counters.

Where: a session makes one for each PRODUCER command; its topic keeps it while it is connected.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock.accounting.totals import NOT_SEEN
from penstock.broker.publishing.access_modes import AccessMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.publishing.ports import ProducerClient, PublishedTopic
    from penstock.governance.holds import Episode
    from penstock.groups.publish_limit import PublishLimit

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Producer:
    """One connected producer of a topic.

    `careful`: its entries are checked one by one (deduplication, encryption, limits of the topic), see
    `publish_checks`. Most producers need no checks.
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
        "seen",
        "session",
        "topic",
        "topic_epoch",
        "user_provided_name",
        "waits",
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
        self.charged_bytes = 0  # charged to the sessions' memory, see `session_memory`
        self.topic_epoch: int | None = None
        self.careful = False
        self.messages_in = 0
        self.bytes_in = 0
        self.seen = NOT_SEEN  # by usage records
        self.waits: Episode[PublishLimit] | None = None  # for limits; None until it waits for the first time

    @property
    def address(self) -> str:
        """Address of its client, as `host:port`."""
        return self.session.connection.peer
