# SPDX-License-Identifier: Apache-2.0
"""Transactions: sends to topics and acknowledgements in subscriptions that happen together, or not at all."""
