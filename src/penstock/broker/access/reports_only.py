# SPDX-License-Identifier: Apache-2.0
"""Permissions of brokers as clients of each other: to publish usage reports, and to hear those of the others.

Why so little: a broker needs no more, and whatever a connection allows is what it gives away if it ever leads to
somebody else. Where: the sessions of connections from other brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.access.access import Access
from penstock.broker.access.actions import Action
from penstock.core.errors import AuthorizationFailed
from penstock.core.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.access.authorization import Resource

_ACTIONS: Final = frozenset({Action.PRODUCE, Action.CONSUME})


class ReportsOnly(Access):
    """Allows to use one topic. Nobody authenticates: the connection itself proves that a broker is there."""

    of_brokers = True

    def __init__(self, usage_topic: Callable[[], str]) -> None:
        """Args: usage_topic: returns its full name."""
        self._usage_topic = usage_topic

    def require(
        self,
        role: str | None,
        original_role: str | None,
        action: Action,
        resource: Resource,
        *,
        subscription: str | None = None,
        refusal: str | None = None,
    ) -> None:
        del role, original_role, subscription, refusal
        if action not in _ACTIONS or resource != TopicName.parse(self._usage_topic()):
            raise AuthorizationFailed(f"brokers use {self._usage_topic()} as clients of each other, and not {resource}")
