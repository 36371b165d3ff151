# SPDX-License-Identifier: Apache-2.0
"""The admin port as scripts use it, by plain HTTP: tenants, namespaces, policies, topics, subscriptions, brokers; and
that clients feel what was set.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.compat.clients import (
    EARLIEST,
    TIMEOUT_MS,
    Admin,
    connect,
    numbered,
    path_of,
    publish,
    receive,
    unique,
    until,
)

if TYPE_CHECKING:
    from tests.compat.conftest import Subject

Shared = pulsar.ConsumerType.Shared


@pytest.fixture
def cluster(admin: Admin) -> str:
    """The name of the broker's own cluster."""
    found: str = admin.get("clusters")[0]
    return found


# -- tenants and namespaces -------------------------------------------------------------------------------------------


@pytest.mark.feature("admin-namespaces")
def test_a_tenant_is_made_changed_and_deleted(admin: Admin, cluster: str) -> None:
    tenant = unique("tenant")
    admin.put(f"tenants/{tenant}", {"adminRoles": ["boss"], "allowedClusters": [cluster]})
    assert tenant in admin.get("tenants")
    assert admin.get(f"tenants/{tenant}") == {"adminRoles": ["boss"], "allowedClusters": [cluster]}
    admin.post(f"tenants/{tenant}", {"adminRoles": ["boss", "deputy"], "allowedClusters": [cluster]})
    assert sorted(admin.get(f"tenants/{tenant}")["adminRoles"]) == ["boss", "deputy"]
    admin.put(f"namespaces/{tenant}/ns")
    assert admin.get(f"namespaces/{tenant}") == [f"{tenant}/ns"]
    assert admin.refusal("DELETE", f"tenants/{tenant}") == 409
    admin.delete(f"namespaces/{tenant}/ns")
    admin.delete(f"tenants/{tenant}")
    assert admin.refusal("GET", f"tenants/{tenant}") == 404


@pytest.mark.feature("admin-namespaces")
def test_what_is_wrong_with_a_tenant_or_a_namespace_is_told_apart(admin: Admin, cluster: str) -> None:
    tenant = unique("tenant")
    whole = {"adminRoles": [], "allowedClusters": [cluster]}
    assert admin.refusal("GET", f"tenants/{tenant}") == 404
    assert admin.refusal("POST", f"tenants/{tenant}", whole) == 404
    assert admin.refusal("PUT", f"tenants/{tenant}", {"adminRoles": [], "allowedClusters": []}) == 412
    assert admin.refusal("PUT", f"tenants/{tenant}", {"adminRoles": [], "allowedClusters": ["nowhere"]}) == 412
    assert admin.refusal("PUT", "tenants/public", whole) == 409
    assert admin.refusal("PUT", f"namespaces/{tenant}/ns") == 404
    assert admin.refusal("PUT", "namespaces/public/default") == 409
    assert admin.refusal("GET", f"namespaces/public/{tenant}") == 404
    assert admin.refusal("GET", f"persistent/public/{tenant}") == 404
    assert admin.refusal("DELETE", f"namespaces/public/{tenant}") == 404


@pytest.mark.feature("admin-namespaces")
def test_a_namespace_with_topics_is_not_deleted(admin: Admin, client: pulsar.Client) -> None:
    namespace = admin.create_namespace()
    topic = f"persistent://{namespace}/t"
    client.create_producer(topic).close()
    assert admin.get(f"namespaces/{namespace}/topics") == [topic]
    assert admin.refusal("DELETE", f"namespaces/{namespace}") == 409
    admin.delete(path_of(topic), force="true")
    admin.delete(f"namespaces/{namespace}")
    assert namespace not in admin.get("namespaces/public")


@pytest.mark.feature("admin-namespaces")
def test_permissions_are_granted_shown_and_revoked(admin: Admin) -> None:
    path = f"namespaces/{admin.create_namespace()}/permissions"
    assert admin.get(path) == {}
    admin.post(f"{path}/reader", ["consume"])
    admin.post(f"{path}/writer", ["produce", "consume"])
    shown = {role: sorted(actions) for role, actions in admin.get(path).items()}
    assert shown == {"reader": ["consume"], "writer": ["consume", "produce"]}
    admin.delete(f"{path}/writer")
    assert admin.get(path) == {"reader": ["consume"]}


