# SPDX-License-Identifier: Apache-2.0
"""The options of a connection and of a read: every option in one table, parsed and checked once, on the driver.

Why the names: they are those of the connector that people know from Scala, where it has the same thing; what is only
here is named in the same manner. The documentation's table is made of this one, so neither can drift.
Where: `source` makes the values from the options that Spark hands over; tasks receive them pickled.
"""

from __future__ import annotations

import difflib
import json
from collections import UserDict
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.core.errors import InvalidTopicName
from penstock.core.names import TopicName
from penstock.core.units import parse_bytes
from penstock.spark.broken_values import CORRUPT, FAIL, FAILFAST, MODES, BrokenValues
from penstock.spark.client import credentials, oauth2
from penstock.spark.client.admin import check_url
from penstock.spark.client.encryption import ACTIONS, PRIVATE_KEYS, Decryption, KeyFiles
from penstock.spark.client.encryption import FAIL as FAIL_UNDECRYPTED
from penstock.spark.client.endpoint import Endpoint, TlsOptions
from penstock.spark.client.message_id import MessageId, message_id_of
from penstock.spark.client.reader import ReadOptions
from penstock.spark.foreign_options import translated
from penstock.spark.times import duration_ms, time_ms
from penstock.spark.topic_patterns import TopicsPattern, pattern_of
from penstock.wire.client.lookup import parse_service_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.spark.client.credentials import Credentials

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# Where to begin or to end: a word, a time in ms since the epoch, or for each topic an id, a time or a word.
Place: TypeAlias = str | int | dict[str, MessageId | str | int]

AUTO, BINARY, STRING = "auto", "binary", "string"


class Option(NamedTuple):
    """A row of the table, which the documentation is generated from."""

    name: str
    default: str
    text: str


CONNECTION_OPTIONS: Final = (
    Option(
        "service.url", "", "service URL of the brokers: `pulsar://host:6650`, `pulsar+ssl://a:6651,b:6651`; required"
    ),
    Option(
        "admin.url",
        "",
        "admin URL of a broker, `http://host:8080`; used only to list the namespaces of a `topicsPattern`",
    ),
    Option(
        "token",
        "",
        "a token, or the file that contains it: `file:///path`. The file is read for each connection, and when the "
        "broker asks for a new token. Replace it by renaming",
    ),
    Option("userName", "", "user name for basic authentication, together with `password`"),
    Option("password", "", "password for basic authentication"),
    Option("tlsTrustCertsFilePath", "", "PEM file of trusted certificate authorities; default: those of the system"),
    Option("tlsCertificateFilePath", "", "PEM file of the client certificate, together with `tlsKeyFilePath`"),
    Option("tlsKeyFilePath", "", "PEM file of its private key"),
    Option(
        "tlsHostnameVerificationEnable",
        "true",
        "whether the broker's certificate must contain the host name of its URL",
    ),
    Option("tlsAllowInsecureConnection", "false", "`true` accepts any certificate; only for tests"),
    Option(
        "authPluginClassName",
        "",
        "`…AuthenticationToken`, `…Basic`, `…Tls` or `…OAuth2`, as in the configuration of the Java client",
    ),
    Option("authParams", "", "parameters of `authPluginClassName`, as for the Java client"),
    Option("listenerName", "", "name of the advertised listener of the brokers to connect to"),
    Option("connectionTimeoutMs", "10000", "timeout of a connection attempt"),
    Option("operationTimeoutMs", "30000", "timeout of a request, and how long to wait for an unavailable broker"),
)

