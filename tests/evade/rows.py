# SPDX-License-Identifier: Apache-2.0
"""What all limiters of plays are: a row that says who pays and how much may pass, and plays against it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.core.names import NamespaceName
from penstock.core.units import KIB, NS_PER_S
from penstock.governance.loans import COLLECTED_NS
from penstock.governance.quota_exchange import EARLY_PER_INTERVAL, ExchangeOptions
from penstock.governance.resource_group import BURST_NS
from tests.evade.world import GROUP, NAMESPACES, TENANT, Place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from penstock.governance.resource_group import GroupRates
    from tests.evade.counting import Verdict
    from tests.evade.moves import Moves
    from tests.evade.world import World

# Per second; and how long a play lasts, in virtual seconds.
RATE: Final = 50
BYTES: Final = 10 * KIB
LASTS_S: Final = 3.0
_GROUP_BURST_S: Final = BURST_NS / NS_PER_S
# What a broker lends is what it did not use between two early reports, and in the moment in which it is collected.
_LENT_S: Final = (ExchangeOptions().interval_ns / EARLY_PER_INTERVAL + COLLECTED_NS) / NS_PER_S

ONE, SEVERAL, PROXY = Place(), Place(brokers=3), Place(proxy=True)
EVERYWHERE: Final = (ONE, SEVERAL, PROXY)
# What hands of all kinds choose.
WHO: Final = ("topics", "spread", "namespaces", "hands", "addresses", "visits", "leaves", "timing", "deeds")


@dataclass(frozen=True)
class Limiter:
    """One row.

    Attributes:
        name: as in `make evade LIMITER=...`.
        payer: who pays.
        burst: what may pass at once, in words.
        tries: the choices that a play makes.
        play: plays; returns the worst that it saw.
        settings: of the broker.
        places: where it is played.
    """

    name: str
    payer: str
    burst: str
    tries: tuple[str, ...]
    play: Callable[[World, Moves, Random], Awaitable[Verdict]]
    settings: dict[str, Any] = field(default_factory=dict)
    places: tuple[Place, ...] = EVERYWHERE


async def put_in_group(world: World, rates: GroupRates, *, of_tenant: bool = False) -> None:
    """Put both namespaces, or their tenant, into the group; of a proxy, into its own."""
    if world.proxy is not None:
        world.limit_at_proxy(rates)
        return
    amounts = {
        "publishRateInMsgs": rates.publish.messages,
        "publishRateInBytes": rates.publish.bytes,
        "dispatchRateInMsgs": rates.dispatch.messages,
        "dispatchRateInBytes": rates.dispatch.bytes,
    }
    groups = world.admin.resource_groups
    await groups.put(GROUP, {name: int(amount) for name, amount in amounts.items() if amount is not None})
    if of_tenant:
        await groups.attach_tenant(TENANT, GROUP)
        return
    for namespace in NAMESPACES:
        await groups.attach_namespace(NamespaceName.parse(namespace), GROUP)


def group_burst(world: World, rate: float, entry: float) -> float:
    """The burst of a group: its own, what is lent, and the rest of the entry that uses it up, on each broker."""
    lent_s = _LENT_S if len(world.harnesses) > 1 else 0.0
    return rate * (_GROUP_BURST_S + lent_s) + entry * len(world.harnesses)


async def set_policy(world: World, policy: str, value: object) -> None:
    for namespace in NAMESPACES:
        await world.harnesses[0].broker.policies.set_namespace(namespace, policy, value)
