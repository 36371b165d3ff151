# SPDX-License-Identifier: Apache-2.0
"""How a process that serves clients sets up its interpreter: threads, garbage collection, open files.

Where: `app` and `proxy_app`.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from typing import Final

# The interpreter's switch interval: a thread that waited for the disk runs again this soon, instead of after the
# default 5 ms, because the journal's delay is part of every receipt.
SWITCH_INTERVAL_S: Final = 0.0005
# Long-lived objects (topics, cursors, columns of runs) have few cycles, and a full collection with many topics blocks
# the loop for tens of milliseconds: collect less often than the default (700, 10, 10). A collection of the middle
# generation looks at 50,000 objects at most, which takes about 15 ms.
GC_THRESHOLDS: Final = (10_000, 4, 500)


def set_up_interpreter() -> None:
    """Set the switch interval, and raise the soft limit of open files to the hard limit: a connection needs one."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def started() -> None:
    """Collect garbage from now on, and never look at what exists already."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