READ_OPTIONS: Final = (
    Option("topic", "", "the topic to read, with all its partitions"),
    Option("topics", "", "several topics, separated by commas"),
    Option(
        "topicsPattern",
        "",
        "a regular expression for topics: `public/default/orders-.*`; or one for namespaces, too, together with "
        "`admin.url`: `shop/region-.*/orders`. It leaves out topics with names that Apache Pulsar keeps for itself, "
        "such as `__change_events`",
    ),
    Option(
        "startingOffsets",
        "",
        "`earliest`, `latest`, or JSON that gives each topic or partition `[ledger, entry]`, `[ledger, entry, batch "
        "index]`, the bytes of a message id, `earliest` or `latest`. Default: `earliest` for a batch, `latest` for a "
        "new stream",
    ),
    Option("endingOffsets", "latest", "end of a batch, in the same form; the message at the offset is not included"),
    Option(
        "startingTime",
        "",
        "instead of `startingOffsets`: the first message published at this time, in ms since 1970 or like "
        "`2024-03-01T10:00:00Z`; or JSON that gives each topic or partition such a time, `earliest` or `latest`",
    ),
    Option(
        "endingTime",
        "",
        "instead of `endingOffsets`, for batches: up to the first message published at this time, in the same form",
    ),
    Option("maxMessagesPerTrigger", "", "maximum number of messages in a micro-batch; also `maxOffsetsPerTrigger`"),
    Option(
        "minMessagesPerTrigger",
        "",
        "wait with a micro-batch until about so many messages have come; also `minOffsetsPerTrigger`. Ignored with "
        "`availableNow`",
    ),
    Option("maxTriggerDelay", "15m", "with `minMessagesPerTrigger`: do not wait longer than this since the last one"),
    Option(
        "maxBytesPerTrigger", "", "maximum stored bytes in a micro-batch, for example `64M`; at least one entry is read"
    ),
    Option(
        "alignPartitions",
        "false",
        "`true` gives a limited micro-batch the messages with the oldest publish times of all partitions first, so "
        "that partitions are read in step also if they do not hold messages of the same time",
    ),
    Option(
        "failOnDataLoss",
        "true",
        "`false`: if retention has removed messages that were not read, go on from the earliest message",
    ),
    Option(
        "predefinedSubscription",
        "",
        "a durable subscription that follows the committed offsets of the stream, for retention and to monitor the "
        "backlog. Without it, the stream uses no subscription",
    ),
    Option(
        "subscriptionPrefix", "", "the same, with a subscription for each topic: this prefix, a dash, and the topic"
    ),
    Option(
        "waitingForNonExistedTopic",
        "false",
        "`true` waits for topics that do not exist yet, for `operationTimeoutMs`; `false` fails at once",
    ),
    Option("pollTimeoutMs", "30000", "the read fails if an expected message does not arrive in this time"),
    Option("columns", "", "columns to read, separated by commas; fewer columns are faster"),
    Option(
        "provenance",
        "false",
        "`true` adds the column `__provenance`; a stream that is written with it is written exactly once",
    ),
    Option(
        "valueFormat",
        AUTO,
        "`binary` or `string` for the payload as it is, `auto` for columns by the schema of the topic",
    ),
    Option(
        "mode",
        FAILFAST,
        "for values that do not read as the topic's schema says: `FAILFAST` fails the query; `PERMISSIVE` makes their "
        "columns null and keeps their bytes in the column `_corrupt_record`; `DROPMALFORMED` leaves these messages "
        "out, and the log of each task says how many",
    ),
    Option("columnNameOfCorruptRecord", CORRUPT, "name of that column"),
    Option(
        PRIVATE_KEYS,
        "",
        "PEM file of the private key for messages that are encrypted end to end, `/keys/orders.pem`; or JSON with a "
        'file for each name of a key: `{"orders": "/keys/orders.pem"}`. Needs the package `cryptography`',
    ),
    Option(
        "cryptoFailureAction",
        FAIL_UNDECRYPTED,
        "for messages that cannot be decrypted: `FAIL` fails the query; `DISCARD` leaves them out, and the log of each "
        "task says how many; `CONSUME` makes a row of each entry, whose value is the encrypted bytes",
    ),
    Option("readCompacted", "false", "`true` reads the compacted topic: only the last message of each key"),
    Option(
        "minPartitions",
        "",
        "minimum number of tasks of a batch; large topics are split. Without it, partitions of less than 10,000 "
        "messages share tasks",
    ),
    Option("maxRecordsPerPartition", "", "maximum number of messages in a task, approximately; partitions are split"),
    Option("allowDifferentTopicSchemas", "false", "`true` reads values as bytes if topics have different schemas"),
)

