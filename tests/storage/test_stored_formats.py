# SPDX-License-Identifier: Apache-2.0
"""Data directories written by every format so far still open, with everything in them.

`tests/fixtures/format-N` was written by the penstock that introduced format N: a topic of twenty entries, and a
subscription that had acknowledged entries 0 to 4 and 7.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.storage.directory import FORMAT_VERSION
from penstock.testing.client import RawClient
from penstock.testing.process import BrokerProcess

FIXTURES = Path(__file__).parent.parent / "fixtures"
FORMATS = sorted(path.name for path in FIXTURES.glob("format-*"))
TOPIC = "persistent://public/default/kept"


@pytest.mark.parametrize("name", FORMATS)
def test_a_directory_of_this_format_opens_with_its_entries_and_cursors(name: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / "data")
    (tmp_path / "data" / "broker-0" / "lock").touch()
    with BrokerProcess(tmp_path / "data") as broker, RawClient(broker.port) as client:
        client.subscribe(TOPIC, "s")
        wanted = [b"entry %d" % i for i in range(20) if i not in {0, 1, 2, 3, 4, 7}]
        assert [client.message().payload for _ in wanted] == wanted
        client.produce(TOPIC)
        assert client.publish([b"entry 20"]) == [20]


def test_there_is_a_directory_of_each_format() -> None:
    assert [f"format-{version}" for version in range(1, FORMAT_VERSION + 1)] == FORMATS
