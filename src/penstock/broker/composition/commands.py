# SPDX-License-Identifier: Apache-2.0
"""Builds the command handlers, passing each part what it uses.

Where: `app` gives listeners `open_session` of the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.access.reports_only import ReportsOnly
from penstock.broker.commands.commands import Commands
from penstock.broker.commands.consumers import Consumers
from penstock.broker.commands.handshake import Handshake
from penstock.broker.commands.lookups import Discovery, LastMessage
from penstock.broker.commands.producers import Producers
from penstock.broker.commands.schemas import Schemas
from penstock.broker.commands.transactions import Transactions
from penstock.wire import codec

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Type = codec.BaseCommand.Type
# What brokers send as clients of each other: enough to report on the usage topic, and to hear the reports there.
PEER_COMMANDS: Final = frozenset({Type.CONNECT, Type.PRODUCER, Type.SUBSCRIBE, Type.PING, Type.PONG})


def commands(broker: Broker, *, for_peers: bool = False) -> Commands:
    """Build them; `for_peers`: for clients that are other brokers, which use the usage topic and nothing else."""
    access = ReportsOnly(lambda: broker.limits.resource_usage_publish_topic_name) if for_peers else broker.access
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
            migration=broker.migration,
            transactions=broker.limits.transactions,
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
            cluster=broker.limits.cluster_name,
            migration=broker.migration,
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
            migration=broker.migration,
        ),
        last_message=LastMessage(log=broker.log, reads=reads),
        schemas=Schemas(registry=broker.schemas, topics=broker.topics),
        transactions=Transactions(broker.transactions),
        coordinator=broker.transactions,
        access=access,
        limits=limits,
        clock=clock,
        loop=broker.loop,
        reads=reads,
        publishing=broker.publish_services,
        commands_memory=broker.commands_memory,
        sessions_memory=memory,
        listings=broker.listings,
        only=PEER_COMMANDS if for_peers else None,
    )
