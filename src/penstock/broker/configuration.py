# SPDX-License-Identifier: Apache-2.0
"""Dynamic configuration: stored overrides of settings, checked and applied at run time.

Why here and not in `settings`: a change is stored in the catalog and takes effect in the broker, on its loop. The keys
and their meanings are passed in as `Keys`.
Where: admin routes call `put` and `remove`; app makes it, and calls `restore` before clients can connect.

Invariants: a change is checked against all other settings, stored, and applied before it is answered. A stored value
that this version cannot use is logged and ignored, so that the broker still starts.
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

# Pulsar's text, including the leading blank: tools match it.
NOT_DYNAMIC: Final = "Can't update non-dynamic configuration"
INVALID: Final = " Invalid dynamic-config value"


class Keys(Protocol):
    """An immutable set of all settings."""

    @property
    def dynamic(self) -> Sequence[str]:
        """Keys that can be changed at run time."""

    @property
    def limits(self) -> BrokerLimits: ...

    def values(self) -> Mapping[str, str]:
        """All keys with their values as in a file; secrets are hidden."""

    def changed(self, changes: Mapping[str, str]) -> Self:
        """The initial settings with exactly these changes. Raises ConfigurationError."""


class NoKeys:
    """No dynamic settings, for a broker made without settings, as in tests."""

    dynamic: Sequence[str] = ()

    def __init__(self, limits: BrokerLimits) -> None:
        self.limits = limits

    def values(self) -> Mapping[str, str]:
        return {}

    def changed(self, changes: Mapping[str, str]) -> Self:
        assert not changes
        return self


class Configuration:
    """The current settings. All methods are called on the event loop."""

    def __init__(self, catalog: Catalog, changes: Changes, keys: Keys, put_in_force: Callable[[Keys], None]) -> None:
        """Args: keys: the settings at the start. put_in_force: applies changed settings."""
        self._catalog = catalog
        self._changes = changes
        self._keys = keys
        self._carry_out = put_in_force
        # Changes are made one at a time: two valid changes may be invalid together.
        self._changing = asyncio.Lock()

    def dynamic(self) -> list[str]:
        """Keys that can be changed at run time."""
        return sorted(self._keys.dynamic)

    def overridden(self) -> dict[str, str]:
        return dict(self._catalog.configuration())

    def runtime(self) -> dict[str, str]:
        """All keys with their current values."""
        return dict(self._keys.values())

    async def put(self, key: str, value: str) -> None:
        """Change a setting; returns when it is stored and applied.

        Raises:
            PreconditionFailed: the key is not dynamic, or the value is invalid.
            MetadataFailed: it could not be stored.
        """
        self._check_dynamic(key)
        await self._changes.finish(self._change(key, value))

    async def _change(self, key: str, value: str | None) -> None:
        """Finished even if the caller is cancelled, so that stored changes are applied."""
        async with self._changing:
            changes = self._usable()
            changes.pop(key, None)
            keys = self._checked(changes if value is None else {**changes, key: value})
            await self._changes.stored(lambda done: self._catalog.set_configuration(key, value, done))
            self._put_in_force(keys)
        log.info("%s is %s %s", key, keys.values()[key], "again" if value is None else "now")

    async def remove(self, key: str) -> None:
        """Remove an override: file, environment or flag apply again. Raises as `put` does."""
        self._check_dynamic(key)
        await self._changes.finish(self._change(key, None))

    def restore(self) -> None:
        """At the start: apply the stored overrides."""
        changes = self._usable(tell=True)
        if changes:
            self._put_in_force(self._keys.changed(changes))
            told = ", ".join(f"{key}={self._keys.values()[key]}" for key in sorted(changes))
            log.info("changed through the admin port, and still in force: %s", told)

    def followed(self) -> None:
        """Another broker has changed a setting: apply what is stored."""
        self._put_in_force(self._keys.changed(self._usable(tell=True)))

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
        changes, errors = usable(self._keys, self.overridden())
        for key, error in errors.items() if tell else ():
            log.error("stored value of %s is ignored: %s; change it again, or delete it", key, error)
        return changes

    def _put_in_force(self, keys: Keys) -> None:
        self._keys = keys
        self._carry_out(keys)


def usable(keys: Keys, stored: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide stored overrides into valid ones, as many as are valid together, and errors of the others."""
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
