# SPDX-License-Identifier: Apache-2.0
"""A pattern finds topics of one namespace, or of several of a tenant, also those that come later."""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from penstock.spark import topic_patterns
from penstock.spark.client.admin import NoNamespaces, namespaces
from penstock.spark.client.cluster import LISTED_AT_ONCE_MAX
from penstock.spark.client.credentials import of_password, of_token
from penstock.spark.options import parse_read_options
from penstock.spark.planner import Planner
from penstock.spark.topic_patterns import TopicsPattern, pattern_of
from tests.spark.numbered import endpoint_of
from tests.spark.topics import ask, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.process import BrokerProcess


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("orders-.*", ("public", "default", "orders-.*")),
        ("shop/eu/orders-.*", ("shop", "eu", "orders-.*")),
        ("persistent://shop/region-.*/orders-.*", ("shop", "region-.*", "orders-.*")),
        ("shop/[^/]+/orders", ("shop", "[^/]+", "orders")),
        ("shop/(a|b)/[^/]+", ("shop", "(a|b)", "[^/]+")),
        (r"shop/a\d/b", ("shop", r"a\d", "b")),
    ],
)
def test_a_pattern_is_split_at_slashes_outside_of_brackets(text: str, wanted: tuple[str, str, str]) -> None:
    assert pattern_of(text) == TopicsPattern(*wanted)


def test_a_namespace_with_a_dot_is_one_namespace() -> None:
    assert pattern_of("shop/v1.2/orders-.*").has_one_namespace
    assert not pattern_of("shop/v.*/orders").has_one_namespace


def test_a_pattern_that_is_too_wide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_patterns, "NAMESPACES_MAX", 2)
    assert pattern_of("t/a.*/x").namespaces(["a1", "b", "a2"]) == ["t/a1", "t/a2"]
    with pytest.raises(ValueError, match=r"t/a\.\*/x matches 3 namespaces; at most 2"):
        pattern_of("t/a.*/x").namespaces(["a1", "a2", "a3"])
    monkeypatch.setattr(topic_patterns, "TOPICS_MAX", 1)
    with pytest.raises(ValueError, match="matches 2 topics; at most 1"):
        pattern_of("t/a/x.*").topics(["persistent://t/a/x1", "persistent://t/a/x2-partition-0"])


def test_topics_of_several_namespaces_are_found_also_later(broker: BrokerProcess) -> None:
    tenant = f"t-{uuid.uuid4().hex[:8]}"
    ask(broker.admin_url, "PUT", f"tenants/{tenant}", {"allowedClusters": ["standalone"]})

    def create(namespace: str, *names: str) -> list[str]:
        ask(broker.admin_url, "PUT", f"namespaces/{tenant}/{namespace}")
        topics = [f"persistent://{tenant}/{namespace}/{name}" for name in names]
        for topic in topics:
            ask(broker.admin_url, "PUT", path_of(topic))
        return topics

    wanted = [
        topic
        for number in range(LISTED_AT_ONCE_MAX + 2)
        for topic in create(f"region-{number:02}", "orders-1", "__change_events", "bills")
        if topic.endswith("orders-1")
    ]
    create("other", "orders-1")
    pattern = f"persistent://{tenant}/region-.*/orders-.*"
    given = {"service.url": broker.url, "admin.url": broker.admin_url, "topicsPattern": pattern}
    planner = Planner(parse_read_options(given))
    try:
        assert planner.partitions() == wanted
        wanted += create("region-99", "orders-2")
        assert planner.partitions() == wanted
    finally:
        planner.close()


class Answers(BaseHTTPRequestHandler):
    """Answers as the test says, and notes what credentials came."""

    status = 200
    body: object = ()
    seen: list[str | None]

    def do_GET(self) -> None:
        self.seen.append(self.headers["Authorization"])
        data = json.dumps(self.body).encode()
        self.send_response(self.status)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def admin_port() -> Iterator[str]:
    Answers.seen = []
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "wrong", "may_pass"),
    [
        (403, [], "it answered 403 .*may list the namespaces", False),
        (307, [], "it answered 307", False),
        (503, [], "it answered 503", True),
        (200, {"a": 1}, "no list of names", False),
    ],
)
def test_what_the_admin_port_refuses_is_told(
    admin_port: str, monkeypatch: pytest.MonkeyPatch, status: int, body: object, wrong: str, *, may_pass: bool
) -> None:
    monkeypatch.setattr(Answers, "status", status)
    monkeypatch.setattr(Answers, "body", body)
    endpoint = endpoint_of("pulsar://b:1", credentials=of_token("abc"))
    with pytest.raises(NoNamespaces, match=wrong) as refused:
        namespaces(endpoint, admin_port, "shop")
    assert refused.value.may_pass is may_pass
    assert "abc" not in str(refused.value)


def test_the_admin_port_gets_the_credentials_of_the_brokers(admin_port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "body", ["shop/b", "shop/a"])
    for credentials in (of_token("abc"), of_password("u", "p")):
        assert namespaces(endpoint_of("pulsar://b:1", credentials=credentials), f"{admin_port}/", "shop") == ["a", "b"]
    assert namespaces(endpoint_of("pulsar://b:1"), admin_port, "shop") == ["a", "b"]
    assert Answers.seen == ["Bearer abc", "Basic dTpw", None]


def test_an_admin_port_that_is_not_there_may_come() -> None:
    with pytest.raises(NoNamespaces, match="refused") as refused:
        namespaces(endpoint_of("pulsar://b:1"), "http://127.0.0.1:1", "shop")
    assert refused.value.may_pass
