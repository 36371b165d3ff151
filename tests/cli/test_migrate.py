# SPDX-License-Identifier: Apache-2.0
"""`penstock migrate` between two brokers, with official clients that go on meanwhile."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import pulsar
import pytest
from pulsar.schema import JsonSchema, Record, String

from penstock.cli import migration_plan, migration_steps
from penstock.cli.contexts import Target
from penstock.cli.exits import Exit
from penstock.cli.main import main
from penstock.cli.migrate import cluster_data
from penstock.cli.rest import Rest
from penstock.testing.process import BrokerProcess
from tests.processes.cluster import ask, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

Run: TypeAlias = "Callable[..., str]"
WAIT_MS = 60_000


class Order(Record):  # type: ignore[misc]
    """What is sent."""

    name = String()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    path = tmp_path_factory.mktemp("clusters")
    brokers = []
    for name in ("east", "west"):
        (path / f"{name}.conf").write_text(f"clusterName={name}\nacknowledgmentAtBatchIndexLevelEnabled=true\n")
        arguments = ["--config", str(path / f"{name}.conf")]
        brokers.append(BrokerProcess(path / name, arguments, log_path=path / f"{name}.log"))
    with brokers[0] as east, brokers[1] as west:
        yield east, west


@pytest.fixture
def east(clusters: tuple[BrokerProcess, BrokerProcess]) -> BrokerProcess:
    return clusters[0]


@pytest.fixture
def west(clusters: tuple[BrokerProcess, BrokerProcess]) -> BrokerProcess:
    return clusters[1]


@pytest.fixture
def namespace(east: BrokerProcess) -> str:
    name = f"t{uuid.uuid4().hex}/n"
    ask(east, "PUT", f"tenants/{name.partition('/')[0]}", {"adminRoles": ["boss"], "allowedClusters": ["east"]})
    ask(east, "PUT", f"namespaces/{name}")
    return name


@pytest.fixture
def migrate(
    clusters: tuple[BrokerProcess, BrokerProcess],
    namespace: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Run `penstock migrate`; returns what it printed, errors, too."""
    east, west = clusters
    monkeypatch.setenv("PENSTOCK_URL", east.url)
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", east.admin_url)

    def run(action: str, *words: str, status: int = Exit.OK) -> str:
        said = main(["migrate", action, namespace, "--to", west.url, "--to-admin", west.admin_url, *words])
        printed = capsys.readouterr()
        assert said == status, printed.err
        return printed.out + printed.err

    return run


