# SPDX-License-Identifier: Apache-2.0
"""A small blocking client of the Pulsar protocol, for the processes that Spark starts: no JVM, no compiled client.

Why our own: Spark's tasks want entries as they lie on the wire, thousands at a time, to turn them into Arrow columns;
clients made for applications hand out one object per message (docs/adr/0011).
Where: `Cluster` knows topics and who serves them, `Connection` is one socket; reader and producer stand on both. One
thread at a time uses any of these.
"""
