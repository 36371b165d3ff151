# SPDX-License-Identifier: Apache-2.0
"""Operations on topics of other brokers of the cluster, asked for as administrators do.

Why the admin API: every operation on a topic is one of its requests, so brokers need no second protocol.
Where: operations on a namespace, a tenant or a partitioned topic do their part here, and ask the others for the rest.
An operation on one topic of another broker is passed on whole, by the admin port.

Each request says who asks. Operations of an administrator ask `on_behalf` of that caller, whom the others authorize
again. What follows from an operation, such as deleting the partitions of a deleted topic, is the broker's own work.

When another broker has changed something, the change may be on its way to this one. It is waited for, so that who asks
the same broker again finds what it was told.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, quote_plus

from penstock.core.caller import CALLER, BrokerItself
from penstock.core.errors import MetadataFailed, NotFound, PenstockError, ServiceNotReady
from penstock.core.membership import alone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from penstock.core.caller import Asker
    from penstock.core.membership import Membership
    from penstock.core.names import NamespaceName, TopicName


# A broker reads from memory, or from its disk, in milliseconds. One that is frozen is suspect before this is over.
PART_S: Final = 5.0
# So many such requests are made to one broker at a time: each has a connection, and clients may cause thousands.
PARTS_AT_ONCE: Final = 16


class Requests(Protocol):
    """Requests to the admin APIs of other brokers."""

    async def ask(self, broker: int, method: str, target: str, value: object = None, *, by: Asker) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON of the answer. Raises the error that the broker answered with, or ServiceNotReady."""


