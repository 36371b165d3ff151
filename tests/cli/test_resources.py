# SPDX-License-Identifier: Apache-2.0
"""`penstock topics`, `namespaces`, …: every route and every policy, against a real broker."""

from __future__ import annotations

import http.server
import json
import re
import threading
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from penstock.admin.routes.policies import OF_NAMESPACES, OF_TOPICS
from penstock.broker.policies.policy_table import POLICIES
from penstock.cli.exits import Exit
from penstock.cli.main import main
from penstock.cli.resources import RESOURCES, actions, operations
from penstock.testing.client import RawClient
from tools.write_operations import routes
from tools.write_reference import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.admin.routes.policies import Resource
    from penstock.testing.process import BrokerProcess

Run: TypeAlias = "Callable[..., Any]"
Failing: TypeAlias = "Callable[..., tuple[int, str]]"


@pytest.fixture
def run(broker: BrokerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command that must succeed, at the shared broker; returns what it printed, read as JSON."""
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", broker.admin_url)

    def run(*words: str) -> Any:  # noqa: ANN401 - JSON
        status = main([*words, "-o", "json"])
        printed = capsys.readouterr()
        assert status == Exit.OK, printed.err
        return json.loads(printed.out)

    return run


@pytest.fixture
def failing(broker: BrokerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Run a command that must fail; returns its status and what it said."""
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", broker.admin_url)

    def failing(*words: str) -> tuple[int, str]:
        status = main([*words])
        return status, capsys.readouterr().err

    return failing


@pytest.fixture
def namespace(run: Run) -> str:
    tenant = f"tenant-{uuid.uuid4().hex[:12]}"
    run("tenants", "create", tenant)
    run("namespaces", "create", f"{tenant}/orders")
    return f"{tenant}/orders"


def test_every_route_of_the_admin_port_has_a_command() -> None:
    known = {(one["verb"], one["path"]) for of_one in operations().values() for one in of_one.values()}
    paths = {path for _, path in known}
    # Where PUT and POST do the same, one of them has a command.
    assert {path for path, *_ in routes()} == paths
    assert [
        (verb, path) for path, verb, *_ in routes() if verb in {"get", "delete"} if (verb.upper(), path) not in known
    ] == []
    assert operations().keys() == set(RESOURCES)


@pytest.mark.parametrize("resource", RESOURCES)
def test_every_command_explains_itself(resource: str, capsys: pytest.CaptureFixture[str]) -> None:
    for action in actions(resource):
        with pytest.raises(SystemExit) as ended:
            main([resource, action.name, "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert all(name in text for name in action.policies)


def value_of(resource: Resource) -> str:
    return json.dumps(resource.example) if not isinstance(resource.example, str) else resource.example


def set_and_removed(run: Run, kind: str, name: str, resource: Resource, at_first: object) -> None:
    words = [",".join(resource.example)] if isinstance(resource.example, list) else [value_of(resource)]
    run(kind, "set", name, resource.path, *words)
    found = run(kind, "get", name, resource.path)
    if isinstance(found, list):
        assert sorted(found) == sorted(resource.example)
    elif isinstance(found, dict):
        assert {**found, **resource.example} == found
    else:
        assert found == resource.example
    if resource.removable:
        run(kind, "remove", name, resource.path)
        assert run(kind, "get", name, resource.path) == at_first


def test_every_policy_of_namespaces_is_set_read_and_removed(run: Run, namespace: str) -> None:
    assert len(OF_NAMESPACES) > 30
    for resource in OF_NAMESPACES:
        set_and_removed(run, "namespaces", namespace, resource, run("namespaces", "get", namespace, resource.path))


def test_every_policy_of_topics_is_set_read_and_removed(run: Run, namespace: str) -> None:
    run("topics", "create", f"{namespace}/t")
    assert len(OF_TOPICS) > 20
    for resource in OF_TOPICS:
        set_and_removed(
            run, "topics", f"{namespace}/t", resource, run("topics", "get", f"{namespace}/t", resource.path)
        )
    run("topics", "set", f"{namespace}/t", "message-ttl", "60")
    assert run("topics", "get", f"{namespace}/t", "messageTTL") == 60
    run("topics", "set", f"{namespace}/t", "backlog-quota", "limitSize=1000", "policy=consumer_backlog_eviction")
    assert run("topics", "get", f"{namespace}/t", "backlogQuota")["destination_storage"]["limitSize"] == 1000
    run("subscriptions", "create", f"{namespace}/t", "s")
    run("subscriptions", "set", f"{namespace}/t", "s", "dispatch-rate", "dispatchThrottlingRateInMsg=7")
    assert run("subscriptions", "get", f"{namespace}/t", "s", "dispatchRate")["dispatchThrottlingRateInMsg"] == 7


def test_all_rows_of_the_table_of_policies_can_be_set() -> None:
    commands = [name for kind in ("namespaces", "topics", "subscriptions") for name in operations()[kind]]
    # A resource group is attached by `groups`.
    settable = {name.removeprefix("set ") for name in commands if name.startswith("set ")} | {"resourcegroup"}
    # Their routes set one part of the map.
    parts = {"subscriptionPolicies": "dispatchRate", "backlogQuotaMap": "backlogQuota"}
    assert [one.name for one in POLICIES.values() if parts.get(one.name, one.name) not in settable] == []


def test_topics_are_created_listed_looked_at_and_deleted(run: Run, broker: BrokerProcess, namespace: str) -> None:
    topic = f"persistent://{namespace}/a b?c"
    run("topics", "create", topic, "colour=blue")
    run("topics", "create-partitioned", f"{namespace}/p", "3")
    assert run("topics", "list", namespace) == sorted(
        [topic, *(f"persistent://{namespace}/p-partition-{n}" for n in range(3))]
    )
    assert run("topics", "partitions", f"{namespace}/p")["partitions"] == 3
    assert run("topics", "properties", topic) == {"colour": "blue"}
    run("topics", "remove-property", topic, "colour")
    assert run("topics", "properties", topic) == {}
    with RawClient(broker.port) as client:
        client.subscribe(topic, "s")
        client.produce(topic)
        client.publish([b"hello"])
        stats = run("topics", "stats", topic, "--exclude-publishers")
        assert (stats["msgInCounter"], stats["publishers"]) == (1, [])
        assert run("subscriptions", "list", topic) == ["s"]
        assert run("subscriptions", "peek", topic, "s", "1")["payload"] == "hello"
        assert run("topics", "last-message-id", topic)["entryId"] == 0
    run("subscriptions", "skip-all", topic, "s")
    assert run("subscriptions", "analyze-backlog", topic, "s")["entries"] == 0
    run("topics", "delete", topic, "--force")
    run("topics", "delete-partitioned", f"{namespace}/p")
    assert run("topics", "list", namespace) == []


def test_groups_schemas_brokers_and_clusters_have_their_commands(run: Run, namespace: str) -> None:
    tenant = namespace.partition("/")[0]
    run("groups", "set", tenant, "publishRateInMsgs=1000")
    assert run("groups", "get", tenant)["publishRateInMsgs"] == 1000
    run("groups", "attach-namespace", namespace, tenant)
    assert tenant in run("groups", "list")
    run("groups", "detach-namespace", namespace)
    run("groups", "delete", tenant)
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]})
    run("topics", "create", f"{namespace}/t")
    run("schemas", "create", f"{namespace}/t", "type=AVRO", f"schema={schema}")
    assert json.loads(run("schemas", "get", f"{namespace}/t")["data"])["name"] == "R"
    assert run("clusters", "list")
    assert run("brokers", "version")
    assert run("namespaces", "grant-permission", namespace, "ann", "produce", "consume") is None
    assert sorted(run("namespaces", "permissions", namespace)["ann"]) == ["consume", "produce"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("topics stats persistent://public/default/none", Exit.NOT_FOUND, r"(?s)none.*\(status 404\)"),
        ("namespaces get public/default retentoin", Exit.USAGE, "no policy 'retentoin'; do you mean retention"),
        ("namespaces set public/default retention retentionSizeMB=1", Exit.USAGE, "do you mean retentionSizeInMB"),
        ("namespaces set public/default retention retentionSizeInMB=1", Exit.USAGE, "needs retentionTimeInMinutes too"),
        ("namespaces set public/default retention", Exit.USAGE, "retention needs a value: KEY=VALUE"),
        ("namespaces set public/default deduplication maybe", Exit.USAGE, "is true or false, not 'maybe'"),
        ("namespaces set public/default messageTTL soon", Exit.USAGE, "messageTTL is a whole number, not 'soon'"),
        ("namespaces set public/default schemaCompatibilityStrategy SOME", Exit.USAGE, "is one of UNDEFINED, ALWAYS"),
        ("namespaces set public/default retention @/none", Exit.USAGE, "/none cannot be read"),
        ("namespaces set public/default retention {", Exit.USAGE, "is not JSON"),
        ("namespaces set public/default retention a", Exit.USAGE, "'a' has no ="),
        ("namespaces get public/default retention more", Exit.USAGE, "takes no value, and 'more' is one too many"),
        ("namespaces get public retention", Exit.FAILED, "want tenant/namespace"),
        ("topics delete public/default/x y", Exit.USAGE, "unrecognized arguments: y"),
        ("topics get public/default/x publishRate --backlog-quota-type x", Exit.USAGE, "unrecognized arguments"),
        ("brokers list --context nowhere", Exit.USAGE, "no context 'nowhere'"),
        ("brokers list --admin-url x:1", Exit.USAGE, "is not a URL"),
        ("brokers list --admin-url http://127.0.0.1:1", Exit.NO_ANSWER, "does not answer"),
        ("brokers list --token-file /none", Exit.USAGE, "file of the token cannot be read"),
        ("brokers list --cacert /none --admin-url https://127.0.0.1:1", Exit.USAGE, "/none cannot be used"),
        ("brokers list --token x", Exit.USAGE, "everybody on this machine can read the arguments"),
        ("topics lsit public/default", Exit.USAGE, "no 'lsit'; do you mean list"),
        ("topisc list", Exit.USAGE, "no 'topisc'; do you mean topics"),
        ("namespaces get xyz/none retention", Exit.NOT_FOUND, "status 404"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_a_sentence_and_a_status(
    failing: Failing, words: str, status: Exit, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended, text = failing(*words.split())
    except SystemExit as error:
        ended, text = error.code, capsys.readouterr().err  # type: ignore[assignment]
    assert re.search(said, text), text
    assert ended == status
    assert "Traceback" not in text


@pytest.fixture
def elsewhere(broker: BrokerProcess) -> Iterator[tuple[str, list[str]]]:
    """A broker that serves nothing itself and names another, as Apache Pulsar's do; and the headers that it got."""
    shown: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization", ""))
            self.send_response(307)
            self.send_header("Location", f"{broker.admin_url}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", shown
        server.shutdown()
        thread.join()


def test_a_redirect_to_the_broker_that_serves_a_topic_is_followed(run: Run, elsewhere: tuple[str, list[str]]) -> None:
    assert run("brokers", "version", "--admin-url", elsewhere[0])
    assert elsewhere[1] == [""]


def test_the_answer_of_a_reader_that_went_away_ends_quietly(broker: BrokerProcess) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "penstock", "brokers", "load-report", "--admin-url", broker.admin_url]
    done = subprocess.run(
        ["sh", "-c", '"$@" | true', "sh", *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def guide_commands() -> list[str]:
    """The commands of the guide that need no other cluster."""
    text = (ROOT / "docs/guide/command-line.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    penstock ([^|&\n]*)$", text.replace("\\\n", ""), re.MULTILINE)
    # Those of messages need messages first; tests of their own run them.
    others = {
        "dev",
        "serve",
        "ready",
        "context",
        "produce",
        "consume",
        "tail",
        "export",
        "import",
        "copy",
        "redrive",
        "bench",
        "backup",
    }
    return [line for line in lines if not others & set(line.split())]


def test_the_commands_of_the_guide_work(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", broker.admin_url)
    commands = guide_commands()
    assert len(commands) > 8
    for line in commands:
        assert main(line.split()) == Exit.OK, (line, capsys.readouterr().err)
