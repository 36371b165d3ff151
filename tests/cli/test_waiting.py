# SPDX-License-Identifier: Apache-2.0
"""`--wait`: commands end when all of two brokers show their effect, or say in time that they do not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

import pulsar
import pytest

from penstock.cli.exits import Exit
from penstock.cli.main import main
from penstock.cli.waiting import EFFECTS
from penstock.testing.process import BrokerProcess
from tests.cli.elsewhere import answering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.cli.waiting import Position

Run: TypeAlias = "Callable[..., None]"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Two brokers on one directory."""
    with BrokerProcess(tmp_path_factory.mktemp("two") / "data", ["--brokers", "2"]) as process:
        yield process


@pytest.fixture
def run(two: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with --wait, which must succeed."""

    def run(*words: str) -> None:
        status = main([*words, "--wait", "--admin-url", two.admin_url])
        said = capsys.readouterr()
        assert status == Exit.OK, said.err

    return run


@pytest.fixture
def everywhere(two: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[Any]]:
    """Ask both brokers, and return their answers; an exit status instead of an error."""
    capsys.readouterr()
    assert main(["brokers", "list", "-o", "json", "--admin-url", two.admin_url]) == Exit.OK
    places = json.loads(capsys.readouterr().out)
    assert len(places) == 2

    def ask(*words: str) -> list[Any]:
        answers = []
        for place in places:
            status = main([*words, "-o", "json", "--admin-url", f"http://{place}"])
            answers.append(json.loads(capsys.readouterr().out) if status == Exit.OK else status)
        return answers

    return ask


def marks(everywhere: Callable[..., list[Any]], topic: str, name: str) -> set[Position]:
    """Where a subscription stands, as all brokers say."""
    stats = everywhere("topics", "internal-stats", topic)
    texts = [one["cursors"][name]["markDeletePosition"] for one in stats]
    return {(int(ledger), int(entry)) for ledger, entry in (text.split(":") for text in texts)}


def test_all_brokers_have_what_was_created_and_not_what_was_deleted(
    run: Run, everywhere: Callable[..., list[Any]]
) -> None:
    gone = [Exit.NOT_FOUND] * 2
    run("tenants", "create", "waits")
    run("namespaces", "create", "waits/ns")
    run("topics", "create", "waits/ns/t")
    run("subscriptions", "create", "waits/ns/t", "s")
    assert everywhere("subscriptions", "list", "waits/ns/t") == [["s"]] * 2
    run("subscriptions", "delete", "waits/ns/t", "s")
    assert everywhere("subscriptions", "list", "waits/ns/t") == [[]] * 2
    run("topics", "unload", "waits/ns/t")
    run("namespaces", "unload", "waits/ns")
    run("topics", "delete", "waits/ns/t")
    assert everywhere("topics", "stats", "waits/ns/t") == gone
    run("topics", "create-partitioned", "waits/ns/p", "2")
    run("topics", "update-partitioned", "waits/ns/p", "5")
    assert [one["partitions"] for one in everywhere("topics", "partitions", "waits/ns/p")] == [5, 5]
    run("subscriptions", "create", "waits/ns/p", "s")
    run("subscriptions", "skip-all", "waits/ns/p", "s")
    run("namespaces", "clear-backlog", "waits/ns")
    run("namespaces", "clear-backlog-of-subscription", "waits/ns", "s")
    run("namespaces", "unsubscribe", "waits/ns", "s")
    assert everywhere("subscriptions", "list", "waits/ns/p") == [[]] * 2
    run("topics", "truncate", "waits/ns/p")
    run("topics", "terminate-partitions", "waits/ns/p")
    run("topics", "unload", "waits/ns/p")
    run("topics", "delete-partitioned", "waits/ns/p", "--force")
    run("namespaces", "delete", "waits/ns")
    assert everywhere("namespaces", "policies", "waits/ns") == gone
    run("groups", "set", "waits", "publishRateInMsgs=5")
    assert [one["publishRateInMsgs"] for one in everywhere("groups", "get", "waits")] == [5, 5]
    run("groups", "delete", "waits")
    assert everywhere("groups", "get", "waits") == gone
    run("tenants", "delete", "waits")
    assert everywhere("tenants", "get", "waits") == gone


def test_cursors_stand_where_they_were_moved_to_at_all_brokers(
    run: Run, two: BrokerProcess, everywhere: Callable[..., list[Any]]
) -> None:
    topic = "persistent://public/default/moved"
    client = pulsar.Client(two.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=False)
    ledger = {producer.send(b"x").ledger_id() for _ in range(10)}.pop()
    client.close()
    run("subscriptions", "skip", topic, "s", "3")
    assert marks(everywhere, topic, "s") == {(ledger, 2)}
    run("subscriptions", "skip-all", topic, "s")
    assert marks(everywhere, topic, "s") == {(ledger, 9)}
    run("subscriptions", "skip-all", topic, "s")  # Nothing is left to do, and it ends.
    for _ in "moved", "is there":
        run("subscriptions", "reset-to-time", topic, "s", "0")
    assert marks(everywhere, topic, "s") == {(ledger, -1)}
    run("subscriptions", "reset-to-position", topic, "s", f"ledgerId={ledger}", "entryId=5")
    assert marks(everywhere, topic, "s") == {(ledger, 4)}
    run("subscriptions", "reset-to-position", topic, "s", f"ledgerId={ledger}", "entryId=5", "excluded=true")
    assert marks(everywhere, topic, "s") == {(ledger, 5)}
    for place in ("-1", str(2**63 - 1), "-1"):
        for _ in "moved", "is there":
            run("subscriptions", "reset-to-position", topic, "s", f"ledgerId={place}", f"entryId={place}")
    run("namespaces", "clear-backlog-of-subscription", "public/default", "s")
    assert marks(everywhere, topic, "s") == {(ledger, 9)}
    run("topics", "compact", topic)
    assert [one["status"] for one in everywhere("topics", "compaction-status", topic)] == ["SUCCESS"] * 2
    run("topics", "terminate", topic)
    assert [one["state"] for one in everywhere("topics", "internal-stats", topic)] == ["Terminated"] * 2


TOPIC = "/admin/v2/persistent/a/b/c"


@pytest.mark.real
@pytest.mark.parametrize(
    ("command", "answers", "said"),
    [
        ("topics create a/b/c", {}, "it is not there"),
        ("topics delete a/b/c", {f"{TOPIC}/stats": {"msgInCounter": 1}}, "it is still there"),
        ("topics create-partitioned a/b/c 3", {f"{TOPIC}/partitions": {"partitions": 2}}, "it has 2 partitions"),
        ("topics delete-partitioned a/b/c", {f"{TOPIC}/partitions": {"partitions": 2}}, "it is still there"),
        ("topics compact a/b/c", {f"{TOPIC}/compaction": {"status": "RUNNING"}}, "compaction is RUNNING"),
        ("topics offload a/b/c {}", {f"{TOPIC}/offload": {"status": "RUNNING"}}, "offload is RUNNING"),
        ("topics unload a/b/c", {}, "Not Found (status 404)"),
        ("namespaces unload a/b", {"/admin/v2/persistent/a/b": ["persistent://a/b/c"]}, "Not Found (status 404)"),
        ("schemas create a/b/c type=STRING schema= properties={}", {}, "it is not there"),
        ("groups set g publishRateInMsgs=1", {}, "it is not there"),
        ("topics terminate a/b/c", None, "persistent://a/b/c is LedgerOpened"),
        ("topics truncate a/b/c", None, "subscription s of persistent://a/b/c is at 7:3"),
        ("namespaces clear-backlog a/b", None, "subscription s of persistent://a/b/c is at 7:3"),
        ("namespaces unsubscribe a/b s", None, "persistent://a/b/c still has it"),
        ("subscriptions create a/b/c s", {f"{TOPIC}/subscriptions": ["t"]}, "it is not there"),
        ("subscriptions delete a/b/c s", {f"{TOPIC}/subscriptions": ["s"]}, "it is still there"),
        ("subscriptions skip a/b/c s 2", None, "the subscription is at 7:3"),
        ("subscriptions skip-all a/b/c s", None, "the subscription is at 7:3"),
        ("subscriptions reset-to-position a/b/c s ledgerId=7 entryId=1", None, "the subscription is at 7:3"),
        ("subscriptions reset-to-time a/b/c s 5", None, "the subscription is at 7:3"),
    ],
)
def test_what_is_not_seen_in_time_is_said_with_a_status_of_its_own(
    command: str, answers: dict[str, Any] | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = {"cursors": {"s": {"markDeletePosition": "7:3"}}, "lastConfirmedEntry": "7:9", "state": "LedgerOpened"}
    listed = {"/admin/v2/persistent/a/b": ["persistent://a/b/c"], f"{TOPIC}/subscriptions": ["s"]}
    asked = {**listed, f"{TOPIC}/internalStats": stats, f"{TOPIC}/messageid/5": {"ledgerId": 7, "entryId": 1}}
    with answering(asked if answers is None else answers) as url:
        assert main([*command.split(), "--wait=0.05", "--admin-url", url]) == Exit.NOT_YET
    error = capsys.readouterr().err
    assert f"{' '.join(command.split()[:2])} was accepted, and its effect is not everywhere after 0.05 s" in error
    assert f"at {url} {said}" in error


@pytest.mark.real
def test_a_broker_that_is_behind_is_named_and_one_that_failed_ends_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    with answering({"/admin/v2/tenants/a": {"x": 1}, "/admin/v2/brokers": ["127.0.0.1:1", "127.0.0.1:2"]}) as url:
        assert main(["tenants", "create", "a", "allowedClusters=c", "--wait=0", "--admin-url", url]) == Exit.NOT_YET
    error = capsys.readouterr().err
    assert "at http://127.0.0.1:1 " in error
    assert f"at {url}" not in error
    with answering({f"{TOPIC}/compaction": {"status": "ERROR", "lastError": "disk"}}) as url:
        assert main(["topics", "compact", "a/b/c", "--wait", "--admin-url", url]) == Exit.FAILED
    assert "compaction of " in capsys.readouterr().err


@pytest.mark.parametrize("effect", EFFECTS)
def test_the_help_of_a_command_that_can_wait_says_so(effect: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*effect.split(), "--help"])
    assert "--wait [SECONDS]" in capsys.readouterr().out


def test_a_word_behind_wait_that_is_no_number_is_met_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["topics", "create", "--wait", "a/b/c"])
    assert ended.value.code == Exit.USAGE
    assert "put --wait last" in capsys.readouterr().err
