# SPDX-License-Identifier: Apache-2.0
"""A client's end of the Pulsar protocol, without sockets: bytes in, events out; commands in, bytes out.

Why one: the Spark source, the pytest fixture, tests and benchmarks all speak as clients, and differ only in how they
wait. The protocol is here; `net.blocking` and `net.client` put it on a socket and on an asyncio loop.
Where: start with `connection`. `frames` cuts and decodes what a broker sends, `commands` and `entries` encode what a
client sends, `producer` and `consumer` hold what outlives a single command, `lookup` finds who serves a topic.
"""
