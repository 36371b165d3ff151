# SPDX-License-Identifier: Apache-2.0
"""Membership: the brokers of a cluster, which of them serve, and where.

Why: a broker redirects clients to the owner of a topic, so it must know the owner's addresses and whether it serves.
Where: `SharedMembership` is fed by the metadata link of a broker under a supervisor; a broker that runs alone has
`alone`. Those that share quotas need less: `MemberNames`, from the membership of brokers (`BrokerNames`) or from
ZooKeeper (`net.zookeeper`), which is also for processes without numbers, on any machine.

All methods and listeners are called on the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.core.broker_states import ALLOWS, BrokerState
from penstock.core.service_urls import Addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.core.broker_states import Allows


@dataclass(frozen=True, slots=True)
class Member:
    """One broker of the cluster."""

    number: int
    state: BrokerState
    # As last announced; empty if the broker was never ready.
    addresses: Addresses = field(default_factory=Addresses)

    @property
    def allows(self) -> Allows:
        """Uses that its state allows."""
        return ALLOWS[self.state]


class Membership(Protocol):
    """All brokers of a cluster, as one of them knows them."""

    @property
    def own(self) -> int:
        """The number of this broker."""

    @property
    def members(self) -> Mapping[int, Member]:
        """All brokers by number."""

    def announce(self, addresses: Addresses) -> None:
        """Tell all brokers that this one is ready at these addresses."""

    def renew(self, state: BrokerState, now_ns: int) -> None:
        """Tell the supervisor that this broker works, and which of the states `SAID` it is in."""

    def age_ns(self, now_ns: int) -> int:
        """How old `members` may be: since when the supervisor owes an answer to `renew`; 0 if it owes none."""

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of `members`."""


class SharedMembership:
    """Membership that someone else keeps: `update` sets what is known, `heard` says that it is up to date."""

    def __init__(
        self, own: int, announce: Callable[[Addresses], None], renew: Callable[[BrokerState], None] | None = None
    ) -> None:
        """Begin with this broker alone.

        Args:
            own: the number of this broker.
            announce: passes this broker's addresses on, to come back by `update`.
            renew: passes on that this broker works, to come back by `heard`; None: nobody wants to know.
        """
        self.own = own
        self._renew = renew
        self._asked_ns: int | None = None  # when the supervisor was told what it has not answered
        self.members: Mapping[int, Member] = {own: Member(own, BrokerState.STARTING)}
        self._announce = announce
        self._listeners: list[Callable[[], None]] = []

    def announce(self, addresses: Addresses) -> None:
        self._announce(addresses)

    def renew(self, state: BrokerState, now_ns: int) -> None:
        if self._renew is not None:
            self._asked_ns = now_ns if self._asked_ns is None else self._asked_ns
            self._renew(state)

    def heard(self) -> None:
        """The supervisor has answered: `members` is up to date."""
        self._asked_ns = None

    def age_ns(self, now_ns: int) -> int:
        return now_ns - self._asked_ns if self._asked_ns is not None else 0

    def listen(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def update(self, members: Mapping[int, Member]) -> None:
        """Set the brokers of the cluster, and call the listeners if that changes anything."""
        if members != self.members:
            self.members = members
            for changed in self._listeners:
                changed()


class MemberNames(Protocol):
    """The processes that share quotas, by the names in their usage reports."""

    @property
    def own(self) -> str:
        """The name of this process."""

    @property
    def names(self) -> frozenset[str]:
        """All members. Without `own`, the others do not count on this process, and ignore its reports."""

    def hear(self, name: str, until_ns: int) -> None:
        """A signed report of a member arrived that counts; until then it is evidence that the member lives."""

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of `names`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The state of a process's registration, for metrics, health and people.

    Attributes:
        registered_ms: the wall clock when the process registered, in its present session; None: it is not registered.
        problem: why it is not, and what follows; None if it is.
        members: how many processes are members now, this one included.
        losses: how often the session was lost.
        ignored: what is registered and is no process, by reason.
    """

    registered_ms: int | None
    problem: str | None
    members: int
    losses: int
    ignored: Mapping[str, int]


class Registry(MemberNames, Protocol):
    """`MemberNames` by registration."""

    @property
    def registration(self) -> Registration:
        """The state of the own registration."""


class BrokerNames:
    """`MemberNames` of the brokers of a cluster: those that serve."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    @property
    def own(self) -> str:
        return broker_name(self._membership.own)

    @property
    def names(self) -> frozenset[str]:
        members = self._membership.members.values()
        return frozenset(broker_name(one.number) for one in members if one.allows.serves)

    def hear(self, name: str, until_ns: int) -> None:
        """Do nothing: the supervisor that began the brokers knows better."""

    def listen(self, changed: Callable[[], None]) -> None:
        self._membership.listen(changed)


class InBoth:
    """`MemberNames` that two sources agree on: who is lost to one of them is lost."""

    def __init__(self, first: MemberNames, second: MemberNames) -> None:
        assert first.own == second.own
        self._both = (first, second)

    @property
    def own(self) -> str:
        return self._both[0].own

    @property
    def names(self) -> frozenset[str]:
        first, second = self._both
        return first.names & second.names

    def hear(self, name: str, until_ns: int) -> None:
        for one in self._both:
            one.hear(name, until_ns)

    def listen(self, changed: Callable[[], None]) -> None:
        for one in self._both:
            one.listen(changed)


def broker_name(number: int) -> str:
    """Return the name of a broker in reports and metrics."""
    return f"broker-{number}"


def alone(number: int = 0) -> SharedMembership:
    """The membership of a broker that has no others."""
    membership = SharedMembership(number, lambda addresses: membership.update({number: ready(number, addresses)}))
    return membership


def ready(number: int, addresses: Addresses) -> Member:
    """A broker that serves at these addresses."""
    return Member(number, BrokerState.READY, addresses)