class Elsewhere:
    """The other brokers. All methods are called on the event loop."""

    def __init__(
        self,
        membership: Membership,
        requests: Requests | None,
        catch_up: Callable[[], Awaitable[None]] | None = None,
        asker: Callable[[], Asker] | None = None,
    ) -> None:
        """Create the way to the brokers of `membership`.

        Args:
            membership: this broker and the others.
            requests: None if nobody may be asked.
            catch_up: waits until this broker has all metadata that was stored before; None: it always has.
            asker: who asks; None: this broker itself.
        """
        self._membership = membership
        self._requests = requests
        self._catch_up = catch_up
        self._asker = asker or (lambda: BrokerItself(membership.own))
        self._turns: defaultdict[int, asyncio.Semaphore] = defaultdict(partial(asyncio.Semaphore, PARTS_AT_ONCE))

    def on_behalf(self) -> Elsewhere:
        """Return the same for operations of administrators: it asks for the caller of the current request."""
        return Elsewhere(self._membership, self._requests, self._catch_up, CALLER.get)

    async def ask(self, broker: int, method: str, target: str, value: object = None) -> Any:  # noqa: ANN401 - JSON
        """As `Requests.ask`; a broker that is being started answers when it serves, one that is down is not asked."""
        if self._requests is None:
            raise ServiceNotReady(f"broker {broker} serves that; try again")
        member = self._membership.members.get(broker)
        if member is not None and not member.allows.lookups:
            raise ServiceNotReady(f"broker {broker} {member.allows.problem}")
        answer = await self._requests.ask(broker, method, target, value, by=self._asker())
        if method != "GET":
            await self.catch_up()
        return answer

    def has(self, broker: int) -> bool:
        """Whether this is the number of another broker, which may be asked."""
        members = self._membership.members
        return self._requests is not None and broker != self._membership.own and broker in members

    async def catch_up(self) -> None:
        """Wait until this broker knows what another one has stored. What was done stays done if that takes too long."""
        if self._catch_up is not None:
            with suppress(MetadataFailed, TimeoutError):
                async with asyncio.timeout(PART_S):
                    await self._catch_up()

    def running(self, brokers: Collection[int] | None = None) -> list[int]:
        """Return those of these brokers, or of all, that have topics loaded, whether they answer or not."""
        running = [one.number for one in self._membership.members.values() if one.allows.leased]
        return [number for number in running if brokers is None or number in brokers]

    async def ask_all(self, method: str, target: str, brokers: Iterable[int]) -> None:
        """Ask these brokers to do their part, all at once; one that does not serve is not waited for.

        Raises, after all have answered: the error that one answered with; else ServiceNotReady, which names those that
        did not do their part.
        """
        others = sorted(set(brokers) - {self._membership.own}) if self._requests is not None else []
        asked = (self._ask_serving(number, method, target) for number in others)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        silent = [f"broker {number}" for number, one in zip(others, outcomes, strict=True) if _is_silence(one)]
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not _is_silence(outcome):
                raise outcome
        if silent:
            raise ServiceNotReady(
                f"it is done, but not for the topics of {', '.join(silent)}, which did not answer: ask again when "
                f"{'it serves' if len(silent) == 1 else 'they serve'}"
            )

    async def ask_each(self, method: str, target: str) -> list[Any]:
        """Return the answers of all other brokers. Raises as `ask`: ServiceNotReady if one of them does not serve."""
        others = sorted(self._membership.members.keys() - {self._membership.own}) if self._requests is not None else []
        return await asyncio.gather(*(self._ask_serving(number, method, target) for number in others))

    async def _ask_serving(self, broker: int, method: str, target: str, value: object = None) -> Any:  # noqa: ANN401
        """As `ask`. Raises ServiceNotReady, at once if the broker does not serve."""
        member = self._membership.members.get(broker)
        if member is not None and not member.allows.serves:
            raise ServiceNotReady(f"broker {broker} is {member.state.value}")
        return await self.ask(broker, method, target, value)

    async def read(self, broker: int, target: str) -> Any:  # noqa: ANN401 - JSON
        """Return the answer to a GET that is a part of a larger one, which is better given without it than late.

        Raises as `part`.
        """
        return await self.part(broker, "GET", target)

    async def part(
        self, broker: int, method: str, target: str, value: object = None, *, may_start: bool = False
    ) -> Any:  # noqa: ANN401 - JSON
        """As `ask`, for a part of something that does not wait long for one broker.

        Raises the error that the broker answered with, or ServiceNotReady, at once if the broker does not serve; with
        `may_start`, one that is being started is waited for, for as long as one that does not answer.
        """
        ask = self.ask if may_start else self._ask_serving
        try:
            async with asyncio.timeout(PART_S), self._turns[broker]:
                return await ask(broker, method, target, value)
        except TimeoutError as error:
            raise ServiceNotReady(f"broker {broker} did not answer within {PART_S:g} s") from error

    async def answers(self, target: str) -> tuple[list[Any], list[int]]:
        """Return the answers of all other brokers to a GET, without those that know nothing (404).

        Also the numbers of the brokers that do not answer, or do not serve.
        """
        others = sorted(self._membership.members.keys() - {self._membership.own}) if self._requests is not None else []
        outcomes = await asyncio.gather(*(self.read(number, target) for number in others), return_exceptions=True)
        found, missing = [], []
        for number, outcome in zip(others, outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                found.append(outcome)
            elif not isinstance(outcome, PenstockError):
                raise outcome
            elif not isinstance(outcome, NotFound):
                missing.append(number)
        return found, missing


def _is_silence(outcome: object) -> bool:
    return isinstance(outcome, ServiceNotReady)


NOWHERE: Final = Elsewhere(alone(), None)


def of_topic(name: TopicName, rest: str = "") -> str:
    """Return the path of a topic, followed by `rest`."""
    return f"/admin/v2/{name.domain}/{quote(name.tenant)}/{quote(name.namespace)}/{quote_plus(name.local)}{rest}"


def of_namespace(name: NamespaceName, rest: str = "") -> str:
    """Return the path of a namespace, followed by `rest`."""
    return f"/admin/v2/namespaces/{quote(name.tenant)}/{quote(name.namespace)}{rest}"


def of_subscription(name: str) -> str:
    """Return the name of a subscription as it is in a path."""
    return quote(quote_plus(name), safe="")
