"""Each table on a conversation with known answers (`known_conversation.py`), and the written schemas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from natsproxy.protocol import headers
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import WALL, Scribe, write
from tests.spark.conftest import load
from tests.spark.known_conversation import ASKER, BLOCKS, FIRST, MS, OLD, SECOND, WORKER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Known

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
Row = dict[str, Any]


@pytest.fixture(scope="module")
def table(known: Known) -> Callable[[str], list[Row]]:
    """The rows of a table of the known conversation."""
    from natsproxy.capture.read.reader import open_capture

    (segment,) = open_capture(known.conversation_capture).segments()
    recorder = segment.recorder.hex()
    return lambda name: [row for row in known.rows(name) if row.get("recorder", recorder) in (recorder, None)]


def ms(t: int | None) -> float | None:
    """Return a time in ms since the conversation began."""
    return None if t is None else (t - WALL) / MS


def brief(rows: list[Row], *names: str) -> list[tuple[Any, ...]]:
    """Return these columns of rows, in order."""
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def test_schemas_are_as_written(known: Known) -> None:
    """Names, order and types of every table."""
    from pyspark.sql.types import StructType

    from natsproxy.spark.schema import FRAMES, TABLES
    from natsproxy.spark.tables import FROM

    made = {name: known.table(name) for name in FROM} | {"frames": known.frames}
    assert set(TABLES) == {*FROM, "replay_diff"}
    for name, found in made.items():
        written = StructType.fromDDL({**TABLES, "frames": FRAMES}[name])
        assert isinstance(written, StructType)
        columns = [(field.name, field.dataType) for field in found.schema]
        assert columns == [(field.name, field.dataType) for field in written], name


REQUESTS = {  # reply: requests, deliveries, replies, status, outcome, responder, latency ms, service ms
    "r.plain": (1, 1, 1, None, "replied", FIRST, 10, 6),
    "r.nobody": (1, 0, 0, 503, "no responders", None, None, None),
    "r.lost": (1, 0, 0, None, "no reply", None, None, None),
    "r.held": (1, 1, 1, None, "replied", FIRST, 53, 1),
    "r.moved": (1, 1, 1, None, "replied", FIRST, 5, 1),
    "r.invented": (1, 0, 1, None, "replied", None, 1, None),
    "r.all": (1, 2, 2, None, "replied", FIRST, 6, 3),
    "r.twice": (1, 0, 2, None, "replied", None, 1, None),
    "r.pull": (3, 0, 1, 404, "pull", None, None, None),
    "r.next": (1, 0, 0, None, "pull", None, None, None),
    "r.tapped": (1, 2, 1, None, "replied", FIRST, 9, 3),
    "r.untold": (1, 2, 0, None, "no reply", FIRST, None, None),
    "r.overheard": (1, 1, 0, None, "no reply", None, None, None),
    "r.read": (1, 0, 1, None, "replied", None, 0.25, None),
    "r.elsewhere": (1, 0, 2, None, "replied", None, 0.125, None),
}


def test_requests(table: Callable[[str], list[Row]]) -> None:
    """As clients saw them: dropped, held, changed, invented, doubled and cut frames too."""
    rows = table("requests")
    by_reply = {row["reply"]: row for row in rows if row["reply"] in REQUESTS}
    for reply, expected in REQUESTS.items():
        row = by_reply[reply]
        found = [
            row[name] for name in ("requests", "deliveries", "replies", "status", "outcome", "responder")
        ]
        found += [row[name] and row[name] / MS for name in ("latency_ns", "service_ns")]
        assert tuple(found) == expected, reply
    assert "r.cut" not in {row["reply"] for row in rows}
    assert {row["requester"] for row in rows} == {ASKER, WORKER}
    assert by_reply["r.moved"]["subject"] == "svc.old"
    held = by_reply["r.held"]
    assert [ms(held[leg]) for leg in ("t1", "t2", "t3", "t4")] == [140, 161, 162, 193]
    assert ms(by_reply["r.all"]["last_ns"]) == 229
    assert by_reply["r.nobody"]["t4"] is None


def test_a_reply_subject_is_used_again(table: Callable[[str], list[Row]]) -> None:
    """A reply belongs to the only request that waits; with two, it may be that of either."""
    again = [row for row in table("requests") if row["reply"] == "r.again"]
    assert [(ms(t1), ms(t4), outcome) for t1, t4, outcome in brief(again, "t1", "t4", "outcome")] == [
        (300, 304, "replied"),
        (310, None, "unknown"),
        (320, None, "unknown"),
    ]


def test_pipelined_requests_of_one_responder_are_unknown(table: Callable[[str], list[Row]]) -> None:
    """It may answer a later one first: only who got each, and when, is known."""
    piped = [row for row in table("requests") if row["reply"] == "r.piped"]
    times = [[ms(row[leg]) for leg in ("t1", "t2", "t3", "t4")] for row in piped]
    assert sorted(times, key=str) == [[360 + n, 363 + n, None, None] for n in range(3)]
    counts = ("outcome", "deliveries", "responder", "latency_ns", "service_ns")
    assert {tuple(row[name] for name in counts) for row in piped} == {("unknown", 1, FIRST, None, None)}
    assert sum(row["replies"] for row in piped) == 3
    spread = [row for row in table("requests") if row["reply"] == "r.spread"]
    times = [[ms(row[leg]) for leg in ("t1", "t2", "t3", "t4")] for row in spread]
    assert sorted(times, key=str) == [[t, None, None, None] for t in (794, 795, 796)]


MIXED: dict[str, list[tuple[float, str, int, float | None]]] = {  # t1, outcome, replies, latency ms
    "r.short": [(720, "unknown", 0, None), (721, "unknown", 0, None), (722, "unknown", 2, None)],
    "r.window": [
        (730, "unknown", 0, None),
        (731, "unknown", 0, None),
        (732, "unknown", 1, None),
        (734, "unknown", 1, None),
    ],
    "r.before": [(741, "unknown", 1, None)],
    "r.scatter": [(745, "replied", 2, 1), (748, "no reply", 0, None)],
    "r.retry": [(750, "unknown", 0, None), (755, "unknown", 1, None)],
}


@pytest.mark.parametrize("reply", MIXED)
def test_replies_that_cannot_be_told_apart_are_unknown(table: Callable[[str], list[Row]], reply: str) -> None:
    """Where requests waited in a row, or one was made again; further replies belong to the latest."""
    mine = [row for row in table("requests") if row["reply"] == reply]
    found = [
        (ms(row["t1"]), row["outcome"], row["replies"], row["latency_ns"] and row["latency_ns"] / MS)
        for row in sorted(mine, key=lambda row: row["t1"])
    ]
    assert found == MIXED[reply]
    for row in mine:
        if row["outcome"] == "unknown":
            assert [row[name] for name in ("t2", "t3", "t4", "last_ns", "service_ns")] == [None] * 5


def test_copies_for_a_tap_do_not_count(table: Callable[[str], list[Row]]) -> None:
    """Requests that share a reply subject pair as without it."""
    mine = [row for row in table("requests") if row["reply"] == "r.copied"]
    times = sorted([ms(row[leg]) for leg in ("t1", "t2", "t3", "t4", "last_ns")] for row in mine)
    assert times == [[t, t + 1.5, t + 1.75, t + 2.5, t + 2.5] for t in (776, 778, 780)]
    counts = {(row["outcome"], row["deliveries"], row["replies"], row["responder"]) for row in mine}
    assert counts == {("replied", 2, 1, FIRST)}


def test_js_api(table: Callable[[str], list[Row]]) -> None:
    """Verbs, a domain, an error, a call without answer; nothing else is a call."""
    assert brief(table("js_api"), "verb", "last_token", "err_code", "error", "outcome") == [
        ("CONSUMER.CREATE", "KV_x", None, None, "replied"),
        ("CONSUMER.CREATE", "all", None, None, "replied"),
        ("CONSUMER.CREATE", "part", None, None, "replied"),
        ("CONSUMER.CREATE", "watch", None, None, "replied"),
        ("CONSUMER.CREATE", "work", None, None, "replied"),
        ("CONSUMER.DURABLE.CREATE", "C", None, None, "replied"),
        ("CONSUMER.MSG.NEXT", "C", None, None, "pull"),
        ("DIRECT.GET", "where", None, None, "replied"),
        ("INFO", "INFO", None, None, "replied"),
        ("STREAM.CREATE", "S", 10058, 'in \\"use\\"', "replied"),
        ("STREAM.INFO", "S", None, None, "no reply"),
    ]


def test_pub_acks(table: Callable[[str], list[Row]]) -> None:
    """Acks, duplicates, errors, batches, and publishes that are JetStream's by header or by subject."""
    assert brief(table("pub_acks"), "subject", "outcome", "stream", "seq", "duplicate", "batch", "error") == [
        ("elsewhere", "no ack", None, None, None, None, None),
        ("stored", "ack", "S", 1, False, None, None),
        ("stored", "ack", "S", 9, False, 4, None),
        ("stored", "duplicate", "S", 1, True, None, None),
        ("stored", "error", "S", 0, False, None, "wrong last"),
        ("stored", "no ack", None, None, None, None, None),
        ("stored", "no responders", None, None, None, None, None),
        ("stored", "other", None, None, None, None, None),
        ("stored", "unknown", None, None, None, None, None),
        ("stored", "unknown", None, None, None, None, None),
        ("stored", "unknown", None, None, None, None, None),
    ]
    assert {row["latency_ns"] for row in table("pub_acks")} == {3 * MS, None}


