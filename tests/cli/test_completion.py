# SPDX-License-Identifier: Apache-2.0
"""Completions, as bash, zsh and fish make them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from penstock.cli.completion import SHELLS, bash, fish, zsh
from penstock.cli.main import COMMANDS, build_parser, main
from penstock.cli.resources import actions
from tests import needed

if TYPE_CHECKING:
    from pathlib import Path

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


# What stands before the cursor, and what zsh and fish offer: they do not divide words.
LINES = [
    ("prod", ["produce"]),
    ("topics get a/b/c reten", ["retention"]),
    ("topics get persistent://a/b/c reten", ["retention"]),
    ("topics get --context prod a/b/c reten", ["retention"]),
    ("topics get --context=prod a/b/c reten", ["retention"]),
    ("topics get reten", []),  # There stands the topic.
    ("topics list a/b --out", ["--output"]),
    ("topics list a/b -o j", ["json"]),
    ("topics list a/b --output=j", ["json"]),
    ("topics list a/b --token-file some-", ["some-file"]),
    ("topics list list a/b x", []),
]
# The words that zsh would offer are those that it tries to add.
ZSH_OF_A_USER = r"""
PS1=
autoload -Uz compinit
fpath=($PWD/functions $fpath)
compinit -u -D
bindkey '^I' complete-word
compadd() {
    local -a hits
    builtin compadd -A hits "$@"
    print -rl -- $hits >>hits
    builtin compadd "$@"
}
_begun() { comppostfuncs=(_ended) }
_ended() { print '<END>' }
compprefuncs=(_begun)
print '<READY>'
"""
ZSH_OF_A_TERMINAL = r"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'source ./rc'
zpty -r z seen '*<READY>*'
zpty -w -n z "$1"$'\t'
zpty -r z seen '*<END>*'
zpty -d z
"""


@pytest.fixture(scope="module")
def at_zsh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the script where zsh looks for functions."""
    here = tmp_path_factory.mktemp("zsh")
    (here / "functions").mkdir()
    (here / "functions" / "_penstock").write_text(zsh(build_parser()), encoding="utf-8")
    (here / "rc").write_text(ZSH_OF_A_USER, encoding="utf-8")
    (here / "terminal").write_text(ZSH_OF_A_TERMINAL, encoding="utf-8")
    (here / "some-file").touch()
    return here


def offered_by_zsh(here: Path, line: str) -> list[str]:
    (here / "hits").write_text("")
    command = [needed.find_program("zsh", "zsh"), "-f", "./terminal", line]
    subprocess.run(command, cwd=here, check=True, timeout=60, capture_output=True)
    return list(dict.fromkeys((here / "hits").read_text(encoding="utf-8").split()))


@pytest.mark.real
@pytest.mark.parametrize(("line", "offered"), LINES)
def test_zsh_offers_what_can_stand_there(at_zsh: Path, line: str, offered: list[str]) -> None:
    assert offered_by_zsh(at_zsh, f"penstock {line}") == offered


@pytest.mark.real
def test_zsh_offers_every_command(at_zsh: Path) -> None:
    assert offered_by_zsh(at_zsh, "penstock ") == list(COMMANDS)


@pytest.fixture(scope="module")
def at_fish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the script."""
    here = tmp_path_factory.mktemp("fish")
    (here / "penstock.fish").write_text(fish(build_parser()), encoding="utf-8")
    (here / "some-file").touch()
    return here


def offered_by_fish(here: Path, line: str) -> list[str]:
    """Return what fish offers, with what it says of each."""
    asked = "source penstock.fish; complete -C $argv[1]"
    command = [needed.find_program("fish", "fish"), "--no-config", "-c", asked, line]
    done = subprocess.run(command, cwd=here, check=True, timeout=60, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.real
@pytest.mark.parametrize(("line", "offered"), LINES)
def test_fish_offers_what_can_stand_there(at_fish: Path, line: str, offered: list[str]) -> None:
    words = [one.partition("\t")[0].removeprefix("--output=") for one in offered_by_fish(at_fish, f"penstock {line}")]
    assert words == offered


@pytest.mark.real
def test_fish_offers_every_command_and_says_what_it_does(at_fish: Path) -> None:
    assert offered_by_fish(at_fish, "penstock ") == [f"{name}\t{one.help}" for name, one in COMMANDS.items()]
    assert offered_by_fish(at_fish, "penstock topics list a/b --vers") == []
    assert offered_by_fish(at_fish, "penstock --vers") == ["--version\tshow program's version number and exit"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == SHELLS[shell](build_parser())


def test_no_word_of_the_script_ends_its_quotes(script: str) -> None:
    table = [line for line in script.splitlines() if ") echo '" in line]
    assert len(table) > len(COMMANDS)
    assert {line.count("'") for line in table} == {4}
