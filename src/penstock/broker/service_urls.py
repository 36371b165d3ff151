# SPDX-License-Identifier: Apache-2.0
"""The addresses of the broker, as lookups and administrators are told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceUrls:
    """What clients connect to."""

    plain: str
    tls: str | None
