# SPDX-License-Identifier: Apache-2.0
"""Subscriptions: cursors, and the dispatch of entries by subscription type."""
