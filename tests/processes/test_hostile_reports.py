# SPDX-License-Identifier: Apache-2.0
"""Ordinary clients at the usage topic of broker processes, and administrators who change groups at once.

Only brokers publish to the topic. (What they do with forged, repeated and large reports, two brokers with one name and
clocks that are apart: `tests/broker/test_quota_sharing.py`.)
"""

from __future__ import annotations

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pulsar
import pytest

from benchmarks.quotas import produce, set_up
from penstock.core.units import KIB, MIB
from tests.processes.cluster import Cluster, metric, until
from tests.processes.test_quota_sharing import QUOTA, USAGE, are_equal_parts, shares

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("broker-0", "broker-1")
ADMINISTRATORS = 10
CHANGES = 12
GROUPS = "/admin/v2/resourcegroups"
# Messages of a client are at most 5 MiB, their metadata included.
LARGEST = bytes(5 * MIB - KIB)


def client_of(cluster: Cluster, tmp_path: Path) -> pulsar.Client:
    """A client that complains in a file of the messages that it had in flight when it is closed."""
    return pulsar.Client(cluster.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "client.log")))


@contextlib.contextmanager
def busy(client: pulsar.Client, topics: list[str]) -> Iterator[None]:
    """Producers that offer all the time more than the quota."""
    ended = threading.Event()
    threads = [threading.Thread(target=produce, args=(client, topic, ended), daemon=True) for topic in topics]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()


def overheard(client: pulsar.Client) -> list[bytes]:
    """Reports of two brokers, some of each."""
    consumer = client.subscribe(USAGE, "spy")
    reports: dict[str, list[bytes]] = {name: [] for name in NAMES}
    while any(len(some) < 2 for some in reports.values()):
        report = consumer.receive(60_000).data()
        next(some for name, some in reports.items() if name.encode() in report).append(report)
    consumer.close()
    return [report for some in reports.values() for report in some]


def test_no_client_reports_usage_and_what_it_overhears_is_of_no_use(tmp_path: Path) -> None:
    with Cluster(tmp_path / "data", 2) as cluster:
        topics = set_up(cluster.admin_port, QUOTA)
        client = client_of(cluster, tmp_path)
        with busy(client, topics):
            until(lambda: are_equal_parts(shares(cluster)))
            assert len(overheard(client)) >= 2
            for _ in range(10):
                with pytest.raises(pulsar.NotAllowedError):
                    client.create_producer(USAGE)
            for number in (0, 1):
                assert metric(cluster, number, "penstock_usage_topic_connected") == 1
            until(lambda: are_equal_parts(shares(cluster)))
        client.close()


def test_ten_administrators_of_three_brokers_at_once_under_load_leave_one_quota(tmp_path: Path) -> None:
    with Cluster(tmp_path / "data", 3) as cluster:
        topics = set_up(cluster.admin_port, QUOTA)
        namespaces = sorted({topic.removeprefix("persistent://").rpartition("/")[0] for topic in topics})

        def administer(number: int) -> list[int]:
            chance, answers = random.Random(number), []
            for _ in range(CHANGES):
                asked, group, namespace = chance.randrange(3), f"g{chance.randrange(4)}", chance.choice(namespaces)
                tenant = namespace.partition("/")[0]
                method, path, value = chance.choice(
                    [
                        ("PUT", f"{GROUPS}/{group}", {"publishRateInMsgs": chance.choice([-1, 100, 1_000])}),
                        ("DELETE", f"{GROUPS}/{group}", None),
                        ("POST", f"/admin/v2/namespaces/{namespace}/resourcegroup/{group}", None),
                        ("DELETE", f"/admin/v2/namespaces/{namespace}/resourcegroup", None),
                        ("POST", f"/admin/v2/tenants/{tenant}/resourcegroup/{group}", None),
                        ("DELETE", f"/admin/v2/tenants/{tenant}/resourcegroup", None),
                    ]
                )
                answers.append(cluster.http(asked, method, path, value)[0])
            return answers

        client = client_of(cluster, tmp_path)
        with busy(client, topics):
            producer = client.create_producer(topics[0], send_timeout_millis=0)
            with ThreadPoolExecutor(ADMINISTRATORS) as pool:
                answers = pool.map(administer, range(ADMINISTRATORS))
                sent = [producer.send(b"%d" % number) for number in range(20)]
                answered = {status for answer in answers for status in answer}
            assert answered <= {204, 404, 409, 412}, "changed, not there, changed by another, in use"
            assert sent == sorted(sent)
            for namespace in namespaces:
                tenant = namespace.partition("/")[0]
                cluster.http(0, "DELETE", f"/admin/v2/tenants/{tenant}/resourcegroup")
                assert cluster.http(1, "POST", f"/admin/v2/namespaces/{namespace}/resourcegroup/group")[0] == 204
            for number, group in enumerate(cluster.http(2, "GET", GROUPS)[1]):
                if group != "group":
                    assert cluster.http(number % 3, "DELETE", f"{GROUPS}/{group}")[0] == 204
            for number in range(3):
                assert cluster.http(number, "GET", GROUPS) == (200, ["group"])
            until(lambda: are_equal_parts(shares(cluster)))
        client.close()
