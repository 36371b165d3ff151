# SPDX-License-Identifier: Apache-2.0
"""Dynamic configuration: stored overrides of settings, checked and applied at run time.

Why here and not in `settings`: a change is stored in the catalog and takes effect in the broker, on its loop. The keys
and their meanings are passed in as `Keys`.
Where: admin routes call `put` and `remove`; app makes it, and calls `restore` before clients can connect.

Invariants:

- A setting may have several names, of which one is its key. Names are resolved here, where they come in: from the admin
  port, and from what an earlier version has stored. Everything else knows keys.
- A change is checked, stored and applied before it is answered. What is in force is always `usable` of what is stored,
  so that a restart changes nothing.
- A stored value that cannot be used never stops a start: it is left out, logged, and shown by the broker's health.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from types import MappingProxyType
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
# How many names of stored settings are shown, and how much of each.
_NAMES_MAX: Final = 10
_NAME_MAX: Final = 100


class Keys(Protocol):
    """An immutable set of all settings."""

    @property
    def dynamic(self) -> Sequence[str]:
        """Keys that can be changed at run time."""

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other names of keys."""

    @property
    def limits(self) -> BrokerLimits: ...

    def values(self) -> Mapping[str, str]:
        """All keys with their values as in a file; secrets are hidden."""

    def described(self) -> list[dict[str, object]]:
        """All keys with their values, and where each comes from; secrets are hidden."""

    def check(self, key: str, value: str) -> None:
        """Raises ConfigurationError if this key can have no such value, whatever the others are."""

    def changed(self, changes: Mapping[str, str]) -> Self:
        """The initial settings with exactly these changes. Raises ConfigurationError."""


class NoKeys:
    """No dynamic settings, for a broker made without settings, as in tests."""

    dynamic: Sequence[str] = ()
    aliases: Mapping[str, str] = MappingProxyType({})

    def __init__(self, limits: BrokerLimits) -> None:
        self.limits = limits

    def values(self) -> Mapping[str, str]:
        return {}

    def described(self) -> list[dict[str, object]]:
        return []

    def check(self, key: str, value: str) -> None:
        raise AssertionError(f"{key}={value}: there are no dynamic keys")

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
        self._errors: Mapping[str, str] = {}  # of stored values that are left out
        # Changes are made one at a time: two valid changes may be invalid together.
        self._changing = asyncio.Lock()

    def dynamic(self) -> list[str]:
        """All names of the settings that can be changed at run time."""
        return sorted(self._under_all_names(dict.fromkeys(self._keys.dynamic, "")))

    def overridden(self) -> dict[str, str]:
        """The stored values of settings, under each of their names; some may be left out."""
        return self._under_all_names(resolved(self._keys, self._catalog.configuration()))

    def runtime(self) -> dict[str, str]:
        """All settings with their current values, under each of their names."""
        return self._under_all_names(self._keys.values())

    def described(self) -> list[dict[str, object]]:
        """All settings with their groups, current values and sources."""
        return self._keys.described()

    def problems(self) -> list[str]:
        """Which stored values are left out, in a sentence that may be shown to everybody."""
        if not self._errors:
            return []
        names = [name[:_NAME_MAX] for name in sorted(self._errors)]
        more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
        told = ", ".join(names[:_NAMES_MAX])
        return [f"stored settings that cannot be used are ignored: {told}{more}; the log says why"]

    async def put(self, name: str, value: str) -> None:
        """Change a setting; returns when it is stored and applied.

        Raises:
            PreconditionFailed: the setting is not dynamic, or the value is invalid.
            MetadataFailed: it could not be stored.
        """
        key, value = self._key(name), value.strip()
        self._check_dynamic(key)
        if not value:
            raise PreconditionFailed(f"{INVALID}: {key} is given no value; delete the change to have the start's value")
        await self._changes.finish(self._change(key, value))

    async def remove(self, name: str) -> None:
        """Remove an override: file, environment or flag apply again. Raises as `put` does.

        Whatever is stored can be removed, also what another version has stored.
        """
        key = self._key(name)
        if key not in self.overridden():
            self._check_dynamic(key)
        await self._changes.finish(self._change(key, None))

    async def _change(self, key: str, value: str | None) -> None:
        """Finished even if the caller is cancelled, so that stored changes are applied."""
        async with self._changing:
            stored = self._catalog.configuration()
            others = {name: text for name, text in stored.items() if self._key(name) != key}
            if value is not None:
                self._check(key, {**others, key: value})
            elif key not in self._errors:  # What is not in force can always be deleted.
                self._check(key, others)
            # If it is interrupted between two rows, either the old value of the key counts, or the new one.
            rows = [(key, value), *((name, None) for name in stored if name != key and name not in others)]
            for name, text in rows if value is not None else reversed(rows):
                await self._changes.stored(partial(self._catalog.set_configuration, name, text))
            self._apply()
        if value is not None and key in self._errors:  # Another broker has changed another setting at the same time.
            raise PreconditionFailed(f"{INVALID}: {self._errors[key]}")
        current = self._keys.values()
        if key in current:
            log.info("%s is %s %s", key, current[key], "again" if value is None else "now")
        else:
            log.info("the stored value of %s is deleted", key)

    def restore(self) -> None:
        """At the start: apply the stored overrides."""
        if not self._catalog.configuration():
            return
        changes = self._apply()
        told = ", ".join(f"{key}={self._keys.values()[key]}" for key in sorted(changes))
        if told:
            log.info("changed through the admin port, and still in force: %s", told)

    def followed(self) -> None:
        """Another broker has changed a setting: apply what is stored."""
        self._apply()

    def _key(self, name: str) -> str:
        return self._keys.aliases.get(name, name)

    def _under_all_names(self, values: Mapping[str, str]) -> dict[str, str]:
        """Add the other names of keys: whoever has set a name must find it again."""
        others = {name: values[key] for name, key in self._keys.aliases.items() if key in values}
        return {**values, **others}

    def _check_dynamic(self, key: str) -> None:
        if key not in self._keys.dynamic:
            known = key in self._keys.values()
            why = f"{key} is read at the start only" if known else f"there is no {key}"
            raise PreconditionFailed(f"{NOT_DYNAMIC}: {why}")

    def _check(self, changed: str, stored: Mapping[str, str]) -> None:
        """Raises PreconditionFailed if this change cannot be used, or would make another stored value unusable."""
        _, errors = usable(self._keys, stored)
        for key, error in errors.items():
            if key == changed or key not in self._errors:
                raise PreconditionFailed(f"{INVALID}: {error}")

    def _apply(self) -> Mapping[str, str]:
        """Put in force what is stored and can be used; returns that."""
        changes, errors = usable(self._keys, self._catalog.configuration())
        for name, error in errors.items():
            if self._errors.get(name) != error:
                log.error("stored value of %s is ignored: %s; change it again, or delete it", name, error)
        self._errors = errors
        self._keys = self._keys.changed(changes)
        self._carry_out(self._keys)
        return changes


