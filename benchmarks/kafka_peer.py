# SPDX-License-Identifier: Apache-2.0
"""A real Apache Kafka broker on this machine, to measure against: one node in KRaft mode, no tarball, no container.

Why: the log that many compare brokers with. By default it leaves syncing to the operating system and to its replicas;
with `flush.messages=1` it syncs before each receipt, as penstock does. Both are measured.
Where: `run` with `--peer kafka`. By hand: `python -m benchmarks.kafka_peer` keeps one up until Ctrl-C.

The first start downloads 43 MB through Maven; the class path is kept where `pulsar_peer` keeps its own. Needs Java 17
or later and mvn.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from benchmarks.process import Address, PeerError, accepts, free_port, stop, wait_for
from benchmarks.pulsar_peer import Artifact, fetch, run_java, write_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

KAFKA: Final = "Apache Kafka"
VERSION: Final = "4.1.1"
# Without the last one the broker would log nothing; it is the one that Kafka ships.
POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.benchmarks</groupId>
  <artifactId>kafka-peer</artifactId>
  <version>0</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.24.3</version>
    </dependency>
  </dependencies>
</project>
"""
ARTIFACT: Final = Artifact(KAFKA, f"kafka-{VERSION}", POM)
# Any identifier will do: no other node is to join.
CLUSTER: Final = "cGVuc3RvY2stYmVuY2htYQ"
# As for Apache Pulsar; Kafka's scripts would take 1 GiB at once.
MEMORY: Final = ("-Xms256m", "-Xmx1g", "-XX:+UseG1GC")
FORMAT_TIMEOUT_S: Final = 300.0
# What the shipped server.properties says, on loopback and for one node.
SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
SYNC_ALWAYS: Final = {"log.flush.interval.messages": "1"}


@contextmanager
def kafka(data: Path, *, sync: bool = False) -> Iterator[Address]:
    """Start Apache Kafka on a data directory, yield it when it serves, and stop it.

    Args:
        data: a second start there finds what the first one stored.
        sync: whether each batch is synced before its receipt.

    Raises:
        PeerError: Java, Maven or the artifacts are missing, or the broker did not come up.
    """
    java, class_path = fetch(ARTIFACT)
    port, controller_port, settings = free_port(), free_port(), data / "server.properties"
    data.mkdir(exist_ok=True)
    ports = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.dirs": str(data / "logs"),
    }
    write_settings(settings, {**SETTINGS, **ports, **(SYNC_ALWAYS if sync else {})})
    if not (data / "logs").exists():
        format_storage(java, class_path, settings)  # as an operator does once, before the clock starts
    started_s = time.monotonic()
    process = run_java(java, class_path, data, MEMORY, ["kafka.Kafka", settings])
    try:
        wait_for(process, lambda: accepts(port), KAFKA, (data / "broker.log", data / "stdout.log"))
        yield Address(port=port, admin_port=0, pid=process.pid, data=data, started_s=started_s)
    finally:
        stop(process)


def format_storage(java: str, class_path: str, settings: Path) -> None:
    """Write the metadata of an empty node. Raises PeerError."""
    words = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)]
    try:
        done = subprocess.run(
            [java, "-Xmx256m", "-cp", class_path, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=FORMAT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{KAFKA} did not format its storage within {FORMAT_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise PeerError(f"{KAFKA} could not format its storage:\n{(done.stderr or done.stdout)[-2000:]}")


def main() -> None:
    """Keep one broker up until Ctrl-C or SIGTERM, and print where it is as one line of JSON."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with TemporaryDirectory(prefix="kafka-peer-") as data, suppress(KeyboardInterrupt), kafka(Path(data)) as address:
        print(json.dumps({"port": address.port, "pid": address.pid}), flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
