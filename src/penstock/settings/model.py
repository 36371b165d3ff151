# SPDX-License-Identifier: Apache-2.0
"""The table of settings: every key with its default, parser and description, as the fields of one frozen value.

Why: a key that is declared, parsed and documented in three places becomes inconsistent. Here a field is all three;
`--help`, the reference and the names in the environment are derived from it. Where: `sources.load` creates the one
`Settings`; `app` creates each layer's limits from it.

Keys have the names of Pulsar and Kafka if these have them. Field names include the unit.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.setting import spell
from penstock.settings import rules
from penstock.settings.rows.memory import Keeping, Listings, Memory
from penstock.settings.rows.network import Connecting, Logging, Network, Tls
from penstock.settings.rows.proxy import Proxying, ProxySecurity
from penstock.settings.rows.security import Authentication, Authorization
from penstock.settings.rows.topics import (
    Clients,
    Deduplication,
    Delivery,
    Finding,
    Masking,
    Rates,
    Records,
    Retention,
    Schemas,
    Sharing,
    Throttling,
    Topics,
    Transactions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.setting import Key
    from penstock.settings.memory import MachineFacts, MemoryBudget


class Given(NamedTuple):
    """A key with the value and the source that set it."""

    name: str
    text: str
    source: str
    from_file: bool = False


class Origin(NamedTuple):
    """All values that were set at the start, weakest first, and the machine."""

    given: tuple[Given, ...]
    facts: MachineFacts
    brokers: int = 1  # that share the memory limit


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
    Transactions,
    Rates,
    Sharing,
    Records,
    Throttling,
    Masking,
    Schemas,
    Logging,
    Proxying,
    ProxySecurity,
):
    """The effective configuration. Created by `sources.load`, which checks each value; `rules` checks combinations."""

    # --- not keys: what came out of them
    budget: MemoryBudget
    sources: Mapping[str, str]  # key -> where its value came from: "default", "broker.conf line 3", "--port", …
    origin: Origin  # what they were made of, to make them again with changes
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rules.check(self)

    def spelled(self, name: str) -> str:
        """Return the value of a key as in a file; `***` for a secret."""
        key = KEYS[FIELDS[name]]
        text = spell(getattr(self, FIELDS[name]))
        return "***" if key.secret and text else text

    @property
    def relaxed(self) -> bool:
        """Whether receipts are sent before the message is on disk."""
        return self.durability == "relaxed"


# The order of the reference.
GROUPS: Final[tuple[type, ...]] = Settings.__bases__


def keys_of(group: type) -> Mapping[str, Key]:
    """Return the rows of one group, by field name."""
    return {field.name: field.metadata["key"] for field in dataclasses.fields(group)}


# Field name -> its row, group by group.
KEYS: Final[Mapping[str, Key]] = {name: key for group in GROUPS for name, key in keys_of(group).items()}
# Key -> its field's name.
FIELDS: Final[Mapping[str, str]] = {key.name: name for name, key in KEYS.items()}
# Pulsar's names of keys that have another name here.
ALIASES: Final[Mapping[str, str]] = {
    "servicePort": "brokerServicePort",  # as Pulsar's proxy calls it
    "servicePortTls": "brokerServicePortTls",
    "tlsEnabledInProxy": "tlsEnabled",
    "tlsEnableHostnameVerification": "tlsHostnameVerificationEnabled",  # as Pulsar's clients call it
    "resourceUsageTransportPublishIntervalInSecs": "resourceUsagePublishIntervalInSecs",
}
# Keys of which a misspelling would leave something open: a near miss of them refuses the start.
SECURITY: Final = frozenset(
    key.name for group in (Tls, Authentication, Authorization, ProxySecurity) for key in keys_of(group).values()
) | {KEYS["encryption_require_on_producer"].name}
