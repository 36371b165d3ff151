# SPDX-License-Identifier: Apache-2.0
"""Where records are read from, and which of their fields.

Where: both engines, Spark (`stream`) and Arrow (`in_process`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ConfigurationError
from penstock.core.system_topics import (
    DECISION_TOPIC,
    PROXY_DECISION_TOPIC,
    PROXY_USAGE_TOPIC,
    USAGE_TOPIC,
)
from penstock.spark.accounting.batches import GOVERNANCE, USAGE
from penstock.spark.accounting.differing import DECIDED, FIELDS
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.errors import Refused
from penstock.spark.options import parse_read_options
from penstock.spark.source import PulsarDataSource

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPICS: Final[Mapping[str, str]] = {USAGE: USAGE_TOPIC, GOVERNANCE: DECISION_TOPIC}
PROXY_TOPICS: Final[Mapping[str, str]] = {USAGE: PROXY_USAGE_TOPIC, GOVERNANCE: PROXY_DECISION_TOPIC}
# Fields that are read of records.
READ: Final[Mapping[str, tuple[str, ...]]] = {USAGE: FIELDS, GOVERNANCE: DECIDED}
CORRUPT: Final = "_corrupt_record"
_BESIDE: Final = (CORRUPT, "__topic", "__publishTime")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where records are read from.

    Attributes:
        url: service URL of the brokers.
        subscription: the durable subscription. Each directory of tables needs its own.
        options: other options of the Spark source, for example a token.
        topics: full names of the topics, by kind of records.
    """

    url: str
    subscription: str = "accounting"
    options: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=lambda: TOPICS)

    def present(self) -> list[str]:
        """Return the kinds of records that are written. Raises ConfigurationError if no usage is recorded."""
        endpoint = parse_read_options({**self.options, **self._where(USAGE)}).endpoint
        with Cluster(endpoint) as cluster:
            found = cluster.partitions_of_all(self.topics.values())
        absent = [kind for kind, topic in self.topics.items() if isinstance(found[topic], Refused)]
        if USAGE in absent:
            raise ConfigurationError(
                f"{self.topics[USAGE]} cannot be read: {found[self.topics[USAGE]]}; "
                "brokers and proxies write their records with usageRecordsEnabled=true"
            )
        return [kind for kind in self.topics if kind not in absent]

    def read_options(self, kind: str, records_per_batch: int) -> dict[str, str]:
        """Options of the Spark source to read a kind of records. Raises ClientError if brokers cannot be asked."""
        options = {
            **self.options,
            **self._where(kind),
            "startingOffsets": "earliest",
            "predefinedSubscription": self.subscription,
            "maxMessagesPerTrigger": str(records_per_batch),
            "alignPartitions": "true",
            "mode": "PERMISSIVE",
        }
        # Brokers of an earlier version have fewer fields in their schema.
        there = PulsarDataSource(options).schema().names
        return {**options, "columns": ",".join((*(one for one in READ[kind] if one in there), *_BESIDE))}

    def _where(self, kind: str) -> dict[str, str]:
        return {"service.url": self.url, "topic": self.topics[kind]}
