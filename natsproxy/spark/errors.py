"""Errors of Spark as one sentence that names a file.

Spark wraps an error in pages of Java and Python stack traces.  Somewhere in them stands either an error of
this project (its text names the capture already) or the cause at the bottom: no space, no permission, a
server that went away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from natsproxy.errors import (
    CaptureError,
    ConfigError,
    MissingCapture,
    NatsproxyError,
    TruncatedCapture,
    UnreadableCapture,
)

GONE = "Spark has ended; the same command begins again where that is possible"
"""The text for a Java process that is no longer there."""
_OURS = re.compile(r"natsproxy\.errors\.(\w+): (.+)")
_KINDS = {
    kind.__name__: kind
    for kind in (CaptureError, UnreadableCapture, MissingCapture, TruncatedCapture, ConfigError)
}
_CAUSE = re.compile(r"^(?:Caused by: |: )?(?:[\w$]+\.)+[\w$]*(?:Exception|Error): (.+)$", re.MULTILINE)


@contextmanager
def translate_errors(place: object) -> Iterator[None]:
    """Turn exceptions of Spark into NatsproxyErrors; place: the file or folder for the sentence."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        ours = _OURS.findall(_whole(error))
        if ours:
            kind, text = ours[-1]
            raise _KINDS.get(kind, NatsproxyError)(text.strip()) from error
        raise NatsproxyError(f"{place}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Return the innermost cause of an exception of Spark's, in one line."""
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return GONE
    causes = _CAUSE.findall(_whole(error))
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return str(causes[-1] if causes else lines[0]).strip()


def _whole(error: Exception) -> str:
    """Return the text of an exception with Java's stack trace."""
    return f"{error}\n{getattr(error, '_stackTrace', None) or ''}"
