"""The same command on a cluster: two workers that run the tasks they are given, and a Spark Connect server.

Everything runs on this machine, each part as a process of its own, from the pyspark wheel.  Their tables
equal those of a local session.
"""

from __future__ import annotations

import faulthandler
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.jobs.test_analyze import same

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")

import pyspark

from natsproxy.spark.jobs.analyze import analyze
from natsproxy.spark.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]
ROOT = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
CAPTURES = [str(ROOT / "recordings" / name) for name in ("requests-v1.ncap", "jetstream-v1.ncap")]
TABLES = ("frames", "items", "requests")
_READY = 120.0  # seconds: several Javas start at once
_PATIENCE = 600.0
ENVIRONMENT = {
    **os.environ,
    "SPARK_HOME": str(HOME),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
}


@pytest.fixture(autouse=True)
def _patience() -> None:
    faulthandler.dump_traceback_later(_PATIENCE + 60, exit=True)  # a later end than that of other tests


@contextmanager
def daemon(folder: Path, name: str, ready_line: str, *command: str) -> Iterator[str]:
    """Run a part of Spark until the end of the block; yield its line when it was ready."""
    log = folder / f"{name}.log"
    env = {**ENVIRONMENT, "SPARK_NO_DAEMONIZE": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=folder, env=env)
    try:
        deadline = time.monotonic() + _READY
        while not (found := re.search(ready_line, log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a standalone cluster's master; it has two workers of one core each."""
    folder = tmp_path_factory.mktemp("cluster")
    start, place = str(HOME / "bin" / "spark-class"), "org.apache.spark.deploy"
    common = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as parts:
        master = parts.enter_context(
            daemon(
                folder,
                "master",
                r"Starting Spark master at (spark://\S+)",
                start,
                f"{place}.master.Master",
                *common,
            )
        )
        for name in ("one", "two"):
            parts.enter_context(
                daemon(
                    folder,
                    name,
                    r"Successfully registered with master (\S+)",
                    start,
                    f"{place}.worker.Worker",
                    *common,
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--work-dir",
                    str(folder / name),
                    master,
                )
            )
        yield master


@pytest.fixture(scope="module")
def local(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The tables that a local session makes of the captures."""
    out = tmp_path_factory.mktemp("local") / "out"
    analyze(spark, CAPTURES, out, ["requests"])
    return Store(spark, out)


def run(*command: str, **env: str) -> None:
    """Run a command to its end, which must be a good one."""
    done = subprocess.run(
        command, env={**ENVIRONMENT, **env}, capture_output=True, text=True, check=False, timeout=_PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr


def arguments(out: Path) -> tuple[str, ...]:
    """Return the arguments of `analyze`."""
    return (
        "analyze",
        *CAPTURES,
        "--out",
        str(out),
        "--tables",
        "requests",
        "--conf",
        "spark.sql.shuffle.partitions=4",
    )


def assert_equal(spark: SparkSession, out: Path, local: Store) -> None:
    """Every table has the same rows."""
    made = Store(spark, out)
    for name in TABLES:
        assert same(local.read(name), made.read(name)), name
        assert not local.read(name).isEmpty()


def submit(master: str, out: Path) -> tuple[str, ...]:
    """Return the command of `deploy/spark.md`."""
    program = str(ROOT / "natsproxy" / "__main__.py")
    return (str(HOME / "bin" / "spark-submit"), "--master", master, program, *arguments(out))


def ourselves(master: str, out: Path) -> tuple[str, ...]:
    """Return our own command."""
    return (sys.executable, "-m", "natsproxy", *arguments(out), "--master", master)


@pytest.mark.parametrize("way", [submit, ourselves])
def test_a_cluster_makes_the_same_tables(
    way: Callable[[str, Path], tuple[str, ...]],
    cluster: str,
    spark: SparkSession,
    local: Store,
    tmp_path: Path,
) -> None:
    """Submitted, and with `--master`; the workers did it, both of them."""
    run(*way(cluster, tmp_path / "out"))
    assert_equal(spark, tmp_path / "out", local)


@pytest.fixture(scope="module")
def client() -> str:
    """The folder of the Connect client's libraries, fetched once: these tests have no pandas."""
    target = Path(sys.prefix) / "spark-connect"
    if not target.exists():
        wanted = re.compile(r"(grpcio|grpcio-status|googleapis-common-protos|pandas|numpy)[><=]")
        needs = [need.partition(";")[0].strip() for need in requires("pyspark") or [] if '"connect"' in need]
        fresh = Path(f"{target}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(fresh)]
        subprocess.run([*pip, *filter(wanted.match, needs)], check=True)
        fresh.rename(target)
    return str(target)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Connect server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ready_line = r"Spark Connect server started at: \S*:(\d+)"
    with daemon(
        tmp_path_factory.mktemp("server"),
        "connect",
        ready_line,
        str(HOME / "bin" / "spark-submit"),
        "--master",
        "local[2]",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--conf",
        f"spark.connect.grpc.binding.port={port}",
        "--conf",
        "spark.ui.enabled=false",
        "spark-internal",
    ) as bound:
        yield f"sc://127.0.0.1:{bound}"


@pytest.mark.parametrize("way", ["--remote", "SPARK_REMOTE"])
def test_a_connect_server_makes_the_same_tables(
    way: str, server: str, client: str, spark: SparkSession, local: Store, tmp_path: Path
) -> None:
    """The client has no Java: it is asked only for the work of Connect."""
    path = os.pathsep.join([ENVIRONMENT["PYTHONPATH"], client])
    option, variable = ((way, server), {}) if way == "--remote" else ((), {way: server})
    run(
        sys.executable,
        "-m",
        "natsproxy",
        *arguments(tmp_path / "out"),
        *option,
        PYTHONPATH=path,
        PATH=str(tmp_path),
        JAVA_HOME="",
        MASTER="local[1]",  # which is for a Spark of ours
        **variable,
    )
    assert_equal(spark, tmp_path / "out", local)
