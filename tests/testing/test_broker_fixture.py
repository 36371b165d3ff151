# SPDX-License-Identifier: Apache-2.0
"""The broker for other people's tests: as fixtures in a project of its own, and as a context manager."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pulsar
import pytest

from penstock.core.errors import ConfigurationError
from penstock.testing.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["pytester"]

SOMEBODYS_TEST = """
import pulsar

def test_x(pulsar_url, pulsar_topic):
    client = pulsar.Client(pulsar_url)
    consumer = client.subscribe(pulsar_topic, "s")
    client.create_producer(pulsar_topic).send(b"hello")
    assert consumer.receive(60_000).data() == b"hello"
    client.close()

def test_health(pulsar_admin_url):
    from urllib.request import urlopen
    assert urlopen(pulsar_admin_url + "/healthz").status == 200
"""


@pytest.mark.parametrize("where", ["in-process", "process"])
def test_anybodys_test_gets_a_broker_by_naming_a_fixture(pytester: pytest.Pytester, where: str) -> None:
    pytester.makepyfile(SOMEBODYS_TEST)
    pytester.runpytest_subprocess(f"--pulsar-broker={where}").assert_outcomes(passed=2)


def test_a_broker_can_be_had_where_there_is_no_pytest() -> None:
    program = "import sys; sys.modules['pytest'] = None; from penstock.testing.serving import serving; print(serving)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "serving" in said


def test_the_ini_file_may_choose_where_the_broker_runs_and_a_wrong_choice_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SOMEBODYS_TEST)
    pytester.makeini("[pytest]\npulsar_broker = elsewhere\n")
    result = pytester.runpytest_subprocess()
    result.stdout.fnmatch_lines(["*pulsar_broker=elsewhere: want in-process or process*"])


def test_settings_are_changed_by_overriding_a_fixture(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import pytest\n@pytest.fixture(scope='session')\ndef pulsar_settings():\n"
        "    return {'allowAutoTopicCreation': 'false'}\n"
    )
    pytester.makepyfile(
        "import pulsar, pytest\ndef test_x(pulsar_url, pulsar_topic):\n    client = pulsar.Client(pulsar_url)\n"
        "    with pytest.raises(pulsar.TopicNotFound):\n        client.create_producer(pulsar_topic)\n"
        "    client.close()\n"
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_what_was_published_is_there_when_the_same_directory_is_served_again(tmp_path: Path) -> None:
    with serving(data_dir=tmp_path / "data") as broker:
        client = pulsar.Client(broker.url)
        client.create_producer("t").send(b"kept")
        client.close()
    with serving(data_dir=tmp_path / "data") as broker:
        client = pulsar.Client(broker.url)
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        assert reader.read_next(10_000).data() == b"kept"
        client.close()


def test_no_thread_is_left_behind() -> None:
    before = set(threading.enumerate())
    with serving():
        assert set(threading.enumerate()) > before & set(threading.enumerate())
    assert set(threading.enumerate()) <= before


def test_a_setting_that_cannot_be_is_told_to_the_caller() -> None:
    with pytest.raises(ConfigurationError, match="maxMessageSize=none"), serving({"maxMessageSize": "none"}):
        pass


def test_a_port_that_is_taken_is_told_to_the_caller() -> None:
    with serving() as broker:
        port = broker.url.rpartition(":")[2]
        with pytest.raises(ConfigurationError, match=port), serving({"brokerServicePort": port}):
            pass