@pytest.fixture
def client(east: BrokerProcess) -> Iterator[pulsar.Client]:
    client = pulsar.Client(east.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    with contextlib.suppress(pulsar.AlreadyClosed):
        client.close()


@pytest.fixture
def there(west: BrokerProcess) -> Iterator[pulsar.Client]:
    client = pulsar.Client(west.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def drained(consumer: pulsar.Consumer, count: int) -> list[int]:
    """The numbers of the next messages, and of those that come at once after them."""
    numbers: list[int] = []
    while True:
        try:
            message = consumer.receive(WAIT_MS if len(numbers) < count else 500)
        except pulsar.Timeout:
            return numbers
        numbers.append(int(message.data()))
        consumer.acknowledge(message)


def subscribed(client: pulsar.Client, topic: str, name: str, kind: pulsar.ConsumerType) -> pulsar.Consumer:
    return client.subscribe(
        topic, name, consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest, unacked_messages_timeout_ms=0
    )


def test_subscriptions_go_on_there_with_exactly_what_they_had_not_acknowledged(
    east: BrokerProcess, west: BrokerProcess, namespace: str, client: pulsar.Client, there: pulsar.Client, migrate: Run
) -> None:
    topic = f"persistent://{namespace}/t"
    exclusive, shared = pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared
    before = {
        "behind": subscribed(client, topic, "behind", exclusive),
        "holes": subscribed(client, topic, "holes", shared),
        "done": subscribed(client, topic, "done", shared),
        "idle": subscribed(client, topic, "idle", exclusive),
    }
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(30):
        producer.send(b"%d" % number, partition_key=f"{number}", properties={"n": f"{number}"})
    acknowledged = {"behind": set(range(12)), "holes": {0, 1, 5, 6, 7, 20, 29}, "done": set(range(30))}
    for name, numbers in acknowledged.items():
        for _ in range(30):
            message = before[name].receive(WAIT_MS)
            if int(message.data()) in numbers:
                before[name].acknowledge(message)
    until(lambda: ask(east, "GET", f"persistent/{namespace}/t/stats")["subscriptions"]["holes"]["msgBacklog"] == 23)
    client.close()
    assert "1 namespaces would move from east to west" in migrate("plan")
    assert "4 subscriptions" in migrate("start")
    for name, consumer in before.items():
        del consumer
        left = set(range(30)) - acknowledged.get(name, set())
        after = subscribed(there, topic, name, shared if name in {"holes", "done"} else exclusive)
        assert Counter(drained(after, len(left))) == dict.fromkeys(left, 1), name
    assert "moved" in migrate("status")
    migrate("finish")
    assert ask(east, "GET", f"namespaces/{namespace}/replication") == ["east"]
    assert "west" not in ask(east, "GET", "clusters")
    del west


def test_everything_around_messages_is_there_as_it_was_here(
    east: BrokerProcess, west: BrokerProcess, namespace: str, client: pulsar.Client, migrate: Run
) -> None:
    ask(east, "PUT", "resourcegroups/gold", {"publishRateInMsgs": 5000})
    ask(east, "POST", f"namespaces/{namespace}/resourcegroup/gold")
    ask(east, "POST", f"namespaces/{namespace}/retention", {"retentionTimeInMinutes": 7, "retentionSizeInMB": 8})
    ask(east, "POST", f"namespaces/{namespace}/permissions/anna", ["produce"])
    ask(east, "PUT", f"persistent/{namespace}/parts/partitions", 3)
    ask(east, "POST", f"persistent/{namespace}/parts/maxConsumers", 9)
    orders = f"persistent://{namespace}/orders"
    client.create_producer(orders, schema=JsonSchema(Order)).send(Order(name="one"))
    client.subscribe(f"persistent://{namespace}/parts", "s").close()
    ask(east, "PUT", f"persistent/{namespace}/parts/properties", {"owner": "anna"})
    ask(east, "PUT", f"persistent/{namespace}/parts/subscription/s/properties", {"team": "blue"})
    migrate("start")
    policies = ask(west, "GET", f"namespaces/{namespace}")
    assert policies["retention_policies"] == {"retentionTimeInMinutes": 7, "retentionSizeInMB": 8}
    assert policies["auth_policies"]["namespace_auth"] == {"anna": ["produce"]}
    assert policies["resource_group_name"] == "gold"
    assert ask(west, "GET", "resourcegroups/gold")["publishRateInMsgs"] == 5000
    assert ask(west, "GET", f"tenants/{namespace.partition('/')[0]}") == {
        "adminRoles": ["boss"],
        "allowedClusters": ["west"],
    }
    assert ask(west, "GET", f"persistent/{namespace}/parts/partitions")["partitions"] == 3
    assert ask(west, "GET", f"persistent/{namespace}/parts/maxConsumers") == 9
    assert ask(west, "GET", f"persistent/{namespace}/parts/properties") == {"owner": "anna"}
    assert ask(west, "GET", f"persistent/{namespace}/parts/subscriptions") == ["s"]
    assert ask(west, "GET", f"persistent/{namespace}/parts/subscription/s/properties") == {"team": "blue"}
    assert ask(west, "GET", f"schemas/{namespace}/orders/schema")["type"] == "JSON"
    migrate("finish")


def test_clients_that_go_on_meanwhile_lose_nothing(
    east: BrokerProcess, west: BrokerProcess, namespace: str, client: pulsar.Client, migrate: Run
) -> None:
    ask(east, "PUT", f"persistent/{namespace}/parts/partitions", 2)
    topic = f"persistent://{namespace}/parts"
    kinds = {
        "failover": pulsar.ConsumerType.Failover,
        "shared": pulsar.ConsumerType.Shared,
        "key-shared": pulsar.ConsumerType.KeyShared,
    }
    got: dict[str, list[int]] = {name: [] for name in kinds}
    over, enough = threading.Event(), threading.Event()

    def take(name: str, consumer: pulsar.Consumer) -> None:
        while not over.is_set():
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            got[name].append(int(message.data()))
            consumer.acknowledge(message)

    consumers = {name: subscribed(client, topic, name, kind) for name, kind in kinds.items()}
    threads = [threading.Thread(target=take, args=each) for each in consumers.items()]
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True, send_timeout_millis=0)
    sent: list[int] = []

    def send() -> None:
        while not enough.is_set():
            producer.send(b"%d" % len(sent), partition_key=f"{len(sent) % 17}")
            sent.append(len(sent))

    threads.append(threading.Thread(target=send))
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(sent) > 200)
        migrate("start", "--pause-max", "5")
        at = len(sent)
        until(lambda: len(sent) > at + 200)
        enough.set()
        until(lambda: all(set(sent) <= set(numbers) for numbers in got.values()))
    finally:
        enough.set()
        over.set()
        for thread in threads:
            thread.join(60)
    assert ask(west, "GET", f"persistent/{namespace}/parts/partitioned-stats")["publishers"]
    here = ask(east, "GET", f"persistent/{namespace}/parts/partitioned-stats")
    assert not here["publishers"]
    for name, numbers in got.items():
        # Acknowledgements that were on their way when clients were held: those messages come again, and no others.
        assert len(numbers) - len(set(numbers)) <= here["subscriptions"][name]["msgBacklog"], name
    migrate("finish")


