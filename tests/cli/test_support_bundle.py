# SPDX-License-Identifier: Apache-2.0
"""`penstock support-bundle`: what helps is in the archive, and no secret; names only without --anonymous."""

from __future__ import annotations

import base64
import gzip
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from penstock.cli import bundle_archive
from penstock.cli.bundle_archive import Archive
from penstock.cli.bundle_names import Names
from penstock.cli.bundle_secrets import Secrets, is_secret_name
from penstock.cli.exits import CommandFailed, Exit
from penstock.cli.main import main
from penstock.cli.support_bundle import busiest
from penstock.settings.model import KEYS
from tests.cli.elsewhere import answering

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.testing.process import BrokerProcess

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZG1pbiJ9.c2lnbmF0dXJl"
SECRET_KEYS = [key for key in KEYS.values() if key.secret]
TOPIC = "persistent://acme/big-orders/invoices"
NAMES = ("acme", "big-orders", "invoices", "payroll", "till-7", "ledgerbot", "alice", "fourty-two")


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        return {
            one.name.removeprefix("penstock-support/"): file.read().decode()
            for one in tar
            if (file := tar.extractfile(one)) is not None
        }


def bundle(tmp_path: Path, *words: str) -> dict[str, str]:
    """What the command collects with these words."""
    path = tmp_path / "bundle.tar.gz"
    assert main(["support-bundle", *words, "-o", str(path)]) == Exit.OK
    return contents(path)


# --- secrets


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("Authorization: Bearer abcdefgh", "Authorization: ***"),
        ("'authorization': 'Basic dXNlcjpodW50ZXIy', 'x': 1", "'authorization': '***', 'x': 1"),
        ("sent Bearer hunter2-hunter2 to it", "sent Bearer *** to it"),
        ("sent basic dXNlcjpodW50ZXIy to it", "sent basic *** to it"),
        ("basic authentication is on", "basic authentication is on"),
        (f"token {JWT} has expired", "token *** has expired"),
        ("http://ann:hunter2@host:8080/x?y=1", "http://***@host:8080/x?y=1"),
        ("zk:hunter2 at zk://a:hunter2@b,c", "zk:hunter2 at zk://***@b,c"),
        ("persistent://a/b/c@d is no URL", "persistent://a/b/c@d is no URL"),
        ("GET /x?token=hunter2&y=1", "GET /x?token=***&y=1"),
        ('{"password": "hun\\"ter2", "x": 1}', '{"password": "***", "x": 1}'),
        ("db.password=hunter2 db.user=ann", "db.password=*** db.user=ann"),
        ("tokenSecretKey=data:;base64,aHVudGVyMg==", "tokenSecretKey=***"),
        ("resourceUsageKey=hunter2 and more words", "resourceUsageKey=***"),
        ("PENSTOCK_RESOURCE_USAGE_KEY=hunter2 words", "PENSTOCK_RESOURCE_USAGE_KEY=***"),
        ("key at data:;base64,aHVudGVyMg== is bad", "key at data:*** is bad"),
        ("ann:$2y$05$hunter2hunter2", "ann:***"),
        ("forwardAuthorizationCredentials=true", "forwardAuthorizationCredentials=true"),
        (
            "topic persistent://public/default/t created, ledger 1",
            "topic persistent://public/default/t created, ledger 1",
        ),
    ],
)
def test_a_line_loses_its_secrets_and_nothing_else(line: str, left: str) -> None:
    assert Secrets().line(line) == left


