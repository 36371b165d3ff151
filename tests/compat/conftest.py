# SPDX-License-Identifier: Apache-2.0
"""The broker under the compatibility tests: penstock, or with PEER=pulsar Apache Pulsar, which defines the truth.

With COMPAT_BROKERS=3 it is three brokers of penstock, and each test is given another pair of their addresses: one for
clients, and the admin port of the same or of another broker. With COMPAT_PROXY=1 a proxy is before them, whose two
addresses all tests are given.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.brokers import BROKERS
from benchmarks.pulsar_peer import PulsarProcess
from penstock.testing.process import BrokerProcess
from tests.compat.clients import Admin, connect, unique
from tests.compat.features import FEATURES
from tests.compat.proxied import Proxied, proxy_before
from tests.processes.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pulsar

HERE = Path(__file__).parent
PEER = os.environ.get("PEER", "penstock")
COUNT = int(os.environ.get("COMPAT_BROKERS", "1"))
PROXY = os.environ.get("COMPAT_PROXY") == "1"
# It takes 7 s to start on an idle machine, half a minute on a busy one, and some cases start it three times.
OWN_PULSAR_TIMEOUT_S = 240
# Of a failure, in the lines of results: what came before them in a log is often cut off.
_WHY_CHARS = 500


@dataclass(frozen=True)
class Subject:
    """A running broker, whoever made it; or several of them, with one's address for clients and one's admin port."""

    name: str
    url: str
    admin_url: str
    everywhere: Mapping[str, str]  # the admin ports of all brokers of its cluster, by service URL


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Subject]]:
    """What the whole session shares: one broker, or several in turn, without end; or a proxy before them."""
    with ExitStack() as stack:
        if COUNT == 1:
            address = stack.enter_context(BROKERS[PEER]())
            urls, admin_urls = [address.url], [address.admin_url]
        else:
            cluster = stack.enter_context(Cluster(tmp_path_factory.mktemp("brokers") / "data", COUNT))
            urls, admin_urls = cluster.urls, cluster.admin_urls
        everywhere = dict(zip(urls, admin_urls, strict=True))
        if PROXY:
            proxy = stack.enter_context(proxy_before(urls, admin_urls, tmp_path_factory.mktemp("proxy") / "log"))
            urls, admin_urls = [proxy.url], [proxy.admin_url]
        yield cycle([Subject(PEER, *pair, everywhere) for pair in product(urls, admin_urls)])


@pytest.fixture
def broker(brokers: Iterator[Subject]) -> Subject:
    """One broker that others use too; each test uses topics of its own."""
    return next(brokers)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess | PulsarProcess | Proxied]:
    """A broker for one test, which may stop, kill and restart it."""
    with ExitStack() as stack:
        process: BrokerProcess | PulsarProcess
        if COUNT > 1:
            process = cluster = stack.enter_context(Cluster(tmp_path / "data", COUNT))
            urls, admin_urls = cluster.urls, cluster.admin_urls
        else:
            data = tmp_path / "data"
            process = PulsarProcess(data) if PEER == "pulsar" else BrokerProcess(data)
            stack.enter_context(process)
            urls, admin_urls = [process.url], [process.admin_url]
        if not PROXY:
            yield process
            return
        yield Proxied(process, stack.enter_context(proxy_before(urls, admin_urls, tmp_path / "proxy.log")))


@pytest.fixture
def client(broker: Subject) -> Iterator[pulsar.Client]:
    """A client, closed after the test with all that it opened."""
    client = connect(broker.url)
    yield client
    client.close()


@pytest.fixture
def admin(broker: Subject) -> Iterator[Admin]:
    """The admin port."""
    with Admin(broker.admin_url) as admin:
        yield admin


@pytest.fixture
def local() -> str:
    """The last part of the name of a topic that nobody else uses."""
    return unique("t")


@pytest.fixture
def topic(local: str) -> str:
    """The name of a topic that nobody else uses."""
    return f"persistent://public/default/{local}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        features = {mark.args[0] for mark in item.iter_markers("feature")}
        assert features, f"{item.nodeid} has no mark that says which feature it is about"
        assert features <= FEATURES.keys(), f"{item.nodeid}: {features - FEATURES.keys()} not in compat/features.py"
        item.user_properties.extend(("feature", feature) for feature in sorted(features))  # also if it is skipped
        only = item.get_closest_marker("penstock_only")
        assert only is None or only.args, f"{item.nodeid}: penstock_only has no reason"
        if PEER == "penstock":
            continue
        if only is not None:
            item.add_marker(pytest.mark.skip(reason=f"only penstock: {only.args[0]}"))
        if "own_broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(OWN_PULSAR_TIMEOUT_S))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Where COMPAT_RESULTS says, leave a line per test for the table."""
    # Where several processes share the tests, the first of them is told of all.
    results = os.environ.get("COMPAT_RESULTS") if "PYTEST_XDIST_WORKER" not in os.environ else None
    if results and (report.when == "call" or report.outcome != "passed"):
        features = [value for name, value in report.user_properties if name == "feature"]
        crash = getattr(report.longrepr, "reprcrash", None)
        why = {"why": f"line {crash.lineno}: {crash.message}"[:_WHY_CHARS]} if crash is not None else {}
        with Path(results).open("a", encoding="utf-8") as lines:
            for feature in features:
                client = "spark" if report.nodeid.startswith("tests/compat/spark/") else "python"
                case = {"client": client, "feature": feature, "case": report.nodeid, "outcome": report.outcome, **why}
                lines.write(json.dumps(case) + "\n")
