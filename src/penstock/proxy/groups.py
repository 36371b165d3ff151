# SPDX-License-Identifier: Apache-2.0
"""The resource groups of a proxy: their quotas, their namespaces and tenants, and the groups in use.

Definitions come from the cluster (`mirrored_groups`), or from a file of the proxies' own, the same for all of them:

    [gold]
    publishRateInMsgs = 1000
    dispatchRateInBytes = 10_000_000
    tenants = ["acme"]
    namespaces = ["shop/orders"]

Where: sessions ask for the groups of the topics of their producers and consumers; `quota_sharing` divides the quotas
between proxies. `proxy_app` reads the file at the start, and when it has changed: then an error keeps what was read
before.
"""

from __future__ import annotations

import difflib
import logging
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import ConfigurationError, PenstockError
from penstock.core.names import NamespaceName, check_entity
from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.groups.group import GroupsInUse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.groups.group import Group


@dataclass(frozen=True, slots=True)
class Definitions:
    """All groups with their quotas, and the group of each namespace (`tenant/namespace`) and tenant that has one."""

    quotas: Mapping[str, GroupRates] = field(default_factory=dict)
    of_namespaces: Mapping[str, str] = field(default_factory=dict)
    of_tenants: Mapping[str, str] = field(default_factory=dict)

    def of_topic(self, topic: TopicName) -> tuple[str, ...]:
        """The groups of a topic: its namespace's and its tenant's, each once."""
        names = (self.of_namespaces.get(str(topic.namespace_name)), self.of_tenants.get(topic.tenant))
        return tuple(dict.fromkeys(name for name in names if name is not None and name in self.quotas))


class ProxyGroups(GroupsInUse):
    """The groups of one proxy.

    Attributes:
        definitions: as last read.
        is_known: returns whether it is known which groups a topic has; if not, that is found out, and clients are
            looked at again.
    """

    def __init__(
        self, clock: Clock, loop: asyncio.AbstractEventLoop, *, by_usage: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(clock, loop, by_usage)
        self.definitions = Definitions()
        self.is_known: Callable[[TopicName], bool] = lambda _topic: True
        self._changed: list[Callable[[], None]] = []

    def of_topic(self, topic: TopicName) -> tuple[Group, ...]:
        """The groups that limit a topic."""
        quotas = self.definitions.quotas
        return tuple(self._use(name, None, quotas[name]) for name in self.definitions.of_topic(topic))

    def when_changed(self, changed: Callable[[], None]) -> None:
        """Call this after each change of definitions: topics may have other groups."""
        self._changed.append(changed)

    def define(self, definitions: Definitions) -> None:
        """Put other definitions in force. Groups keep their balances and counters; changed quotas count at once."""
        if definitions == self.definitions:
            return
        self.definitions = definitions
        for name, group in list(self._groups.items()):
            quota = definitions.quotas.get(name)
            if quota is None:
                self._end(group)
            elif quota != group.quota:
                self._change(group, None, quota)
        self.look_again()
        if self.sharing is not None:
            self.sharing.review()

    def look_again(self) -> None:
        """Topics of clients may have other groups, or it is known now that they have none."""
        for changed in self._changed:
            changed()


log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
# As Pulsar's ResourceGroup has them.
_RATES: Final = ("publishRateInMsgs", "publishRateInBytes", "dispatchRateInMsgs", "dispatchRateInBytes")
_MEMBERS: Final = (*_RATES, "namespaces", "tenants")
_RATE_MAX: Final = 2**63 - 1


def parse(text: str, source: str) -> Definitions:
    """Return the definitions in a text. Raises ConfigurationError, which names the group and the member."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source}: not TOML: {error}") from error
    quotas: dict[str, GroupRates] = {}
    of_namespaces: dict[str, str] = {}
    of_tenants: dict[str, str] = {}
    for name, table in tables.items():
        where = f"{source}: [{name}]"
        if not isinstance(table, dict):
            raise ConfigurationError(f"{where}: want a table of a resource group, got {table!r}")
        _check_name(name, where)
        for member in table:
            if member not in _MEMBERS:
                near = difflib.get_close_matches(member, _MEMBERS, 1)
                hint = f"; do you mean {near[0]}?" if near else f": want one of {', '.join(_MEMBERS)}"
                raise ConfigurationError(f"{where} has no member {member}{hint}")
        rates = [_rate(table, member, where) for member in _RATES]
        quotas[name] = GroupRates(GroupRate(rates[0], rates[1]), GroupRate(rates[2], rates[3]))
        for namespace in _names(table, "namespaces", where):
            try:
                key = str(NamespaceName.parse(namespace))
            except PenstockError as error:
                raise ConfigurationError(f"{where} namespaces: {error}") from error
            _attach(of_namespaces, key, name, f"{where} namespaces")
        for tenant in _names(table, "tenants", where):
            _check_name(tenant, f"{where} tenants")
            _attach(of_tenants, tenant, name, f"{where} tenants")
    return Definitions(quotas, of_namespaces, of_tenants)


def _rate(table: Mapping[str, Any], member: str, where: str) -> int | None:
    """Return a rate per second; None: no limit, which is also written as -1."""
    rate = table.get(member, -1)
    if isinstance(rate, bool) or not isinstance(rate, int) or not -1 <= rate <= _RATE_MAX:
        raise ConfigurationError(f"{where} {member} = {rate!r}: want a whole number per second, or -1 for no limit")
    return rate if rate > 0 else None


def _names(table: Mapping[str, Any], member: str, where: str) -> list[str]:
    names = table.get(member, [])
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"{where} {member} = {names!r}: want a list of names")
    return names


def _check_name(name: str, where: str) -> None:
    try:
        check_entity(name)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _attach(attached: dict[str, str], what: str, group: str, where: str) -> None:
    other = attached.setdefault(what, group)
    if other != group:
        raise ConfigurationError(f"{where}: {what} is in [{other}] already, and can be in one group")


class GroupFile:
    """The file, read again when it has changed."""

    def __init__(self, path: Path, groups: ProxyGroups) -> None:
        """Read it. Raises ConfigurationError."""
        self._path = path
        self._groups = groups
        self._seen = self._version()
        groups.define(self._read())

    def look(self) -> None:
        """Read it again if it has changed since; called once a second."""
        try:
            version = self._version()
            if version == self._seen:
                return
            self._seen = version
            self._groups.define(self._read())
        except ConfigurationError as error:
            log.error("resource groups stay as they were: %s", error)  # noqa: TRY400 -- the message is enough
        else:
            log.info("resource groups were read again from %s", self._path)

    def _version(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            if self._groups.definitions.quotas:
                return (0, 0, 0)  # While a file is replaced, it may be missing for a moment.
            raise ConfigurationError(f"resourceGroupsFile={self._path} cannot be read: {error.strerror}") from error
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> Definitions:
        try:
            if self._path.stat().st_size > FILE_BYTES_MAX:
                raise ConfigurationError(f"resourceGroupsFile={self._path} is larger than {FILE_BYTES_MAX} bytes")
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"resourceGroupsFile={self._path} cannot be read: {error}") from error
        return parse(text, str(self._path))