@pytest.mark.parametrize(
    "piece",
    [
        "x",
        "password",
        "a-",
        "a://",
        "eyJ-",
        "data:",
        "token=",
        '\\"',
        "bearer ",
        "persistent://",
        "-----BEGIN PRIVATE KEY-----",
    ],
)
def test_no_line_takes_long(piece: str) -> None:
    line = piece * (bundle_archive.LINE_MAX // len(piece))
    Secrets().line(line)
    Names().learn_line(line)
    assert Names().line(line)


def test_a_private_key_is_left_out_line_by_line() -> None:
    key = ["a -----BEGIN RSA PRIVATE KEY-----", "aHVudGVyMg==", "-----END RSA PRIVATE KEY-----", "b"]
    assert [*Secrets().lines(key)] == ["a ***", "b"]
    assert [*Secrets().lines(["managedLedgerMaxUnackedRangesToPersistInMetadataStoreAndOthersToo"])] != ["***"]
    assert [*Secrets().lines(["Zm9v" * 16, "b"])] == ["***", "b"]  # The log was cut in the middle of it.


def test_known_secrets_go_in_whatever_form_they_are_written() -> None:
    secrets = Secrets(["hunter 2/ä", "12"])
    forms = ["hunter 2/ä", "hunter%202/%C3%A4", "hunter%202%2F%C3%A4", "hunter 2/\\u00e4"]
    forms.append(base64.b64encode("hunter 2/ä".encode()).decode().rstrip("="))
    assert [secrets.line(f"a {one} b 12") for one in forms] == ["a *** b 12"] * len(forms)  # Too short to look for.


def test_members_of_json_are_hidden_by_their_names() -> None:
    value = {"props": {"dbPassword": 12, "user": "ann"}, "list": [{"token": "x"}], "tokenAudience": "me", "secret": ""}
    assert Secrets().value(value) == {
        "props": {"dbPassword": "***", "user": "ann"},
        "list": [{"token": "***"}],
        "tokenAudience": "me",
        "secret": "",
    }
    assert Secrets().value('{"tlsKeyPassword": "x"}') == '{"tlsKeyPassword": "***"}'


@pytest.mark.parametrize("key", SECRET_KEYS, ids=[key.name for key in SECRET_KEYS])
def test_every_key_that_config_hides_is_hidden_by_its_name(key: Any) -> None:  # noqa: ANN401 - a row of settings
    assert all(map(is_secret_name, (key.name, key.variable, f"PULSAR_PREFIX_{key.name}")))


def test_no_secret_of_this_machine_is_in_the_archive(
    own_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = [f"hunter2-{key.name}" for key in SECRET_KEYS] + ["hunter2-token", "hunter2-url", JWT, "hunter2-variable"]
    config, log, token = tmp_path / "broker.conf", tmp_path / "broker.log", tmp_path / "token"
    config.write_text("".join(f"{key.name}=hunter2-{key.name}\n" for key in SECRET_KEYS) + "clusterName=c\n")
    token.write_text("hunter2-token\n")
    monkeypatch.setenv("PENSTOCK_TOKEN", "hunter2-variable")
    log.write_text(
        "".join(f"start with {key.name}=hunter2-{key.name}\nand hunter2-{key.name}\n" for key in SECRET_KEYS)
        + f"Authorization: Bearer {JWT}\nhttp://ann:hunter2-url@host/\nhunter2-token {JWT} hunter2-variable\n"
    )
    main(["topics", "create", "of-secrets", "--admin-url", own_broker.admin_url])
    main(["topics", "update-properties", "of-secrets", "password=hunter2-url", "--admin-url", own_broker.admin_url])
    where = ["--config", str(config), "--log", str(log), "--data-dir", str(own_broker.data_dir), "--seconds", "0"]
    found = bundle(tmp_path, own_broker.admin_url, *where, "--token-file", str(token))
    everything = gzip.decompress((tmp_path / "bundle.tar.gz").read_bytes()).decode()
    assert {"settings-local.json", "settings.json", "logs/1.txt", "files.txt", "doctor-local.json"} <= found.keys()
    assert [one for one in secrets if one in everything] == []
    assert "hunter2" not in everything
    settings = json.loads(found["settings-local.json"])
    assert settings["tokenSecretKey"] == {"value": "***", "source": "broker.conf line 1"}
    assert settings["clusterName"] == {"value": "c", "source": f"broker.conf line {len(SECRET_KEYS) + 1}"}


# --- what is in it


def test_a_broker_is_asked_for_what_helps(own_broker: BrokerProcess, tmp_path: Path) -> None:
    broker = own_broker  # Of a broker with a hundred tenants, not all are asked about.
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    topic = "persistent://public/default/in-a-bundle"
    client.create_producer(topic).send(b"not in it: payload")
    found = bundle(tmp_path, broker.admin_url, "--seconds", "0", "--topics", "1000", "--log", str(broker.log_path))
    client.close()
    for name in found.keys() - {"README"}:
        assert f"  {name} " in found["README"], f"{name} is not listed"
    assert "What is not in it" not in found["README"]
    assert json.loads(found["brokers/0/health.json"])["status"] == "ok"
    assert "pulsar_in_messages_total" in found["brokers/0/metrics-beginning.txt"]
    assert json.loads(found["settings.json"])["brokerServicePort"] == {"value": "0", "source": "start"}
    assert json.loads(found["settings.json"])["clusterName"]["source"] == "default"
    assert json.loads(found["machine.json"])["penstock"]
    stats = {json.loads(text)["topic"]: json.loads(text) for name, text in found.items() if name.startswith("topics/")}
    assert stats[topic]["stats"]["msgInCounter"] == 1
    assert not any("not in it: payload" in text for text in found.values())


def test_topics_with_most_messages_between_the_looks_come_first() -> None:
    first = {"old": 9_000.0, "slow": 10.0}
    second = {"old": 9_000.0, "slow": 11.0, "new": 5.0, "silent": 0.0}
    assert busiest(first, second, 3) == ["new", "slow", "old"]


ELSEWHERE = {
    "/admin/v2/brokers/version": "4.0.1",
    "/admin/v2/brokers": ["broker-1:8080"],
    "/admin/v2/brokers/configuration/runtime": {"brokerClientAuthenticationParameters": "hunter2", "myPort": "1"},
    "/admin/v2/brokers/configuration/values": {"myPort": "1"},
}


@pytest.mark.real
def test_what_another_broker_does_not_answer_is_noted(tmp_path: Path) -> None:
    with answering(ELSEWHERE) as url:
        found = bundle(tmp_path, url, "--seconds", "0")
    assert json.loads(found["settings.json"]) == {
        "brokerClientAuthenticationParameters": {"value": "***", "source": "start"},
        "myPort": {"value": "1", "source": "admin API"},
    }
    assert json.loads(found["brokers/0/health.json"]) == {"notHealthy": "Not Found (status 404)"}
    assert "4.0.1" in found["brokers/0/version.json"]
    missing = found["README"].partition("What is not in it")[2]
    for what in ("/admin/v2/tenants: ", "brokers/0/metrics-end.txt: ", "/admin/v2/clusters: "):
        assert what in missing
    assert "version-differs" in found["doctor.json"]


def test_nobody_at_the_address_leaves_no_file_unless_there_is_something_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bundle.tar.gz"
    nowhere = ["support-bundle", "http://127.0.0.1:1", "-o", str(path)]
    assert main(nowhere) == Exit.NO_ANSWER
    assert "give --data-dir" in capsys.readouterr().err
    assert not path.exists()
    (tmp_path / "log").write_text("it ended\n")
    found = bundle(tmp_path, "http://127.0.0.1:1", "--log", str(tmp_path / "log"))
    assert found["logs/1.txt"] == "it ended\n"
    assert "all of the cluster at http://127.0.0.1:1" in found["README"]
    assert main(nowhere) == Exit.NO_ANSWER
    assert main([*nowhere, "--log", str(tmp_path / "log")]) == Exit.USAGE
    assert "exists; give another name with -o" in capsys.readouterr().err


# --- the archive


def test_the_same_contents_make_the_same_bytes(tmp_path: Path) -> None:
    def made(name: str, *members: str) -> bytes:
        with Archive(Secrets(), None) as archive:
            for one in members:
                archive.add(one, {"of": one}, "something")
            archive.write(tmp_path / name, ["head"])
        return (tmp_path / name).read_bytes()

    assert made("one", "a", "b") == made("two", "b", "a")
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600


def test_the_end_of_a_long_log_is_kept_and_long_lines_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_archive, "TEXT_MAX", 1_000_000)
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(200_000)) + "x" * 500_000 + "\nlast\n")
    found = bundle(tmp_path, "http://127.0.0.1:1", "--log", str(log))["logs/1.txt"].splitlines()
    assert found[0].startswith("line ")
    assert len(found[-2]) < 70_000
    assert found[-1] == "last"


