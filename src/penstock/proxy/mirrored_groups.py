# SPDX-License-Identifier: Apache-2.0
"""Resource groups as the cluster behind a proxy defines them, instead of a file of the proxies' own.

A cycle asks for the list of groups, then for some groups and some namespaces in turns. Only namespaces whose topics
clients here use are asked for; a new one at once, and not again if it was asked for lately. What could not be asked
stays as it was known.
Where: a proxy with `resourceGroupsSource=upstream`.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from penstock.core.names import NamespaceName
from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.proxy.cluster_admin import MISSING, NoAnswer
from penstock.proxy.groups import Definitions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.core.names import TopicName
    from penstock.proxy.cluster_admin import AdminPolls
    from penstock.proxy.groups import ProxyGroups

log = logging.getLogger(__name__)

CYCLE_S: Final = 10.0
# Questions of one cycle about groups, and about namespaces; and at a time.
ASKED_PER_CYCLE: Final = 100
AT_A_TIME: Final = 4
# Others have no group here.
GROUPS_MAX: Final = 10_000
NAMESPACES_MAX: Final = 10_000
# Namespaces that are remembered not to exist.
MISSING_MAX: Final = 1_000
# Bounds of what a cluster says.
_NAME_CHARS_MAX: Final = 1_024
_RATE_MAX: Final = 2**63 - 1
# As Pulsar's ResourceGroup has them.
_RATES: Final = ("publishRateInMsgs", "publishRateInBytes", "dispatchRateInMsgs", "dispatchRateInBytes")


class MirroredGroups:
    """Asks the cluster, and defines what it says.

    Attributes:
        failures: cycles in which a question had no answer.
    """

    def __init__(self, polls: AdminPolls, groups: ProxyGroups, loop: asyncio.AbstractEventLoop) -> None:
        self.failures = 0
        self._polls = polls
        self._groups = groups
        self._loop = loop
        self._quotas: dict[str, GroupRates] = {}
        self._of_namespaces: dict[str, str | None] = {}  # None: it has no group
        self._names: list[str] = []  # of groups to ask for in this round, last first
        self._turns: list[str] = []  # namespaces, the same
        self._wanted: dict[str, None] = {}  # namespaces that are new
        self._missing: set[str] = set()  # those that did not exist, in this cycle
        self._woken = asyncio.Event()
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Ask for all groups, so that clients find them; then go on in the background."""
        self._groups.is_known = self.is_known
        await self._cycle()
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def is_known(self, topic: TopicName) -> bool:
        """Return whether it is known which group the namespace of a topic has; if not, it is asked for."""
        namespace = str(topic.namespace_name)
        if namespace in self._of_namespaces:
            return True
        if len(self._of_namespaces) >= NAMESPACES_MAX:
            return True
        if namespace not in self._missing and len(self._wanted) < NAMESPACES_MAX:
            self._wanted[namespace] = None
            self._woken.set()
        return False

    async def _run(self) -> None:
        next_s = self._loop.time() + CYCLE_S
        while True:
            try:
                async with asyncio.timeout_at(next_s):
                    await self._woken.wait()
            except TimeoutError:
                next_s = self._loop.time() + CYCLE_S
                whole = True
            else:
                whole = False
            self._woken.clear()
            try:
                await self._cycle(whole=whole)
            except Exception:
                self.failures += 1
                log.exception("resource groups of the cluster were not read")

    async def _cycle(self, *, whole: bool = True) -> None:
        failed: list[NoAnswer] = []
        new = list(islice(self._wanted, ASKED_PER_CYCLE))
        wanted = list(new)
        if whole:
            self._missing.clear()
            try:
                await self._list()
            except NoAnswer as error:
                failed.append(error)
            asked, self._names = self._names[-ASKED_PER_CYCLE:], self._names[:-ASKED_PER_CYCLE]
            await self._each(asked, self._ask_group, failed)
            if not self._turns:
                self._turns = list(self._of_namespaces)
            turn, self._turns = self._turns[-ASKED_PER_CYCLE:], self._turns[:-ASKED_PER_CYCLE]
            wanted += [one for one in turn if one not in wanted]
        await self._each(wanted, self._ask_namespace, failed)
        for namespace in new:
            if namespace in self._of_namespaces or namespace in self._missing:
                del self._wanted[namespace]
        if self._wanted and not failed:
            self._woken.set()
        if not self._define() and new:
            self._groups.look_again()
        if failed:
            self.failures += 1
            if not self._failing:
                log.warning("resource groups of the cluster stay as they were known: %s", failed[0])
        elif self._failing:
            log.info("resource groups of the cluster are known again")
        self._failing = bool(failed)

    async def _each(self, names: Iterable[str], ask: Any, failed: list[NoAnswer]) -> None:  # noqa: ANN401
        waiting = iter(list(names))

        async def work() -> None:
            for name in waiting:
                try:
                    await ask(name)
                except NoAnswer as error:
                    failed.append(error)
                    return  # The others of this cycle would probably wait as long.

        await asyncio.gather(*(work() for _ in range(AT_A_TIME)))

    async def _list(self) -> None:
        said = await self._polls.get("/admin/v2/resourcegroups")
        if not isinstance(said, list):
            raise NoAnswer("/admin/v2/resourcegroups: want a list of names")
        names = [one for one in said if isinstance(one, str) and 0 < len(one) <= _NAME_CHARS_MAX]
        if len(names) > GROUPS_MAX:
            log.warning("the cluster has %d resource groups; %d of them are enforced", len(names), GROUPS_MAX)
        present = dict.fromkeys(names[:GROUPS_MAX])
        self._quotas = {name: quota for name, quota in self._quotas.items() if name in present}
        if not self._names:
            self._names = list(present)
        new = [name for name in present if name not in self._quotas]
        # New ones are next.
        self._names = [*(name for name in self._names if name in present and name in self._quotas), *new]

    async def _ask_group(self, name: str) -> None:
        said = await self._polls.get(f"/admin/v2/resourcegroups/{quote(name, safe='')}")
        if not isinstance(said, dict):
            self._quotas.pop(name, None)
            return
        rates = [_rate(said.get(member)) for member in _RATES]
        self._quotas[name] = GroupRates(GroupRate(rates[0], rates[1]), GroupRate(rates[2], rates[3]))

    async def _ask_namespace(self, namespace: str) -> None:
        name = NamespaceName.parse(namespace)
        path = f"{quote(name.tenant, safe='')}/{quote(name.namespace, safe='')}"
        said = await self._polls.get(f"/admin/v2/namespaces/{path}/resourcegroup")
        if said is MISSING:
            self._of_namespaces.pop(namespace, None)
            if len(self._missing) >= MISSING_MAX:
                self._missing.clear()
            self._missing.add(namespace)
            return
        is_name = isinstance(said, str) and 0 < len(said) <= _NAME_CHARS_MAX
        self._of_namespaces[namespace] = said if is_name else None

    def _define(self) -> bool:
        """Put what is known in force; returns whether that changes anything."""
        attached = {namespace: group for namespace, group in self._of_namespaces.items() if group is not None}
        definitions = Definitions(quotas=dict(self._quotas), of_namespaces=attached)
        changed = definitions != self._groups.definitions
        self._groups.define(definitions)
        return changed


def _rate(value: object) -> int | None:
    """Return a rate per second; None: no limit, which Pulsar writes as -1, 0 or nothing."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _RATE_MAX:
        return None
    return value
