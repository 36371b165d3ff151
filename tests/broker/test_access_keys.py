# SPDX-License-Identifier: Apache-2.0
"""Keys and files, in every form in which a configuration may name them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from penstock.authentication.keys import read_source
from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

KEY = bytes(range(256))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a key"
    path.write_bytes(KEY)
    return path


def test_a_path_names_a_file_as_it_is(file: Path) -> None:
    assert read_source("tokenSecretKey", str(file)) == KEY


def test_a_file_url_names_a_file(file: Path) -> None:
    for url in (f"file://{file}", f"file:{file}", f"file://localhost{file}", f"file://{str(file).replace(' ', '%20')}"):
        assert read_source("tokenSecretKey", url) == KEY


def test_a_relative_file_url_is_read_from_the_working_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    for url in ("file:a key", "file://a key", "file:./a key", "a key"):
        assert read_source("tokenSecretKey", url) == KEY


def test_a_data_url_holds_the_key_itself() -> None:
    text = base64.b64encode(KEY).decode()
    for url in (f"data:;base64,{text}", f"data:application/octet-stream;base64,{text}"):
        assert read_source("tokenSecretKey", url) == KEY
    assert read_source("tokenSecretKey", "data:,a%20b") == b"a b"


def test_base64_stands_for_the_key_itself() -> None:
    for text in (base64.b64encode(KEY), base64.urlsafe_b64encode(KEY), base64.urlsafe_b64encode(KEY).rstrip(b"=")):
        assert read_source("tokenSecretKey", text.decode()) == KEY


def test_base64_in_a_file_stays_as_it_is(tmp_path: Path) -> None:
    """As in Pulsar: a file is the key."""
    file = tmp_path / "key"
    file.write_text("QUJD")
    assert read_source("tokenSecretKey", str(file)) == b"QUJD"


def test_a_path_that_is_misspelled_does_not_become_the_key_itself() -> None:
    """Every letter of it is one of base64, too."""
    for path in (
        "/etc/penstock/tokens/secret-key-of-this-broker-one",
        "tokens/secret+key/of/this/broker/and/of/others",
    ):
        with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
            read_source("tokenSecretKey", path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for source in (str(missing), f"file://{missing}"):
        with pytest.raises(
            ConfigurationError, match=rf"tokenSecretKey: the file {missing} cannot be read: No such file"
        ):
            read_source("tokenSecretKey", source)


@pytest.mark.parametrize("source", ["data:;base64,hunter2!", "data:hunter2", "hunter2!", "hunter2\x00"])
def test_what_cannot_be_read_is_not_repeated(source: str) -> None:
    with pytest.raises(ConfigurationError, match="tokenSecretKey") as caught:
        read_source("tokenSecretKey", source)
    assert "hunter2" not in str(caught.value)