def test_an_archive_has_a_size_that_it_does_not_exceed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_archive, "_TOTAL_MAX", 100)
    with Archive(Secrets(), None) as archive:
        for name in "ab":
            archive.add_lines(name, ["x" * 30] * 4, "text")
        archive.write(tmp_path / "file", [])
    assert [len(text) for name, text in contents(tmp_path / "file").items() if name != "README"] == [93, 0]
    assert contents(tmp_path / "file")["README"].count("its end was too long") == 2


def test_a_file_that_could_not_be_finished_is_not_left(tmp_path: Path) -> None:
    with Archive(Secrets(), None) as archive, pytest.raises(CommandFailed, match="cannot be written"):
        archive.write(tmp_path / "missing" / "file", [])
    with Archive(Secrets(), None) as archive:
        archive.add("a", 1, "one")
        archive.members[0].path.unlink()
        with pytest.raises(CommandFailed):
            archive.write(tmp_path / "file", [])
    assert not (tmp_path / "file").exists()


# --- names


def test_no_name_is_in_an_anonymous_archive(own_broker: BrokerProcess, tmp_path: Path) -> None:
    at = ["--admin-url", own_broker.admin_url]
    assert main(["tenants", "create", "acme", *at]) == Exit.OK
    assert main(["namespaces", "create", "acme/big-orders", *at]) == Exit.OK
    assert main(["namespaces", "grant-permission", "acme/big-orders", "payroll", "produce", *at]) == Exit.OK
    client = pulsar.Client(own_broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(TOPIC, "ledgerbot", consumer_name="alice", properties={"of": "fourty-two"})
    client.create_producer(TOPIC, producer_name="till-7").send(b"x")
    log = tmp_path / "log"
    log.write_text(
        own_broker.log_path.read_text() + f"{TOPIC}-partition-3: role 'zanzibar' at 10.2.3.4:99 and [fe80::9]\n"
    )
    found = bundle(tmp_path, own_broker.admin_url, "--seconds", "0", "--log", str(log), "--anonymous")
    client.close()
    everything = gzip.decompress((tmp_path / "bundle.tar.gz").read_bytes()).decode().lower()
    assert [one for one in (*NAMES, "zanzibar", "10.2.3.4", "fe80") if one in everything] == []
    pairs = json.loads((tmp_path / "bundle.tar.gz.names.json").read_text())
    assert pairs["topic-1"] == "invoices"
    same = f"persistent://{_of(pairs, 'acme')}/{_of(pairs, 'big-orders')}/topic-1"
    stats = json.loads(found["topics/0001.json"])
    assert stats["topic"] == same
    assert [*stats["stats"]["subscriptions"]] == [_of(pairs, "ledgerbot")]
    assert stats["stats"]["publishers"][0]["producerName"] == _of(pairs, "till-7")
    assert f'topic="{same}"' in found["brokers/0/metrics-end.txt"]
    assert f"{same}-partition-3: role '" in found["logs/1.txt"]
    assert "INFO penstock.broker.topics.directory: topic" in found["logs/1.txt"]


def _of(pairs: dict[str, str], name: str) -> str:
    return next(pseudonym for pseudonym, one in pairs.items() if one == name)


def test_words_of_another_program_stay_where_no_user_can_have_chosen_them(tmp_path: Path) -> None:
    metrics = '# TYPE brk_zorkmid gauge\nbrk_zorkmid{cluster="zorkmid"} 1.5E9\n'
    settings = {"xyzzyPlughMs": "1"}
    prefix = "/admin/v2/brokers"
    routes = {f"{prefix}/configuration/runtime": settings, f"{prefix}/configuration/values": {}}
    with answering({f"{prefix}/version": "4", "/metrics/": metrics, **routes}) as url:
        found = bundle(tmp_path, url, "--seconds", "0", "--anonymous")
    assert found["brokers/0/metrics-end.txt"] == metrics.replace('"zorkmid"', '"cluster-1"')
    assert [*json.loads(found["settings.json"])] == [*settings]


def test_known_names_go_even_if_they_are_words_of_ours_and_numbers_and_times_stay() -> None:
    names = Names()
    for kind, name in (("tenant", "messages"), ("topic", "persistent://messages/in/my topic"), ("topic", "total")):
        names.learn(kind, name)
    line = 'pulsar_in_messages_total 12.5 at 2026-11-27T17:25:04.123Z; messages/in of "my topic", a MESSAGES-x, qqq'
    assert names.line(line) == (
        'pulsar_in_messages_total 12.5 at 2026-11-27T17:25:04.123Z; tenant-1/namespace-1 of "topic-1", a word-1, word-2'
    )
    assert names.line("persistent://messages/in/total-DLQ.") == "persistent://tenant-1/namespace-1/topic-2-DLQ."
