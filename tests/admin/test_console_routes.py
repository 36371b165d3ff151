# SPDX-License-Identifier: Apache-2.0
"""The routes that the web console asks, of a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx


def test_the_overview_has_health_traffic_and_every_row_of_memory(rest: httpx.Client) -> None:
    answer = rest.get("/admin/v3/overview").json()
    assert answer["unanswered"] == []
    (broker,) = answer["brokers"]
    assert (broker["broker"], broker["status"], broker["reasons"]) == (0, "ok", [])
    assert broker["name"] == rest.base_url.netloc.decode()
    assert {row["row"] for row in broker["memory"]} >= {"requests", "outbound", "http", "sessions"}
    assert all(row["usedBytes"] <= row["limitBytes"] for row in broker["memory"])
    assert len(broker["publishTimes"]["counts"]) in {0, len(broker["publishTimes"]["boundsMs"]) + 1}


def page_of(rest: httpx.Client, path: str, **query: str) -> dict[str, Any]:
    """A page of topics as they are now: several consoles share a look, which may be older."""
    begun_ms = rest.get("/admin/v2/broker-stats/load-report").json()["lastUpdate"]
    while True:
        page: dict[str, Any] = rest.get(f"/admin/v3/topics{path}", params=query).json()
        if page["takenAtMs"] >= begun_ms:
            return page


def test_topics_are_found_in_their_namespace_their_tenant_and_everywhere(rest: httpx.Client, topic: str) -> None:
    tenant, namespace, local = topic.split("/")
    for path in ("", f"/{tenant}", f"/{tenant}/{namespace}"):
        page = page_of(rest, path, search=f"{tenant} {local}")
        assert [row["name"] for row in page["topics"]] == [f"persistent://{topic}"]
        assert page["total"] == 1


def test_a_tenant_or_a_namespace_that_does_not_exist_has_no_page(rest: httpx.Client, namespace: str) -> None:
    tenant = namespace.partition("/")[0]
    for path in ("nowhere", "nowhere/orders", f"{tenant}/nowhere", "a%2Fb"):
        assert rest.get(f"/admin/v3/topics/{path}").status_code in {404, 412}, path


def test_pages_have_bounds(rest: httpx.Client) -> None:
    for query in ("limit=2001", "offset=2001", "limit=-1", "sort=color", f"search={'x' * 257}"):
        assert rest.get(f"/admin/v3/topics?{query}").status_code == 400, query
    assert rest.get("/admin/v3/topics?offset=2000&limit=2000").json()["topics"] == []


def test_where_nobody_is_authenticated_everybody_is_a_superuser(rest: httpx.Client) -> None:
    assert rest.get("/admin/v3/who").json() == {"role": None, "superuser": True, "tenants": [], "more": False}


def test_what_waits_is_explained_of_everybody(rest: httpx.Client) -> None:
    found = rest.get("/admin/v3/why").json()
    assert found["of"] == "everything"
    assert found["unanswered"] == []


def test_tenants_are_paged_by_name_with_the_sums_of_their_topics(rest: httpx.Client, topic: str) -> None:
    tenant = topic.partition("/")[0]
    begun_ms = rest.get("/admin/v2/broker-stats/load-report").json()["lastUpdate"]
    while (page := rest.get(f"/admin/v3/tenants?search={tenant}").json())["takenAtMs"] < begun_ms:
        pass
    (row,) = page["tenants"]
    assert (row["tenant"], row["topics"], row["msgBacklog"], row["resourceGroup"]) == (tenant, 1, 0, None)
    assert page["total"] == 1
    assert rest.get("/admin/v3/tenants?limit=201").status_code == 400
    every = rest.get("/admin/v3/tenants?limit=1").json()
    assert every["total"] >= 2
    assert len(every["tenants"]) == 1


def test_settings_have_their_sources(rest: httpx.Client) -> None:
    rows = {row["key"]: row for row in rest.get("/admin/v3/settings").json()}
    assert rows["maxProducersPerTopic"]["source"] == "default"
    assert rows["webServicePort"]["source"] != "default"
    rest.post("/admin/v2/brokers/configuration/maxProducersPerTopic/77").raise_for_status()
    rows = {row["key"]: row for row in rest.get("/admin/v3/settings").json()}
    assert (rows["maxProducersPerTopic"]["value"], rows["maxProducersPerTopic"]["source"]) == ("77", "admin API")
    rest.delete("/admin/v2/brokers/configuration/maxProducersPerTopic").raise_for_status()
