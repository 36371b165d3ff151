# SPDX-License-Identifier: Apache-2.0
"""The file in which the resource groups of proxies are defined, the same for all proxies of a cluster.

    [gold]
    publishRateInMsgs = 1000
    dispatchRateInBytes = 10_000_000
    tenants = ["acme"]
    namespaces = ["shop/orders"]

Where: `proxy_app` reads it at the start, and when it has changed: then an error keeps what was read before.
"""

from __future__ import annotations

import difflib
import logging
import tomllib
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import ConfigurationError, PenstockError
from penstock.core.names import NamespaceName, check_entity
from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.proxy.groups import Definitions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.proxy.groups import ProxyGroups

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
