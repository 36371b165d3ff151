# SPDX-License-Identifier: Apache-2.0
"""One quota and two proxies: what passes in every five seconds, and after one proxy was killed.

    python -m benchmarks.proxies [--peer pulsar] [--quota 1000] [--seconds 60] [--dispatch]

Official clients, unbatched, offer more than twice the quota through both proxies; with --dispatch they consume stored
messages instead. Counted where the cluster's topics count. Two cycles after the start and after the kill are left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.brokers import BROKERS
from penstock.testing.process import ProxyProcess

TENANT, NAMESPACE = "public", "public/proxied"
WINDOW_S: Final = 5.0
SAMPLE_S: Final = 0.5
PUBLISHER = """
import pulsar, sys, time
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
producer = client.create_producer(sys.argv[2], batching_enabled=False, block_if_queue_full=True,
                                  max_pending_messages=200, send_timeout_millis=0)
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    producer.send_async(b"x" * 100, lambda result, message_id: None)
"""
CONSUMER = """
import pulsar, sys, time
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
consumer = client.subscribe(sys.argv[2], "s", initial_position=pulsar.InitialPosition.Earliest)
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    consumer.acknowledge(consumer.receive())
"""


def fill(url: str, topics: list[str], count: int) -> None:
    """Store so many messages in each topic, in batches of ten."""
    import pulsar

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for topic in topics:
        producer = client.create_producer(
            topic, batching_enabled=True, batching_max_messages=10, block_if_queue_full=True, send_timeout_millis=0
        )
        for _ in range(count):
            producer.send_async(b"x" * 100, lambda _result, _id: None)
        producer.flush()
    client.close()


def counted(admin_url: str, topics: list[str], counter: str) -> int:
    """Messages that the cluster has accepted on these topics, or delivered."""
    total = 0
    for topic in topics:
        url = f"{admin_url}/admin/v2/{topic.replace('://', '/')}/stats"
        with urllib.request.urlopen(url, timeout=10) as response:
            total += json.load(response)[counter]
    return total


def main() -> int:
    """Run it; 0 if every window is within 5 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=("penstock", "pulsar"), default="penstock")
    parser.add_argument("--quota", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--dispatch", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="proxies-")))
        address = stack.enter_context(BROKERS[options.peer]())
        request = urllib.request.Request(f"{address.admin_url}/admin/v2/namespaces/{NAMESPACE}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        rate = "dispatchRateInMsgs" if options.dispatch else "publishRateInMsgs"
        (scratch / "groups.toml").write_text(f'[all]\n{rate} = {options.quota}\nnamespaces = ["{NAMESPACE}"]\n')
        (scratch / "proxy.conf").write_text(f"resourceGroupsFile={scratch / 'groups.toml'}\nresourceUsageKey=bench\n")
        proxies = [
            ProxyProcess(
                address.url, ["--config", str(scratch / "proxy.conf")], log_path=scratch / f"proxy-{number}.log"
            )
            for number in range(2)
        ]
        for proxy in proxies:
            proxy.start()
            stack.callback(lambda one=proxy: one.stop() if one._process is not None else None)  # noqa: SLF001
        topics = [f"persistent://{NAMESPACE}/t{number}" for number in range(4)]
        total_s = options.seconds + 15
        if options.dispatch:
            # After the kill, half of the topics get the whole quota.
            fill(address.url, topics, options.quota * total_s // 2)
        program, counter = (CONSUMER, "msgOutCounter") if options.dispatch else (PUBLISHER, "msgInCounter")
        publishers = [
            subprocess.Popen([sys.executable, "-c", program, proxies[number % 2].url, topic, str(total_s)])
            for number, topic in enumerate(topics)
        ]
        for publisher in publishers:
            stack.callback(publisher.wait)
            stack.callback(publisher.kill)
        time.sleep(5)
        samples: list[tuple[float, int]] = []
        killed_s = None
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            samples.append((time.monotonic(), counted(address.admin_url, topics, counter)))
            if killed_s is None and time.monotonic() > end - options.seconds / 2:
                proxies[1].kill()
                killed_s = time.monotonic()
            time.sleep(SAMPLE_S)
        rates = []
        for at, (start_s, start) in enumerate(samples):
            later = next((one for one in samples[at:] if one[0] - start_s >= WINDOW_S), None)
            # The lease of a proxy that was killed ends after three cycles; two more are exempt.
            if later is None or (killed_s is not None and start_s < killed_s + 5 and later[0] > killed_s):
                continue
            rates.append((later[1] - start) / (later[0] - start_s))
        print(f"{len(rates)} windows of 5 s: {min(rates):.0f} to {max(rates):.0f} msg/s of {options.quota}")
        return 0 if all(abs(rate - options.quota) <= 0.05 * options.quota for rate in rates) else 1


if __name__ == "__main__":
    sys.exit(main())
