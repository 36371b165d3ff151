# SPDX-License-Identifier: Apache-2.0
"""Builds the command handlers, passing each part what it uses.

Where: `app` gives listeners `open_session` of the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.commands.commands import Commands
from penstock.broker.commands.consumers import Consumers
from penstock.broker.commands.discovery import Discovery
from penstock.broker.commands.handshake import Handshake
from penstock.broker.commands.last_message import LastMessage
from penstock.broker.commands.producers import Producers
from penstock.broker.commands.schemas import Schemas

if TYPE_CHECKING:
    from penstock.broker.access import Access
    from penstock.broker.broker import Broker


def commands(broker: Broker, access: Access | None = None) -> Commands:
    """Args: access: of clients that are other brokers; None: that of the broker."""
    access = access or broker.access
    clock, reads, memory, limits = broker.clock, broker.reads, broker.sessions_memory, broker.limits_in_force
    return Commands(
        sessions=broker.sessions,
        handshake=Handshake(access=access, limits=limits, clock=clock),
        discovery=Discovery(
            lookups=broker.lookups,
            resources=broker.resources,
            partitions=broker.partitions,
            shared_listings=broker.shared_listings,
            memory=memory,
            limits=limits,
            clock=clock,
            stopping=lambda: broker.stopping,
            check_serving=broker.check_lookup,
            placement=broker.placement,
        ),
        producers=Producers(
            topics=broker.topics,
            quotas=broker.quotas,
            schemas=broker.schemas,
            deduplication=broker.deduplication,
            states=broker.states,
            rates=broker.rates,
            reads=reads,
            memory=memory,
            clock=clock,
            check_writable=broker.check_writable,
            names=broker.producer_names,
        ),
        consumers=Consumers(
            topics=broker.topics,
            schemas=broker.schemas,
            rates=broker.rates,
            changes=broker.changes,
            reads=reads,
            store=broker.subscription_store,
            memory=memory,
            clock=clock,
            limits=limits,
        ),
        last_message=LastMessage(log=broker.log, reads=reads),
        schemas=Schemas(registry=broker.schemas, topics=broker.topics),
        access=access,
        limits=limits,
        clock=clock,
        loop=broker.loop,
        reads=reads,
        publishing=broker.publish_services,
        commands_memory=broker.commands_memory,
        sessions_memory=memory,
        listings=broker.listings,
    )
