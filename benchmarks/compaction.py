# SPDX-License-Identifier: Apache-2.0
"""How fast a topic is compacted: published with keys, then compacted on demand, measured until it says that it is done.

Where: `run` starts it for the loads whose `tool` it is; `options` say how many `keys` and `entries_per_s`.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.crowd import Driver
from benchmarks.measure import Figures, Load, Reading, parse_load
from benchmarks.process import ask

TIMEOUT_S = 90.0
POLL_S = 0.01


def compact(load: Load) -> Figures:
    """Publish, compact, and compare what is left with the number of keys."""
    keys, entries = int(load.options["keys"]), round(int(load.options["entries_per_s"]) * load.seconds)
    topic = f"{load.topic}-0"
    with ExitStack() as stack:
        driver = Driver(replace(load, options={"keys": keys, "consumers": 0}), stack)
        driver.open()
        driver.at_full_speed(TIMEOUT_S, entries)
        driver.finish()
        published = driver.sent
    path = topic.replace("://", "/")
    start, deadline_s = Reading.take(load, 0), time.monotonic() + TIMEOUT_S
    ask(load.admin_port, "PUT", f"{path}/compaction")
    while (status := ask(load.admin_port, "GET", f"{path}/compaction")["status"]) != "SUCCESS":
        if status == "ERROR" or time.monotonic() > deadline_s:
            raise RuntimeError(f"the compaction did not succeed within {TIMEOUT_S:.0f} s: {status}")
        time.sleep(POLL_S)
    end = Reading.take(load, published)
    left = ask(load.admin_port, "GET", f"{path}/internalStats")["compactedLedger"]["entries"]
    if left != min(keys, published):
        raise RuntimeError(f"{left} entries are left of {published} with {keys} keys")
    return start.until(end, load)


def main() -> None:
    """Drive one load and print its result."""
    mode, load = parse_load()
    print(json.dumps({"compact": compact}[mode](load)))


if __name__ == "__main__":
    main()
