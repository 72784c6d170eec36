"""Sail, the other engine: the same PySpark code on a Spark Connect server in Rust, without a Java.

It is experimental.  The server runs in this process.  A small capture takes a tenth of the time that Spark
takes, most of which is Java's start.  The differences are dealt with here and in `natsproxy/spark/storage/`:

- Sail ignores `partitionOverwriteMode=dynamic` and removes the folders of other days and hours without a
  word: so watches and tables by the hour are refused (`refuse`).
- It writes no file for an empty table, reads a missing folder as an empty one, and takes
  `__HIVE_DEFAULT_PARTITION__` for no date: see `natsproxy/spark/storage/store.py`.
- `approx_count_distinct` is another estimate, and its `percentile_approx` returns values between those that
  were measured: see `percentile`.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from natsproxy.errors import ConfigError, NatsproxyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MISSING = "the engine sail needs its packages: pip install 'natsproxy[sail]'"
TOO_NEW = (4, 3)
"""The first PySpark whose client Sail does not understand."""
_sessions: WeakSet[Any] = WeakSet()


def sail_session(cores: int, settings: Mapping[str, str]) -> SparkSession:
    """Start Sail in this process and return a session of it.

    Raises NatsproxyError as `check_packages` does.
    """
    check_packages()
    os.environ.setdefault("SAIL_EXECUTION__DEFAULT_PARALLELISM", str(cores))
    os.environ.setdefault("RUST_LOG", "off")  # its errors come as exceptions
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    os.environ.pop("MASTER", None)  # that of a Spark; pyspark takes no server while it is set
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    builder = SparkSession.builder.appName("natsproxy")
    session: SparkSession = builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
    atexit.register(_stop, session, server)
    for key, value in settings.items():
        session.conf.set(key, value)
    _sessions.add(session)
    return session


def check_packages() -> None:
    """Raise NatsproxyError, with the command that installs them, where packages of Sail are missing.

    PySpark may also be too new for it.
    """
    if not all(find_spec(name) for name in ("pysail", "grpc", "grpc_status", "pandas")):
        raise NatsproxyError(MISSING)
    found = version("pyspark")
    if tuple(map(int, found.split(".")[:2])) >= TOO_NEW:
        raise NatsproxyError(
            f"Sail works with PySpark 4.2, and here is {found}: pip install 'natsproxy[sail]'"
        )


def _stop(session: SparkSession, server: Any) -> None:
    session.stop()  # else the server waits for it
    server.stop()


def is_sail(spark: SparkSession) -> bool:
    """Return True for a session of `sail_session`."""
    return spark in _sessions


def refuse(spark: SparkSession, what: str) -> None:
    """Raise ConfigError for work that would lose rows on Sail."""
    if is_sail(spark):
        raise ConfigError(f"{what} cannot run on Sail, which would delete other hours: use the engine spark")


def percentile(spark: SparkSession, column: str, share: str) -> str:
    """Return the SQL of a percentile of whole numbers: one of them, the same one on each engine.

    Of more than 5,000 values Spark's may be one whose rank is wrong by 1 in 10,000: an exact one would take
    memory for each of them.
    """
    if is_sail(spark):
        return f"cast(percentile_disc({share}) WITHIN GROUP (ORDER BY {column}) AS bigint)"
    return f"percentile_approx({column}, {share})"
