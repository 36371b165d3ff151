# SPDX-License-Identifier: Apache-2.0
"""Whether the broker can do its work, as probes, metrics and administrators are told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the broker can do its work, and if not, why; and what of the log it cannot serve while it does."""

    ok: bool
    reason: str
    problems: tuple[str, ...] = ()