@pytest.mark.feature("admin-namespaces")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100}),
        ("messageTTL", 60),
        ("deduplication", True),
        ("maxProducersPerTopic", 3),
        ("maxConsumersPerTopic", 4),
        ("maxConsumersPerSubscription", 5),
        ("maxUnackedMessagesPerConsumer", 100),
        ("maxUnackedMessagesPerSubscription", 200),
        ("maxSubscriptionsPerTopic", 6),
        ("maxTopicsPerNamespace", 7),
        ("subscribeRate", {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30}),
        ("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}),
        ("delayedDelivery", {"tickTime": 2000, "active": True, "maxDeliveryDelayInMillis": 0}),
        (
            "inactiveTopicPolicies",
            {
                "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
                "maxInactiveDurationSeconds": 60,
                "deleteWhileInactive": True,
            },
        ),
        (
            "persistence",
            {
                "bookkeeperEnsemble": 1,
                "bookkeeperWriteQuorum": 1,
                "bookkeeperAckQuorum": 1,
                "managedLedgerMaxMarkDeleteRate": 0.5,
            },
        ),
    ],
)
def test_a_policy_of_a_namespace_is_set_shown_and_removed(admin: Admin, name: str, value: object) -> None:
    path = f"namespaces/{admin.create_namespace()}/{name}"
    before = admin.get(path)
    admin.post(path, value)
    shown = admin.get(path)
    assert {key: shown[key] for key in value} == value if isinstance(value, dict) else shown == value
    admin.delete(path)
    assert admin.get(path) == before


@pytest.mark.feature("admin-namespaces")
def test_quotas_rates_and_thresholds_of_a_namespace_are_shown_as_they_were_set(admin: Admin) -> None:
    path = f"namespaces/{admin.create_namespace()}"
    admin.post(f"{path}/backlogQuota", {"limitSize": 1_000_000, "limitTime": -1, "policy": "producer_exception"})
    shown = admin.get(f"{path}/backlogQuotaMap")["destination_storage"]
    assert (shown["limitSize"], shown["policy"]) == (1_000_000, "producer_exception")
    admin.delete(f"{path}/backlogQuota")
    assert admin.get(f"{path}/backlogQuotaMap") == {}
    rate = {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": 1000, "ratePeriodInSecond": 1}
    for name in ("dispatchRate", "subscriptionDispatchRate"):
        admin.post(f"{path}/{name}", rate)
        assert admin.get(f"{path}/{name}").items() >= rate.items()
        admin.delete(f"{path}/{name}")
    admin.post(f"{path}/publishRate", {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 1000})
    assert admin.get(f"{path}/publishRate")["publishThrottlingRateInMsg"] == 10
    admin.put(f"{path}/compactionThreshold", 1_000_000)
    assert admin.get(f"{path}/compactionThreshold") == 1_000_000
    admin.put(f"{path}/properties", {"team": "billing"})
    assert admin.get(f"{path}/properties") == {"team": "billing"}
    policies = admin.get(path)
    assert policies["compaction_threshold"] == 1_000_000
    assert policies["properties"] == {"team": "billing"}


@pytest.mark.feature("admin-namespaces")
def test_a_retention_that_is_smaller_than_the_backlog_quota_is_refused(admin: Admin) -> None:
    path = f"namespaces/{admin.create_namespace()}"
    admin.post(f"{path}/retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1})
    quota = {"limitSize": 50_000_000, "limitTime": -1, "policy": "producer_exception"}
    assert admin.refusal("POST", f"{path}/backlogQuota", quota) == 412


@pytest.mark.feature("admin-namespaces")
def test_limits_of_a_namespace_are_felt_by_clients(admin: Admin, client: pulsar.Client) -> None:
    namespace = admin.create_namespace(maxProducersPerTopic=1, maxConsumersPerTopic=2, maxSubscriptionsPerTopic=2)
    topic = f"persistent://{namespace}/t"
    client.create_producer(topic)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    client.subscribe(topic, "a")
    client.subscribe(topic, "b", consumer_type=Shared)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "b", consumer_type=Shared)
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "c")


@pytest.mark.feature("admin-namespaces")
def test_subscription_types_of_a_namespace_are_felt_by_clients(admin: Admin, client: pulsar.Client) -> None:
    namespace = admin.create_namespace(subscriptionTypesEnabled=["Exclusive", "Failover"])
    topic = f"persistent://{namespace}/t"
    client.subscribe(topic, "a")
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "b", consumer_type=Shared)


