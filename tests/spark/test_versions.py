# SPDX-License-Identifier: Apache-2.0
"""Spark 4.2 and 4.3 are served; an older one is told so in a sentence, and nobody else's data source breaks."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock.spark.versions import OLDEST, TESTED, refusal

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0", "4.3.0.dev1", "4.10.0", "5.0.0"])
def test_a_version_that_has_what_is_needed_is_used(version: str) -> None:
    assert not refusal(version)


@pytest.mark.parametrize("version", ["3.5.9", "4.0.0", "4.1.4"])
def test_an_older_version_is_refused_in_one_sentence_that_names_it(version: str) -> None:
    assert refusal(version).startswith(f"penstock's data source needs Spark 4.2 or 4.3, and this is Spark {version}")


def test_the_versions_that_are_said_are_those_of_the_extra_and_of_the_guide() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (wanted,) = [one for one in extras["spark"] if one.startswith("pyspark")]
    following = f"4.{int(TESTED[-1].split('.')[1]) + 1}"
    assert wanted == f"pyspark>={TESTED[0]},<{following}"
    assert TESTED[0] == ".".join(map(str, OLDEST))
    assert f"Spark {' or '.join(TESTED)}" in (ROOT / "docs/guide/spark.md").read_text(encoding="utf-8")


PROGRAM = """
import pyspark
pyspark.__version__ = "4.1.4"
import pyspark_pulsar
from penstock.spark import register
source = pyspark_pulsar.DefaultSource
assert source.name() == "pulsar"
for use in (lambda: source({}), lambda: register(None)):
    try:
        use()
    except ImportError as error:
        print(error)
"""


def test_an_old_spark_finds_a_source_that_says_why_it_cannot_be_used() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [refusal("4.1.4")] * 2
