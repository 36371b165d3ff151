# SPDX-License-Identifier: Apache-2.0
"""Processes that are no brokers, beside several brokers that authenticate their clients.

They are of the same user or of another one, in the same namespaces or in others, as the containers of one pod are. None
of them gets through the sockets between the brokers, whatever happened to the supervisor or to a broker before.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from penstock.testing.client import Type, frame
from penstock.testing.tokens import SECRET, data_url, token
from tests.needed import skip
from tests.processes.cluster import Cluster, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INTRUDER: Final = Path(__file__).with_name("intruder.py")
# The system's, if there is one: that of the tests may be in a directory of this user alone.
PYTHON: Final = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
NOBODY: Final = 65_534
NS: Final = "/admin/v2/persistent/public/default"
SUPERUSERS: Final = "/admin/v2/brokers/configuration/superUserRoles"
CONF: Final = (
    "authenticationEnabled=true\nauthorizationEnabled=true\nsuperUserRoles=admin\n"
    "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
    f"tokenSecretKey={data_url(SECRET)}\n"
)
# What it runs as, or in. The first one is a container beside that of the brokers: it sees their network, not them.
BESIDE: Final = {
    "a sidecar": ("unshare", "--pid", "--fork", "--mount-proc"),
    "the same user": (),
    "another user": ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    "another network namespace": ("unshare", "--net"),
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two brokers that authenticate and authorize, each with a topic of the same name but for its number."""
    config = tmp_path / "auth.conf"
    config.write_text(CONF)
    with Cluster(tmp_path / "data", 2, ["--config", str(config)]) as cluster:
        for number in range(4):
            assert cluster.http(0, "PUT", f"{NS}/t-{number}", token=token("admin"))[0] == 204
        yield cluster


def attacks() -> list[bytes]:
    """Requests without credentials: to become a superuser, and to write to a topic and to read it."""
    http = [
        f"POST {SUPERUSERS}/intruder HTTP/1.0\r\nhost: x\r\ncontent-length: 0\r\n{header}\r\n".encode()
        for header in ("", "x-penstock-caller: broker-0\r\n")
    ]
    greeting = frame(Type.CONNECT, client_version="intruder", protocol_version=20)
    protocol = [
        greeting + frame(kind, request_id=1, **fields)
        for topic in (f"persistent://public/default/t-{number}" for number in range(4))
        for kind, fields in (
            (Type.PRODUCER, {"topic": topic, "producer_id": 1}),
            (Type.SUBSCRIBE, {"topic": topic, "subscription": "s", "subType": 0, "consumer_id": 1}),
        )
    ]
    return http + protocol


