# SPDX-License-Identifier: Apache-2.0
"""Health of the broker, for probes, metrics and administrators."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the broker can do its work, and if not, why; which entries are missing; what will need somebody soon."""

    ok: bool
    reason: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
