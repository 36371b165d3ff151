# SPDX-License-Identifier: Apache-2.0
"""Answers why somebody waits, and how much waits for each reason: what brokers and proxies do alike.

Why one walk: an explanation and the metric of holds say the same, because both count what the same walk finds.
Where: `broker.stats.why` and `proxy.why` walk over what they have; `findings` makes sentences of the holds.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import aclosing
from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from penstock.core.errors import NotFound
from penstock.stats.findings import FINDINGS_MAX, explanation
from penstock.stats.limit_holds import of_listings, of_rows

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.core.names import NamespaceName, TopicName
    from penstock.governance.budget import BudgetRow
    from penstock.governance.holds import Hold, HoldKind
    from penstock.net.listing_memory import Owner, TopicListMemoryLimiter
    from penstock.stats.findings import Json

# Topics, producers, subscriptions and clients looked at, or holds found, in one turn of the loop: a hold takes 20 µs.
ROWS_PER_TURN: Final = 50


class Seen(Enum):
    """Kinds of things that an answer counts; OTHER is not shown."""

    PRODUCER = auto()
    SUBSCRIPTION = auto()
    CLIENT = auto()
    OTHER = auto()


# What was looked at, and its holds.
Walk: TypeAlias = "AsyncGenerator[tuple[Seen, Iterable[Hold]], None]"


class Question(NamedTuple):
    """A question about what waits.

    Attributes:
        of: what is asked for, for people.
        path: of the route that answers it, below `/admin/v3/why/`.
        concerns: whether a topic is asked for.
        lists: whether whoever lists topics is asked for.
        client: the name of a producer, or the address of a client of a proxy.
        quotas: whether backlog quotas are compared with backlogs, which may read the disk.
    """

    of: str = "everything"
    path: str = ""
    concerns: Callable[[TopicName], bool] = lambda _topic: True
    lists: Callable[[Owner], bool] = lambda _owner: False
    client: str | None = None
    quotas: bool = True


_EVERYTHING: Final = Question(lists=lambda _owner: True, quotas=False)


class Explanations(ABC):
    """Explanations. All methods are called on the event loop, and raise NotFound for what does not exist."""

    def __init__(
        self, clock: Clock, listings: TopicListMemoryLimiter, budget: Iterable[BudgetRow], *, used_only: bool = False
    ) -> None:
        """Receive what this reads. Args: used_only: what no client here uses is not found."""
        self._clock = clock
        self._listings = listings
        self._budget = budget
        self._used_only = used_only
        # One at a time: sixty at once, each with its portion, would be sixty portions in a turn of the loop.
        self._one = asyncio.Lock()

    async def of_everything(self) -> Json:
        """Explain why any clients wait. Backlogs are not compared with their quotas, which may read the disk."""
        return await self._answer(_EVERYTHING)

    async def of_tenant(self, tenant: str) -> Json:
        """Explain why clients wait that use topics of a tenant, or list them."""
        path = f"tenants/{quote(tenant, safe='')}"
        mine = Question(f"tenant {tenant}", path, lambda topic: topic.tenant == tenant)
        return await self._answer(mine._replace(lists=lambda owner: owner.tenant == tenant))

    async def of_namespace(self, namespace: NamespaceName) -> Json:
        """Explain why clients wait that use topics of a namespace."""
        path = f"namespaces/{namespace}"
        return await self._answer(
            Question(f"namespace {namespace}", path, lambda topic: topic.namespace_name == namespace)
        )

    async def of_topic(self, name: TopicName) -> Json:
        """Explain why clients wait that use a topic, or its partitions."""
        path = f"{name.domain}/{name.tenant}/{name.namespace}/{quote(name.local, safe='')}"
        return await self._answer(Question(f"topic {name}", path, lambda topic: name in {topic, topic.parent}))

    async def counts(self) -> Mapping[HoldKind, int]:
        """Count what waits now, by kind. Producers that backlog quotas refuse, or would refuse, are not counted."""
        counts = Counter(hold.kind for hold in (*of_rows(self._budget), *self._of_listings(_EVERYTHING.lists)))

        def take(_kind: Seen, some: Sequence[Hold]) -> bool:
            if some:
                counts.update(hold.kind for hold in some)
            return True

        await self._look(_EVERYTHING, take)
        return counts

    @abstractmethod
    def _walk(self, question: Question) -> Walk:
        """Walk over everything that the question concerns."""

    async def _answer(self, question: Question) -> Json:
        holds: list[Hold] = []
        seen: Counter[Seen] = Counter()

        def take(kind: Seen, some: Sequence[Hold]) -> bool:
            seen[kind] += 1
            holds.extend(some)
            return len(holds) <= FINDINGS_MAX

        await self._look(question, take)
        holds += self._of_listings(question.lists)
        del seen[Seen.OTHER]
        if self._used_only and question is not _EVERYTHING and not (holds or seen):
            raise NotFound(f"no client of this proxy uses {question.of}")
        return explanation(
            question.of,
            (*of_rows(self._budget), *holds),
            self._clock.monotonic_ns(),
            producers=seen[Seen.PRODUCER],
            subscriptions=seen[Seen.SUBSCRIPTION],
        )

    async def _look(self, question: Question, take: Callable[[Seen, Sequence[Hold]], bool]) -> None:
        """Walk in turns of the loop, until `take` returns False.

        A subscription may have any number of consumers: its first holds are enough.
        """
        rows = 0
        async with self._one, aclosing(self._walk(question)) as walk:
            async for kind, some in walk:
                holds = list(islice(some, FINDINGS_MAX + 1)) if some != () else ()
                if not take(kind, holds):
                    break
                rows += 1 + len(holds)
                if rows >= ROWS_PER_TURN:
                    rows = 0
                    await asyncio.sleep(0)

    def _of_listings(self, concerns: Callable[[Owner], bool]) -> Iterable[Hold]:
        return of_listings(self._listings, concerns, self._clock.monotonic_ns())
