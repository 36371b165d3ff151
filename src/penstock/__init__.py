# SPDX-License-Identifier: Apache-2.0
"""penstock: a Pulsar broker in pure Python.

Start reading in ARCHITECTURE.md; in the code, at `penstock.governance`, then `penstock.wire`, then `penstock.broker`.
"""

from __future__ import annotations

__version__ = "0.2.0.dev0"
