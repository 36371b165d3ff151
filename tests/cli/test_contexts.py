# SPDX-License-Identifier: Apache-2.0
"""Which cluster a command speaks to, and what it shows there."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import pytest

from penstock.cli import contexts
from penstock.cli.exits import CommandFailed, Exit
from penstock.cli.main import main
from penstock.core.setting import COMMAND_VARIABLES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in COMMAND_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def target(*words: str) -> contexts.Target:
    parser = argparse.ArgumentParser()
    contexts.add_options(parser)
    return contexts.target(parser.parse_args(words))


def test_without_anything_it_is_the_broker_of_this_machine() -> None:
    assert (target().url, target().admin_url) == ("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080")
    assert target().token() == ""


def test_contexts_are_added_used_listed_and_removed(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert main(["context", "add", "prod", "--admin-url", "https://p:8443", "--token-file", "t", "--cacert", "c"]) == 0
    assert main(["context", "add", "dev"]) == 0
    assert target().admin_url == "https://p:8443"
    assert main(["context", "use", "dev"]) == 0
    assert target().admin_url == contexts.ADMIN_URL
    capsys.readouterr()
    assert main(["context", "list", "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["current"]) for one in listed] == [("prod", ""), ("dev", "*")]
    assert listed[0]["token_file"].startswith("/")
    assert main(["context", "remove", "dev"]) == 0
    assert contexts.read()["current"] == ""
    assert (home / "penstock" / "contexts.json").stat().st_mode & 0o777 == 0o600


def test_an_unknown_context_is_met_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    main(["context", "add", "production"])
    assert main(["context", "use", "prodution"]) == Exit.NOT_FOUND
    assert "do you mean production?" in capsys.readouterr().err
    with pytest.raises(CommandFailed, match="no context 'x'; see `penstock context list`"):
        target("--context", "x")


def test_a_named_context_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    main(["context", "add", "prod", "--admin-url", "http://p:1"])
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", "http://other:1")
    assert target().admin_url == "http://other:1"
    assert target("--context", "prod").admin_url == "http://p:1"
    monkeypatch.setenv("PENSTOCK_CONTEXT", "prod")
    assert target().admin_url == "http://p:1"


def test_no_token_goes_to_a_cluster_that_it_was_not_meant_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("secret\n")
    main(["context", "add", "prod", "--admin-url", "http://p:1", "--token-file", str(tmp_path / "token")])
    assert target().token() == "secret"
    assert target("--admin-url", "http://elsewhere:1").token() == ""
    monkeypatch.setenv("PENSTOCK_TOKEN", "of the environment")
    main(["context", "add", "open", "--admin-url", "http://o:1"])
    assert target("--context", "open").token() == ""
    assert target("--context", "prod").token() == "secret"
    assert target("--url", "pulsar://here:1").token() == "of the environment"
    assert target("--url", "pulsar://here:1", "--token-file", str(tmp_path / "token")).token() == "secret"


def test_a_file_that_holds_something_else_is_named(home: Path) -> None:
    (home / "penstock").mkdir()
    (home / "penstock" / "contexts.json").write_text("[]")
    with pytest.raises(CommandFailed, match=r"contexts\.json does not hold contexts"):
        target()


@pytest.mark.parametrize("variable", sorted(COMMAND_VARIABLES))
def test_variables_of_commands_do_not_trouble_a_broker(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "x")
    assert main(["config", "--changed"]) == 0
    assert capsys.readouterr().err == ""