def test_official_clients_go_as_pulsars_own_administration_says(
    east: BrokerProcess, west: BrokerProcess, namespace: str, client: pulsar.Client
) -> None:
    topic = f"persistent://{namespace}/t"
    consumer = subscribed(client, topic, "s", pulsar.ConsumerType.Exclusive)
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"0")
    ask(west, "PUT", f"tenants/{namespace.partition('/')[0]}", {"adminRoles": [], "allowedClusters": ["west"]})
    ask(west, "PUT", f"namespaces/{namespace}")
    ask(east, "POST", "clusters/east/migrate?migrated=false", {"brokerServiceUrl": west.url})
    ask(east, "POST", f"namespaces/{namespace}/migration?migrated=true")
    producer.send(b"1")
    new = subscribed(client, topic, "new", pulsar.ConsumerType.Shared)
    client.create_producer(topic).send(b"2")
    assert drained(consumer, 3) == [0, 1, 2]
    assert drained(new, 3) == [0, 1, 2]
    assert ask(west, "GET", f"persistent/{namespace}/t/stats")["msgInCounter"] == 2


def test_a_move_that_was_interrupted_anywhere_goes_on(
    east: BrokerProcess, west: BrokerProcess, namespace: str, client: pulsar.Client, there: pulsar.Client, migrate: Run
) -> None:
    topic = f"persistent://{namespace}/t"
    consumer = subscribed(client, topic, "s", pulsar.ConsumerType.Exclusive)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number)
    for _ in range(4):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    until(lambda: ask(east, "GET", f"persistent/{namespace}/t/stats")["subscriptions"]["s"]["msgBacklog"] == 6)
    consumer.close()
    target = Target(url=west.url, admin_url=west.admin_url)
    with Rest(Target(url=east.url, admin_url=east.admin_url)) as here, Rest(target) as other:
        both = migration_plan.ends(here, other)
        # As far as it came before it was killed, while clients waited.
        migration_steps.make_cluster(both, cluster_data(target))
        migration_steps.make_namespace(both, namespace)
        migration_steps.make_topics(both, namespace)
        migration_steps.replicate(both, namespace, all_retained=False)
        here.ask("POST", f"/admin/v2/namespaces/{namespace}/migration/killed", {"seconds": "2"})
    assert "held by another command" in migrate("start")
    assert Counter(drained(subscribed(there, topic, "s", pulsar.ConsumerType.Exclusive), 6)) == Counter(range(4, 10))
    assert "clients are sent on" in migrate("start")  # Once more does nothing.
    migrate("finish")


def test_a_move_that_is_given_up_leaves_everything_here(
    east: BrokerProcess, west: BrokerProcess, namespace: str, client: pulsar.Client, migrate: Run
) -> None:
    topic = f"persistent://{namespace}/t"
    consumer = subscribed(client, topic, "s", pulsar.ConsumerType.Exclusive)
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"0")
    target = Target(url=west.url, admin_url=west.admin_url)
    with Rest(Target(url=east.url, admin_url=east.admin_url)) as here, Rest(target) as other:
        both = migration_plan.ends(here, other)
        migration_steps.make_cluster(both, cluster_data(target))
        migration_steps.make_namespace(both, namespace)
        migration_steps.make_topics(both, namespace)
        migration_steps.replicate(both, namespace, all_retained=False)
    assert "copying" in migrate("status")
    assert "is not there yet" in migrate("finish", status=Exit.FAILED)
    migrate("abort")
    assert "not begun" in migrate("status")
    assert ask(east, "GET", f"namespaces/{namespace}/replication") == ["east"]
    assert ask(east, "GET", f"tenants/{namespace.partition('/')[0]}")["allowedClusters"] == ["east"]
    producer.send(b"1")
    assert drained(consumer, 2) == [0, 1]


def test_clients_that_were_sent_on_are_taken_back_only_on_demand_and_find_what_was_here(
    east: BrokerProcess, namespace: str, client: pulsar.Client, migrate: Run
) -> None:
    topic = f"persistent://{namespace}/t"
    subscribed(client, topic, "s", pulsar.ConsumerType.Exclusive).close()
    client.create_producer(topic, batching_enabled=False).send(b"7")
    migrate("start")
    assert "--leave-behind" in migrate("abort", status=Exit.FAILED)
    assert "restart the clients" in migrate("abort", "--leave-behind")
    again = pulsar.Client(east.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    assert drained(subscribed(again, topic, "s", pulsar.ConsumerType.Exclusive), 1) == [7]
    again.close()


def test_what_does_not_fit_is_said_before_anything_is_touched(
    east: BrokerProcess, west: BrokerProcess, namespace: str, there: pulsar.Client, migrate: Run
) -> None:
    tenant = namespace.partition("/")[0]
    ask(east, "PUT", f"persistent/{namespace}/parts/partitions", 3)
    ask(east, "PUT", f"persistent/{namespace}/used")
    ask(west, "PUT", f"tenants/{tenant}", {"adminRoles": [], "allowedClusters": ["west"]})
    ask(west, "PUT", f"namespaces/{namespace}", {"message_ttl_in_seconds": 5})
    ask(west, "PUT", f"persistent/{namespace}/parts/partitions", 2)
    there.create_producer(f"persistent://{namespace}/used").send(b"x")
    said = migrate("plan", status=Exit.BAD_NEWS)
    assert "has 3 partitions here and 2 there" in said
    assert "has messages there, which are not copies of ours" in said
    assert "2 that must be mended first" in said
    assert "nothing was changed" in migrate("start", status=Exit.FAILED)
    assert "west" not in ask(east, "GET", "clusters")
