# SPDX-License-Identifier: Apache-2.0
"""What each test costs: the seconds of processor that it takes, those of the processes that it starts included.

Unlike the time that passes, they hardly depend on what else the machine does. As a plugin of pytest it leaves a line
per test in a file; as a program it prints the dearest tests and files:

    CPU_OF_TESTS=/tmp/costs.jsonl pytest -p tools.cpu_of_tests tests/broker
    python -m tools.cpu_of_tests /tmp/costs.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# In /proc/PID/stat behind the name: user and system time of the process, and of its children that have ended.
TIMES: Final = slice(11, 15)
SHOWN: Final = 80


def spent_s() -> float:
    """Seconds of processor that this process and all that descend from it have taken so far."""
    own = [resource.getrusage(one) for one in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    running_ticks = sum(_ticks(pid) for pid in _descendants(os.getpid()))
    return sum(one.ru_utime + one.ru_stime for one in own) + running_ticks / TICKS_PER_S


def _descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids = [int(one) for one in children.read_text().split()]
        except OSError:  # The thread has ended.
            continue
        for child in pids:
            yield child
            yield from _descendants(child)


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # It has ended, and is counted as such.
        return 0
    return sum(map(int, fields[TIMES]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure a test with the fixtures that are made for it, or end after it."""
    before_s, began_s = spent_s(), time.monotonic()
    yield
    line = {"test": item.nodeid, "cpu_s": round(spent_s() - before_s, 4), "s": round(time.monotonic() - began_s, 4)}
    with Path(os.environ["CPU_OF_TESTS"]).open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")


def main() -> None:
    """Print the table of a file."""
    parser = argparse.ArgumentParser(description="Print the dearest tests of a run with `-p tools.cpu_of_tests`.")
    parser.add_argument("file", type=Path, help="what the run left at CPU_OF_TESTS")
    lines = [json.loads(line) for line in parser.parse_args().file.read_text(encoding="utf-8").splitlines()]
    tests = {line["test"]: line["cpu_s"] for line in lines}
    files: defaultdict[str, float] = defaultdict(float)
    for name, cpu_s in tests.items():
        files[name.partition("::")[0]] += cpu_s
    print(f"{len(tests)} tests took {sum(tests.values()):.0f} s of processor")
    for costs in (tests, files):
        _print_dearest(costs)


def _print_dearest(costs: Mapping[str, float]) -> None:
    print()
    for name in sorted(costs, key=costs.__getitem__, reverse=True)[:SHOWN]:
        print(f"{costs[name]:8.2f} s  {name}")


if __name__ == "__main__":
    main()
