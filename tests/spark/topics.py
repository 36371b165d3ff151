# SPDX-License-Identifier: Apache-2.0
"""Topics as an administrator makes them over the admin port, and as the official client reads them."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pulsar
    from pyspark.sql import DataFrame

    from penstock.testing.process import BrokerProcess


def path_of(topic: str) -> str:
    """A topic's path on the admin port."""
    return topic.replace("://", "/")


def ask(admin_url: str, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 -- JSON
    """One request below `/admin/v2`; what it answers, if it does."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{admin_url}/admin/v2/{path}", data, headers, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        said = answer.read()
    return json.loads(said) if said else None


def create_partitions(broker: BrokerProcess, topic: str, partitions: int) -> None:
    """Make a partitioned topic."""
    ask(broker.admin_url, "PUT", f"{path_of(topic)}/partitions", partitions)


def stored(admin_url: str, topic: str) -> int:
    """How many messages a topic with or without partitions has taken since its broker started."""
    partitions = ask(admin_url, "GET", f"{path_of(topic)}/partitions")["partitions"]
    kind = "partitioned-stats" if partitions else "stats"
    return int(ask(admin_url, "GET", f"{path_of(topic)}/{kind}")["msgInCounter"])


def read_all(client: pulsar.Client, topic: str) -> list[pulsar.Message]:
    """What a topic without partitions, or one partition, holds, as the official client reads it."""
    import pulsar

    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000))
    reader.close()
    return found


def payloads(client: pulsar.Client, topic: str) -> list[bytes]:
    """The same, the payloads alone."""
    return [message.data() for message in read_all(client, topic)]


def write(df: DataFrame, broker: BrokerProcess, mode: str = "append", **options: object) -> None:
    """Write to a broker; a dot in an option's name is spelled as two underscores."""
    writer = df.write.format("pulsar").mode(mode).option("service.url", broker.url)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), str(value))
    writer.save()
