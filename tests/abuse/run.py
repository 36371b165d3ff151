# SPDX-License-Identifier: Apache-2.0
"""`make abuse`: every command and every field of the protocol, and every route with a body, used against the broker.

Why: a bound that holds on the path it was designed for is a bound that somebody walks around. What is attacked here is
made from the protocol's tables, so nobody chose it.
Where: prints the ten worst and every bound that was broken; exits 1 if there was one.

What must hold for each attack, at memoryLimitMB=256 and, where we may, with the kernel's own limit there:

- resident memory stays within the memory row that such a request has, plus 64 MiB, above what it was before the first;
- no turn of the loop takes longer than 50 ms, and another client's PING is answered within 250;
- `/healthz` answers within a second;
- five seconds after the attackers have left, everything is given back;
- SIGTERM in the middle of an attack is obeyed; each broker gets it at its end.

Without arguments it is a sample: each command, each of its fields and each route once, by how many clients and the
rest chosen by seed. All of it takes an hour or more. With `--results` it can be spread over several occasions: attacks
that broke nothing according to that file are not carried out again.

Attacks that are the same to a proxy are put to it several at once, and each alone if they break a bound together. On a
machine that others use, `--shared-machine` does not count time in which the proxy waited for a processor.

    python -m tests.abuse.run --cases 0 --results /tmp/abuse.jsonl --minutes 20
    python -m tests.abuse.run --cases 0 --shard 1/4
    python -m tests.abuse.run --cases 50 --seed 7 --only SUBSCRIBE
    python -m tests.abuse.run --cases 50 --proxy --shared-machine
    python -m tests.abuse.run --upstream
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import asdict, replace
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.units import MIB
from tests.abuse.broken_upstream import BEHAVIOURS, behind_proxy, faults
from tests.abuse.cases import all_cases, grouped
from tests.abuse.subject import Finding, Subject, subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.abuse.cases import Case

# A broker serves so many attacks, and is stopped in the middle of one more.
CASES_PER_BROKER: Final = 100
# These machines are shared: a broken bound counts when it is broken each time.
TRIES: Final = 2
WORST: Final = 10


class Run:
    """Attacks one after another, on one broker after another.

    Attributes:
        findings: what each attack did.
        found: is told of each.
        wrong: what went wrong beside them.
    """

    def __init__(
        self,
        *,
        until_s: float = inf,
        found: Callable[[Finding], None] = lambda _: None,
        brokers: int = 1,
        proxied: bool = False,
        own_time: bool = False,
    ) -> None:
        """Begin no attack after `until_s` on the monotonic clock."""
        self.findings: list[Finding] = []
        self.wrong: list[str] = []
        self._until_s = until_s
        self._brokers = brokers
        self._proxied = proxied
        self._own_time = own_time
        self.found = found

    def attack_all(self, cases: Sequence[Case]) -> None:
        """Put the cases to brokers."""
        left = deque(cases)
        while left and time.monotonic() < self._until_s:
            with tempfile.TemporaryDirectory(prefix="penstock-abuse-") as scratch:
                try:
                    with subject(
                        Path(scratch), brokers=self._brokers, proxied=self._proxied, own_time=self._own_time
                    ) as attacked:
                        self._attack_one_broker(attacked, left)
                except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                    # The next broker goes on behind the case that this one did not survive.
                    last = "the start"
                    if self.findings:
                        last = self.findings[-1].case
                        self.found(self.findings[-1])
                    log = Path(scratch, "proxy.log" if self._proxied else "data.log")
                    tail = log.read_text()[-1500:] if log.exists() else ""
                    self.wrong.append(f"the broker failed at {last}: {error}\n{tail}")

    def _attack_one_broker(self, attacked: Subject, left: deque[Case]) -> None:
        case = left[0]
        for _ in range(min(CASES_PER_BROKER, len(left))):
            if time.monotonic() > self._until_s:
                break
            case = left.popleft()
            self.put_to(attacked, case)
        complaint = attacked.stop_under(case)
        if complaint is not None:
            self.wrong.append(complaint)
        if attacked.group is not None and attacked.group.kills():
            self.wrong.append(f"the kernel ended the broker, at the latest during {case}")

    def put_to(self, attacked: Subject, case: Case) -> None:
        """Carry out an attack; of several at once that break a bound, each alone."""
        at = len(self.findings)
        self.findings += [Finding(str(one), faults=["the broker did not survive it"]) for one in case.apart()]
        of_all = attacked.put_to(case)
        for number, one in enumerate(case.apart(), at):
            finding = of_all
            for _ in range(TRIES - 1 + bool(case.beside)):
                if finding.faults:
                    finding = attacked.put_to(one)
            self.findings[number] = replace(finding, case=str(one), faults=list(finding.faults))
            self.found(self.findings[number])


def chosen(cases: Sequence[Case], *, count: int | None, seed: int, shard: tuple[int, int] = (1, 1)) -> list[Case]:
    """Return a sample of `count` cases: each stratum once before one comes twice; None: each once; 0: all.

    Of them, a shard (K of N) has those of every N-th attack. Cases of the same frames come one after another, because
    the attacker keeps the frames that it made last.
    """
    order = list(cases)
    random.Random(seed).shuffle(order)
    strata: dict[str, list[Case]] = {}
    for case in order:
        strata.setdefault(case.stratum, []).append(case)
    rounds = [case for turn in zip_longest(*strata.values()) for case in turn if case is not None]
    sample = set(rounds[: len(strata) if count is None else count or len(rounds)])
    part, parts = shard
    attacks = set(list(dict.fromkeys(case.what for case in cases))[part - 1 :: parts])
    return [case for case in cases if case in sample and case.what in attacks]


def _shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"a shard is K/N with K from 1 to N, not {text}")
    return int(part), int(parts)


def _read(results: Path | None) -> dict[str, Finding]:
    """The last finding of each case."""
    lines = results.read_text().splitlines() if results is not None and results.exists() else []
    findings = (Finding(**json.loads(line)) for line in lines)
    return {finding.case: finding for finding in findings}


def main(argv: Sequence[str] | None = None) -> int:
    """Attack, print the worst, and say whether every bound held."""
    parser = argparse.ArgumentParser(description="use the protocol against a broker")
    parser.add_argument("--cases", type=int, help="how many, chosen by seed; 0 for all, without it one of each attack")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--shard", type=_shard, default=(1, 1), metavar="K/N", help="the K-th of N parts of the cases")
    parser.add_argument("--results", type=Path, help="append what each did to this file; leave out what is in it")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no attack after this time")
    parser.add_argument("--brokers", type=int, default=1, help="attack the first of so many; the last serves the topic")
    parser.add_argument("--proxy", action="store_true", help="attack a proxy that stands before one broker")
    parser.add_argument("--shared-machine", action="store_true", help="of a proxy, do not count waits for a processor")
    parser.add_argument("--upstream", action="store_true", help="put broken brokers behind a proxy instead")
    options = parser.parse_args(argv)
    if options.upstream:
        return break_upstreams(options.only)
    results = _read(options.results)
    cases = [case for case in all_cases() if re.search(options.only, str(case))]
    cases = chosen(cases, count=options.cases, seed=options.seed, shard=options.shard)
    left = [case for case in cases if str(case) not in results or results[str(case)].faults]

    def found(finding: Finding) -> None:
        results[finding.case] = finding
        print(finding.line(), *finding.faults, sep="\n    ", flush=True)
        if options.results is not None:
            with options.results.open("a") as file:
                print(json.dumps(asdict(finding)), file=file)

    began = time.monotonic()
    run = Run(
        until_s=began + options.minutes * 60,
        found=found,
        brokers=options.brokers,
        proxied=options.proxy,
        own_time=options.shared_machine,
    )
    run.attack_all(grouped(left) if options.proxy else left)
    seconds = time.monotonic() - began
    print(f"\n{len(run.findings)} attacks in {seconds:.0f} s, {len(left) - len(run.findings)} left to do.")
    return _report(list(results.values()), run.wrong)


def break_upstreams(only: str) -> int:
    """Put each broken broker behind a proxy; returns the exit status."""
    broken = []
    with tempfile.TemporaryDirectory(prefix="penstock-abuse-") as scratch, behind_proxy(Path(scratch)) as running:
        for name in BEHAVIOURS:
            if re.search(only, name):
                figures = running.put_to(name)
                print(
                    f"{name:<40} RSS {figures['rss'] / MIB:+6.1f}  held {figures['held'] / MIB:5.1f} MiB  "
                    f"PING {figures['ping_s'] * 1000:5.0f} ms  metrics {figures['health_s'] * 1000:5.0f} ms  "
                    f"back {figures['given_back_s']:4.1f} s",
                    flush=True,
                )
                broken += [f"{name}: {fault}" for fault in faults(figures, timing=True)]
    print(f"\n{len(broken)} bounds broken" + "".join(f"\n  {one}" for one in broken))
    return 1 if broken else 0


def _report(findings: Sequence[Finding], wrong: Sequence[str]) -> int:
    print(f"\nOf {len(findings)} attacks, the most memory:")
    for finding in sorted(findings, key=lambda one: one.rss_bytes, reverse=True)[:WORST]:
        print(finding.line())
    print("\nThe longest waits of others:")
    for finding in sorted(findings, key=lambda one: (one.turn_ms, one.ping_s), reverse=True)[:WORST]:
        print(finding.line())
    broken = [f"{finding.case}: {fault}" for finding in findings for fault in finding.faults] + list(wrong)
    print(f"\n{len(broken)} bounds broken" + "".join(f"\n  {one}" for one in broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
