# SPDX-License-Identifier: Apache-2.0
"""The loads of `fan_out` as rows of the table: the mode is the name of a row there. Entries are deliveries.

Where: `run` starts it for the loads whose `tool` it is.
"""

from __future__ import annotations

import json

from benchmarks.fan_out import ROWS, Consumer, drive
from benchmarks.generator import Publisher
from benchmarks.loads import COST, RATE
from benchmarks.measure import parse_load


def main(publisher_of: type[Publisher] = Publisher, consumer_of: type[Consumer] = Consumer) -> None:
    """Drive one load by the classes of a protocol's clients, and print its result."""
    mode, load = parse_load()
    (row,) = (row for row in ROWS if row.name == mode)
    assert load.broker_pid is not None, "its processor time is what counts"
    taken = drive(load.port, load.broker_pid, row, load.seconds, load.window, publisher_of, consumer_of)
    figures = {
        RATE: taken["rate"],
        COST: taken["µs"],
        "least share %": taken["share"],
        "broker core": taken["µs"] * taken["rate"] / 1e6,
        "generator core": taken["generator core"],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
