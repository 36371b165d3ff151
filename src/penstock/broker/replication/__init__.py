# SPDX-License-Identifier: Apache-2.0
"""Replication of topics to other clusters.

Start with `replication`, which decides what is replicated where; a `replicator` carries out one topic to one cluster,
over the connections of a `remote`.
"""
