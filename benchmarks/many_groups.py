# SPDX-License-Identifier: Apache-2.0
"""One broker with 10,000 resource groups, to which 100,000 namespaces are attached: start, memory, changes, traffic.

    python -m benchmarks.many_groups [--groups 10000] [--namespaces 100000] [--brokers 1]

The catalog is filled without a broker, once without and once with groups; each is started and compared. Then a topic is
loaded for each group, and 200 clients publish to all of them. Pings of another client say for how long others have to
wait while groups are listed and changed, and metrics are read. With `--brokers 2` the quotas are shared by usage
reports, too. Takes two to three minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from benchmarks.brokers import penstock
from benchmarks.footprint import answers
from benchmarks.process import allow_many_sockets, ask, metrics, usage
from benchmarks.quotas import children
from benchmarks.report import print_table
from penstock.broker.policies.policy_values import OF_NAMESPACE, RESOURCE_GROUP
from penstock.storage.catalog import Catalog
from penstock.storage.directory import open_data_directory
from penstock.storage.files import OsFiles
from penstock.testing.client import RawClient, Type, entry, frame, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.process import Address

NAMESPACES_OF_A_TENANT: Final = 100
CLIENTS: Final = 200
QUOTA: Final = {
    "publishRateInMsgs": 1_000,
    "publishRateInBytes": 1_000_000,
    "dispatchRateInMsgs": 1_000,
    "dispatchRateInBytes": 1_000_000,
}
CHANGES: Final = 50
LISTINGS: Final = 10
CYCLES_S: Final = 10.0
PING_PAUSE_S: Final = 0.001
STORED: Final = entry(b"x" * 100)


def namespace(number: int) -> str:
    return f"tenant-{number // NAMESPACES_OF_A_TENANT}/namespace-{number}"


def fill(path: Path, namespaces: int, groups: int) -> None:
    """Store tenants, namespaces and groups, as administrators would have."""
    errors: list[object] = []
    catalog = Catalog.open(open_data_directory(path, OsFiles()), lambda callback: callback())
    for number in range(-(-namespaces // NAMESPACES_OF_A_TENANT)):
        catalog.put_tenant(f"tenant-{number}", {}, errors.append)
    for number in range(groups):
        catalog.put_document(RESOURCE_GROUP, f"group-{number}", QUOTA, errors.append)
    for number in range(namespaces):
        policies = {OF_NAMESPACE: f"group-{number % groups}"} if groups else {}
        catalog.put_namespace(namespace(number), policies, errors.append)
    catalog.close()
    if any(error is not None for error in errors):
        raise RuntimeError(f"the catalog was not filled: {next(filter(None, errors))}")


def median_ms(count: int, work: Callable[[int], object]) -> float:
    """Median of the milliseconds that something takes, done so many times."""
    took = []
    for number in range(count):
        began_s = time.monotonic()
        work(number)
        took.append((time.monotonic() - began_s) * 1_000)
    return statistics.median(took)


def publish_to_all(port: int, groups: int, stack: ExitStack) -> tuple[float, float]:
    """Publish one message to a topic of each group, by 200 clients, twice; seconds until all had their receipts."""
    clients = [stack.enter_context(RawClient(port)) for _ in range(min(CLIENTS, groups))]
    of_client = [list(range(first, groups, len(clients))) for first in range(len(clients))]
    began_s = time.monotonic()
    for step in range(-(-groups // len(clients))):
        busy = [(client, one[step]) for client, one in zip(clients, of_client, strict=True) if step < len(one)]
        for client, number in busy:
            topic = f"persistent://{namespace(number)}/topic"
            client.write(frame(Type.LOOKUP, topic=topic, request_id=number))
        for client, _ in busy:
            answers(client, Type.LOOKUP_RESPONSE, Type.ERROR, 1)
        for client, number in busy:
            topic = f"persistent://{namespace(number)}/topic"
            client.write(frame(Type.PRODUCER, topic=topic, producer_id=number, request_id=number))
        for client, _ in busy:
            answers(client, Type.PRODUCER_SUCCESS, Type.ERROR, 1)
    opened_s = time.monotonic() - began_s
    began_s = time.monotonic()
    for client, numbers in zip(clients, of_client, strict=True):
        client.write(b"".join(send(number, 0, STORED) for number in numbers))
    for client, numbers in zip(clients, of_client, strict=True):
        answers(client, Type.SEND_RECEIPT, Type.SEND_ERROR, len(numbers))
    return opened_s, time.monotonic() - began_s


def started(address: Address) -> dict[str, float]:
    began_s = address.started_s
    return {"start, s": time.monotonic() - began_s, "memory after the start, MiB": usage(broker_pid(address)).rss_mib}


def broker_pid(address: Address) -> int:
    return children(address.pid).get(0, address.pid)


class Pings:
    """Another client, which pings all the time: for how long the broker's loop does not serve it."""

    def __init__(self, port: int) -> None:
        self.took_ms: list[float] = []
        self._client = RawClient(port)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(PING_PAUSE_S):
            began_s = time.monotonic()
            self._client.write(frame(Type.PING))
            while self._client.read().command.type != Type.PONG:
                pass
            self.took_ms.append((time.monotonic() - began_s) * 1_000)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()

    def figures(self, what: str) -> dict[str, float]:
        """Median and longest since the last call."""
        taken, self.took_ms = self.took_ms, []
        return {f"ping, {what}: median, ms": statistics.median(taken), f"ping, {what}: longest, ms": max(taken)}