@pytest.mark.feature("admin-namespaces")
def test_topics_and_subscriptions_may_be_left_to_administrators(
    broker: Subject, admin: Admin, client: pulsar.Client
) -> None:
    namespace = admin.create_namespace(
        autoTopicCreation={"allowAutoTopicCreation": False},
        autoSubscriptionCreation={"allowAutoSubscriptionCreation": False},
    )
    topic = f"persistent://{namespace}/t"
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(topic)
    admin.put(path_of(topic))
    client.create_producer(topic).send(b"x")
    # This client asks again, for as long as it waits for an answer.
    impatient = connect(broker.url, operation_timeout_seconds=1)
    with pytest.raises((pulsar.SubscriptionNotFound, pulsar.Timeout)):
        impatient.subscribe(topic, "s")
    impatient.close()
    admin.put(f"{path_of(topic)}/subscription/s", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
    assert receive(client.subscribe(topic, "s"), 1) == [b"x"]


@pytest.mark.feature("admin-namespaces")
def test_topics_that_come_by_themselves_may_be_partitioned(admin: Admin, client: pulsar.Client) -> None:
    partitioned = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    namespace = admin.create_namespace(autoTopicCreation=partitioned)
    topic = f"persistent://{namespace}/t"
    client.create_producer(topic)
    assert len(client.get_topic_partitions(topic)) == 3
    assert admin.get(f"persistent/{namespace}/partitioned") == [topic]


# -- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("admin-topics")
def test_a_topic_is_made_listed_and_deleted(admin: Admin, topic: str) -> None:
    path = path_of(topic)
    admin.put(path)
    assert admin.refusal("PUT", path) == 409
    assert topic in admin.get("persistent/public/default")
    admin.delete(path)
    assert admin.refusal("DELETE", path) == 404
    assert admin.refusal("GET", f"{path}/stats") == 404
    assert admin.refusal("GET", f"{path}/subscriptions") == 404


@pytest.mark.feature("admin-topics")
def test_a_partitioned_topic_is_made_grown_and_deleted(admin: Admin, local: str) -> None:
    path = f"persistent/public/default/{local}"
    topic = admin.create_partitioned(local, 2)
    assert admin.refusal("PUT", f"{path}/partitions", 2) == 409
    assert admin.refusal("PUT", path) == 409
    assert admin.get(f"{path}/partitions")["partitions"] == 2
    assert topic in admin.get("persistent/public/default/partitioned")
    assert {f"{topic}-partition-0", f"{topic}-partition-1"} <= set(admin.get("persistent/public/default"))
    admin.post(f"{path}/partitions", 3)
    assert admin.get(f"{path}/partitions")["partitions"] == 3
    assert admin.refusal("POST", f"{path}/partitions", 1) in {406, 409, 422}
    assert admin.refusal("GET", f"{path}/stats") == 404
    assert set(admin.get(f"{path}/partitioned-stats")["partitions"]) == {f"{topic}-partition-{i}" for i in range(3)}
    admin.delete(f"{path}/partitions")
    assert admin.refusal("GET", f"{path}/partitions", checkAllowAutoCreation="false") == 404
    assert not [name for name in admin.get("persistent/public/default") if local in name]


@pytest.mark.feature("admin-topics")
def test_statistics_count_what_clients_do(admin: Admin, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=Shared, consumer_name="c", receiver_queue_size=100)
    producer = client.create_producer(topic, producer_name="p", properties={"who": "test"})
    for payload in numbered(10):
        producer.send(payload)
    receive(consumer, 4)
    until(lambda: admin.backlog(topic, "s") == 6, "for acknowledgements to count")
    stats = admin.get(f"{path_of(topic)}/stats")
    assert stats["msgInCounter"] == 10
    assert stats["bytesInCounter"] > 40
    (publisher,) = stats["publishers"]
    assert (publisher["producerName"], publisher["accessMode"]) == ("p", "Shared")
    assert publisher["metadata"] == {"who": "test"}
    subscription = stats["subscriptions"]["s"]
    assert (subscription["type"], subscription["unackedMessages"]) == ("Shared", 6)
    assert subscription["msgOutCounter"] == 10
    (shown,) = subscription["consumers"]
    assert (shown["consumerName"], shown["unackedMessages"]) == ("c", 6)
    internal = admin.get(f"{path_of(topic)}/internalStats")
    assert internal["numberOfEntries"] == 10
    assert list(internal["cursors"]) == ["s"]
    assert internal["lastConfirmedEntry"].endswith(":9")


@pytest.mark.feature("admin-topics")
def test_a_topic_in_use_is_deleted_by_force_only_and_clients_make_it_anew(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    old = producer.send(b"old")
    assert admin.refusal("DELETE", path_of(topic)) == 412
    admin.delete(path_of(topic), force="true")
    new = producer.send(b"new")
    assert new.ledger_id() > old.ledger_id()
    assert receive(client.subscribe(topic, "s", initial_position=EARLIEST), 1) == [b"new"]


@pytest.mark.feature("admin-topics")
def test_properties_of_a_topic_are_kept(admin: Admin, topic: str) -> None:
    path = f"{path_of(topic)}/properties"
    admin.put(path_of(topic), {"a": "1"})
    admin.put(path, {"b": "2"})
    assert admin.get(path) == {"a": "1", "b": "2"}
    admin.delete(path, key="a")
    assert admin.get(path) == {"b": "2"}


@pytest.mark.feature("admin-topics")
def test_a_message_is_found_by_its_id_its_time_and_its_place(admin: Admin, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(payload) for payload in numbered(5)]
    path = path_of(topic)
    last = admin.get(f"{path}/lastMessageId")
    assert (last["ledgerId"], last["entryId"]) == (ids[4].ledger_id(), ids[4].entry_id())
    answer = admin.ask("GET", f"{path}/ledger/{ids[2].ledger_id()}/entry/{ids[2].entry_id()}")
    assert answer.content == b"0002"
    assert answer.headers["X-Pulsar-Message-ID"].startswith(f"{ids[2].ledger_id()}:{ids[2].entry_id()}")
    assert (
        admin.ask("GET", f"{path}/examinemessage", initialPosition="earliest", messagePosition="2").content == b"0001"
    )
    assert admin.ask("GET", f"{path}/examinemessage", initialPosition="latest", messagePosition="1").content == b"0004"
    found = admin.get(f"{path}/messageid/1")
    assert (found["ledgerId"], found["entryId"]) == (ids[0].ledger_id(), ids[0].entry_id())


@pytest.mark.feature("admin-topics")
def test_a_truncated_topic_is_empty_and_goes_on(admin: Admin, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"old")
    admin.delete(f"{path_of(topic)}/truncate")
    assert admin.backlog(topic, "s") == 0
    producer.send(b"new")
    until(lambda: consumer.receive(TIMEOUT_MS).data() == b"new", "for what was sent after")


@pytest.mark.feature("admin-topics")
def test_a_lookup_by_http_leads_to_the_broker(admin: Admin, broker: Subject, local: str) -> None:
    address = f"{broker.admin_url}/lookup/v2/topic/persistent/public/default/{local}"
    found = admin.ask("GET", address.replace(f"{broker.admin_url}/", "../../")).json()
    assert found["httpUrl"] == broker.everywhere[found["brokerUrl"]]


@pytest.mark.feature("admin-topics")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100}),
        ("maxProducers", 3),
        ("maxConsumers", 4),
        ("maxConsumersPerSubscription", 5),
        ("maxUnackedMessagesOnConsumer", 100),
        ("maxSubscriptionsPerTopic", 6),
        ("deduplicationEnabled", True),
        ("compactionThreshold", 1_000_000),
        ("publishRate", {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": -1}),
        (
            "dispatchRate",
            {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": 1000, "ratePeriodInSecond": 1},
        ),
        ("subscriptionTypesEnabled", ["Exclusive"]),
        ("delayedDelivery", {"tickTime": 2000, "active": True, "maxDeliveryDelayInMillis": 0}),
    ],
)
def test_a_policy_of_a_topic_is_set_shown_and_removed(admin: Admin, topic: str, name: str, value: Any) -> None:  # noqa: ANN401
    admin.put(path_of(topic))
    path = f"{path_of(topic)}/{name}"

    def is_shown() -> bool:
        shown = admin.get(path)
        return bool(shown and shown.items() >= value.items() if isinstance(value, dict) else shown == value)

    assert not admin.get(path)
    admin.post(path, value)
    until(is_shown, f"for {name}")
    admin.delete(path)
    until(lambda: not admin.get(path), f"for {name} to go")


@pytest.mark.feature("admin-topics")
def test_a_policy_of_a_topic_comes_before_that_of_its_namespace(admin: Admin, client: pulsar.Client) -> None:
    topic = f"persistent://{admin.create_namespace(maxConsumersPerTopic=1)}/t"
    path = f"{path_of(topic)}/maxConsumers"
    admin.put(path_of(topic))
    client.subscribe(topic, "a")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "b")
    assert admin.get(path, applied="true") == 1
    admin.post(path, 2)

    def admitted() -> bool:
        try:
            client.subscribe(topic, "b")
        except pulsar.ConsumerBusy:
            return False
        return True

    until(admitted, "for the policy of the topic")
    assert admin.get(path, applied="true") == 2