_ALIASES: Final = {
    "maxoffsetspertrigger": "maxmessagespertrigger",
    "minoffsetspertrigger": "minmessagespertrigger",
    "tlshostnameverification": "tlshostnameverificationenable",
}
_AUTH_PARAMS: Final = {
    "basic": '{"userId": …, "password": …}',
    "tls": "tlsCertFile:…,tlsKeyFile:…",
    "oauth2": '{"issuerUrl": "https://…", "privateKey": "file:///…", "audience": …}',
}
_CLIENT_PREFIX: Final = "pulsar.client."
_READER_PREFIX: Final = "pulsar.reader."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """All settings of a read; can be pickled."""

    endpoint: Endpoint
    topics: tuple[str, ...] = ()  # full names
    pattern: TopicsPattern | None = None
    admin_url: str = ""  # to list namespaces
    starting: Place | None = None
    ending: Place = LATEST
    messages_max: int | None = None
    bytes_max: int | None = None
    messages_min: int | None = None
    delay_max_s: float = 900.0
    align_partitions: bool = False
    task_messages_max: int | None = None
    subscription: str = ""
    subscription_prefix: str = ""
    columns: tuple[str, ...] = ()
    provenance: bool = False
    value_format: str = AUTO
    tasks_min: int = 1
    allow_different_schemas: bool = False
    broken: BrokenValues = FAIL
    wait_for_topics: bool = False
    reading: ReadOptions = field(default_factory=ReadOptions)

    @property
    def is_durable(self) -> bool:
        """Whether the stream uses durable subscriptions."""
        return bool(self.subscription or self.subscription_prefix)

    def subscription_of(self, topic: str) -> str:
        """Return the durable subscription's name on this topic or partition."""
        return self.subscription or f"{self.subscription_prefix}-{TopicName.parse(topic).parent.local}"


def parse_endpoint(given: Mapping[str, str]) -> Endpoint:
    """Return the endpoint and the credentials.

    Raises:
        ValueError: an option is missing or invalid; the message names it.
    """
    values = _Values(given)
    if not values["service.url"]:
        raise ValueError('option service.url is missing: where are the brokers? Like "pulsar://localhost:6650"')
    tls = TlsOptions(
        trusted=values.file("tlsTrustCertsFilePath"),
        certificate=values.file("tlsCertificateFilePath"),
        key=values.file("tlsKeyFilePath"),
        check_host=values.truth("tlsHostnameVerificationEnable"),
        allow_insecure=values.truth("tlsAllowInsecureConnection"),
    )
    if (tls.certificate is None) != (tls.key is None):
        raise ValueError("options tlsCertificateFilePath and tlsKeyFilePath belong together: give both")
    shown, tls = _credentials(values, tls)
    for name, path in (("token", shown.secret_file), ("authParams", tls.certificate), ("authParams", tls.key)):
        if path:
            _existing(name, Path(path))
    try:
        addresses = parse_service_url(values["service.url"])
    except ValueError as error:
        raise ValueError(f"option service.url: {error}") from None
    return Endpoint(
        addresses=addresses,
        credentials=shown,
        tls=tls,
        listener=values["listenerName"],
        connect_timeout_s=number(values, "connectionTimeoutMs") / 1_000,
        operation_timeout_s=number(values, "operationTimeoutMs") / 1_000,
    )


def parse_read_options(given: Mapping[str, str]) -> ReadSettings:
    """Parse all options of a read.

    Raises:
        ValueError: an option is missing, invalid or unknown; the message names it.
    """
    table = (*CONNECTION_OPTIONS, *READ_OPTIONS)
    given = translated(given, (option.name for option in table))
    check_names(given, table)
    endpoint, values = parse_endpoint(given), _Values(given)
    topics, pattern = _topics(values)
    if values["predefinedSubscription"] and values["subscriptionPrefix"]:
        raise ValueError("options predefinedSubscription and subscriptionPrefix exclude each other: give one")
    if pattern is not None and not pattern.has_one_namespace:
        if not values["admin.url"]:
            raise ValueError(
                "option topicsPattern has an expression for namespaces: give admin.url, where they can be listed"
            )
        check_url(values["admin.url"], endpoint)
    return ReadSettings(
        endpoint=endpoint,
        topics=topics,
        pattern=pattern,
        admin_url=values["admin.url"],
        starting=_place(values, "startingOffsets", "startingTime"),
        ending=_place(values, "endingOffsets", "endingTime") or LATEST,
        messages_max=values.maybe("maxMessagesPerTrigger"),
        bytes_max=values.maybe("maxBytesPerTrigger"),
        messages_min=values.maybe("minMessagesPerTrigger"),
        delay_max_s=_duration_s(values, "maxTriggerDelay"),
        align_partitions=values.truth("alignPartitions"),
        task_messages_max=values.maybe("maxRecordsPerPartition"),
        subscription=values["predefinedSubscription"],
        subscription_prefix=values["subscriptionPrefix"],
        columns=tuple(values.names("columns")),
        provenance=values.truth("provenance"),
        value_format=one_of(values, "valueFormat", (AUTO, BINARY, STRING)),
        tasks_min=values.maybe("minPartitions") or 1,
        allow_different_schemas=values.truth("allowDifferentTopicSchemas"),
        wait_for_topics=values.truth("waitingForNonExistedTopic"),
        broken=BrokenValues(one_of(values, "mode", MODES), values["columnNameOfCorruptRecord"]),
        reading=ReadOptions(
            compacted=values.truth("readCompacted"),
            fail_on_data_loss=values.truth("failOnDataLoss"),
            poll_timeout_s=number(values, "pollTimeoutMs") / 1_000,
            decryption=Decryption(
                key_files(PRIVATE_KEYS, values[PRIVATE_KEYS]), one_of(values, "cryptoFailureAction", ACTIONS)
            ),
        ),
    )