def intrude(cluster: Cluster, command: Sequence[str] = ()) -> dict[str, Any]:
    """What an intruder achieves that knows the sockets of the brokers."""
    pids = [cluster.pid, *cluster.pids().values()]
    wanted = {"pids": pids, "inodes": list(inodes(pids)), "requests": [each.hex() for each in attacks()]}
    done = subprocess.run(
        [*command, PYTHON, "-I", "-c", INTRUDER.read_text()],
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    achieved: dict[str, Any] = json.loads(done.stdout)
    return achieved


def inodes(pids: Sequence[int]) -> Iterator[int]:
    """The sockets of these processes."""
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            link = str(descriptor.readlink())
            if link.startswith("socket:["):
                yield int(link[8:-1])


def tools_or_skip(command: Sequence[str]) -> None:
    """Skip where such a process cannot be started, which CI must be able to."""
    tried = None
    if not command or shutil.which(command[0]):
        tried = subprocess.run([*command, PYTHON, "-I", "-c", ""], capture_output=True, text=True, check=False)
    if tried is None or tried.returncode:
        what = f"{' '.join([*command, PYTHON])} does not run here: {tried.stderr if tried else 'it is not installed'}"
        skip(what)


@pytest.mark.parametrize("beside", BESIDE)
def test_no_process_that_is_no_broker_reaches_the_sockets_between_brokers(cluster: Cluster, beside: str) -> None:
    tools_or_skip(BESIDE[beside])
    assert intrude(cluster, BESIDE[beside]) == {"names": [], "answers": [], "opened": []}
    until(lambda: cluster.http(1, "GET", f"{SUPERUSERS.rpartition('/')[0]}/values", token=token("admin")) == (200, {}))


def test_brokers_serve_each_other_and_nobody_else_after_one_was_replaced_and_all_were(cluster: Cluster) -> None:
    tools_or_skip(())
    owners = {
        cluster.owner(f"persistent://public/default/t-{number}", token=token("admin")): number for number in range(4)
    }
    assert owners.keys() == {0, 1}

    def serve_each_other() -> bool:
        """Whether each broker passes requests on to the other one."""
        statuses = (
            cluster.http(1 - owner, "GET", f"{NS}/t-{number}/stats", token=token("admin"))[0]
            for owner, number in owners.items()
        )
        return all(status == 200 for status in statuses)

    assert serve_each_other()
    before = cluster.pids()[1]
    cluster.kill_broker(1)
    until(lambda: cluster.pids().get(1, before) != before and serve_each_other())
    assert intrude(cluster) == {"names": [], "answers": [], "opened": []}
    first, admin = cluster.port, cluster.admin_port
    cluster.kill()  # The supervisor: its brokers end with it, and what they had open.
    cluster.start(port=first, admin_port=admin)
    until(serve_each_other)
    assert intrude(cluster) == {"names": [], "answers": [], "opened": []}


def test_what_is_passed_on_is_for_whom_it_would_be_at_the_broker_itself(cluster: Cluster) -> None:
    """Of operations that concern both brokers, and are asked for by those that just may."""
    granted = f"{NS.replace('persistent', 'namespaces')}/permissions"
    for role, actions in (("reader", ["consume"]), ("writer", ["produce"])):
        assert cluster.http(0, "POST", f"{granted}/{role}", actions, token=token("admin"))[0] == 204
    tenant = "/admin/v2/tenants/public"
    assert (
        cluster.http(
            0, "POST", tenant, {"adminRoles": ["owner"], "allowedClusters": ["standalone"]}, token=token("admin")
        )[0]
        == 204
    )
    until(lambda: cluster.http(1, "GET", NS, token=token("writer"))[0] == 200)
    parts = f"{NS}/parts"
    namespace = NS.replace("persistent", "namespaces")
    position = {"ledgerId": -1, "entryId": -1}
    for asked in (0, 1):
        for method, path, value, allowed in (
            ("PUT", f"{parts}/partitions", 4, {"owner"}),
            ("PUT", f"{parts}/subscription/s", position, {"reader", "owner"}),
            ("GET", f"{parts}/subscriptions", None, {"reader", "owner"}),
            ("GET", f"{parts}/partitioned-stats", None, {"reader", "writer", "owner"}),
            ("GET", f"{parts}/partitioned-internalStats", None, {"reader", "writer", "owner"}),
            ("POST", f"{parts}/subscription/s/skip_all", None, {"reader", "owner"}),
            ("POST", f"{namespace}/clearBacklog", None, {"reader", "owner"}),
            ("GET", "/admin/v3/why/tenants/public", None, {"owner"}),
            ("POST", f"{parts}/partitions", 6, {"owner"}),
            ("POST", f"{parts}/terminate/partitions", None, {"owner"}),
            ("POST", f"{namespace}/unsubscribe/s", None, {"reader", "owner"}),
            ("PUT", f"{namespace}/unload", None, {"admin"}),
            ("GET", "/admin/v2/brokers/backlog-quota-check", None, {"admin"}),
            ("DELETE", f"{parts}/partitions", None, {"owner"}),
        ):
            for role in ("nobody", "reader", "writer", "owner", "admin"):
                if role not in allowed and role != "admin":
                    status, answer = cluster.http(asked, method, path, value, token=token(role))
                    assert status == 403, (asked, method, path, role, answer)
            for role in sorted(allowed):
                status, answer = cluster.http(asked, method, path, value, token=token(role))
                again = {404, 409} if method in {"PUT", "DELETE", "POST"} else set()
                assert status in {200, 204} | again, (asked, method, path, role, answer)
                if "why" in path:
                    assert answer["unanswered"] == []