def test_js_acks(table: Callable[[str], list[Row]]) -> None:
    """Every way to answer a delivery, or not to; redelivery; all three forms of the subject."""
    mine = [row for row in table("js_acks") if row["stream"] == "S"]
    rows = sorted(mine, key=lambda row: row["consumer_seq"])
    assert [(row["stream_seq"], row["delivered"], row["answer"], row["wpi"]) for row in rows] == [
        (1, 1, "ack", 0),
        (2, 1, "nak", 0),
        (3, 1, "term", 0),
        (4, 1, "ack", 2),
        (5, 1, "wpi", 1),
        (6, 1, "none", 0),
        (7, 1, "next", 0),
        (8, 1, "other", 0),
        (9, 1, "other", 0),
        (2, 2, "ack", 0),
    ]
    late = [row["answer_ns"] and row["answer_ns"] // MS for row in rows]
    assert late == [1, 1, 1, 3, 1, None, 1, 1, 1, 5]
    assert [row["redelivered"] for row in rows] == [False] * 9 + [True]
    assert [row["domain"] for row in rows] == [None] * 7 + ["hub", None, None]
    assert {(row["stream"], row["consumer"], row["subject"]) for row in rows} == {("S", "C", "stored")}
    assert [row["pending"] for row in rows] == [7] * 7 + [0] * 3
    assert (ms(rows[-1]["delivered_ns"]), rows[0]["conn_id"]) == (705, WORKER)


def test_a_copy_of_a_delivery_is_nobodys_to_answer(table: Callable[[str], list[Row]]) -> None:
    """The row is that of the client that answered."""
    (row,) = (row for row in table("js_acks") if row["stream"] == "TAPPED")
    assert (row["conn_id"], row["answer"], row["answer_ns"]) == (FIRST, "ack", MS)


def test_an_ack_that_nobody_asked_for_is_not_missing(table: Callable[[str], list[Row]]) -> None:
    """The policy is known from the request, or from the reply; of an older consumer it is not.

    Then deliveries may want no answer, as long as no client of that consumer gave one.
    """
    mine = [
        row for row in table("js_acks") if row["stream"] == "KV_x" and row["consumer"] not in ("all", "part")
    ]
    assert brief(mine, "consumer", "ack_policy", "answer") == [
        ("made", "none", "not asked"),
        ("older", None, "unknown"),
        ("watch", "none", "not asked"),
        ("work", "explicit", "none"),
    ]


def test_an_ack_of_all_settles_what_came_before(table: Callable[[str], list[Row]]) -> None:
    """Up to its sequence, once it came; neither what was answered for itself, nor what came later.

    The consumer is made again, and its numbers begin anew.
    """
    mine = [row for row in table("js_acks") if row["consumer"] == "all"]
    found = [
        (row["consumer_seq"], row["answer"], row["answer_ns"] and row["answer_ns"] // MS)
        for row in sorted(mine, key=lambda row: row["consumer_seq"])
    ]
    assert found[:4] == [(1, "ack", 13), (2, "nak", 10), (3, "ack", 11), (4, "ack", 10)]
    assert found[4:] == [(5, "none", None), (6, "ack", 5), (7, "ack", 4), (8, "none", None)]


def test_an_answer_that_was_not_recorded_is_unknown(table: Callable[[str], list[Row]]) -> None:
    """Neither settled nor missing; the first bytes may tell it, and so does an empty one."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in sorted(table("js_acks"), key=lambda row: row["consumer_seq"]):
        answer = row["consumer_seq"], row["answer"], row["answer_ns"] and row["answer_ns"] // MS
        found.setdefault(row["consumer"] if row["stream"] != "W" else "W", []).append(answer)
    assert found["W"] == [
        (1, "unknown", 10),
        (2, "nak", 10),
        (3, "unknown", 10),
        (4, "unknown", 10),
        (5, "ack", 10),
        (6, "ack", 10),
    ]
    assert found["part"] == [(1, "unknown", None), (2, "unknown", 3), (3, "none", None)]


def test_subjects(table: Callable[[str], list[Row]]) -> None:
    """As clients sent and got them: a changed message under the name that they know."""
    rows = [row for row in table("subjects") if row["template"].startswith(("news.", "headed."))]
    assert brief(rows, "template", "dir", "messages", "bytes", "connections") == [
        ("headed.*", 0, 7, sum(len(block) + 1 for block in BLOCKS), 1),
        ("news.before", 0, 1, 1, 1),
        ("news.before", 1, 1, 1, 1),
        ("news.equal", 0, 2, 8, 1),
        ("news.equal", 1, 2, 8, 1),
        ("news.invented", 1, 1, 1, 1),
        ("news.lost", 0, 1, 1, 1),
        ("news.one", 0, 1, 4, 1),
        ("news.one", 1, 2, 8, 2),
    ]


def test_fanout(table: Callable[[str], list[Row]]) -> None:
    """As the server got and sent them: a changed message under its own name, a dropped one not at all."""
    rows = [row for row in table("fanout") if row["subject"].startswith("news.")]
    assert brief(rows, "subject", "published", "deliveries", "delay_ns", "spread_ns", "publisher") == [
        ("news.after", 1, 1, 1 * MS, 0, ASKER),
        ("news.equal", 2, 2, None, None, ASKER),
        ("news.one", 1, 2, 1 * MS, 3 * MS, ASKER),
    ]


def test_messages_of_streams_are_stored(table: Callable[[str], list[Row]]) -> None:
    """Those that a stream acknowledged or delivered, calls of JetStream's API; the news is not."""
    stored = {row["subject"]: row["stored"] for row in table("fanout") if not row["deliveries"]}
    unheard = {subject for subject, found in stored.items() if not found}
    assert {"elsewhere", "svc.nobody"} <= unheard
    assert unheard.isdisjoint({"stored", "$JS.API.INFO"})
    assert {row["stored"] for row in table("fanout") if row["subject"].startswith("news.")} == {False}
    assert [row["stored"] for row in table("fanout") if row["subject"] == "log.line"] == [True]


@pytest.mark.long
def test_messages_that_the_server_denied_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Those of that connection on that subject; others may just find no subscriber."""
    from natsproxy.spark.tables import derive

    scribe = Scribe()
    for n, (conn, subject) in enumerate(((1, b"no.way"), (1, b"a.way"), (2, b"no.way"))):
        scribe.frame(n, conn, C2S, b"PUB %s 1\r\n%d\r\n" % (subject, n))
    scribe.frame(9, 1, S2C, b"-ERR 'Permissions Violation for Publish to \"no.way\"'\r\n")
    frames, _ = load(spark, [write(tmp_path / "a.ncap", scribe.items)])
    rows = derive("fanout", frames).toArrow().to_pylist()
    assert brief(rows, "publisher", "subject", "deliveries", "refused") == [
        (1, "a.way", 0, False),
        (1, "no.way", 0, True),
        (2, "no.way", 0, False),
    ]


def test_headers_are_those_of_the_protocol(table: Callable[[str], list[Row]]) -> None:
    """Every odd block as `natsproxy.protocol.headers` reads it; the status is a line of its own."""
    for number, block in enumerate(BLOCKS):
        mine = [row for row in table("headers") if row["subject"] == f"headed.{number}"]
        read = headers.parse(block)
        status = b" ".join(filter(None, (read.code, read.description))).decode()
        expected = [(":status", status)] if status else []
        expected += [(name.decode(), value.decode()) for name, value in read.pairs]
        lines = sorted(mine, key=lambda row: row["position"])
        assert [(row["name"], row["value"]) for row in lines] == expected, block


def test_errors(table: Callable[[str], list[Row]]) -> None:
    """The server's, one that a rule changed, those that a rule made."""
    rows = sorted(table("errors"), key=lambda row: row["t_ns"])
    assert [
        (row["conn_id"], row["kind"], row["subject"], row["from_proxy"], row["cause"]) for row in rows
    ] == [
        (FIRST, 'Permissions Violation for Subscription to "*"', "live.denied", True, "rule"),
        (WORKER, 'Permissions Violation for Subscription to "*"', "no.twice", False, None),
        (WORKER, 'Permissions Violation for Subscription to "*"', "no.twice", False, None),
        (ASKER, "Unknown Protocol Operation", None, False, None),
        (ASKER, 'Invalid "*"', "y", False, "changes"),
        (WORKER, 'Permissions Violation for Subscription to "*" using queue "*"', "no.more", False, None),
        (WORKER, 'Permissions Violation for Subscription to "*" using queue "*"', "no.queue", False, None),
        (WORKER, 'Permissions Violation for Subscription to "*", too many tokens', "a.b.c.d", False, None),
        (WORKER, 'Permissions Violation for Subscription to "*" (sid "*")', "taken.x", False, None),
        (WORKER, 'Permissions Violation for Subscription to "*"', "dev.device-7.cmd", False, None),
        (ASKER, 'Permissions Violation for Publish with Reply of "*"', "r.not", False, None),
        (WORKER, "Stale Connection", None, False, None),
        (FIRST, 'Permissions Violation for Publish to "*"', "secret", True, "rule"),
    ]
    assert rows[3]["text"] == "Unknown Protocol Operation"
    templates = {row["subject"]: row["template"] for row in rows}
    assert (templates["dev.device-7.cmd"], templates["y"], templates[None]) == ("dev.*.cmd", "y", None)


def test_liveness(table: Callable[[str], list[Row]]) -> None:
    """Round trips as clients saw them, our own PINGs not among them; silences of a second and more."""
    names = ("dir", "frames", "pings", "pongs", "rtt_min_ns", "rtt_mean_ns", "rtt_max_ns", "silence_ns")
    second = [row for row in table("liveness") if row["conn_id"] == SECOND]
    assert brief(second, *names) == [
        (0, 4, 2, 2, 1 * MS, 2 * MS, 3 * MS, 2512 * MS),
        (1, 6, 1, 1, 2 * MS, 2 * MS, 2 * MS, 2499 * MS),
    ]
    assert [ms(row["silent_from_ns"]) for row in sorted(second, key=lambda row: row["dir"])] == [1040, 1051]
    (asker,) = (row for row in table("liveness") if (row["conn_id"], row["dir"]) == (ASKER, 0))
    silence = (asker["silence_ns"], asker["silent_from_ns"])
    assert (asker["pings"], silence, ms(asker["first_ns"])) == (0, (None, None), 1)


def test_connections(table: Callable[[str], list[Row]]) -> None:
    """With their clients; one from before the recording, one that ended in it."""
    rows = {row["conn_id"]: row for row in table("connections")}
    names = ("name", "lang", "version", "user", "server_version", "client", "upstream_local", "cause")
    assert {conn: tuple(row[name] for name in names) for conn, row in rows.items()} == {
        ASKER: ("asker", "go", "1.53", "ann", "2.15.1", "10.0.0.1:1", "10.1.0.0:1", None),
        FIRST: (None, None, None, None, None, "10.0.0.2:1", "10.1.0.0:2", "rule"),
        SECOND: (None, None, None, None, None, "10.0.0.3:1", "10.1.0.0:3", None),
        WORKER: (None, None, None, None, None, "10.0.0.4:1", None, None),
        OLD: ("old", "python3", None, None, "2.12.3", "10.0.0.5:1", None, None),
    }
    assert (rows[OLD]["opened_ns"], ms(rows[ASKER]["opened_ns"]), rows[ASKER]["closed_ns"]) == (None, 0, None)
    first = rows[FIRST]
    assert (ms(first["closed_ns"]), first["detail"], first["c2s_bytes"], first["s2c_frames"]) == (
        5000,
        "by rule",
        10,
        2,
    )


def test_subscriptions(table: Callable[[str], list[Row]]) -> None:
    """Each way to end, a sid used twice, a refused one, one from before the recording."""
    names = ("conn_id", "sid", "turn", "subject", "queue", "ended", "max", "refused", "delivered", "bytes")
    assert brief(table("subscriptions"), *names) == [
        (FIRST, "21", 1, "live.a", None, "unsub", None, False, 2, 8),
        (FIRST, "21", 2, "live.z", None, "close", None, False, 1, 1),
        (FIRST, "22", 1, "live.b", "team", "max", 2, False, 2, 2),
        (FIRST, "23", 1, "live.denied", None, "refused", None, True, 0, 0),
        (FIRST, "24", 1, "live.c", None, "close", None, False, 0, 0),
        (WORKER, "31", 1, "no.twice", None, "refused", None, True, 0, 0),
        (WORKER, "32", 1, "no.twice", None, "refused", None, True, 0, 0),
        (WORKER, "33", 1, "no.more", "team", None, None, False, 0, 0),
        (WORKER, "34", 1, "no.more", "team", "refused", None, True, 0, 0),
        (WORKER, "35", 1, "no.queue", "workers", "refused", None, True, 0, 0),
        (WORKER, "36", 1, "no.queue", None, None, None, False, 2, 2),
        (WORKER, "37", 1, "taken.x", None, "revoked", None, False, 1, 1),
        (WORKER, "38", 1, "a.b.c.d", "team", "refused", None, True, 0, 0),
        (WORKER, "39", 1, "taken.x", None, None, None, False, 0, 0),
        (WORKER, "40", 1, "dev.device-7.cmd", None, "refused", None, True, 0, 0),
        (OLD, "1", 1, "past.>", None, None, None, False, 0, 0),
        (OLD, "2", 1, "some.*", "team", "max", 5, False, 2, 2),
    ]
    times = {
        (row["sid"], row["turn"]): (ms(row["begun_ns"]), ms(row["ended_ns"]))
        for row in table("subscriptions")
    }
    assert times["21", 1] == (1000, 1007)
    assert times["21", 2] == (1011, 5000)
    assert times["22", 1] == (1001, 1010)
    assert times["34", 1] == (1023, 1024)
    assert times["37", 1] == (1031, 1036)


def test_faults(table: Callable[[str], list[Row]]) -> None:
    """Each firing with its consequence: an error, the end, a reply, or none.

    Only where its action can cause that, and no other such firing is nearer.
    """
    names = ("rule", "count", "error_ns", "close_ns", "close_cause", "reply_ns", "outcome")
    assert brief(table("faults"), *names) == [
        ("changes", 1, None, None, None, 5 * MS, "replied"),
        ("deaf", 1, 4 * MS, None, None, None, None),
        ("denies", 1, 2 * MS, None, None, None, None),
        ("drops", 1, None, None, None, None, None),
        ("errs", 1, 1 * MS, None, None, None, None),
        ("errs", 1, 1 * MS, None, None, None, None),
        ("errs", 1, 2 * MS, None, None, None, None),
        ("informs", 1, None, None, None, None, None),
        ("loses", 1, None, None, None, None, "no reply"),
        ("loses", 1, None, None, None, None, None),
        ("shuts", 3, None, 997 * MS, "rule", None, None),
    ]
    (denied,) = (row for row in table("faults") if row["rule"] == "denies")
    assert denied["error"] == 'Permissions Violation for Publish to "secret"'
    assert (denied["kind"], denied["action"], denied["direction"], denied["subject"]) == (
        "deny",
        "deny",
        "c2s",
        "secret",
    )


def test_gaps(table: Callable[[str], list[Row]]) -> None:
    """Frames that were not recorded."""
    assert brief(table("gaps"), "conn_id", "reason", "frames", "bytes") == [
        (FIRST, "full", None, None),
        (None, "the disk", 3, 99),
    ]


@pytest.mark.long
def test_a_replay_differs_where_it_differs(known: Known) -> None:
    """One service does not answer, one subject is gone; the rest is the same."""
    from natsproxy.spark.tables import replay_diff

    recorded = known.frames.where("subject LIKE 'svc.%' OR subject LIKE 'r.%'")
    later = recorded.where("NOT (subject = 'r.plain' AND dir = 1) AND subject <> 'svc.nobody'")
    rows = {row["template"]: row for row in replay_diff(recorded, later).toArrow().to_pylist()}
    assert {name for name, row in rows.items() if not row["same"]} == {"svc.plain", "r.plain", "svc.nobody"}
    asked = rows["svc.plain"]
    assert (asked["recorded"]["replies"], asked["observed"]["replies"]) == (1, 0)
    assert (asked["recorded"]["p50_ns"], asked["observed"]["unanswered"]) == (10 * MS, 1)
    assert (rows["svc.nobody"]["recorded"]["no_responders"], rows["svc.nobody"]["observed"]) == (1, None)
    assert rows["r.nobody"]["recorded"]["statuses"] == [{"status": 503, "count": 1}]
