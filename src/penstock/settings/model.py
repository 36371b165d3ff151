# SPDX-License-Identifier: Apache-2.0
"""The table of settings: every key with its default, its parser and its meaning, as the fields of one frozen value.

Why: a key that is declared in one place, parsed in a second and documented in a third drifts. Here a field is all
three; `--help`, the reference documentation and the environment's names are derived from it.
Where: `sources.load` makes the one `Settings`; `app` fills each layer's limits from it; nobody else reads it.

Keys are spelled as Pulsar and Kafka spell them where they have them. Fields say the unit.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import ConfigurationError
from penstock.core.units import KIB, MIB, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.settings.memory import MemoryBudget

VARIABLE_PREFIX: Final = "PENSTOCK_"

# The room Pulsar leaves for commands and metadata around the largest message.
METADATA_BYTES_MAX: Final = 10 * KIB

# A Python or Java client may have this many messages of one producer in flight; a bound below it would stop reading
# in the middle of what an honest client may send before its first receipt.
CLIENT_WINDOW_MAX: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One row of the table. `parse` raises ValueError with a sentence on what it wanted."""

    name: str
    parse: Callable[[str], object]
    default: object  # None: worked out from other keys and the machine; `default_text` says how
    default_text: str
    text: str  # what it does
    flag: str | None

    @property
    def variable(self) -> str:
        """The name in the environment: `queued.max.requests` is PENSTOCK_QUEUED_MAX_REQUESTS."""
        return VARIABLE_PREFIX + re.sub(r"\.|(?<=[a-z0-9])(?=[A-Z])", "_", self.name).upper()


def _key(name: str, parse: Callable[[str], object], default: Any, text: str, *, flag: str | None = None) -> Any:  # noqa: ANN401
    """Declare a field as a row. A default in angle brackets is a sentence: `sources` works the value out."""
    worked_out = isinstance(default, str) and default.startswith("<")
    row = Key(
        name=name,
        parse=parse,
        default=None if worked_out else default,
        default_text=default.strip("<>") if worked_out else _spell(default),
        text=text,
        flag=flag,
    )
    return field(metadata={"key": row})


