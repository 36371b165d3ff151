# SPDX-License-Identifier: Apache-2.0
"""A real Apache Pulsar standalone broker on this machine, to measure against: no tarball, no container.

Why: a ratio needs both sides on the same machine in the same minute. The broker comes from the artifacts its project
publishes; its journal syncs before it acknowledges, as penstock's does.
Where: benchmarks with `--peer pulsar`, and the compatibility tests with PEER=pulsar, which also kill and restart it. By
hand: `python -m benchmarks.pulsar_peer` keeps one up until Ctrl-C.

The first start downloads about 280 MB through Maven; the class path is kept in `~/.cache/penstock-peer`, or where
PENSTOCK_PEER_CACHE says. Needs Java 17 or later and mvn.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from benchmarks.process import Address, PeerError, cache_of, free_port, stop
from benchmarks.process import wait_for as wait_for_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

PULSAR_VERSION = "4.2.4"
JAVA_MAJOR_MIN = 17
RESOLVE_TIMEOUT_S = 900.0
READY_PATHS: Final = ("brokers/ready", "namespaces/public/default")
# What a Java machine ends with when SIGTERM has run its shutdown hooks.
ENDED_AS_TOLD: Final = 128 + signal.SIGTERM
CLASSPATH_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"

# The project's own parent is imported, so that every transitive version is the one Pulsar ships.
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.benchmarks</groupId>
  <artifactId>pulsar-peer</artifactId>
  <version>0</version>
  <packaging>pom</packaging>
  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>org.apache.pulsar</groupId>
        <artifactId>pulsar</artifactId>
        <version>{PULSAR_VERSION}</version>
        <type>pom</type>
        <scope>import</scope>
      </dependency>
    </dependencies>
  </dependencyManagement>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId>
      <artifactId>pulsar-broker</artifactId>
      <version>{PULSAR_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


class Artifact(NamedTuple):
    """A broker as Maven fetches it: its name for people, its folder in the cache, and the project that asks for it."""

    name: str
    folder: str
    pom: str


PULSAR: Final = Artifact("Apache Pulsar", PULSAR_VERSION, POM)

# What the shipped standalone.conf says, on loopback and for one bookie, save for one line: journalSyncData, which the
# shipped file switches off and the server's own default switches on.
SETTINGS = {
    "clusterName": "standalone",
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "allowAutoTopicCreation": "true",
    "allowAutoTopicCreationType": "non-partitioned",
    "bookkeeperNumberOfChannelsPerBookie": "16",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "defaultNumberOfNamespaceBundles": "4",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    "flushInterval": "60000",
    "httpServerEnabled": "false",
    "journalMaxGroupWaitMSec": "1",
    "journalSyncData": "true",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "loadBalancerEnabled": "false",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerMaxEntriesPerLedger": "50000",
    "managedLedgerMinimumBacklogCursorsForCaching": "0",
    "nettyMaxFrameSizeBytes": "5253120",
    "transactionCoordinatorEnabled": "false",
}

LOGGING = """<Configuration status="WARN">
  <Appenders><File name="file" fileName="${sys:pulsar.log.dir}/broker.log">
    <PatternLayout pattern="%d %p [%t] %c{1} %m%n"/></File></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="file"/></Root></Loggers>
</Configuration>
"""

OPENED_TO_ALL = (
    "java.base/java.io",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
# A small heap for a small machine; the shipped scripts would take 2 GiB of heap and 4 GiB of direct memory.
MEMORY = ("-Xms256m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC")


@contextmanager
def pulsar(
    data: Path | None = None, *, settings: Mapping[str, str] = MappingProxyType({}), token: str = ""
) -> Iterator[Address]:
    """Start Apache Pulsar, yield it when it serves, and stop it.

    Args:
        data: where it keeps everything; a second start there finds what the first one stored. None: a folder of its
            own that is removed afterwards.
        settings: what differs from `SETTINGS`.
        token: what to show on the admin port, if that asks who we are.

    Raises:
        PeerError: Java, Maven or the artifacts are missing, or the broker did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="pulsar-peer-") as scratch:
        peer = PulsarProcess(data or Path(scratch), settings, token)
        resolve()  # which may download for minutes, before the clock starts
        started_s = time.monotonic()
        with peer:
            yield Address(
                port=peer.port, admin_port=peer.admin_port, pid=peer.pid, data=peer.data_dir, started_s=started_s
            )


class PulsarProcess:
    """One standalone Pulsar on a data directory, with the methods of penstock's `BrokerProcess`."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str] = MappingProxyType({}), token: str = "") -> None:
        self.data_dir, self.settings, self.token = data_dir, settings, token
        self.port = 0
        self.admin_port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        """Where the admin port answers."""
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    def start(self, *, port: int = 0, admin_port: int = 0) -> Self:
        """Start and wait until it serves. Raises PeerError."""
        self.port, self.admin_port = port or free_port(), admin_port or free_port()
        self.data_dir.mkdir(exist_ok=True)
        ports = {"brokerServicePort": str(self.port), "webServicePort": str(self.admin_port)}
        self._process = spawn(find_java(), resolve(), self.data_dir, {**SETTINGS, **ports, **self.settings})
        try:
            wait_until_ready(self._process, self.admin_port, self.data_dir, self.token)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> int:
        """Ask it to end (SIGTERM) and wait; 0 when it ended as it was told, as penstock says."""
        process = self._taken()
        stop(process)
        return 0 if process.returncode == ENDED_AS_TOLD else process.returncode

    def kill(self) -> None:
        """End it without a chance to say anything (SIGKILL)."""
        process = self._taken()
        process.kill()
        process.wait()

    def _taken(self) -> subprocess.Popen[bytes]:
        process, self._process = self._process, None
        assert process is not None, "the broker was not started"
        return process

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()


def find_java(name: str = PULSAR.name) -> str:
    """Return a Java launcher that is new enough for the broker of this name."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        raise PeerError(f"{name} needs Java {JAVA_MAJOR_MIN} or later: install a JRE or set JAVA_HOME")
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "(\d+)', text)
    if found is None or int(found[1]) < JAVA_MAJOR_MIN:
        raise PeerError(f"{name} needs Java {JAVA_MAJOR_MIN} or later, and {java} says: {text.splitlines()[0]}")
    return java


