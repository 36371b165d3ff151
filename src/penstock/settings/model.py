# SPDX-License-Identifier: Apache-2.0
"""The table of settings: every key with its default, its parser and its meaning, as the fields of one frozen value.

Why: a key that is declared in one place, parsed in a second and documented in a third drifts. Here a field is all
three; `--help`, the reference documentation and the environment's names are derived from it.
Where: `sources.load` makes the one `Settings`; `app` fills each layer's limits from it; nobody else reads it.

Keys are spelled as Pulsar and Kafka spell them where they have them. Fields say the unit.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.setting import spell
from penstock.settings import rules
from penstock.settings.rows.memory import Keeping, Listings, Memory
from penstock.settings.rows.network import Connecting, Logging, Network, Tls
from penstock.settings.rows.security import Authentication, Authorization
from penstock.settings.rows.topics import (
    Clients,
    Deduplication,
    Delivery,
    Finding,
    Rates,
    Retention,
    Schemas,
    Topics,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.setting import Key
    from penstock.settings.memory import MachineFacts, MemoryBudget

# The order of the reference.
GROUPS: Final[tuple[type, ...]] = (
    Network,
    Tls,
    Authentication,
    Authorization,
    Connecting,
    Keeping,
    Memory,
    Listings,
    Topics,
    Finding,
    Clients,
    Delivery,
    Retention,
    Deduplication,
    Rates,
    Schemas,
    Logging,
)


class Given(NamedTuple):
    """A key as somebody set it."""

    name: str
    text: str
    source: str
    from_file: bool = False


class Origin(NamedTuple):
    """All that was set at the start, weakest first, and the machine."""

    given: tuple[Given, ...]
    facts: MachineFacts


@dataclass(frozen=True, kw_only=True)
class Settings(
    Network,
    Tls,
    Authentication,
    Authorization,
    Connecting,
    Keeping,
    Memory,
    Listings,
    Topics,
    Finding,
    Clients,
    Delivery,
    Retention,
    Deduplication,
    Rates,
    Schemas,
    Logging,
):
    """The configuration in force. Made by `sources.load`, which checks each value; `rules` checks what spans keys."""

    # --- not keys: what came out of them
    budget: MemoryBudget
    sources: Mapping[str, str]  # key -> where its value came from: "default", "broker.conf line 3", "--port", …
    origin: Origin  # what they were made of, to make them again with changes
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rules.check(self)

    def spelled(self, name: str) -> str:
        """The value of a key as a file would have it; `***` for a secret."""
        key = KEYS[FIELDS[name]]
        text = spell(getattr(self, FIELDS[name]))
        return "***" if key.secret and text else text

    @property
    def relaxed(self) -> bool:
        """Whether receipts go out before the disk has the message."""
        return self.durability == "relaxed"


def keys_of(group: type) -> Mapping[str, Key]:
    """The rows of one group, by the names of their fields."""
    return {field.name: field.metadata["key"] for field in dataclasses.fields(group)}


# Field name -> its row, group by group.
KEYS: Final[Mapping[str, Key]] = {name: key for group in GROUPS for name, key in keys_of(group).items()}
# Key -> its field's name.
FIELDS: Final[Mapping[str, str]] = {key.name: name for name, key in KEYS.items()}
