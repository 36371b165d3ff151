# SPDX-License-Identifier: Apache-2.0
"""Options that people bring along from pulsar-spark, from Spark's source for Kafka and from Pulsar's Java client.

Why a table: each of these options is taken as one of ours, or has no effect here, or is refused with what to write
instead. The first two are named in one line of the driver's log; `docs/guide/spark-migration.md` shows the table.
Where: `options` and `write_options` translate what Spark hands over, before they look at it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PULSAR_SPARK: Final = "pulsar-spark"
KAFKA: Final = "Kafka's source"
JAVA: Final = "the Java client"
PREFIXES: Final = ("pulsar.client.", "pulsar.reader.", "pulsar.producer.")
_KAFKAS_OWN: Final = "kafka."

_log = logging.getLogger(__name__)
# Lines that this process has logged: Spark makes a source several times for one query.
_told: Final[set[str]] = set()


class Foreign(NamedTuple):
    """An option of another source: as which of ours it is taken; or without one, why it has no effect."""

    name: str
    origin: str
    ours: str
    text: str


class Refused(NamedTuple):
    """An option that would change the result if it were ignored, and what to write instead."""

    name: str
    origin: str
    instead: str


class RefusedOption(ValueError):
    """An option of another source that has no equivalent of the same form."""

    def __init__(self, name: str, refused: Refused) -> None:
        super().__init__(f"option {name} of {refused.origin}: write {_plainly(refused.instead)}")


TAKEN: Final = (
    Foreign("subscribe", KAFKA, "topics", ""),
    Foreign("subscribePattern", KAFKA, "topicsPattern", "`tenant/namespace/expression`"),
    Foreign("startingTimestamp", KAFKA, "startingTime", ""),
    Foreign("endingTimestamp", KAFKA, "endingTime", ""),
    Foreign("maxOffsetsPerTrigger", KAFKA, "maxMessagesPerTrigger", ""),
    Foreign("minOffsetsPerTrigger", KAFKA, "minMessagesPerTrigger", ""),
    Foreign("kafkaConsumer.pollTimeoutMs", KAFKA, "pollTimeoutMs", ""),
    Foreign("startingOffsetsByTimes", PULSAR_SPARK, "startingTime", ""),
    Foreign("endingOffsetsByTimes", PULSAR_SPARK, "endingTime", ""),
    Foreign("serviceUrl", JAVA, "service.url", ""),
    Foreign("topicNames", JAVA, "topics", ""),
    Foreign("tlsCertificatePath", JAVA, "tlsCertificateFilePath", ""),
    Foreign("tlsKeyPath", JAVA, "tlsKeyFilePath", ""),
    Foreign("topicName", JAVA, "topic", ""),
)
_HANDLED: Final = "the source has its own way to do this"
_JAVAS_KNOBS: Final = (
    "autoUpdatePartitions", "autoUpdatePartitionsIntervalSeconds", "batchingMaxPublishDelayMicros",
    "batchingPartitionSwitchFrequencyByPublishDelay", "blockIfQueueFull", "chunkingEnabled", "concurrentLookupRequest",
    "connectionMaxIdleSeconds", "connectionsPerBroker", "enableBusyWait", "initialBackoffIntervalNanos",
    "keepAliveIntervalSeconds", "lookupTimeoutMs", "maxBackoffIntervalNanos", "maxLookupRedirects", "maxLookupRequest",
    "maxNumberOfRejectedRequestPerConnection", "maxPendingMessages", "maxPendingMessagesAcrossPartitions",
    "memoryLimitBytes", "numIoThreads", "numListenerThreads", "poolMessages", "receiverQueueSize",
    "statsIntervalSeconds", "useTcpNoDelay", "useTls",
)  # fmt: skip
IGNORED: Final = (
    Foreign("includeHeaders", KAFKA, "", "headers are always there, as `__messageProperties`"),
    Foreign("fetchOffset.numRetries", KAFKA, "", "requests are repeated for `operationTimeoutMs`"),
    Foreign("fetchOffset.retryIntervalMs", KAFKA, "", "requests are repeated for `operationTimeoutMs`"),
    Foreign("readerName", JAVA, "", "readers have no names"),
    *(Foreign(name, JAVA, "", "the source has its own way to do this") for name in _JAVAS_KNOBS),
)
_KEY_READER: Final = "`cryptoKeyReader.privateKeys` to read, `cryptoKeyReader.publicKeys` to write: files in PEM"
_PEM: Final = "`tlsTrustCertsFilePath`, `tlsCertificateFilePath` and `tlsKeyFilePath`, with files in PEM"
_CREDENTIALS: Final = (
    "`token`, `userName` and `password`, `tlsCertificateFilePath` and `tlsKeyFilePath`, or `authParams`"
)
REFUSED: Final = (
    Refused("kafka.bootstrap.servers", KAFKA, "`service.url`, like `pulsar://host:6650`"),
    Refused("bootstrap.servers", KAFKA, "`service.url`, like `pulsar://host:6650`"),
    Refused(
        "kafka.group.id", KAFKA, "`predefinedSubscription`, if a subscription is to follow the query; it needs none"
    ),
    Refused("groupIdPrefix", KAFKA, "`subscriptionPrefix`, if subscriptions are to follow the query; it needs none"),
    Refused("kafka.security.protocol", KAFKA, "`service.url` with `pulsar+ssl://`"),
    Refused("kafka.sasl.jaas.config", KAFKA, _CREDENTIALS),
    Refused("kafka.sasl.mechanism", KAFKA, _CREDENTIALS),
    Refused("assign", KAFKA, "`topics`, with names of partitions: `orders-partition-0,orders-partition-1`"),
    Refused("startingOffsetsByTimestamp", KAFKA, '`startingTime`, as JSON: `{"orders-partition-0": 1700000000000}`'),
    Refused("endingOffsetsByTimestamp", KAFKA, '`endingTime`, as JSON: `{"orders-partition-0": 1700000000000}`'),
    Refused("startingOffsetsByTimestampStrategy", KAFKA, "nothing: a time after the last message is the end"),
    Refused("maxEntriesPerTrigger", PULSAR_SPARK, "`maxMessagesPerTrigger`, which counts messages, not entries"),
    Refused("subscriptionRolePrefix", JAVA, "`subscriptionPrefix`"),
    Refused("startMessageId", JAVA, "`startingOffsets`"),
    Refused("resetIncludeHead", JAVA, "`startingOffsets`; the message at the offset is included"),
    Refused("messageRoutingMode", JAVA, "nothing: rows without a key take turns. The column `__partition` names one"),
    Refused("accessMode", JAVA, "nothing: a write is shared among its tasks"),
    Refused("initialSequenceId", JAVA, "`pulsar.producer.producerName`: rows are numbered by the source"),
    Refused("cryptoKeyReader", JAVA, _KEY_READER),
    Refused("useKeyStoreTls", JAVA, _PEM),
    Refused("tlsTrustStorePath", JAVA, _PEM),
    Refused("tlsKeyStorePath", JAVA, _PEM),
    Refused("proxyServiceUrl", JAVA, "`service.url` of the proxy"),
    Refused("socks5ProxyAddress", JAVA, "`service.url` of a proxy of Pulsar"),
    Refused("enableTransaction", JAVA, "nothing: writes are exactly once by deduplication, not by transactions"),
)

_BY_NAME: Final[dict[str, Foreign | Refused]] = {
    **{one.name.lower(): one for one in (*TAKEN, *IGNORED)},
    **{one.name.lower(): one for one in REFUSED},
}


def translated(given: Mapping[str, str], ours: Iterable[str]) -> dict[str, str]:
    """Return the options with our names; those without an effect are left out.

    Args:
        given: as Spark hands them over: names in any case.
        ours: our names, which are never foreign.

    Raises:
        ValueError: an option is refused, or is given twice, by two names.
    """
    own = {plain for name in ours for plain in (name.lower(), _plain(name))}
    result: dict[str, str] = {}
    said: list[str] = []
    for name, text in given.items():
        plain = _plain(name)
        found = None if name.lower() in own or plain in own else _BY_NAME.get(plain)
        if isinstance(found, Refused):
            raise RefusedOption(name, found)
        if found is None and plain.startswith(_KAFKAS_OWN):
            raise ValueError(
                f"option {name} is of Kafka's client; docs/guide/spark-migration.md has what is here instead"
            )
        if found is None:
            result[name] = text
        elif not found.ours:
            said.append(f"{name} has no effect: {_plainly(found.text)}")
        elif any(_plain(other) == found.ours.lower() for other in given):
            raise ValueError(f"options {name} and {found.ours} are the same; give one")
        else:
            result[found.ours] = text
            said.append(f"{name} is taken as {found.ours}")
    if said:
        _tell("; ".join(said))
    return result


def _tell(line: str) -> None:
    if line not in _told:
        _told.add(line)
        _log.warning("options of other sources: %s", line)


def _plain(name: str) -> str:
    plain = name.lower()
    for prefix in PREFIXES:
        plain = plain.removeprefix(prefix)
    return plain


def _plainly(text: str) -> str:
    return text.replace("`", "")