def measure(address: Address, groups: int, stack: ExitStack) -> dict[str, float]:
    """Changes, listings and traffic on a broker whose groups are attached."""
    port, pid = address.admin_port, broker_pid(address)
    metrics(port)  # The first request loads the admin port.
    ask(port, "GET", "resourcegroups")
    opened_s, sent_s = publish_to_all(address.port, groups, stack)
    found = {"a topic of each group, s": opened_s, "a message to each, s": sent_s}
    found["memory with a topic of each, MiB"] = usage(pid).rss_mib
    pings = stack.enter_context(Pings(address.port))
    before_s, began_s = usage(pid).cpu_s, time.monotonic()
    time.sleep(CYCLES_S)
    found["CPU while idle, ms per cycle"] = (usage(pid).cpu_s - before_s) * 1_000 / (time.monotonic() - began_s)
    found |= pings.figures("idle")
    found["list all groups, ms"] = median_ms(LISTINGS, lambda _: ask(port, "GET", "resourcegroups"))
    found |= pings.figures("listing")
    found["change a quota, ms"] = median_ms(
        CHANGES, lambda one: ask(port, "PUT", "resourcegroups/group-0", {"publishRateInMsgs": 1_000 + one})
    )
    found["attach a namespace, ms"] = median_ms(
        CHANGES, lambda one: ask(port, "POST", f"namespaces/{namespace(one)}/resourcegroup/group-{(one + 1) % groups}")
    )
    found |= pings.figures("changing")
    found["one scrape, ms"] = median_ms(1, lambda _: metrics(port))
    found |= pings.figures("scraping")
    found["memory at the end, MiB"] = usage(pid).rss_mib
    return found


def main() -> int:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description="One broker with very many resource groups.")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--namespaces", type=int, default=100_000)
    parser.add_argument("--brokers", type=int, default=1)
    options = parser.parse_args()
    allow_many_sockets()
    starts: dict[str, dict[str, float]] = {}
    found: dict[str, float] = {}
    for groups in (0, options.groups):
        with ExitStack() as stack:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="many-groups-"))) / "data"
            fill(data, options.namespaces, groups)
            arguments = ["--brokers", str(options.brokers)] if options.brokers > 1 else []
            address = stack.enter_context(penstock(data, arguments=arguments))
            starts[f"{groups:,} groups"] = started(address)
            if groups:
                found = measure(address, groups, stack)
    print(f"{options.namespaces:,} namespaces, {options.brokers} brokers, {CLIENTS} clients")
    print_table("start", starts)
    print_table("then", {f"{options.groups:,} groups": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
