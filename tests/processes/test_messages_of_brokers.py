# SPDX-License-Identifier: Apache-2.0
"""Messages over REST of several brokers: any of them is asked, and the caller's rights hold at all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.testing.tokens import SECRET, data_url, token
from tests.processes.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
ORIGINS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers, and two tenants whose administrators have their names."""
    directory = tmp_path_factory.mktemp("cluster")
    (directory / "broker.conf").write_text(
        f"authenticationEnabled=true\nauthenticationProviders={PROVIDER}\ntokenSecretKey={data_url(SECRET)}\n"
        "authorizationEnabled=true\nsuperUserRoles=root\n"
    )
    with Cluster(directory / "data", 2, ["--config", str(directory / "broker.conf")]) as cluster:
        for tenant in ("shop", "other"):
            ask(
                cluster,
                0,
                "PUT",
                f"/admin/v2/tenants/{tenant}",
                {"adminRoles": [tenant], "allowedClusters": ["standalone"]},
            )
            ask(cluster, 0, "PUT", f"/admin/v2/namespaces/{tenant}/orders")
            for number in range(ORIGINS):
                ask(cluster, 0, "PUT", f"/admin/v2/persistent/{tenant}/orders/t{number}")
        yield cluster


def ask(cluster: Cluster, asked: int, method: str, path: str, value: object = None, role: str = "root") -> Any:  # noqa: ANN401 - JSON
    status, found = cluster.http(asked, method, path, value, token=token(role))
    assert status in {200, 204}, found
    return found


def messages(tenant: str, local: str) -> str:
    return f"/admin/v3/messages/persistent/{tenant}/orders/{local}"


@pytest.mark.parametrize("asked", [0, 1])
def test_a_message_is_sent_and_read_at_any_broker(cluster: Cluster, asked: int) -> None:
    for number in range(ORIGINS):
        at = messages("shop", f"t{number}")
        sent = ask(cluster, asked, "POST", at, {"value": f"by {asked}"}, "shop")
        page = ask(cluster, 1 - asked, "GET", f"{at}?from={sent['id']}", None, "shop")
        assert page["messages"][0]["value"] == f"by {asked}"
        assert cluster.http(asked, "POST", at, {"value": "x"}, token=token("other"))[0] == 403
        assert cluster.http(asked, "GET", at, token=token("other"))[0] == 403


@pytest.mark.parametrize("asked", [0, 1])
def test_keys_choose_the_same_partition_whoever_is_asked(cluster: Cluster, asked: int) -> None:
    if asked == 0:
        ask(cluster, 0, "PUT", "/admin/v2/persistent/shop/orders/p/partitions", 4)
    sent = [ask(cluster, asked, "POST", messages("shop", "p"), {"key": f"k{one}", "value": "x"}) for one in range(8)]
    again = [
        ask(cluster, 1 - asked, "POST", messages("shop", "p"), {"key": f"k{one}", "value": "x"}) for one in range(8)
    ]
    assert [one["topic"] for one in sent] == [one["topic"] for one in again]
    assert len({one["topic"] for one in sent}) > 1


@pytest.mark.parametrize("asked", [0, 1])
def test_dead_letters_go_to_topics_of_all_brokers_and_not_beyond_the_rights_of_the_caller(
    cluster: Cluster, asked: int
) -> None:
    for broker in range(2):  # Placed in turns: one at each.
        dead = messages("shop", f"dead-{asked}-{broker}")
        ask(cluster, 0, "PUT", dead.replace("/admin/v3/messages", "/admin/v2"))
        origins = [f"persistent://shop/orders/t{number}" for number in range(ORIGINS)]
        for origin in [*origins, "persistent://other/orders/t0"]:
            ask(cluster, asked, "POST", dead, {"value": "dead", "properties": {"REAL_TOPIC": origin}})
        done = ask(cluster, asked, "POST", f"{dead}/redrive", None, "shop")
        assert (done["sent"], done["left"]) == (dict.fromkeys(origins, 1), 1)
        assert "persistent://other/orders/t0" in done["stopped"] or "not authorized" in done["stopped"].lower()
        last = ask(cluster, asked, "GET", f"{messages('shop', 't3')}?from=latest&back=1")["messages"][0]
        assert (last["value"], last.get("properties")) == ("dead", None)
