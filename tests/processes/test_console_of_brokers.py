# SPDX-License-Identifier: Apache-2.0
"""What the console asks of one of several brokers is answered for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.testing.tokens import SECRET, data_url, token
from tests.processes.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPICS = 8
PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers, with the topics of two tenants, whose administrators have their names."""
    directory = tmp_path_factory.mktemp("cluster")
    (directory / "broker.conf").write_text(
        f"authenticationEnabled=true\nauthenticationProviders={PROVIDER}\ntokenSecretKey={data_url(SECRET)}\n"
        "authorizationEnabled=true\nsuperUserRoles=root\n"
    )
    with Cluster(directory / "data", 2, ["--config", str(directory / "broker.conf")]) as cluster:
        for tenant in ("shop", "other"):
            put(cluster, f"/admin/v2/tenants/{tenant}", {"adminRoles": [tenant], "allowedClusters": ["standalone"]})
            put(cluster, f"/admin/v2/namespaces/{tenant}/orders")
            for number in range(TOPICS):
                put(cluster, f"/admin/v2/persistent/{tenant}/orders/t{number}")
        yield cluster


def put(cluster: Cluster, path: str, value: object = None) -> None:
    assert cluster.http(0, "PUT", path, value, token=token("root"))[0] == 204


def get(cluster: Cluster, asked: int, path: str, role: str = "root") -> Any:  # noqa: ANN401 - JSON
    """The answer of one broker, once it is no older than what was made, and the other one has loaded its routes."""
    while True:
        status, found = cluster.http(asked, "GET", path, token=token(role))
        assert status == 200, found
        if not found.get("unanswered") and found.get("total") in {None, TOPICS, 2 * TOPICS, 4}:
            return found


@pytest.mark.parametrize("asked", [0, 1])
def test_the_overview_has_all_brokers(cluster: Cluster, asked: int) -> None:
    found = get(cluster, asked, "/admin/v3/overview")
    assert [(one["broker"], one["status"]) for one in found["brokers"]] == [(0, "ok"), (1, "ok")]
    assert found["brokers"][0]["name"] != found["brokers"][1]["name"]


@pytest.mark.parametrize("asked", [0, 1])
def test_a_page_has_the_topics_of_all_brokers_in_one_order(cluster: Cluster, asked: int) -> None:
    names = [f"persistent://shop/orders/t{number}" for number in range(TOPICS)]
    page = get(cluster, asked, "/admin/v3/topics/shop?sort=name")
    assert [row["name"] for row in page["topics"]] == names
    second = get(cluster, asked, "/admin/v3/topics/shop?sort=name&offset=3&limit=2")
    assert [row["name"] for row in second["topics"]] == names[3:5]
    assert second["total"] == TOPICS


@pytest.mark.parametrize("asked", [0, 1])
def test_tenants_have_the_sums_of_all_brokers(cluster: Cluster, asked: int) -> None:
    rows = {row["tenant"]: row for row in get(cluster, asked, "/admin/v3/tenants")["tenants"]}
    assert (rows["shop"]["topics"], rows["other"]["topics"]) == (TOPICS, TOPICS)
    assert rows["shop"]["adminRoles"] == ["shop"]


@pytest.mark.parametrize("asked", [0, 1])
def test_the_administrator_of_a_tenant_gets_its_topics_of_all_brokers_and_no_others(
    cluster: Cluster, asked: int
) -> None:
    assert get(cluster, asked, "/admin/v3/topics/shop", "shop")["total"] == TOPICS
    assert get(cluster, asked, "/admin/v3/topics/shop/orders", "shop")["total"] == TOPICS
    for path in ("topics", "topics/other", "topics/other/orders", "overview", "tenants", "settings", "why"):
        assert cluster.http(asked, "GET", f"/admin/v3/{path}", token=token("shop"))[0] == 403, path
    assert get(cluster, asked, "/admin/v3/who", "shop") == {
        "role": "shop",
        "superuser": False,
        "tenants": ["shop"],
        "more": False,
    }
