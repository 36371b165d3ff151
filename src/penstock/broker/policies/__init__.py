# SPDX-License-Identifier: Apache-2.0
"""Policies of namespaces and topics, and their enforcement over time: retention, expiry, quotas."""