def resolved(keys: Keys, stored: Mapping[str, str]) -> dict[str, str]:
    """Return stored overrides by key. One that is stored under a key counts, rather than under another name of it."""
    by_alias = {key: stored[name] for name, key in keys.aliases.items() if name in stored}
    return {**by_alias, **{name: value for name, value in stored.items() if name not in keys.aliases}}


def usable(keys: Keys, stored: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide stored overrides into valid ones by key, as many as are valid together, and errors of the others."""
    changes: dict[str, str] = {}
    errors: dict[str, str] = {}
    for key, value in sorted(resolved(keys, stored).items()):
        error = _error_alone(keys, key, value)
        if error is None:
            changes[key] = value
        else:
            errors[key] = error
    return _valid_together(keys, changes, errors), errors


def _error_alone(keys: Keys, key: str, value: str) -> str | None:
    if key not in keys.dynamic:
        return "it cannot be changed while the broker runs" if key in keys.values() else "there is no such setting"
    if not value.strip():
        return "its value is empty, or was damaged"
    try:
        keys.check(key, value)
    except ConfigurationError as error:
        return str(error)
    return None


def _valid_together(keys: Keys, changes: dict[str, str], errors: dict[str, str]) -> dict[str, str]:
    """Return the changes without those that contradict others, whose errors are added to `errors`."""
    left_out: dict[str, str] = {}
    while changes and _error(keys, changes) is not None:
        # Leave out a value without which the others are valid; or else any, and try it again below.
        one = next((key for key in changes if _error(keys, _without(changes, key)) is None), next(iter(changes)))
        left_out[one] = changes[one]
        changes = _without(changes, one)
    for key, value in left_out.items():
        error = _error(keys, {**changes, key: value})
        if error is None:
            changes[key] = value
        else:
            errors[key] = error
    return changes


def _without(changes: Mapping[str, str], key: str) -> dict[str, str]:
    return {name: value for name, value in changes.items() if name != key}


def _error(keys: Keys, changes: Mapping[str, str]) -> str | None:
    try:
        keys.changed(changes)
    except ConfigurationError as error:
        return str(error)
    return None
