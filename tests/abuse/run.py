# SPDX-License-Identifier: Apache-2.0
"""`make abuse`: every command and every field of the protocol, and every route with a body, used against the broker.

Why: a bound that holds on the path it was designed for is a bound that somebody walks around. What is attacked here is
made from the protocol's tables, so nobody chose it.
Where: prints the ten worst and every bound that was broken; exits 1 if there was one.

What must hold for each attack, at memoryLimitMB=256 and, where we may, with the kernel's own limit there:

- resident memory stays within the memory row that such a request has, plus 64 MiB, above what it was;
- no turn of the loop takes longer than 50 ms, and another client's PING is answered within 250;
- `/healthz` answers within a second;
- five seconds after the attackers have left, everything is given back;
- SIGTERM in the middle of it is obeyed.

    python -m tests.abuse.run --cases 50 --seed 7 --only 'SUBSCRIBE'
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.abuse.cases import all_cases
from tests.abuse.subject import Finding, Subject, subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.abuse.cases import Case

# A broker serves so many attacks, and is stopped in the middle of one more.
CASES_PER_BROKER: Final = 25
# These machines are shared: a broken bound counts when it is broken each time.
TRIES: Final = 2
WORST: Final = 10


def attack_all(cases: Sequence[Case], *, hard: bool = True, verbose: bool = False) -> tuple[list[Finding], list[str]]:
    """Put the cases to brokers; returns what each did, and what went wrong beside them."""
    findings: list[Finding] = []
    wrong: list[str] = []
    left = deque(cases)
    while left:
        with tempfile.TemporaryDirectory(prefix="penstock-abuse-") as scratch:
            try:
                with subject(Path(scratch), hard=hard) as attacked:
                    wrong += _attack_one_broker(attacked, left, findings, verbose=verbose)
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                # The next broker goes on behind the case that this one did not survive.
                last = findings[-1].case if findings else "the start"
                log = Path(scratch, "data.log")
                tail = log.read_text()[-1500:] if log.exists() else ""
                wrong.append(f"the broker failed at {last}: {error}\n{tail}")
    return findings, wrong


def _attack_one_broker(attacked: Subject, left: deque[Case], findings: list[Finding], *, verbose: bool) -> list[str]:
    wrong = []
    case = left[0]
    for _ in range(min(CASES_PER_BROKER, len(left))):
        case = left.popleft()
        findings.append(Finding(str(case), faults=["the broker did not survive it"]))
        findings[-1] = _put_to(attacked, case)
        if verbose:
            print(findings[-1].line(), *findings[-1].faults, sep="\n    ", flush=True)
    complaint = attacked.stop_under(case)
    if complaint is not None:
        wrong.append(complaint)
    if attacked.group is not None and attacked.group.kills():
        wrong.append(f"the kernel ended the broker, at the latest during {case}")
    return wrong


def _put_to(attacked: Subject, case: Case) -> Finding:
    finding = attacked.put_to(case)
    for _ in range(TRIES - 1):
        if finding.faults:
            finding = attacked.put_to(case)
    return finding


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases that were asked for: those of a pattern, and of them a sample by seed, of each kind as many."""
    cases = [case for case in all_cases() if re.search(options.only, str(case))]
    if not options.cases or options.cases >= len(cases):
        return cases
    random.Random(options.seed).shuffle(cases)
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        kinds.setdefault(case.kind, []).append(case)
    in_turns = (case for turn in zip_longest(*kinds.values()) for case in turn if case is not None)
    return list(islice(in_turns, options.cases))


def main(argv: Sequence[str] | None = None) -> int:
    """Attack, print the worst, and say whether every bound held."""
    parser = argparse.ArgumentParser(description="use the protocol against a broker")
    parser.add_argument("--cases", type=int, default=200, help="how many, chosen by seed; 0 for all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a regular expression of names")
    options = parser.parse_args(argv)
    cases = chosen(options)
    began = time.monotonic()
    findings, wrong = attack_all(cases, verbose=True)
    print(f"\n{len(findings)} attacks in {time.monotonic() - began:.0f} s. The most memory:")
    for finding in sorted(findings, key=lambda one: one.rss_bytes, reverse=True)[:WORST]:
        print(finding.line())
    print("\nThe longest waits of others:")
    for finding in sorted(findings, key=lambda one: (one.turn_ms, one.ping_s), reverse=True)[:WORST]:
        print(finding.line())
    broken = [f"{finding.case}: {fault}" for finding in findings for fault in finding.faults] + wrong
    print(f"\n{len(broken)} bounds broken" + "".join(f"\n  {one}" for one in broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
