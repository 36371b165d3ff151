# SPDX-License-Identifier: Apache-2.0
"""Topics: their index, lookup, partitions, lifecycle, listing, compaction and delayed messages."""
