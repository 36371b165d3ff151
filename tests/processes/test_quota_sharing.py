# SPDX-License-Identifier: Apache-2.0
"""Broker processes that share one quota: with official clients, a killed broker, and with authorization."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pulsar
import pytest

from benchmarks.quotas import produce, set_up
from penstock.testing.tokens import SECRET, data_url, token
from tests.processes.cluster import Cluster, metric, until

if TYPE_CHECKING:
    from pathlib import Path

USAGE = "non-persistent://pulsar/system/resource-usage"
QUOTA = 300


def shares(cluster: Cluster) -> list[float | None]:
    return [metric(cluster, number, "penstock_resource_group_share_messages") for number in range(cluster.brokers)]


def are_equal_parts(found: list[float | None]) -> bool:
    """Whether busy brokers have about the same, and the quota together."""
    return all(one is not None and one == pytest.approx(QUOTA / len(found), rel=0.1) for one in found)


def are_connected(cluster: Cluster) -> bool:
    """Whether all brokers hear of each other's usage."""
    return all(metric(cluster, number, "penstock_usage_topic_connected") for number in range(cluster.brokers))


def test_three_brokers_share_one_quota_and_go_on_when_one_is_killed(tmp_path: Path) -> None:
    with Cluster(tmp_path / "data", 3) as cluster:
        topics = set_up(cluster.admin_port, QUOTA)
        # At its end the client complains of each message that it had in flight.
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "client.log"))
        client = pulsar.Client(cluster.url, logger=logger)
        ended = threading.Event()
        threads = [threading.Thread(target=produce, args=(client, topic, ended), daemon=True) for topic in topics]
        for thread in threads:
            thread.start()
        until(lambda: are_equal_parts(shares(cluster)))
        cluster.kill_broker(cluster.owner(USAGE))  # The topic moves, and back.
        until(lambda: len(cluster.pids()) == 3 and are_connected(cluster) and are_equal_parts(shares(cluster)))
        ended.set()
        client.close()


def test_only_brokers_use_the_topic_where_authorization_is_on(tmp_path: Path) -> None:
    settings = tmp_path / "broker.conf"
    settings.write_text(
        "authenticationEnabled=true\nauthorizationEnabled=true\nsuperUserRoles=admin\n"
        "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
        f"tokenSecretKey={data_url(SECRET)}\n"
    )
    with Cluster(tmp_path / "data", 2, ["--config", str(settings)]) as cluster:
        attach = "/admin/v2/namespaces/public/default/resourcegroup/g"
        group = {"publishRateInMsgs": 9}
        assert cluster.http(0, "PUT", "/admin/v2/resourcegroups/g", group, token=token("admin"))[0] == 204
        assert cluster.http(0, "POST", attach, token=token("admin"))[0] == 204
        until(lambda: are_connected(cluster))
        until(lambda: (metric(cluster, 0, 'penstock_usage_reports_total{outcome="received"}') or 0) > 1)
        client = pulsar.Client(
            cluster.url,
            authentication=pulsar.AuthenticationToken(token("tenant")),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer(USAGE)
        with pytest.raises(pulsar.AuthorizationError):
            client.subscribe(USAGE, "s")
        client.close()
