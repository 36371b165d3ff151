# SPDX-License-Identifier: Apache-2.0
"""`penstock why`: what slows something, asked of a running broker."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import httpx
import pytest

from penstock.cli.exits import Exit
from penstock.cli.main import main
from penstock.cli.why import lines, paths
from penstock.core.errors import PenstockError
from penstock.testing.client import RawClient, Type, entry, send

if TYPE_CHECKING:
    from penstock.testing.process import BrokerProcess


def test_a_name_is_asked_as_what_it_looks_like() -> None:
    assert paths("shop") == ["tenants/shop", "producers/shop"]
    assert paths("shop/orders") == ["namespaces/shop/orders"]
    assert paths("persistent://shop/orders/a/b?c") == ["persistent/shop/orders/a%2Fb%3Fc"]
    assert paths("a/b/c") == ["tenants/a%2Fb%2Fc", "producers/a%2Fb%2Fc"]


@pytest.mark.parametrize("name", ["queue://a/b/c", "persistent://a/b", "persistent://a/b/"])
def test_a_name_that_is_no_topic_is_refused(name: str) -> None:
    with pytest.raises(PenstockError, match="is not a topic"):
        paths(name)


def test_findings_are_printed_with_their_numbers_time_and_remedy() -> None:
    answer = {
        "of": "tenant shop",
        "producers": 2,
        "subscriptions": 1,
        "findings": [
            {
                "what": "producer p",
                "limit": "publish quota of resource group gold",
                "reason": "group-quota",
                "forMs": 1_500,
                "numbers": {"share_messages_per_s": 12.5, "held_messages": 7000},
                "liftedBy": "wait 10 ms",
            }
        ],
        "more": True,
    }
    assert list(lines(answer)) == [
        "tenant shop is slowed (2 producers, 1 subscriptions):",
        "- producer p",
        "    by       publish quota of resource group gold (group-quota), for 1.5 s",
        "    numbers  share_messages_per_s 12.5, held_messages 7,000",
        "    lifted   wait 10 ms",
        "… and more",
    ]


def test_a_running_broker_is_asked(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    tenant = f"tenant-{uuid.uuid4().hex[:8]}"
    topic = f"persistent://{tenant}/orders/t"
    with httpx.Client(base_url=broker.admin_url, trust_env=False, timeout=60) as rest:
        rest.put(f"/admin/v2/tenants/{tenant}", json={"allowedClusters": ["standalone"]}).raise_for_status()
        rest.put(f"/admin/v2/namespaces/{tenant}/orders").raise_for_status()
        rest.put(f"/admin/v2/resourcegroups/{tenant}", json={"publishRateInMsgs": 1}).raise_for_status()
        rest.post(f"/admin/v2/tenants/{tenant}/resourcegroup/{tenant}").raise_for_status()
    with RawClient(broker.port) as client:
        name = client.produce(topic)
        for number in range(50):
            client.write(send(0, number, entry(b"", sequence_id=number)))
        client.next(Type.SEND_RECEIPT)
        for asked in (tenant, f"{tenant}/orders", topic, name):
            assert main(["why", asked, "--admin-url", broker.admin_url]) == Exit.BAD_NEWS
            printed = capsys.readouterr().out
            assert f"publish quota of resource group {tenant} (group-quota)" in printed
    assert main(["why", tenant, "--admin-url", broker.admin_url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_what_cannot_be_asked_is_said_in_a_sentence(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "nobody-at-all", "--admin-url", broker.admin_url]) == Exit.NOT_FOUND
    assert "no producer 'nobody-at-all' is connected (status 404)" in capsys.readouterr().err
    assert main(["why", "x", "--admin-url", "http://127.0.0.1:1"]) == Exit.NO_ANSWER
    assert "is --admin-url right?" in capsys.readouterr().err
    assert main(["why", "x", "--admin-url", "localhost:8080"]) == Exit.USAGE
    assert "is not a URL" in capsys.readouterr().err
