# SPDX-License-Identifier: Apache-2.0
"""Brokers with many topics to list, clients that ask for them, and what listings hold meanwhile.

Where: tests of listings, of watchers and of the admin port; and whoever wants to know which topics there are.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock.broker.topics.listing import Mode, Wanted
from penstock.core.units import MIB
from penstock.net.listing_memory import NOBODY, LimitType, TopicListLimits
from penstock.testing.client import Type, frame
from tests.net.harness import Client, Harness, running, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.broker.broker import Broker
    from penstock.core.names import NamespaceName
    from penstock.net.listing_memory import Permit

HEAP, DIRECT = LimitType.HEAP_MEMORY, LimitType.DIRECT_MEMORY
NAMESPACE = "public/listed"
LIMITS = TopicListLimits(heap_bytes_max=MIB, direct_bytes_max=MIB)


async def list_topics(
    broker: Broker, namespace: NamespaceName, *, persistent: bool = True, system: bool = False
) -> list[str]:
    """Full names, partitions one by one. Raises TenantNotFound, NamespaceNotFound."""
    broker.resources.check_namespace(namespace)
    mode = Mode.PERSISTENT if persistent else Mode.NON_PERSISTENT
    wanted = Wanted(str(namespace), mode, system=system)
    async with broker.shared_listings.of(wanted).asked(NOBODY, None) as listing:
        return list(listing.names())


def full_name(number: int, length: int = 100) -> str:
    """One of many topics of NAMESPACE."""
    name = f"persistent://{NAMESPACE}/t-{number:06d}-"
    return name + (length - len(name)) * "x"


@asynccontextmanager
async def listed(
    directory: Path,
    count: int,
    limits: TopicListLimits = LIMITS,
    *,
    length: int = 100,
    **others: Any,  # noqa: ANN401
) -> AsyncIterator[tuple[Harness, Client, list[str]]]:
    """A broker with so many topics in NAMESPACE, a client, and the topics' names.

    They exist for the directory alone: what they are is nothing to those who list them.
    """
    async with running(directory, listings=limits, **others) as harness:
        names = [full_name(number, length) for number in range(count)]
        for name in names:
            harness.broker.topics.add_name(name)
        yield harness, await Client.connected(harness.port), names
        # Whatever came of it, each request has left.
        await until(lambda: harness.broker.lookups.inside == 0)


def acquired(harness: Harness, kind: LimitType) -> int:
    """How many bytes of this memory are held."""
    return harness.broker.listings.limiter(kind).acquired


def waiting(harness: Harness, kind: LimitType) -> int:
    """How many requests wait for it."""
    return harness.broker.listings.limiter(kind).queue_size


@asynccontextmanager
async def all_taken(harness: Harness, kind: LimitType) -> AsyncIterator[Permit]:
    """Nobody gets any of this memory before the end of the block, or the release of the permit."""
    limiter = harness.broker.listings
    async with limiter.with_acquired_permits(limiter.limiter(kind).available, kind) as permit:
        yield permit


async def list_sizes(harness: Harness) -> tuple[int, int]:
    """What the list of NAMESPACE takes assembled, and written."""
    async with harness.broker.shared_listings.of(Wanted(NAMESPACE)).asked(NOBODY, None) as listing:
        return listing.assembled_bytes, listing.written_bytes


def ask(client: Client, request_id: int = 1, **fields: Any) -> None:  # noqa: ANN401
    """Ask for the topics of NAMESPACE."""
    fields.setdefault("namespace", NAMESPACE)
    client.write(frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=request_id, **fields))


async def answer(client: Client) -> Any:  # noqa: ANN401
    """What came of it."""
    return (await client.expect(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)).getTopicsOfNamespaceResponse


async def refusal(client: Client) -> Any:  # noqa: ANN401
    """Why nothing came of it."""
    return (await client.expect(Type.ERROR)).error
