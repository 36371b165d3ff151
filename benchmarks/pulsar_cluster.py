# SPDX-License-Identifier: Apache-2.0
"""Several real Apache Pulsar brokers on one ZooKeeper and one bookie, on this machine.

Why: a standalone broker owns all topics for ever. Here topics move between brokers: because an operator unloads them
to another one, or because theirs was killed.
Where: the crash loop of the proxies, with `--peer pulsar`. What it needs is what `pulsar_peer` needs.

Processes: ZooKeeper (the server that Pulsar ships), a bookie (Pulsar's standalone without its broker), and the brokers.
"""

from __future__ import annotations

import json
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from benchmarks.process import accepts, free_port, stop
from benchmarks.pulsar_peer import SETTINGS, find_java, resolve, run_java, wait_for, wait_until_ready, write_settings

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path
    from types import TracebackType

CLUSTER: Final = "cluster"
BUNDLES: Final = 8
# Four virtual machines are to fit on a small one, and to start soon.
MEMORY: Final = ("-Xms64m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
TICK_MS: Final = 1_000
# A broker that was killed owns its topics for so long.
SESSION_MS: Final = 5_000
ASK_TIMEOUT_S: Final = 60.0
# Topics move when they are told to, and not for their load.
BROKER_SETTINGS: Final = {
    **SETTINGS,
    "clusterName": CLUSTER,
    "loadBalancerAutoBundleSplitEnabled": "false",
    "loadBalancerEnabled": "true",
    "loadBalancerSheddingEnabled": "false",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
    "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
}
LOAD_MANAGERS: Final = {
    "modular": BROKER_SETTINGS["loadManagerClassName"],
    # Tells clients of a topic that moves where it is now, so that they need no lookup.
    "extensible": "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl",
}
# The extensible one keeps its state in ZooKeeper, as the other does, and not in a topic.
TABLE_VIEW: Final = "org.apache.pulsar.broker.loadbalance.extensions.channel.ServiceUnitStateMetadataStoreTableViewImpl"
# The bookie listens on the interface that is named, and not on all.
BOOKIE_SETTINGS: Final = {**SETTINGS, "allowLoopback": "true", "listeningInterface": "lo"}


class PulsarCluster:
    """Brokers of one cluster, each with its ports, which it keeps when it is started again."""

    def __init__(self, data_dir: Path, brokers: int, load_manager: str = "modular") -> None:
        self.data_dir = data_dir
        self.brokers = brokers
        self._load_manager = LOAD_MANAGERS[load_manager]
        self._java, self._class_path = "", ""
        self._ports = [(free_port(), free_port()) for _ in range(brokers)]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._metadata_url = ""

    def url_of(self, number: int) -> str:
        """Where clients of one broker connect."""
        return f"pulsar://127.0.0.1:{self._ports[number][0]}"

    @property
    def admin_urls(self) -> list[str]:
        """The URLs of the admin ports of all brokers, by number."""
        return [f"http://127.0.0.1:{admin_port}" for _, admin_port in self._ports]

    def start(self) -> Self:
        """Start everything, and return when all brokers are ready. Raises PeerError."""
        self._java, self._class_path = find_java(), resolve()
        self.data_dir.mkdir(exist_ok=True)
        try:
            self._start_storage()
            for number in range(self.brokers):
                self._start_broker(number)
                self._wait_for_broker(number)  # The first one makes what all of them need.
            wait_for(self._running["bookie"], self._home("bookie"), self._has_bookie)
            self._make_namespace()
        except BaseException:
            self.kill()
            raise
        return self

    def _start_storage(self) -> None:
        port, home = free_port(), self._home("zookeeper")
        settings = home / "zoo.cfg"
        write_settings(settings, {
            "tickTime": str(TICK_MS), "dataDir": str(home / "data"), "clientPort": str(port),
            "clientPortAddress": "127.0.0.1", "admin.enableServer": "false",
        })  # fmt: skip
        self._run("zookeeper", ["org.apache.zookeeper.server.ZooKeeperServerMain", settings])
        wait_for(self._running["zookeeper"], home, partial(accepts, port))
        self._metadata_url = f"zk:127.0.0.1:{port}"
        home = self._home("bookie")
        settings = home / "bookie.conf"
        write_settings(settings, BOOKIE_SETTINGS)
        self._run("bookie", [
            *("org.apache.pulsar.PulsarStandaloneStarter", "--config", settings, "-nfw", "-nss", "--no-broker"),
            *("--metadata-url", self._metadata_url, "--bookkeeper-dir", home / "ledgers"),
        ])  # fmt: skip

    def _has_bookie(self) -> bool:
        """Whether the brokers know the bookie, which chooses its port itself."""
        return bool(json.loads(self._ask("GET", "bookies/all"))["bookies"])

    def _start_broker(self, number: int) -> None:
        name, (port, admin_port) = f"broker-{number}", self._ports[number]
        settings = self._home(name) / "broker.conf"
        write_settings(settings, {
            **BROKER_SETTINGS,
            "loadManagerClassName": self._load_manager,
            "loadManagerServiceUnitStateTableViewClassName": TABLE_VIEW,
            "brokerServicePort": str(port), "webServicePort": str(admin_port),
            "metadataStoreUrl": self._metadata_url, "configurationMetadataStoreUrl": self._metadata_url,
        })  # fmt: skip
        self._run(name, ["org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", settings])

    def _home(self, name: str) -> Path:
        home = self.data_dir / name
        home.mkdir(exist_ok=True)
        return home

    def _run(self, name: str, main: list[str | Path]) -> None:
        self._running[name] = run_java(self._java, self._class_path, self._home(name), MEMORY, main)

    def _make_namespace(self) -> None:
        self._ask("PUT", f"clusters/{CLUSTER}", {"serviceUrl": self.admin_urls[0], "brokerServiceUrl": self.url_of(0)})
        self._ask("PUT", "tenants/public", {"allowedClusters": [CLUSTER]})
        self._ask("PUT", "namespaces/public/default", {"bundles": {"numBundles": BUNDLES}})

    def _ask(self, method: str, path: str, value: object = None) -> bytes:
        request = urllib.request.Request(
            f"{self.admin_urls[0]}/admin/v2/{path}",
            method=method,
            data=None if value is None else json.dumps(value).encode(),
            headers={"content-type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=ASK_TIMEOUT_S) as answer:
            return bytes(answer.read())

    def wait(self) -> None:
        """Return when all brokers are ready. Raises PeerError."""
        for number in range(self.brokers):
            self._wait_for_broker(number)

    def _wait_for_broker(self, number: int) -> None:
        name = f"broker-{number}"
        wait_until_ready(self._running[name], self._ports[number][1], self._home(name), "", ["brokers/ready"])

    def kill_broker(self, number: int) -> None:
        """End one (SIGKILL), and start it again without waiting for it."""
        process = self._running[f"broker-{number}"]
        process.kill()
        process.wait()
        self._start_broker(number)

    def stop(self) -> None:
        """Ask all to end, the brokers first."""
        for process in reversed(list(self._running.values())):
            stop(process)
        self._running.clear()

    def kill(self) -> None:
        """End all (SIGKILL)."""
        for process in self._running.values():
            process.kill()
            process.wait()
        self._running.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
