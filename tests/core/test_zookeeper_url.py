# SPDX-License-Identifier: Apache-2.0
"""URLs of ZooKeeper."""

from __future__ import annotations

import pytest

from penstock.core.setting import ZooKeeperUrl


@pytest.mark.parametrize(
    ("text", "servers", "path"),
    [
        ("zk:one:2181", ("one:2181",), "/penstock"),
        ("zk:one", ("one:2181",), "/penstock"),
        ("zk:one:2181,two:2182,10.0.0.3:2183/eu/quotas", ("one:2181", "two:2182", "10.0.0.3:2183"), "/eu/quotas"),
        ("zk:one, two/", ("one:2181", "two:2181"), "/penstock"),
        ("zk://one:2181/a", ("one:2181",), "/a"),
        ("zk:[::1]:2182", ("[::1]:2182",), "/penstock"),
    ],
)
def test_a_url_names_servers_and_a_path(text: str, servers: tuple[str, ...], path: str) -> None:
    url = ZooKeeperUrl.parse(text)
    assert (url.servers, url.path) == (servers, path)
    assert ZooKeeperUrl.parse(str(url)) == url


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("one:2181", "want zk:HOST:PORT"),
        ("etcd:http://one:2379", "other stores than ZooKeeper are not supported"),
        ("zk:", "is no HOST:PORT"),
        ("zk:one,,two", "'' is no HOST:PORT"),
        ("zk:one:2181:3", "'one:2181:3' is no HOST:PORT"),
        ("zk:user@one:2181", "'user@one:2181' is no HOST:PORT"),
        ("zk:one:0", "0 is no port"),
        ("zk:one:65536", "65536 is no port"),
        ("zk:one/a//b", "'/a//b' is no path"),
        ("zk:one/../b", "'/../b' is no path"),
        ("zk:one/zookeeper", "'/zookeeper' is no path"),
        ("zk:one/a b", "'/a b' is no path"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="want zk:HOST:PORT") as raised:
        ZooKeeperUrl.parse(text)
    assert says in str(raised.value)
