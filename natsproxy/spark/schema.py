"""The written schemas of the tables: column names and Spark SQL types, as DDL.

A name that ends in `_ns` is a moment (ns since 1970) or a length of time (ns).  A connection is (recorder,
conn_id).  The function that makes a table explains its values (`natsproxy/spark/tables/`).
"""

from __future__ import annotations

from typing import Final

from natsproxy.capture.columns.table import FIELDS

FRAMES: Final = ", ".join(f"{name} {kind}" for name, (kind, _) in FIELDS.items())
"""One row per frame; the columns are explained in `natsproxy/capture/columns/table.py`."""

ITEMS: Final = (
    "recorder string, segment int, block_off bigint, t_ns bigint, conn_id bigint, kind string, info string"
)
"""One row per item of a capture that is no frame: open, close, firing, gap, preamble, note; info is JSON."""

SOURCES: Final = {"frames": f"{FRAMES}, date date", "items": ITEMS}
"""The two tables that are read from captures, as they are stored; all others derive from these."""

_REQUEST = (
    "recorder string, requester bigint, subject string, template string, t1 bigint, latency_ns bigint, "
    "replies bigint, status int, outcome string"
)
_COUNTS = (
    "published: bigint, delivered: bigint, subscribed: bigint, errors: bigint, requests: bigint, "
    "replies: bigint, no_responders: bigint, unanswered: bigint, "
    "statuses: array<struct<status: int, count: bigint>>, p50_ns: bigint, p99_ns: bigint, worst_ns: bigint"
)

TABLES: Final[dict[str, str]] = {
    "headers": (
        "recorder string, segment int, block_off bigint, idx int, t_ns bigint, conn_id bigint, dir int, "
        "subject string, template string, position int, name string, value string"
    ),
    "subjects": (
        "recorder string, template string, minute timestamp, dir int, messages bigint, bytes bigint, "
        "connections bigint, distinct_subjects bigint"
    ),
    "fanout": (
        "recorder string, publisher bigint, subject string, template string, published_ns bigint, "
        "published bigint, bytes bigint, deliveries bigint, first_ns bigint, last_ns bigint, "
        "delay_ns bigint, spread_ns bigint, stored boolean, refused boolean"
    ),
    "errors": (
        "recorder string, conn_id bigint, t_ns bigint, text string, kind string, subject string, "
        "template string, from_proxy boolean, cause string"
    ),
    "requests": (
        "reply string, recorder string, requester bigint, responder bigint, "
        "subject string, template string, requests bigint, deliveries bigint, replies bigint, status int, "
        "err_code int, outcome string, t1 bigint, t2 bigint, t3 bigint, t4 bigint, last_ns bigint, "
        "latency_ns bigint, service_ns bigint"
    ),
    "js_api": f"{_REQUEST}, verb string, last_token string, err_code int, error string",
    "pub_acks": (
        f"{_REQUEST}, stream string, seq bigint, duplicate boolean, batch bigint, err_code int, error string"
    ),
    "js_acks": (
        "recorder string, conn_id bigint, subject string, domain string, stream string, consumer string, "
        "delivered bigint, redelivered boolean, stream_seq bigint, consumer_seq bigint, pending bigint, "
        "delivered_ns bigint, answered_ns bigint, answer string, answer_ns bigint, wpi bigint, "
        "ack_policy string"
    ),
    "liveness": (
        "recorder string, conn_id bigint, dir int, frames bigint, first_ns bigint, last_ns bigint, "
        "pings bigint, pongs bigint, rtt_min_ns bigint, rtt_mean_ns bigint, rtt_max_ns bigint, "
        "silence_ns bigint, silent_from_ns bigint"
    ),
    "subscriptions": (
        "recorder string, conn_id bigint, sid string, turn bigint, subject string, template string, "
        "queue string, begun_ns bigint, ended_ns bigint, ended string, max bigint, refused boolean, "
        "delivered bigint, bytes bigint, first_ns bigint, last_ns bigint"
    ),
    "connections": (
        "recorder string, conn_id bigint, opened_ns bigint, closed_ns bigint, client string, "
        "upstream_local string, name string, "
        "lang string, version string, user string, server_version string, cause string, detail string, "
        "c2s_bytes bigint, s2c_bytes bigint, c2s_frames bigint, s2c_frames bigint"
    ),
    "hops": (
        "recorder string, conn_id bigint, next_recorder string, next_conn_id bigint, dir int, "
        "ordinal bigint, op string, subject string, template string, size int, sent_ns bigint, "
        "received_ns bigint, clock_ns bigint, latency_ns bigint"
    ),
    "permissions": (
        "user string, name string, account string, lang string, verb string, queue string, template string, "
        "marks string, frames bigint, denied bigint, first_ns bigint, last_ns bigint, flow_control boolean, "
        "values array<array<string>>, most bigint, longest_ns bigint"
    ),
    "faults": (
        "recorder string, conn_id bigint, t_ns bigint, rule string, kind string, action string, "
        "direction string, subject string, key string, m bigint, ordinal bigint, count bigint, "
        "delay_ns bigint, error_ns bigint, error string, close_ns bigint, close_cause string, "
        "reply_ns bigint, outcome string"
    ),
    "findings": (
        "capture string, recorder string, t_ns bigint, check string, verdict string, sentence string, "
        "clients array<string>, rules array<string>, frames array<struct<capture: string, "
        "connection: string, recorder: string, conn_id: bigint, dir: int, ordinal: bigint, t_ns: bigint, "
        "text: string, rule: string>>"
    ),
    "gaps": ("recorder string, conn_id bigint, t_ns bigint, reason string, frames bigint, bytes bigint"),
    "replay_diff": (f"template string, same boolean, recorded struct<{_COUNTS}>, observed struct<{_COUNTS}>"),
}
"""The columns of each table, by its name."""