def check_names(given: Mapping[str, str], table: Iterable[Option]) -> None:
    """Refuse unknown options. Raises ValueError, which names the option and the most similar known one."""
    known = {option.name.lower(): option.name for option in table}
    for name in given:
        plain = _plain(name)
        if plain not in known and plain not in _ALIASES:
            raise unknown_option(name, plain, known, "reading")


def unknown_option(name: str, plain: str, known: Mapping[str, str], purpose: str) -> ValueError:
    """The error for an option that is not there; it names the most similar known one, by its plain name."""
    near = difflib.get_close_matches(plain, known, 1)
    hint = f"did you mean {known[near[0]]}?" if near else "docs/reference/spark.md lists all there are"
    return ValueError(f"there is no option {name!r} for {purpose}; {hint}")


def one_of(values: Mapping[str, str], name: str, choices: Iterable[str]) -> str:
    """Parse one of these words, in any case. Raises ValueError."""
    for choice in choices:
        if values[name].lower() == choice.lower():
            return choice
    raise ValueError(f"option {name} is {values[name]!r} and must be one of {', '.join(filter(None, choices))}")


def number(values: Mapping[str, str], name: str, read: Callable[[str], int] = parse_bytes) -> int:
    """Parse a number of 1 or more. Raises ValueError."""
    try:
        parsed = read(values[name])
    except ValueError as error:
        raise ValueError(f"option {name}: {error}") from None
    if parsed < 1:
        raise ValueError(f"option {name} is {parsed} and must be 1 or more")
    return parsed


def key_files(option: str, text: str) -> KeyFiles | None:
    """Parse a file of a key, or JSON with a file for each name; None if there is none. Raises ValueError."""
    if not text:
        return None
    if find_spec("cryptography") is None:
        raise ValueError(
            f"option {option} needs the package cryptography on the driver and executors: the extra `encryption`"
        )
    # Not repeated in errors, as it may be the key itself.
    if "-----BEGIN" in text or text.startswith("data:"):
        raise ValueError(f"option {option} is a key; give the name of its file: plans and logs of Spark show options")
    for_all, said = text, {}
    if text.startswith("{"):
        for_all = ""
        try:
            said = json.loads(text)
        except ValueError as error:
            raise ValueError(f"option {option} does not read as JSON: {error}") from None
    by_name = tuple((name, _path_in(str(path))) for name, path in said.items())
    files = KeyFiles(option, _path_in(for_all), by_name)
    for path in files.paths:
        _existing(option, Path(path))
    return files


# -- parts -----------------------------------------------------------------------------------------------------------


def _plain(name: str) -> str:
    """Return the name in lower case, without the prefixes of other connectors."""
    return name.lower().removeprefix(_CLIENT_PREFIX).removeprefix(_READER_PREFIX)


class _Values(UserDict[str, str]):
    """Option values by name, given ones and defaults."""

    def __init__(self, given: Mapping[str, str]) -> None:
        defaults = {option.name.lower(): option.default for option in (*CONNECTION_OPTIONS, *READ_OPTIONS)}
        said = {
            _ALIASES.get(plain, plain): str(text).strip() for name, text in given.items() if (plain := _plain(name))
        }
        super().__init__(defaults | said)

    def __getitem__(self, name: str) -> str:
        return self.data[name.lower()]

    def names(self, name: str) -> list[str]:
        return [part for text in self[name].split(",") if (part := text.strip())]

    def truth(self, name: str) -> bool:
        return one_of(self, name, ("true", "false")) == "true"

    def maybe(self, name: str) -> int | None:
        return number(self, name) if self[name] else None

    def file(self, name: str) -> Path | None:
        if not self[name]:
            return None
        return _existing(name, Path(_path_in(self[name])))


def _path_in(text: str) -> str:
    return text.removeprefix("file://").removeprefix("file:")


def _existing(name: str, path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"option {name}: there is no file {path}; it must be there on the driver and executors")
    return path


