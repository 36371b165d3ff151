# SPDX-License-Identifier: Apache-2.0
"""Pulsar's binary protocol without sockets: bytes in, events out; replies in, bytes out."""

from __future__ import annotations