# -- subscriptions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(client: pulsar.Client, topic: str) -> list[Any]:
    """The ids of ten messages of a topic with the subscription `s` before them."""
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    return [producer.send(payload) for payload in numbered(10)]


@pytest.mark.feature("admin-subscriptions")
def test_a_subscription_begins_where_it_is_made(
    admin: Admin, client: pulsar.Client, topic: str, filled: list[Any]
) -> None:
    path = f"{path_of(topic)}/subscription"
    middle = {"ledgerId": filled[6].ledger_id(), "entryId": filled[6].entry_id(), "partitionIndex": -1}
    admin.put(f"{path}/latest")
    admin.put(f"{path}/earliest", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
    admin.put(f"{path}/middle", middle)
    assert admin.refusal("PUT", f"{path}/latest") == 409
    assert sorted(admin.get(f"{path_of(topic)}/subscriptions")) == ["earliest", "latest", "middle", "s"]
    assert [admin.backlog(topic, name) for name in ("latest", "earliest", "middle")] == [0, 10, 4]
    assert receive(client.subscribe(topic, "middle"), 1) == [b"0006"]


@pytest.mark.feature("admin-subscriptions")
def test_messages_are_skipped(admin: Admin, client: pulsar.Client, topic: str, filled: list[Any]) -> None:
    path = f"{path_of(topic)}/subscription/s"
    admin.post(f"{path}/skip/3")
    assert admin.backlog(topic, "s") == len(filled) - 3
    assert client.subscribe(topic, "s").receive(TIMEOUT_MS).data() == b"0003"
    admin.post(f"{path}/skip_all")
    assert admin.backlog(topic, "s") == 0


@pytest.mark.feature("admin-subscriptions")
def test_a_cursor_is_reset_to_an_id_and_to_a_time(
    admin: Admin, client: pulsar.Client, topic: str, filled: list[Any]
) -> None:
    path = f"{path_of(topic)}/subscription/s"
    admin.post(f"{path}/skip_all")
    place = {"ledgerId": filled[7].ledger_id(), "entryId": filled[7].entry_id(), "partitionIndex": -1}
    admin.post(f"{path}/resetcursor", place)
    assert admin.backlog(topic, "s") == 3
    admin.post(f"{path}/resetcursor", {**place, "excluded": True})
    assert admin.backlog(topic, "s") == 2
    consumer = client.subscribe(topic, "s")
    assert receive(consumer, 2) == [b"0008", b"0009"]
    # Those who are connected come back by themselves.
    admin.post(f"{path}/resetcursor/{int(time.time() * 1000) - 3_600_000}")
    assert receive(consumer, 10) == numbered(10)


@pytest.mark.feature("admin-subscriptions")
def test_messages_are_peeked_at_and_stay(admin: Admin, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, producer_name="p", compression_type=pulsar.CompressionType.ZLib)
    producer.send(b"first")
    producer.send(b"second", properties={"a": "b"}, partition_key="k", event_timestamp=42)
    answer = admin.ask("GET", f"{path_of(topic)}/subscription/s/position/2")
    assert answer.content == b"second"
    headers = answer.headers
    assert headers["X-Pulsar-producer-name"] == "p"
    assert headers["X-Pulsar-partition-key"] == "k"
    assert headers["X-Pulsar-sequence-id"] == "1"
    assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"a": "b"}
    assert admin.refusal("GET", f"{path_of(topic)}/subscription/s/position/3") == 404
    assert admin.backlog(topic, "s") == 2


