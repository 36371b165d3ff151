# SPDX-License-Identifier: Apache-2.0
"""Statistics, snapshots and rates of the broker."""
