# SPDX-License-Identifier: Apache-2.0
"""The options of a write, with the names that Pulsar's own connectors and its Java producer use.

Where: `source` makes these from the options that Spark hands over, on the driver; tasks receive them pickled. Where to
connect and with which credentials is said as for reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.core.names import TopicName
from penstock.spark.client.encryption import PUBLIC_KEYS, Encryption
from penstock.spark.client.producer import ProducerOptions
from penstock.spark.foreign_options import translated
from penstock.spark.options import (
    BINARY,
    CONNECTION_OPTIONS,
    Option,
    key_files,
    number,
    one_of,
    parse_endpoint,
    unknown_option,
)
from penstock.spark.routing import HASHES
from penstock.spark.structs import KINDS
from penstock.spark.task_writer import Sending
from penstock.wire import compression
from penstock.wire.codec import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.spark.client.endpoint import Endpoint

PRODUCER: Final = "pulsar.producer."
CLIENT: Final = "pulsar.client."
# What Spark hands over with ours.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname"})
TOPIC: Final = "topic"
VALUE_FORMAT: Final = "valueFormat"
PRODUCER_NAME: Final = f"{PRODUCER}producerName"
COMPRESSION: Final = f"{PRODUCER}compressionType"
BATCHING: Final = f"{PRODUCER}batchingEnabled"
BATCH_MESSAGES: Final = f"{PRODUCER}batchingMaxMessages"
BATCH_BYTES: Final = f"{PRODUCER}batchingMaxBytes"
SEND_TIMEOUT: Final = f"{PRODUCER}sendTimeoutMs"
ENCRYPTION_KEYS: Final = f"{PRODUCER}encryptionKeys"
HASHING: Final = f"{PRODUCER}hashingScheme"
COMPRESSIONS: Final = {
    "NONE": compression.NONE,
    "LZ4": compression.LZ4,
    "ZLIB": compression.ZLIB,
    "ZSTD": compression.ZSTD,
    "SNAPPY": compression.SNAPPY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """All options for the tasks; can be pickled."""

    endpoint: Endpoint
    topic: str = ""  # a full name; empty: rows say
    value_format: str = ""  # `json`, `avro` or `binary`; empty: the topic's own
    producer_name: str = ""
    sending: Sending = field(default_factory=Sending)


WRITE_OPTIONS: Final = (
    Option(TOPIC, "", "the topic to write to; without it, the column `__topic` of each row names it"),
    Option(
        VALUE_FORMAT,
        "",
        "format of structs, `json` or `avro`; default: as the schema of the topic says, or `json`. `binary` sends "
        "values that are encoded already, without looking at the schema",
    ),
    Option(
        PRODUCER_NAME,
        "",
        "name of a batch job. If the same job runs again, a topic with deduplication does not store its rows again. "
        "Streams need no name",
    ),
    Option(COMPRESSION, "NONE", "`NONE`, `LZ4`, `ZLIB`, `ZSTD` or `SNAPPY`"),
    Option(BATCHING, "true", "`false` sends each row as an entry of its own"),
    Option(BATCH_MESSAGES, "1000", "maximum number of rows in one entry"),
    Option(BATCH_BYTES, "256K", "maximum bytes in one entry, before compression"),
    Option(
        ENCRYPTION_KEYS,
        "",
        "names of the keys that encrypt messages end to end, separated by commas: whoever has one of the private keys "
        "can read them. Together with `cryptoKeyReader.publicKeys`",
    ),
    Option(
        PUBLIC_KEYS,
        "",
        "PEM file of the public key, or JSON with a file for each name: "
        '`{"orders": "/keys/orders.pub", "audit": "/keys/audit.pub"}`. Needs the package `cryptography`',
    ),
    Option(SEND_TIMEOUT, "120000", "the write fails if no message is acknowledged in this time"),
    Option(
        HASHING,
        "JavaStringHash",
        "how keys are assigned to partitions: `JavaStringHash`, the default of the Java and Go clients, or "
        "`Murmur3_32Hash`. The Python client uses another hash: with its default, the same key is in another partition",
    ),
)


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Read the options of a write.

    Args:
        given: as Spark hands them over: names in any case.

    Raises:
        ValueError: an option is missing or cannot be, or there is none of that name; the message says which.
    """
    given = translated(given, (option.name for option in (*CONNECTION_OPTIONS, *WRITE_OPTIONS)))
    values = _values(given)
    topic = values[TOPIC]
    return WriteOptions(
        endpoint=parse_endpoint(given),
        topic=str(TopicName.parse(topic)) if topic else "",
        value_format=one_of(values, VALUE_FORMAT, ("", *KINDS, BINARY)),
        producer_name=values[PRODUCER_NAME],
        sending=Sending(
            rows_max=number(values, BATCH_MESSAGES, int),
            batch_bytes_max=number(values, BATCH_BYTES),
            batching=one_of(values, BATCHING, ("true", "false")) == "true",
            hash_name=one_of(values, HASHING, HASHES),
            producer=ProducerOptions(
                compression=COMPRESSIONS[one_of(values, COMPRESSION, COMPRESSIONS)],
                encryption=_encryption(values),
                send_timeout_s=number(values, SEND_TIMEOUT, int) / 1_000,
            ),
        ),
    )


def _encryption(values: Mapping[str, str]) -> Encryption | None:
    """Return how entries are encrypted; None if they are not. Raises ValueError, and UnusableFile for a wrong key."""
    names = tuple(name for text in values[ENCRYPTION_KEYS].split(",") if (name := text.strip()))
    files = key_files(PUBLIC_KEYS, values[PUBLIC_KEYS])
    if files is None and not names:
        return None
    if files is None or not names:
        raise ValueError(f"options {ENCRYPTION_KEYS} and {PUBLIC_KEYS} belong together: give both")
    for name in names:
        if not files.path(name):
            raise ValueError(f"option {PUBLIC_KEYS} has no file for the key {name}, which {ENCRYPTION_KEYS} names")
    encryption = Encryption(names, files)
    encryption.announce(MessageMetadata())  # On the driver, before any task: a file that is no key costs no message.
    return encryption


def _values(given: Mapping[str, str]) -> dict[str, str]:
    """Return our options by name, given ones and defaults."""
    names = {_plain(option.name): option.name for option in WRITE_OPTIONS}
    others = {_plain(option.name) for option in CONNECTION_OPTIONS} | SPARKS_OWN
    for name in given:
        plain = _plain(name)
        if plain not in names and plain not in others:
            raise unknown_option(name, plain, names, "writing")
    said = {names[plain]: text.strip() for name, text in given.items() if (plain := _plain(name)) in names}
    return {option.name: option.default for option in WRITE_OPTIONS} | said


def _plain(name: str) -> str:
    """Return the name in lower case, without the prefixes of other connectors."""
    return name.lower().removeprefix(PRODUCER).removeprefix(CLIENT)