@pytest.mark.feature("admin-subscriptions")
def test_old_messages_are_expired(admin: Admin, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    publish(producer, numbered(5))
    time.sleep(1.1)  # A message must be older than a whole second.
    admin.post(f"{path_of(topic)}/subscription/s/expireMessages/1")
    until(lambda: admin.backlog(topic, "s") == 0, "for messages to expire")
    producer.send(b"young")
    assert receive(client.subscribe(topic, "s"), 1) == [b"young"]


@pytest.mark.feature("admin-subscriptions")
def test_a_subscription_in_use_is_deleted_by_force_only(admin: Admin, client: pulsar.Client, topic: str) -> None:
    path = f"{path_of(topic)}/subscription/s"
    consumer = client.subscribe(topic, "s")
    assert admin.refusal("DELETE", path) == 412
    consumer.close()
    admin.delete(path)
    assert admin.get(f"{path_of(topic)}/subscriptions") == []
    assert admin.refusal("DELETE", path) == 404
    assert admin.refusal("POST", f"{path}/skip_all") == 404


@pytest.mark.feature("admin-subscriptions")
def test_properties_of_a_subscription_are_kept(admin: Admin, client: pulsar.Client, topic: str) -> None:
    path = f"{path_of(topic)}/subscription/s/properties"
    client.subscribe(topic, "s").close()
    assert admin.get(path) == {}
    admin.put(path, {"team": "billing"})
    assert admin.get(path) == {"team": "billing"}
    assert admin.subscription(topic, "s")["subscriptionProperties"] == {"team": "billing"}


@pytest.mark.feature("admin-subscriptions")
def test_a_subscription_may_have_a_slash_in_its_name(admin: Admin, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "a/b c").close()
    client.create_producer(topic).send(b"x")
    path = f"{path_of(topic)}/subscription/a%2Fb%20c"
    admin.post(f"{path}/skip_all")
    assert admin.backlog(topic, "a/b c") == 0
    admin.delete(path)
    assert admin.get(f"{path_of(topic)}/subscriptions") == []


@pytest.mark.feature("admin-subscriptions")
def test_the_backlog_of_a_namespace_is_cleared(admin: Admin, client: pulsar.Client) -> None:
    namespace = admin.create_namespace()
    topics = [f"persistent://{namespace}/{name}" for name in ("a", "b")]
    for topic in topics:
        client.subscribe(topic, "s").close()
        client.create_producer(topic).send(b"x")
    admin.post(f"namespaces/{namespace}/clearBacklog/s")
    until(lambda: all(admin.backlog(topic, "s") == 0 for topic in topics), "for the backlog to go")
    admin.post(f"namespaces/{namespace}/unsubscribe/s")
    until(lambda: not any(admin.get(f"{path_of(topic)}/subscriptions") for topic in topics), "for subscriptions to go")


# -- brokers ----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("admin-brokers")
def test_a_broker_says_that_it_is_well_and_who_it_is(admin: Admin, broker: Subject, cluster: str) -> None:
    assert admin.ask("GET", "brokers/health").text == "ok"
    assert admin.ask("GET", "brokers/ready").text == "ok"
    admin_urls = list(broker.everywhere.values())
    assert admin.get(f"brokers/{cluster}") == [url.removeprefix("http://") for url in admin_urls]
    assert admin.get("brokers/leaderBroker")["serviceUrl"] == admin_urls[0]
    assert admin.ask("GET", "brokers/version").text[0].isdigit()
    assert set(admin.get(f"clusters/{cluster}")) >= {"serviceUrl", "brokerServiceUrl"}
    assert admin.refusal("GET", "clusters/nowhere") == 404


@pytest.mark.feature("admin-brokers")
def test_dynamic_configuration_is_changed_and_felt_at_once(admin: Admin, client: pulsar.Client, topic: str) -> None:
    key = "allowAutoTopicCreation"
    assert key in admin.get("brokers/configuration")
    admin.post(f"brokers/configuration/{key}/false")
    try:
        assert admin.get("brokers/configuration/values")[key] == "false"
        until(lambda: admin.get("brokers/configuration/runtime")[key] == "false", "for the setting")
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer(topic)
    finally:
        admin.delete(f"brokers/configuration/{key}")
        # Pulsar forgets that it was changed, and keeps what it was changed to until it starts again.
        admin.post(f"brokers/configuration/{key}/true")
    until(lambda: admin.get("brokers/configuration/runtime")[key] == "true", "for the setting")
    client.create_producer(topic)
    admin.delete(f"brokers/configuration/{key}")
    assert key not in admin.get("brokers/configuration/values")


@pytest.mark.feature("admin-brokers")
def test_what_cannot_change_while_the_broker_runs_is_refused(admin: Admin) -> None:
    assert admin.refusal("POST", "brokers/configuration/brokerServicePort/1") == 412
    assert admin.refusal("POST", "brokers/configuration/noSuchKey/1") == 412
