# SPDX-License-Identifier: Apache-2.0
"""A connected producer: its identity and its counters.

Where: a session makes one for each PRODUCER command; its topic keeps it while it is connected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from penstock.accounting.totals import NOT_SEEN
from penstock.broker.publishing.checks import AccessMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.accounting.totals import Seen
    from penstock.broker.publishing.ports import ProducerClient, PublishedTopic
    from penstock.broker.publishing.replicated import Replicator
    from penstock.governance.holds import Episode
    from penstock.groups.limit import PublishLimit

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(eq=False, kw_only=True, slots=True)
class Producer:
    """One connected producer of a topic.

    `careful`: its entries are checked one by one (deduplication, encryption, limits of the topic), see
    `checks`. Most producers need no checks. `replicator`: how those of a replicator are told apart, see `replicated`.
    """

    session: ProducerClient
    producer_id: int
    name: str
    topic: PublishedTopic
    epoch: int
    access_mode: AccessMode = AccessMode.SHARED
    encrypted: bool = False
    metadata: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    user_provided_name: bool = False
    connected_at_ms: int = 0
    schema_version: bytes = b""
    charged_bytes: int = 0  # charged to the sessions' memory, see `session_memory`
    topic_epoch: int | None = None
    careful: bool = False
    replicator: Replicator | None = None  # None: it is no replicator
    messages_in: int = 0
    bytes_in: int = 0
    seen: Seen = NOT_SEEN  # by usage records
    waits: Episode[PublishLimit] | None = None  # for limits; None until it waits for the first time

    @property
    def address(self) -> str:
        """Address of its client, as `host:port`."""
        return self.session.connection.peer
