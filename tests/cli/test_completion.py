# SPDX-License-Identifier: Apache-2.0
"""Completions, as bash makes them."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest

from penstock.cli.completion import bash
from penstock.cli.main import COMMANDS, build_parser, main
from penstock.cli.resources import actions

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture(scope="module")
def script() -> str:
    return bash(build_parser())


def completed(script: str, *words: str) -> list[str]:
    """Return what bash offers in place of the last word, which may be begun."""
    line = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _penstock"
    asked = f'{script}\n{line}\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
    done = subprocess.run(["bash", "--norc"], input=asked, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


@needs_bash
@pytest.mark.real
def test_bash_offers_every_command_and_every_action(script: str) -> None:
    assert completed(script, "penstock", "") == list(COMMANDS)
    assert completed(script, "penstock", "topics", "") == [action.name for action in actions("topics")]


@needs_bash
@pytest.mark.real
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["prod"], ["produce"]),
        (["topics", "get", "a/b/c", "reten"], ["retention"]),
        (["topics", "get", "persistent", ":", "//a/b/c", "reten"], ["retention"]),
        (["topics", "get", "--context", "prod", "a/b/c", "reten"], ["retention"]),
        (["topics", "get", "reten"], []),  # There stands the topic.
        (["topics", "get", "persistent", ":", "//a"], []),
        (["topics", "list", "a/b", "--out"], ["--output"]),
        (["topics", "list", "a/b", "-o", "j"], ["json"]),
        (["topics", "list", "a/b", "--output", "=", "j"], ["json"]),
        (["topics", "list", "a/b", "--token-file", ""], []),  # Bash completes files.
        (["topics", "list", "list", "a/b", "x"], []),
    ],
)
def test_bash_offers_what_can_stand_there(script: str, words: list[str], offered: list[str]) -> None:
    assert completed(script, "penstock", *words) == offered


def test_the_script_is_printed(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == script


def test_no_word_of_the_script_ends_its_quotes(script: str) -> None:
    table = [line for line in script.splitlines() if ") echo '" in line]
    assert len(table) > len(COMMANDS)
    assert {line.count("'") for line in table} == {4}