def resolve(artifact: Artifact = PULSAR) -> str:
    """Return the broker's class path, downloading it the first time."""
    cache = cache_of(artifact.folder)
    kept = cache / "classpath.txt"
    if kept.exists() and all(Path(jar).exists() for jar in kept.read_text().split(":")):
        return kept.read_text()
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerError(f"{artifact.name} is fetched by Maven the first time: install mvn (3.6 or later)")
    cache.mkdir(parents=True, exist_ok=True)
    pom, fresh = cache / "pom.xml", cache / "classpath.new"
    pom.write_text(artifact.pom)
    fetch = subprocess.run(
        [maven, "-q", "-B", "-f", pom, CLASSPATH_GOAL, f"-Dmdep.outputFile={fresh}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=RESOLVE_TIMEOUT_S,
    )
    if fetch.returncode:
        raise PeerError(f"Maven could not fetch {artifact.name} ({artifact.folder}):\n{fetch.stdout[-2000:]}")
    fresh.replace(kept)
    return kept.read_text()


def fetch(artifact: Artifact = PULSAR) -> tuple[str, str]:
    """Make sure that a broker can be started; return Java's launcher and the class path. Raises PeerError."""
    return find_java(artifact.name), resolve(artifact)


def spawn(java: str, class_path: str, home: Path, said: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Write the settings and start a standalone broker; everything it writes stays under `home`."""
    settings = home / "standalone.conf"
    write_settings(settings, said)
    main: list[str | Path] = [
        *("org.apache.pulsar.PulsarStandaloneStarter", "--config", settings, "-nfw", "-nss"),
        *("--bookkeeper-port", str(free_port())),
        *("--metadata-dir", home / "metadata", "--bookkeeper-dir", home / "bookkeeper"),
    ]
    return run_java(java, class_path, home, [*MEMORY, f"-Dpulsar.config.file={settings}"], main)


def write_settings(path: Path, said: Mapping[str, str]) -> None:
    """Write a file of settings, one a line."""
    path.write_text("".join(f"{key}={value}\n" for key, value in said.items()))


def run_java(
    java: str, class_path: str, home: Path, options: Sequence[str], main: Sequence[str | Path]
) -> subprocess.Popen[bytes]:
    """Start a virtual machine with one of the peer's programs; its log and scratch files stay under `home`."""
    logging, scratch = home / "log4j2.xml", home / "tmp"
    scratch.mkdir(exist_ok=True)
    logging.write_text(LOGGING)
    words = [
        *options,
        *(word for package in OPENED_TO_ALL for word in ("--add-opens", f"{package}=ALL-UNNAMED")),
        "-Djava.net.preferIPv4Stack=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Djute.maxbuffer=10485760",
        "-Dzookeeper.snapshot.trust.empty=true",
        # Libraries are unpacked there, and stay when the process is killed.
        f"-Djava.io.tmpdir={scratch}",
        "-XX:-UsePerfData",
        f"-Dpulsar.log.dir={home}",
        f"-Dlog4j.configurationFile={logging}",
        "-Dlog4j2.is.webapp=false",
    ]
    with (home / "stdout.log").open("wb") as output:
        return subprocess.Popen(
            [java, "-cp", class_path, *words, *main], cwd=home, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def wait_until_ready(
    process: subprocess.Popen[bytes], admin_port: int, home: Path, token: str, paths: Sequence[str] = READY_PATHS
) -> None:
    """Return once the broker serves these paths, by default that it is ready, and the namespace everybody uses."""
    wait_for(process, home, lambda: all(answers(admin_port, path, token) for path in paths))


def wait_for(process: subprocess.Popen[bytes], home: Path, is_ready: Callable[[], bool]) -> None:
    """Return once a program of the peer is ready. Raises PeerError, with the end of its log."""
    wait_for_process(process, is_ready, PULSAR.name, (home / "broker.log", home / "stdout.log"))


def answers(admin_port: int, path: str, token: str) -> bool:
    """Say whether the admin port serves a path; never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://127.0.0.1:{admin_port}/admin/v2/{path}", headers=headers)
    try:
        with opener.open(request, timeout=5) as reply:
            return bool(reply.status < 300)
    except (OSError, urllib.error.URLError):
        return False


def main() -> None:
    """Keep one broker up until Ctrl-C or SIGTERM, and print where it is as one line of JSON."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), pulsar() as address:
        print(json.dumps({"port": address.port, "admin_port": address.admin_port, "pid": address.pid}), flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
