# SPDX-License-Identifier: Apache-2.0
"""Configuration that changes while the broker runs: what was changed, whether a change can be, and carrying it out.

Why here and not in `settings`: a change is stored in the catalog and takes effect in the broker, and both live on its
loop. What keys there are, and what their values mean, is handed in from above as `Keys`.
Where: routes of the admin port call `put` and `remove`; app makes it, and calls `restore` before anybody can connect.

What must hold: a change is checked against all other settings, stored, and in force, before it is answered. A stored
value that this version cannot use any more is told and left alone: a broker that does not start helps nobody.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, Self

from penstock.core.errors import ConfigurationError, PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.limits import BrokerLimits
    from penstock.storage.catalog import Catalog

log = logging.getLogger(__name__)

# Pulsar's words, leading blank and all: tools look for them.
NOT_DYNAMIC: Final = "Can't update non-dynamic configuration"
INVALID: Final = " Invalid dynamic-config value"


class Keys(Protocol):
    """All settings at one moment, as the broker sees them from below: immutable."""

    @property
    def dynamic(self) -> Sequence[str]:
        """The keys that can be changed while the broker runs."""
        ...

    @property
    def limits(self) -> BrokerLimits:
        """What these settings tell the broker."""
        ...

    def values(self) -> Mapping[str, str]:
        """Every key with its value as a file would have it; secrets are not shown."""
        ...

    def changed(self, changes: Mapping[str, str]) -> Self:
        """The settings of the start with these changes, and no others. Raises ConfigurationError."""
        ...


class NoKeys:
    """Nothing can be changed: for a broker that was made without settings, as in tests."""

    dynamic: Sequence[str] = ()

    def __init__(self, limits: BrokerLimits) -> None:
        self.limits = limits

    def values(self) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def changed(self, changes: Mapping[str, str]) -> Self:
        """Nothing can be."""
        assert not changes
        return self


class Configuration:
    """The settings in force. Everything is called on the loop."""

    def __init__(self, catalog: Catalog, changes: Changes, keys: Keys, put_in_force: Callable[[Keys], None]) -> None:
        """Args: keys: the settings of the start. put_in_force: carries out that these count from now on."""
        self._catalog = catalog
        self._changes = changes
        self._keys = keys
        self._carry_out = put_in_force
        # Two changes that are each good may not be good together: one after the other.
        self._changing = asyncio.Lock()

    def dynamic(self) -> list[str]:
        """The keys that can be changed."""
        return sorted(self._keys.dynamic)

    def overridden(self) -> dict[str, str]:
        """What was changed, as it is stored."""
        return dict(self._catalog.configuration())

    def runtime(self) -> dict[str, str]:
        """Every key with its value in force."""
        return dict(self._keys.values())

    async def put(self, key: str, value: str) -> None:
        """Change a setting; it is stored and in force when this returns.

        Raises:
            PreconditionFailed: it cannot be changed while the broker runs, or not to this.
            MetadataFailed: the disk refused.
        """
        self._check_dynamic(key)
        await self._changes.finish(self._change(key, value))

    async def _change(self, key: str, value: str | None) -> None:
        """To the end also when nobody waits any more: what is stored is in force."""
        async with self._changing:
            changes = self._usable()
            changes.pop(key, None)
            keys = self._checked(changes if value is None else {**changes, key: value})
            await self._changes.stored(lambda done: self._catalog.set_configuration(key, value, done))
            self._put_in_force(keys)
        log.info("%s is %s %s", key, keys.values()[key], "again" if value is None else "now")

    async def remove(self, key: str) -> None:
        """Take a change back: what the file, the environment or a flag says counts again. Raises as `put` does."""
        self._check_dynamic(key)
        await self._changes.finish(self._change(key, None))

    def restore(self) -> None:
        """At the start: put in force what was changed while the broker ran before."""
        changes = self._usable(tell=True)
        if changes:
            self._put_in_force(self._keys.changed(changes))
            told = ", ".join(f"{key}={self._keys.values()[key]}" for key in sorted(changes))
            log.info("changed through the admin port, and still in force: %s", told)

    def _check_dynamic(self, key: str) -> None:
        if key not in self._keys.dynamic:
            known = key in self._keys.values()
            why = f"{key} is read at the start only" if known else f"there is no {key}"
            raise PreconditionFailed(f"{NOT_DYNAMIC}: {why}")

    def _checked(self, changes: Mapping[str, str]) -> Keys:
        try:
            return self._keys.changed(changes)
        except ConfigurationError as error:
            raise PreconditionFailed(f"{INVALID}: {error}") from error

    def _usable(self, *, tell: bool = False) -> dict[str, str]:
        """The stored changes that can be used."""
        changes, errors = usable(self._keys, self.overridden())
        for key, error in errors.items() if tell else ():
            log.error("stored value of %s is ignored: %s; change it again, or delete it", key, error)
        return changes

    def _put_in_force(self, keys: Keys) -> None:
        self._keys = keys
        self._carry_out(keys)


def usable(keys: Keys, stored: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Part stored changes into those that can be used, as many as go together, and why the others cannot."""
    changes = {key: value for key, value in stored.items() if key in keys.dynamic}
    errors = {key: "it cannot be changed while the broker runs" for key in stored if key not in changes}
    try:
        keys.changed(changes)
    except ConfigurationError:
        candidates, changes = changes, {}
        for key, value in sorted(candidates.items()):
            try:
                keys.changed({**changes, key: value})
            except ConfigurationError as error:
                errors[key] = str(error)
            else:
                changes[key] = value
    return changes, errors
