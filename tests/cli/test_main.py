# SPDX-License-Identifier: Apache-2.0
"""The command line, as a shell sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.cli.main import build_parser, main

if TYPE_CHECKING:
    from pathlib import Path


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize("words", [[], ["no-such-command"], ["serve", "--no-such-flag"]])
def test_a_wrong_call_ends_with_2_and_says_what_was_wanted(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: penstock" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("--tls-certt", "--tls-cert?"),
        (
            "--authenticationEnabeld=true",
            "authenticationEnabled in the file of --config, or PENSTOCK_AUTHENTICATION_ENA",
        ),
    ],
)
def test_an_unknown_flag_is_refused_with_the_setting_that_it_may_mean(
    argument: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--data-dir", "data", argument, "x"])
    assert ended.value.code == 2
    assert f"unrecognized arguments: {argument} x; do you mean {meant}" in capsys.readouterr().err


def test_a_bad_setting_ends_with_2_and_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["serve", "--data-dir", str(tmp_path / "data"), "--port", "ten"])
    assert status == 2
    assert capsys.readouterr().err == (
        "penstock: brokerServicePort=ten (--port) cannot be: want a whole number from 0 to 65535\n"
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("count", "words"), [("0", "give 1 or more"), ("65", "at most 64 brokers")])
def test_more_or_fewer_brokers_than_can_run_are_refused_with_a_sentence(
    count: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--data-dir", str(tmp_path), "--brokers", count]) == 2
    assert words in capsys.readouterr().err


def test_help_shows_examples_and_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    assert "examples:" in text
    assert "6650" in text
    assert "8080" in text


def test_answering_about_itself_imports_neither_asyncio_nor_the_broker() -> None:
    code = (
        "import sys; from penstock.cli.main import build_parser; build_parser().format_help(); "
        "print([name for name in ('asyncio', 'google.protobuf', 'fastapi', 'penstock.app') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("words", [["--help"], ["-h", "serve"], ["servee"], []], ids=" ".join)
def test_help_and_misspelt_commands_import_none(words: list[str]) -> None:
    code = (
        "import sys; from penstock.cli.main import main, COMMANDS\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "ours = {f'penstock.cli.{one.module}' for one in COMMANDS.values()}\n"
        "print(sorted(ours & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "do you mean serve?" in done.stderr or words != ["servee"]


def test_the_parser_knows_the_data_directory() -> None:
    assert build_parser().parse_args(["serve", "--data-dir", "d"]).data_dir.name == "d"
    assert str(build_parser().parse_args(["serve"]).data_dir) == "penstock-data"
