"""Tables by the hour: the rows of one hour, computed alone, and the same whenever they are computed.

A request of 9:59:59.9 is answered at 10:00:00.1: to pair them, an hour is computed from its own frames and
those of a margin behind it, and keeps the rows that begin in it.  The margin before it tells a late reply
from the reply to the next request on the same subject.  So each row is in one hour, whatever hours are
computed together or apart, and an hour that is computed again (after a recorder was late, or after a crash)
has the rows that it would have had at once.

A stream cannot do that: its watermark is the latest time of *any* recorder, less a delay.  Spark drops the
rows of a recorder that lags behind or catches up, without an error, because they are older than that; and a
request that waits for its reply at the end of a quiet stream never comes out.  So frames are streamed (that
needs no state), and the tables that need state are computed from them hour by hour.

An hour is closed when its margin is over by the newest frame.

Tables of whole connections (`connections`, `subscriptions`, `liveness`, `hops`) and of whole recordings
(`findings`, `permissions`) have no hours.  Tables by the hour differ from tables of everything at once where
rows belong together that lie further apart than the margin:

- a reply that comes later is none, and pull requests on one inbox are a row per hour;
- a reply subject that is used again hours later counts as a new one;
- requests that wait in a row on one reply subject are `unknown` where the margin's edge cuts the row, and not
  seen to wait where a request is the first frame behind that edge: each then has an earlier one's reply;
- `pub_acks` judges a publish without an ack by the other publishes on its template: here only by those of
  the hour and its margins; so does `fanout` (`stored`), and `js_acks` about a consumer's ack policy;
- a frame that was delayed by more than the margin may be in no hour: its `t_ns` selects it, and the time when
  it went out gives its hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from natsproxy.errors import ConfigError
from natsproxy.rules.file.values import duration
from natsproxy.spark.tables import FROM, derive, exchanges
from natsproxy.spark.tables.messages import fanout

HOUR: Final = 3_600_000_000_000
"""The length of an hour, ns."""
HOURLY: Final = {
    "requests": "t1",
    "js_api": "t1",
    "pub_acks": "t1",
    "js_acks": "delivered_ns",
    "fanout": "published_ns",
    "headers": "t_ns",
    "errors": "t_ns",
    "subjects": "unix_seconds(minute) * 1000000000",
    "faults": "t_ns",
    "gaps": "t_ns",
}
"""The tables that have hours, each with the SQL of the time (Unix ns) at which a row of it begins.

An hour is computed from the frames of its margins too.  So a row that sums up frames groups them by a time
inside the hour, as `subjects` does by the minute: else it would count those of the margins.
"""


def needs(table: str) -> set[str]:
    """Return the sources of a table: `frames`, `items` or both."""
    return {"items" if source == "items" else "frames" for source in FROM[table][1]}


def hour_start(hour: int) -> datetime:
    """Return the time when an hour begins; hour: counted from 1970."""
    return datetime.fromtimestamp(hour * 3600, UTC)


def closed_hours(frames: DataFrame, margin: int) -> list[int]:
    """Return the closed hours of frames, counted from 1970, in order; margin: ns."""
    rows = frames.groupBy(F.expr(f"t_ns DIV {HOUR}").alias("hour")).agg(F.max("t_ns").alias("last")).collect()
    upto = max((row["last"] for row in rows), default=0) - margin
    return sorted(row["hour"] for row in rows if (row["hour"] + 1) * HOUR <= upto)


@contextmanager
def hour_tables(
    frames: DataFrame, items: DataFrame | None, tables: Iterable[str], hour: int, margin: int
) -> Iterator[Iterator[tuple[str, DataFrame]]]:
    """Give the rows of tables that begin in an hour, with their `date` and `hour`, table by table.

    frames, items: at least those of the hour and of the margin before and behind it; items may be None where
    no table needs them.  hour: counted from 1970.  margin: ns.  The pairs of requests and replies, which
    several tables share, stay in memory until the context ends.
    """
    start, end = hour * HOUR, (hour + 1) * HOUR
    around = f"t_ns >= {start - margin} AND t_ns < {end + margin}"
    own = f"at_ns >= {start} AND at_ns < {end}"
    near_frames, near_items = frames.where(around), None if items is None else items.where(around)
    wanted = list(tables)
    selected = any("exchanges" in FROM[name][1] for name in wanted if name != "faults")
    kept: list[DataFrame] = []

    def keep(rows: DataFrame) -> DataFrame:
        kept.append(rows.persist())
        return kept[-1]

    paired = keep(exchanges(near_frames, own, keep)) if selected else None
    began = hour_start(hour)
    keys = {"date": F.lit(began.date()), "hour": F.lit(began.hour)}

    def computed() -> Iterator[tuple[str, DataFrame]]:
        for name in wanted:
            if name == "fanout":
                assert paired is not None  # it is one of the tables that need it
                rows = fanout(near_frames, paired, own)
            else:  # a firing may be of a request that began before this hour: `faults` pairs for itself
                rows = derive(name, near_frames, near_items, None if name == "faults" else paired)
            begun = F.expr(HOURLY[name])
            yield name, rows.where((begun >= start) & (begun < end)).withColumns(keys)

    try:
        yield computed()
    finally:
        for rows in kept:
            rows.unpersist()


def margin_ns(lookahead: str) -> int:
    """Return a look-ahead ("60s") in ns.  Raises ConfigError for a text that is no duration."""
    try:
        return duration(lookahead)
    except ValueError as error:
        raise ConfigError(f"the look-ahead {error}") from None
