#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo (`make demo`): New York's flights of 2013 go through a broker, it is flooded, and Spark adds them up.

    python examples/flights.py             all 336,776 flights, then 64 connections of 5 MiB messages, then Spark
    python examples/flights.py --core      without Spark
    python examples/flights.py --quick     a twentieth of it
    python examples/flights.py --flights N

It exits 0 only if every check passed. What it does is in `flight_demo/main.py`; docs/guide/demo.md explains it.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # The examples stand beside the package and are not installed with it.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

    from examples.flight_demo.main import main

    sys.exit(main())
