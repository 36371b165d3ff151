# SPDX-License-Identifier: Apache-2.0
"""What lists of topics cost: how long one takes, and the memory of a thousand that are asked for at once (PIP-442).

    python -m benchmarks.listings --peer pulsar
    python -m benchmarks.listings --loads slow patterns many-patterns [--memory-limit-mb 512]
    python -m benchmarks.listings --proxy [--peer pulsar] [--loads at-once slow]

Each load has a fresh broker. The first two are also measured with 8 MB for lists and 8 MB for what is being sent:

at-once        1,000 connections ask at once, and read their megabyte as it comes
watchers       300 connections ask for 300 topics of 512 characters by pattern and watch them; 300 more are made

The others are clients that make listings expensive: what they get, and what the others feel meanwhile.

distinct       as at-once, each with a pattern of its own, so that no two share an answer; late ones are
               refused
unread         the same clients read nothing for 5 s and are gone: what they hold, and whether the next one is answered
slow           500 connections ask four times each for 10,000 topics, and every second one reads 128 KB/s. All are to be
               answered, the fast ones within seconds, and the broker is to hold the list once
beside-slow    30 connections ask ten times each for 2,000 topics and read 20 KB/s. One asks again and again and reads
               at once: how long it waits
patterns       one connection asks for 20,000 topics by 1,000 patterns without waiting. Others publish, one message
               after another, and one asks for a list now and then: their latency before and meanwhile
many-patterns  one connection watches by 600 patterns of its own, then topics come

With --proxy, clients ask a proxy before the broker (the peer, if one is named); limits and growth are the proxy's. With
--connected, the proxy has connected them to the broker.

Growth is the highest resident memory during a load above that before it, with all connections open. A load has failed
if any client got an error or a list that is not whole, or if the limiters are not free at the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.brokers import BROKERS, add_peer_option, chosen
from benchmarks.listing_loads import LOADS, QUICK, Figures, Sizes, permits_held
from benchmarks.process import allow_many_sockets
from benchmarks.report import PENSTOCK, print_table
from penstock.testing.process import ProxyProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.process import Address

SMALL_MB: Final = 8
SMALL: Final = {
    "maxTopicListInFlightHeapMemSizeMB": str(SMALL_MB),
    "maxTopicListInFlightDirectMemSizeMB": str(SMALL_MB),
}
USUAL: Final = ("at-once", "watchers")


@contextmanager
def asked(name: str, settings: Mapping[str, str], *, proxied: bool, connected: bool = False) -> Iterator[Address]:
    """Start a broker, or a proxy before one, with these settings."""
    if not proxied:
        with BROKERS[name](settings=settings) as address:
            yield address
        return
    with BROKERS[name]() as broker, tempfile.TemporaryDirectory(prefix="listings-") as scratch:
        file = Path(scratch) / "proxy.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        arguments = ["--upstream-admin", broker.admin_url, "--config", str(file)]
        with ProxyProcess(broker.url, arguments, log_path=Path(scratch) / "proxy.log") as proxy:
            through = f"127.0.0.1:{broker.port}" if connected else ""
            yield replace(broker, port=proxy.port, admin_port=proxy.admin_port, pid=proxy.pid, through=through)


def measure(
    name: str,
    load: str,
    settings: Mapping[str, str],
    sizes: Sizes,
    *,
    proxied: bool = False,
    connected: bool = False,
) -> Figures:
    """One load on one broker, or on a proxy before it."""
    figures = Figures()
    with asked(name, settings, proxied=proxied, connected=connected) as address:
        LOADS[load](address, sizes, figures)
        deadline_s = time.monotonic() + 10
        while (held := permits_held(address)) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        figures.values["permits still held, bytes"] = held
    if held:
        figures.failed.append("permits are still held")
    figures.values["errors"] = len(figures.failed)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print one table a load; exits 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer_option(parser)
    parser.add_argument("--loads", nargs="*", choices=LOADS, default=USUAL)
    parser.add_argument("--memory-limit-mb", default="512", help="of the broker, for expensive clients")
    parser.add_argument("--proxy", action="store_true", help="ask a proxy before the broker")
    parser.add_argument("--connected", action="store_true", help="through a proxy, connected to the broker")
    parser.add_argument("--quick", action="store_true", help="a smoke test: means nothing as figures")
    options = parser.parse_args(argv)
    options.proxy |= options.connected
    allow_many_sockets()
    failed = []
    for load in options.loads:
        columns = {}
        limits = {f"memoryLimitMB={options.memory_limit_mb}": {"memoryLimitMB": options.memory_limit_mb}}
        if load in USUAL:
            limits = {"own limits": {}, f"{SMALL_MB} + {SMALL_MB} MB": SMALL}
        for title, settings in limits.items():
            names = chosen(options) if load in USUAL else [PENSTOCK]
            for name in names[-1:] if options.proxy else names:
                figures = measure(
                    name,
                    load,
                    settings,
                    QUICK if options.quick else Sizes(),
                    proxied=options.proxy,
                    connected=options.connected,
                )
                columns[f"{name}, {title}"] = figures.values
                failed += [f"{load}, {title}: {text}" for text in figures.failed if name == PENSTOCK or options.proxy]
        print_table(load, columns)
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
