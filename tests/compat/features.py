# SPDX-License-Identifier: Apache-2.0
"""The rows of the compatibility table: what a Pulsar client can do, each with an id that cases of every client name.

Why one list: a feature that no suite covers shows as an empty row of the table, not as silence.
Where: Python and Spark cases carry `@pytest.mark.feature("id")`; the Java, Go and Node programs print the id with each
result; `run` joins them and writes the table of docs/reference/compatibility.md.
"""

from __future__ import annotations

from typing import Final

FEATURES: Final[dict[str, str]] = {
    # Connecting
    "http-lookup": "Topics, patterns and schemas found over HTTP",
    "mapped-port": "Behind a mapped port, a tunnel or a port-forward",
    "containers": "Started as a container, by libraries for tests",
    "tls": "TLS to the broker",
    "auth-token": "Token (JWT) authentication",
    "auth-tls": "Client certificates",
    "auth-basic": "Basic authentication",
    "authorization": "A forbidden request is refused as such",
    # Producing
    "produce-sync": "Send and wait",
    "produce-async": "Send without waiting, receipts in order",
    "batching": "Batches",
    "compression": "LZ4, zlib, Zstandard, Snappy",
    "chunking": "Messages larger than the limit, in chunks",
    "encryption": "End-to-end encryption",
    "keys-and-properties": "Keys, ordering keys, properties, event time",
    "delayed": "Delayed delivery",
    "access-exclusive": "Exclusive producer",
    "access-wait": "WaitForExclusive producer",
    "access-fencing": "ExclusiveWithFencing producer",
    "deduplication": "Deduplication by sequence id",
    "initial-subscription": "Subscription made with the producer",
    # Consuming
    "exclusive": "Exclusive subscription",
    "failover": "Failover subscription, change of the active consumer",
    "shared": "Shared subscription",
    "key-shared": "Key_Shared, ranges split automatically",
    "key-shared-sticky": "Key_Shared, sticky ranges",
    "initial-position": "Earliest and latest initial position",
    "ack-individual": "Individual acknowledgement",
    "ack-cumulative": "Cumulative acknowledgement",
    "ack-batch-index": "Acknowledgement of single messages of a batch",
    "ack-receipt": "Acknowledgement with receipt",
    "negative-ack": "Negative acknowledgement",
    "ack-timeout": "Acknowledgement timeout",
    "redelivery-count": "Redelivery count",
    "dead-letter": "Dead-letter topic",
    "retry-letter": "Retry-letter topic",
    "seek-id": "Seek to a message id",
    "seek-time": "Seek to a time",
    "unsubscribe": "Unsubscribe",
    "receiving": "Listeners, batch receive, queues of size zero",
    "last-message-id": "Last message id",
    "end-of-topic": "End of a terminated topic",
    "subscription-properties": "Subscription properties",
    # Reading
    "reader": "Reader from a message id",
    "reader-has-next": "Reader knows whether more is there",
    "read-compacted": "Compacted topic",
    "table-view": "Table view",
    # Topics
    "partitioned": "Partitioned topic",
    "partition-growth": "Partitions added while clients are connected",
    "multi-topics": "Consumer of several topics",
    "pattern": "Consumer of a pattern, new topics found",
    "non-persistent": "Non-persistent topic",
    # Schemas
    "schema-primitive": "String, bytes and number schemas",
    "schema-json": "JSON schema",
    "schema-avro": "Avro schema",
    "schema-protobuf": "Protobuf schema",
    "schema-key-value": "Key-value schema",
    "schema-evolution": "Compatible evolution taken, incompatible refused",
    "schema-auto": "AUTO_CONSUME and AUTO_PRODUCE",
    # Spark
    "spark-batch-read": "Spark: a batch is read, whole",
    "spark-batch-write": "Spark: a batch is written",
    "spark-stream-read": "Spark: a query goes on where it stopped",
    "spark-stream-write": "Spark: a query writes, once where topics deduplicate",
    # Flink
    "flink-at-least-once": "Flink: source to sink, at least once",
    "flink-exactly-once": "Flink: exactly once though the job fails",
    "flink-kills": "Flink's sink: exactly once though the broker is killed",
    # Administration and the rest
    "admin-topics": "Administration of topics",
    "admin-namespaces": "Administration of tenants, namespaces and policies",
    "admin-subscriptions": "Administration of subscriptions: skip, reset, peek, expire",
    "admin-schemas": "Administration of schemas",
    "resource-groups": "Resource groups",
    "admin-brokers": "Health, version, dynamic configuration",
    "transactions": "Transactions",
    "reconnect": "Clients go on after the broker restarts",
}
