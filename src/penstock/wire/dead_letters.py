# SPDX-License-Identifier: Apache-2.0
"""Dead letters: what clients add to a message that they give up, and the message as it was before.

Where: `penstock redrive`, and the route of the admin port that does the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.core.names import parent_text

if TYPE_CHECKING:
    from penstock.wire.messages import Message

# Who sends dead letters once more acknowledges them in this subscription.
SUBSCRIPTION: Final = "penstock-redrive"
# What clients add to a message on its way to a dead letter topic, and read to count deliveries.
_REAL_TOPIC: Final = "REAL_TOPIC"
_ADDED: Final = frozenset(
    {_REAL_TOPIC, "ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME", "REAL_SUBSCRIPTION", "RETRY_TOPIC", "RECONSUMETIMES",
     "DELAY_TIME"}
)  # fmt: skip


def origin(message: Message) -> str | None:
    """Return the topic that a dead letter came from; None if it does not say."""
    topic = message.properties.get(_REAL_TOPIC)
    # Clients name the partition that they had it from; the key decides anew.
    return parent_text(topic) if topic is not None else None


def as_it_was(message: Message) -> Message:
    """Return the message without what was added."""
    return replace(message, properties={key: one for key, one in message.properties.items() if key not in _ADDED})