def _credentials(values: _Values, tls: TlsOptions) -> tuple[Credentials, TlsOptions]:
    """Return the credentials, from our options or from those of Java's client."""
    plugin = values["authPluginClassName"].rpartition(".")[2].lower().removeprefix("authentication")
    if plugin:
        return _of_plugin(plugin, values["authParams"], tls)
    if values["token"]:
        return credentials.of_token(values["token"]), tls
    if values["userName"]:
        return credentials.of_password(values["userName"], values["password"]), tls
    return (credentials.of_certificate() if tls.certificate else credentials.NO_CREDENTIALS), tls


def _of_plugin(plugin: str, parameters: str, tls: TlsOptions) -> tuple[Credentials, TlsOptions]:
    if plugin == "token":
        return credentials.of_token(parameters), tls
    try:
        if plugin == "basic":
            said = json.loads(parameters)
            return credentials.of_password(said["userId"], said["password"]), tls
        if plugin == "oauth2":
            return oauth2.of_parameters(json.loads(parameters)), tls
        if plugin == "tls":
            said = dict(part.split(":", 1) for part in parameters.split(","))
            paths = {"certificate": Path(said["tlsCertFile"]), "key": Path(said["tlsKeyFile"])}
            return credentials.of_certificate(), TlsOptions(
                trusted=tls.trusted, check_host=tls.check_host, allow_insecure=tls.allow_insecure, **paths
            )
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"option authParams does not read as {_AUTH_PARAMS[plugin]}") from None
    raise ValueError(f"option authPluginClassName: {plugin!r} is not one of token, {', '.join(_AUTH_PARAMS)}")


def _topics(values: _Values) -> tuple[tuple[str, ...], TopicsPattern | None]:
    """Return full topic names, or their pattern."""
    given = [name for name in ("topic", "topics", "topicsPattern") if values[name]]
    if len(given) != 1:
        found = f"not {' and '.join(given)} together" if given else "there is none"
        raise ValueError(f"give one of the options topic, topics and topicsPattern; {found}")
    if given == ["topicsPattern"]:
        return (), pattern_of(values["topicsPattern"])
    names = values.names("topics") if given == ["topics"] else [values["topic"]]
    try:
        return tuple(dict.fromkeys(str(TopicName.parse(name)) for name in names)), None
    except InvalidTopicName as error:
        raise ValueError(f"option {given[0]}: {error}") from None


def _duration_s(values: _Values, name: str) -> float:
    try:
        return duration_ms(values[name]) / 1_000
    except ValueError as error:
        raise ValueError(f"option {name}: {error}") from None


def _times(values: _Values, name: str) -> Place:
    """Parse a time, or JSON with a time (or a word) for each topic or partition. Raises ValueError."""
    text = values[name]
    try:
        if not text.startswith("{"):
            return time_ms(text)
        return {
            str(TopicName.parse(topic)): str(said) if said in (EARLIEST, LATEST) else time_ms(said)
            for topic, said in json.loads(text).items()
        }
    except (ValueError, InvalidTopicName) as error:
        raise ValueError(f"option {name}: {error}") from None


def _place(values: _Values, offsets: str, time: str) -> Place | None:
    if values[time]:
        return _times(values, time)
    text = values[offsets]
    if not text:
        return None
    if text.lower() in {EARLIEST, LATEST}:
        return text.lower()
    wanted = f'{EARLIEST}, {LATEST} or JSON like {{"topic": [ledger, entry]}}'
    try:
        said = json.loads(text)
        if not isinstance(said, dict):
            raise ValueError(text)  # noqa: TRY004 -- told like all other things that it may be
        return {str(TopicName.parse(topic)): _one_place(place) for topic, place in said.items()}
    except (ValueError, TypeError):
        raise ValueError(f"option {offsets} is {text!r}; want {wanted}") from None
    except InvalidTopicName as error:
        raise ValueError(f"option {offsets}: {error}") from None


def _one_place(said: object) -> MessageId | str:
    if said in (EARLIEST, LATEST):
        return str(said)
    if isinstance(said, list) and len(said) in (2, 3) and all(type(part) is int for part in said):
        return MessageId(said[0], said[1], max(0, said[2]) if len(said) == 3 else 0)
    if isinstance(said, list) and len(said) > 3 and all(type(part) is int and -128 <= part < 256 for part in said):
        return message_id_of(bytes(part % 256 for part in said))  # as pulsar-spark has them: Java's bytes have signs
    raise ValueError(said)
