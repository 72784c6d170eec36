"""The table `findings`: what `natsproxy check` states about captures, each statement with its frames.

It comes of the captures themselves, since checks read whole payloads, in order
(`natsproxy/spark/source/statements.py`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from natsproxy.spark.tables.base import shaped


def findings(statements: DataFrame) -> DataFrame:
    """Return one row per statement of a check on a recording.

    capture: the recording, as it was given.  recorder, t_ns: those of the first frame; without frames, t_ns
    is NULL, and so is recorder where there are several.  verdict: "found", or "cannot say" where the
    recording is too partial; the sentence has the reason.  clients: names, or numbers of connections, that it
    is about.
    frames: the proof, in order.  rules: those that dropped, made or changed frames of the proof.  Of a frame,
    connection: as the sentence and `--conn` name it.  ordinal: its number as it arrived at the proxy, of one
    that the proxy made as it left.  text: the control line.  rule: the one that dropped, made or changed it.
    """
    return shaped("findings", statements)
