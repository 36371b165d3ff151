# SPDX-License-Identifier: Apache-2.0
"""`penstock serve` as a process: how it starts, stops, refuses, and what it does when its disk fails."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from typing import TYPE_CHECKING

import pulsar
import pytest

from penstock.core.errors import WireCode
from penstock.testing.certificates import Certificate
from penstock.testing.client import RawClient, Refused, Type
from penstock.testing.process import BrokerDidNotStart, BrokerProcess

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "persistent://public/default/t"


def health(broker: BrokerProcess) -> tuple[int, dict[str, str]]:
    """What `/healthz` answers."""
    try:
        with urllib.request.urlopen(f"{broker.admin_url}/healthz", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_second_start_on_the_same_data_directory_is_refused_by_its_name(own_broker: BrokerProcess) -> None:
    with pytest.raises(BrokerDidNotStart, match=str(own_broker.data_dir)) as refused:
        BrokerProcess(own_broker.data_dir).start()
    assert str(own_broker.pid) in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerDidNotStart, match=f"port {port} cannot be opened") as refused:
            BrokerProcess(tmp_path / "data").start(port=port)
    assert "Traceback" not in str(refused.value)


def limited(open_files: int, directory: Path) -> subprocess.Popen[str]:
    """A broker that may open so many files, and not raise that."""
    serve = [
        sys.executable,
        "-m",
        "penstock",
        "serve",
        "--data-dir",
        str(directory),
        "--port",
        "0",
        "--admin-port",
        "0",
    ]
    return subprocess.Popen(
        ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh", *serve],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_process_that_may_open_too_few_files_for_clients_does_not_start_and_says_what_it_needs(
    tmp_path: Path,
) -> None:
    with limited(128, tmp_path / "data") as process:
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    assert "may open 128 files, and penstock needs 192 at least" in stderr
    assert "ulimit -n" in stderr
    assert "LimitNOFILE" in stderr


def test_a_process_that_may_open_as_few_files_as_it_needs_lets_clients_in(tmp_path: Path) -> None:
    with limited(192, tmp_path / "data") as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().split()[2].rpartition(":")[2])
            with contextlib.ExitStack() as stack:
                clients = [stack.enter_context(RawClient(port)) for _ in range(40)]
                for number, client in enumerate(clients):
                    client.produce(f"{TOPIC}-{number}")
                    assert client.publish([b"a"]) == [0]
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.tex").write_text("precious")
    with pytest.raises(BrokerDidNotStart, match=r"thesis\.tex"):
        BrokerProcess(tmp_path / "data").start()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("brokers", [1, 2])
def test_what_is_stored_is_for_its_user_alone_whatever_the_shell_says(tmp_path: Path, brokers: int) -> None:
    data = tmp_path / "data"
    before = os.umask(0)
    try:
        data.mkdir(0o755)  # As an administrator makes it, who lets everybody see what is there.
        with BrokerProcess(data, ["--brokers", str(brokers)]) as broker:
            client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
            client.create_producer(TOPIC).send(b"private")
            client.close()
    finally:
        os.umask(before)
    inside = list(data.rglob("*"))
    assert {path.name for path in inside} >= {"meta.sqlite", "topics.sqlite", "FORMAT", "lock", "log"}
    assert [f"{path} {path.stat().st_mode:o}" for path in inside if path.stat().st_mode & 0o077] == []


def test_a_stop_tells_producers_and_consumers_and_ends_with_status_zero(own_broker: BrokerProcess) -> None:
    with RawClient(own_broker.port) as client:
        client.produce(TOPIC)
        client.subscribe(TOPIC, "s")
        own_broker.send_signal(signal.SIGTERM)
        assert client.next(Type.CLOSE_PRODUCER).command.close_producer.request_id == 2**64 - 1
        assert client.next(Type.CLOSE_CONSUMER).command.close_consumer.request_id == 2**64 - 1
        assert client.is_closed()
    assert own_broker.wait() == 0


def test_acknowledgements_that_nobody_asked_an_answer_for_survive_a_clean_stop(own_broker: BrokerProcess) -> None:
    with RawClient(own_broker.port) as client:
        client.produce(TOPIC)
        client.publish(b"%d" % i for i in range(10))
        client.subscribe(TOPIC, "s")
        came = [client.message() for _ in range(10)]
        for one in came[:4]:
            client.acknowledge(one)
        client.request(Type.GET_LAST_MESSAGE_ID, Type.GET_LAST_MESSAGE_ID_RESPONSE, consumer_id=0)
    assert own_broker.stop() == 0
    own_broker.start()
    with RawClient(own_broker.port) as client:
        client.subscribe(TOPIC, "s")
        assert client.message().payload == b"4"


def test_entry_ids_go_on_after_a_restart(own_broker: BrokerProcess) -> None:
    with RawClient(own_broker.port) as client:
        client.produce(TOPIC)
        assert client.publish([b"a", b"b"]) == [0, 1]
    own_broker.kill()
    own_broker.start()
    with RawClient(own_broker.port) as client:
        client.produce(TOPIC)
        assert client.publish([b"c"]) == [2]


def test_when_the_disk_refuses_publishers_are_told_health_fails_and_consumers_go_on(own_broker: BrokerProcess) -> None:
    with RawClient(own_broker.port) as client:
        client.produce(TOPIC)
        client.publish([b"kept"])
        assert health(own_broker)[0] == 200
        # No file may be written any more: every write fails as it would on a broken disk.
        resource.prlimit(own_broker.pid, resource.RLIMIT_FSIZE, (0, 0))
        with pytest.raises(Refused) as refused:
            client.publish([b"lost"], first=1)
        assert refused.value.code == WireCode.PERSISTENCE_ERROR
        status, answer = health(own_broker)
        assert status == 503
        assert answer["reason"]
        client.subscribe(TOPIC, "reader", durable=False, start_message_id={"ledgerId": 2**64 - 1, "entryId": 2**64 - 1})
        assert client.message().payload == b"kept"
        with pytest.raises(Refused) as refused:
            client.produce(TOPIC, producer_id=1)
        assert refused.value.code == WireCode.PERSISTENCE_ERROR
    own_broker.kill()
    own_broker.start()
    with RawClient(own_broker.port) as client:
        client.produce(TOPIC)
        client.publish([b"again"])
        client.subscribe(TOPIC, "s")
        assert client.message().payload == b"kept"


def test_metrics_are_served_on_the_admin_port(own_broker: BrokerProcess) -> None:
    with urllib.request.urlopen(f"{own_broker.admin_url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    for sensor in ("MemoryPoolAvailable", "MemoryPoolUsed", "MemoryPoolAvgDepletedPercent"):
        assert f"\n{sensor} " in text


def test_tls_clients_and_plain_clients_meet_on_one_topic(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path)
    flags = ["--tls-cert", str(certificate.certificate), "--tls-key", str(certificate.key), "--tls-port", "0"]
    with BrokerProcess(tmp_path / "data", flags) as broker:
        with RawClient(broker.port) as plain:
            plain.produce(TOPIC)
            plain.publish([b"across"])
            url = plain.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=TOPIC).brokerServiceUrlTls
        with RawClient(int(url.rpartition(":")[2]), tls=certificate.client()) as secure:
            secure.subscribe(TOPIC, "s")
            assert secure.message().payload == b"across"


def test_a_certificate_that_is_none_is_refused_by_its_name(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    with pytest.raises(BrokerDidNotStart, match=r"bad\.pem"):
        BrokerProcess(tmp_path / "data", ["--tls-cert", str(bad), "--tls-key", str(bad)]).start()


def test_a_pool_that_cannot_hold_one_frame_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_QUEUED_MAX_REQUEST_BYTES", "1000")
    with pytest.raises(BrokerDidNotStart, match=r"queued\.max\.request\.bytes=1000 .*5253120"):
        BrokerProcess(tmp_path / "data").start()


def test_json_logs_are_one_object_a_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", ["--log-format", "json"]) as broker, RawClient(broker.port) as client:
        client.produce(f"persistent://public/default/{uuid.uuid4().hex}")
    lines = [json.loads(line) for line in broker.log_path.read_text().splitlines()]
    assert any("created" in line["message"] for line in lines)


def test_an_interrupt_ends_it_like_a_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "serve", "--data-dir", str(tmp_path / "d")]
    with subprocess.Popen(
        [*command, "--port", "0", "--admin-port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("penstock ready pulsar://")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == ""
        assert process.returncode == 0


def test_a_stop_that_takes_longer_than_allowed_ends_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER_SHUTDOWN_TIMEOUT_MS", "0")
    broker = BrokerProcess(tmp_path / "data").start()
    assert broker.stop() == 1
    assert "brokerShutdownTimeoutMs=0" in broker.log_path.read_text()
    monkeypatch.delenv("PENSTOCK_BROKER_SHUTDOWN_TIMEOUT_MS")
    assert broker.start().stop() == 0


def test_a_broker_can_serve_with_tls_alone(tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path)
    config = tmp_path / "broker.conf"
    config.write_text(
        "brokerServicePort=\nwebServicePort=\nbrokerServicePortTls=0\nwebServicePortTls=0\n"
        f"tlsCertificateFilePath={certificate.certificate}\ntlsKeyFilePath={certificate.key}\n"
    )
    command = [sys.executable, "-m", "penstock", "serve", "--data-dir", str(tmp_path / "d"), "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        _, _, url, admin_url = process.stdout.readline().split()
        assert url.startswith("pulsar+ssl://127.0.0.1:")
        assert admin_url.startswith("https://127.0.0.1:")
        with RawClient(int(url.rpartition(":")[2]), tls=certificate.client()) as client:
            client.produce(TOPIC)
            answer = client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=TOPIC)
            assert answer.brokerServiceUrlTls == url
            assert not answer.brokerServiceUrl
        process.terminate()
        assert process.wait(60) == 0


def test_a_standalone_conf_of_pulsars_is_served_and_what_is_ignored_is_told_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "standalone.conf"
    config.write_text(
        "### --- General broker settings --- ###\n"
        "zookeeperServers=\nconfigurationStoreServers=\nbrokerServicePort=6650\nwebServicePort=8080\n"
        "bindAddress=127.0.0.1\nadvertisedAddress=\nclusterName=standalone\nmetadataStoreSessionTimeoutMillis=30000\n"
        "backlogQuotaDefaultLimitGB=10\nbacklogQuotaDefaultRetentionPolicy=producer_request_hold\n"
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=\nmaxMessagePublishBufferSizeInMB=\n"
        "managedLedgerDefaultEnsembleSize=1\nmanagedLedgerCacheSizeMB=\nmanagedLedgerMaxReadsInFlightSizeInMB=0\n"
        "authenticationEnabled=false\nauthenticationProviders=\nsuperUserRoles=\nproxyRoles=\ntlsEnabled=false\n"
        "authorizationProvider=org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider\n"
        "tokenSecretKey=\ntokenPublicKey=\nloadBalancerEnabled=false\nwebSocketServiceEnabled=true\n"
        "schemaCompatibilityStrategy=FULL\nsubscriptionTypesEnabled=Exclusive,Shared,Failover,Key_Shared\n"
        "dbStorage_rocksDB_blockCacheSize=\njournalSyncData=false\ngcWaitTime=300000\n"
    )
    with BrokerProcess(tmp_path / "data", ["--config", str(config)]) as broker, RawClient(broker.port) as client:
        client.produce(TOPIC)
    (warning,) = [line for line in broker.log_path.read_text().splitlines() if "WARNING" in line]
    assert warning.endswith(
        "6 settings of standalone.conf are not penstock's and are ignored: gcWaitTime, journalSyncData, "
        "loadBalancerEnabled, managedLedgerDefaultEnsembleSize, metadataStoreSessionTimeoutMillis, "
        "webSocketServiceEnabled"
    )
