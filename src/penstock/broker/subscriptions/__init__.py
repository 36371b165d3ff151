# SPDX-License-Identifier: Apache-2.0
"""Subscriptions: their cursors, and who is given which entry, by type."""
