"""A folder as Spark sees it: local, on HDFS or on an object store; with Spark's own credentials.

Spark reads and writes tables, but it cannot list a folder, remove one or write one small file.  The Hadoop
file system below it can, in Spark's Java process.  A client of a Connect server has no such process, so
there is no watch through Connect.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from natsproxy.errors import ConfigError, NatsproxyError


class Folder:
    """A folder of any file system; places are paths below it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        """Open the folder.  Raises ConfigError through Connect."""
        if type(spark).__module__.startswith("pyspark.sql.connect."):
            raise ConfigError("a watch keeps its own Spark: use --master or spark-submit, not --remote")
        self.root = root
        self._jvm: Any = spark._jvm
        settings = spark._jsc.hadoopConfiguration()
        self._fs: Any = self._path("").getFileSystem(settings)

    def _path(self, place: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{place}" if place else self.root)

    def names(self, place: str = "") -> list[str]:
        """Return the sorted names in a folder; none if there is no such folder."""
        if not self._fs.exists(self._path(place)):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(self._path(place)))

    def make(self, place: str) -> None:
        """Make a folder, unless it exists."""
        self._fs.mkdirs(self._path(place))

    def size(self, place: str) -> int:
        """Return the bytes of all files in a folder."""
        return int(self._fs.getContentSummary(self._path(place)).getLength())

    def remove(self, place: str) -> None:
        """Remove a file, or a folder with all its files; a missing one is no error."""
        with suppress(Py4JJavaError):  # it stays; no list names it, and the next watch tries again
            self._fs.delete(self._path(place), True)

    def read(self, place: str) -> str:
        """Return the text of a file."""
        stream = self._fs.open(self._path(place))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, place: str, content: bytes) -> None:
        """Write a new file, atomically.

        Raises NatsproxyError where the file exists already, or where it cannot be renamed.
        """
        folder, _, name = place.rpartition("/")
        part = self._path(f"{folder}/.{name}.part")
        stream = self._fs.create(part, True)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        target = self._path(place)
        if self._fs.exists(target):
            raise NatsproxyError(f"{self.root}/{place} exists already: does another watch write here?")
        if not self._fs.rename(part, target):  # Hadoop returns False where others raise
            raise NatsproxyError(f"{self.root}/{place} cannot be written: its file cannot be renamed")
