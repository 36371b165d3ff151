# SPDX-License-Identifier: Apache-2.0
"""The configuration: all settings in one table, read once, checked and frozen.

Start reading at `model.Settings`: its fields are the table. `sources.load` reads the values, `memory` divides the
memory budget.
"""

from __future__ import annotations

from penstock.settings.memory import MachineFacts, MemoryBudget
from penstock.settings.model import Settings
from penstock.settings.sources import load

__all__ = ["MachineFacts", "MemoryBudget", "Settings", "load"]
