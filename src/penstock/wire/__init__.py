# SPDX-License-Identifier: Apache-2.0
"""Pulsar's binary protocol without sockets: bytes to events, and replies to bytes."""

from __future__ import annotations
