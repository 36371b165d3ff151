# SPDX-License-Identifier: Apache-2.0
"""Frozen snapshots of what brokers and proxies have in common, for their metrics and their admin ports."""