def _spell(value: object) -> str:
    """Write a value as a file would."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole(low: int, high: int | None = None) -> Callable[[str], int]:
    want = f"a whole number from {low} to {high}" if high is not None else f"a whole number, {low} or more"

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"want {want}") from None
        if number < low or (high is not None and number > high):
            raise ValueError(f"want {want}")
        return number

    return parse


def _size(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        size = parse_bytes(text)
        if size < low:
            raise ValueError(f"want at least {low} bytes")
        return size

    return parse


def _any_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("want a whole number; 0 or less switches the bound off") from None


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"want {' or '.join(allowed)}")
        return text.lower()

    return parse


def _switch(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("want true or false")
    return text.lower() == "true"


_port = _whole(0, 65_535)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration in force. Made by `sources.load`, which checks each value; what spans keys is checked here."""

    # --- where to listen
    bind_address: str = _key("bindAddress", str, "127.0.0.1", "Address to listen on; 0.0.0.0 for all.", flag="--host")
    advertised_address: str = _key(
        "advertisedAddress",
        str,
        "<bindAddress, or the host's name where that means every address>",
        "Address that lookups tell clients to connect to.",
        flag="--advertised-address",
    )
    port: int = _key("brokerServicePort", _port, 6650, "Port for Pulsar clients; 0 takes a free one.", flag="--port")
    tls_port: int = _key(
        "brokerServicePortTls", _port, 6651, "Port for clients with TLS; opened when a certificate is given.",
        flag="--tls-port",
    )  # fmt: skip
    admin_port: int = _key(
        "webServicePort", _port, 8080, "Port for metrics, health and administration; 0 takes a free one.",
        flag="--admin-port",
    )  # fmt: skip
    tls_certificate: Path | None = _key(  # noqa: RUF009 -- it is a field()
        "tlsCertificateFilePath", Path, "<none>", "Certificate chain in PEM; switches TLS on.", flag="--tls-cert"
    )
    tls_key: Path | None = _key(  # noqa: RUF009 -- it is a field()
        "tlsKeyFilePath", Path, "<none>", "Private key of the certificate, in PEM.", flag="--tls-key"
    )
    cluster_name: str = _key("clusterName", str, "standalone", "Name of the cluster, as clients and names show it.")

    # --- what is kept, and how safely
    durability: str = _key(
        "durability",
        _choice("fsync", "relaxed"),
        "fsync",
        "`fsync`: a receipt is sent after the disk has the message. `relaxed`: receipts do not wait; a crash of the "
        "machine may lose messages that were acknowledged.",
    )

    # --- memory
    memory_limit_mb: int = _key(
        "memoryLimitMB",
        _whole(1),
        "<the smaller of the control group's limit and half of RAM>",
        "Memory in MiB that penstock divides among its parts.",
        flag="--memory-limit-mb",
    )
    request_bytes_max: int = _key(
        "queued.max.request.bytes",
        parse_bytes,
        "<its row of the memory budget>",
        "Bytes of requests read and not yet answered; at the bound, penstock stops reading. 0 or less: no bound.",
    )
    requests_max: int = _key(
        "queued.max.requests",
        _any_number,
        "<queued.max.request.bytes / 32, at least 20000; off when that is off>",
        "Requests read and not yet answered; at the bound, penstock stops reading. 0 or less: no bound; else 20000 or "
        "more, the most that one producer may have in flight.",
    )
    frame_bytes_max: int = _key(
        "socket.request.max.bytes",
        _size(1),
        "<maxMessageSize + 10 KiB>",
        "The largest single request; a client that announces a larger one is disconnected.",
    )
    max_message_bytes: int = _key(
        "maxMessageSize", _size(1), 5 * MIB, "The largest message, in bytes, as clients are told when they connect."
    )
    outbound_mb: int = _key(
        "outboundMB",
        _whole(1),
        "<its row of the memory budget>",
        "MiB of data on its way to clients, over all of them.",
    )
    tail_cache_mb: int = _key(
        "tailCacheMB",
        _whole(0),
        "<its row of the memory budget>",
        "MiB of newest entries kept for consumers that keep up.",
    )

    # --- clients
    keep_alive_interval_s: int = _key(
        "keepAliveIntervalSeconds",
        _whole(1),
        30,
        "A client silent for this long is pinged, and after as long again closed.",
    )
    connection_liveness_check_timeout_ms: int = _key(
        "connectionLivenessCheckTimeoutMillis",
        _whole(0),
        5_000,
        "How long an old connection may take to show it lives, when a new one wants its producer or consumer.",
    )
    allow_auto_topic_creation: bool = _key(
        "allowAutoTopicCreation", _switch, True, "Whether producers and consumers create the topics they name."
    )
    active_consumer_failover_delay_ms: int = _key(
        "activeConsumerFailoverDelayTimeMillis",
        _whole(0),
        1_000,
        "How long a Failover subscription waits before another consumer takes over.",
    )
    max_unacked_messages_per_consumer: int = _key(
        "maxUnackedMessagesPerConsumer",
        _whole(0),
        50_000,
        "Unacknowledged messages at which a Shared consumer gets no more; 0: no bound.",
    )
    max_unacked_messages_per_subscription: int = _key(
        "maxUnackedMessagesPerSubscription",
        _whole(0),
        200_000,
        "The same over all consumers of a Shared subscription; 0: no bound.",
    )
    dispatcher_max_round_robin_batch_size: int = _key(
        "dispatcherMaxRoundRobinBatchSize",
        _whole(1),
        20,
        "Entries that a Shared consumer is given before it is the next one's turn.",
    )

    # --- logging
    log_format: str = _key(
        "logFormat", _choice("text", "json"), "text", "`text` for people, `json` for machines: one line an event.",
        flag="--log-format",
    )  # fmt: skip
    log_level: str = _key(
        "logLevel", _choice("debug", "info", "warning", "error"), "info", "The least serious event that is logged.",
        flag="--log-level",
    )  # fmt: skip

    # --- not keys: what came out of them
    budget: MemoryBudget
    sources: Mapping[str, str]  # key -> where its value came from: "default", "broker.conf line 3", "--port", …
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigurationError("TLS wants both tlsCertificateFilePath and tlsKeyFilePath, and got one; give both")
        if self.frame_bytes_max < self.max_message_bytes:
            raise ConfigurationError(
                f"socket.request.max.bytes={self.frame_bytes_max} is below maxMessageSize={self.max_message_bytes}: "
                f"clients would be disconnected for messages they may send; raise the former or lower the latter"
            )
        if 0 < self.request_bytes_max < self.frame_bytes_max:
            raise ConfigurationError(
                f"queued.max.request.bytes={self.request_bytes_max} cannot hold one request of "
                f"socket.request.max.bytes={self.frame_bytes_max}; raise the former, or set it to -1 for no bound"
            )
        if 0 < self.requests_max < CLIENT_WINDOW_MAX:
            raise ConfigurationError(
                f"queued.max.requests={self.requests_max} is less than one producer may have in flight; "
                f"set {CLIENT_WINDOW_MAX} or more, or -1 for no bound"
            )

    @property
    def relaxed(self) -> bool:
        """Whether receipts go out before the disk has the message."""
        return self.durability == "relaxed"


# Field name -> its row, in the order of the class.
KEYS: Final[Mapping[str, Key]] = {
    row.name: row.metadata["key"] for row in dataclasses.fields(Settings) if "key" in row.metadata
}
