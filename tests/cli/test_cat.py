"""`capture cat`, as people and scripts read it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from natsproxy.capture.format.records import CloseRecord, GapRecord, OpenRecord
from natsproxy.cli import main
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import MONO, WALL, Scribe, write

MS = 1_000_000
INBOX = b"_INBOX.sfcF9r6gVcN74ip0rQL90O.sfcF9r6gVcN74ip0rQL95Qbda5"
ACK = b"$JS.ACK.ORDERS.worker.2.7.8.1767225600000000000.3"


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A request and a delivery with its ack, at known times."""
    scribe = Scribe()
    scribe.items.append(OpenRecord(1, MONO, {"client": "10.0.0.7:50001", "upstream": "127.0.0.1:4222"}))
    scribe.frame(1 * MS, 1, S2C, b'INFO {"server_id":"S","version":"2.15.1","max_payload":1048576} \r\n')
    scribe.frame(2 * MS, 1, C2S, b'CONNECT {"name":"shop","verbose":false,"pedantic":false}\r\n')
    scribe.frame(3 * MS, 1, C2S, b"PING\r\n")
    scribe.frame(4 * MS, 1, S2C, b"PONG\r\n")
    body = '{"id":"a1","note":"für Zoë"}'.encode()
    scribe.frame(
        5 * MS,
        1,
        C2S,
        b"HPUB quotes.price %s 18 %d\r\nNATS/1.0\r\nA: b\r\n\r\n%s\r\n" % (INBOX, 18 + len(body), body),
    )
    scribe.frame(6 * MS, 1, S2C, b"MSG %s 1 2\r\n12\r\n" % INBOX)
    scribe.frame(6 * MS, 1, S2C, b"MSG orders.new 2 %s 3\r\n\x00\xff\x01\r\n" % ACK)
    scribe.frame(7 * MS, 1, C2S, b"PUB %s 0\r\n\r\n" % ACK)
    scribe.frame(8 * MS, 1, C2S, b"PUB secret.x 0\r\n\r\n", cause="no-secrets")
    scribe.frame(90_000 * MS, 1, S2C, b"-ERR 'Stale Connection'\r\n")
    scribe.items.append(GapRecord(None, MONO + 90_001 * MS, {"frames": 3, "reason": "the disk is full"}))
    scribe.items.append(CloseRecord(1, MONO + 90_002 * MS, "server-closed", {}))
    return write(tmp_path / "talk.ncap", scribe.items)


def cat(path: Path, *words: str, width: int | None = None, color: bool = False) -> str:
    """Return what the command prints.  width: of the terminal, None for a pipe."""
    env = {"COLUMNS": None if width is None else str(width)}
    done = CliRunner().invoke(main, ["capture", "cat", str(path), *words], env=env, color=color)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the machine be two hours east of UTC."""
    monkeypatch.setenv("TZ", "<east>-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_it_reads_like_a_conversation(talk: Path) -> None:
    assert cat(talk, width=100).replace("_INBOX", "I").splitlines() == [
        "2026-01-01 east +02:00",
        "02:00:00.000         #1  client 10.0.0.7:50001 connected, server 127.0.0.1:4222",
        "02:00:00.001    +1ms #1  ← INFO    nats-server 2.15.1, payloads to 1MiB",
        "02:00:00.002    +1ms #1  → CONNECT shop",
        '02:00:00.005    +3ms #1  → HPUB    quotes.price  reply I…5Qbda5  48B  A: b  {"id":"a1","note":…',
        "02:00:00.006    +1ms #1  ← MSG     answer to quotes.price after 1ms  2B  12",
        "02:00:00.006         #1  ← MSG     orders.new  ORDERS/worker #7 (2nd delivery), 3 pending  3B  00 f…",  # noqa: E501
        "02:00:00.007    +1ms #1  → PUB     ack ORDERS/worker #7 (2nd delivery)",
        "02:00:00.008    +1ms #1  → PUB     secret.x  0B  [no-secrets: not passed]",
        "02:01:30.000    +90s #1  ← -ERR    Stale Connection",
        "02:01:30.001    +1ms     gap: 3 frames not recorded: the disk is full",
        "02:01:30.002    +1ms #1  closed: server-closed",
    ]


@pytest.mark.parametrize("width", [40, 60, 79, 80, 119, 120, 159, 160, 200])
def test_lines_fit_the_terminal(talk: Path, width: int) -> None:
    """And use it: the longest is as long."""
    lines = cat(talk, width=width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert sum(line.endswith("…") for line in lines) == 0 or max(map(cell_len, lines)) > width - 2


def test_a_narrow_terminal_has_one_time(talk: Path) -> None:
    """That of the clock where the second changes, the distance elsewhere."""
    lines = cat(talk, width=60).splitlines()
    assert [line[:16] for line in lines[1:4]] == ["02:00:00.000 #1 ", "        +1ms #1 ", "        +1ms #1 "]
    assert lines[-3].startswith("02:01:30.000 #1")


def test_a_pipe_gets_whole_lines(talk: Path) -> None:
    """With the clients' names and whole inboxes, without colours."""
    found = cat(talk)
    assert f"#1  shop         → HPUB    quotes.price  reply {INBOX.decode()}  48B  A: b  " in found
    assert '{"id":"a1","note":"für Zoë"}' in found
    assert "\x1b" not in found


def test_colours_mean_something(talk: Path) -> None:
    lines = cat(talk, width=100, color=True).splitlines()
    (error,) = (line for line in lines if "Stale Connection" in line)
    (denied,) = (line for line in lines if "no-secrets" in line)
    assert "\x1b[31m" in error
    assert "\x1b[32m→" in denied
    assert "\x1b[33m  [no-secrets: not passed]" in denied
    assert not any("\x1b[31m" in line for line in lines if "Stale" not in line and "gap" not in line)


def test_payloads_whole(talk: Path) -> None:
    """JSON by member, bytes as hex."""
    found = cat(talk, "--payload", "whole", width=60)
    assert '\n    A: b\n    {\n      "id": "a1",\n      "note": "für Zoë"\n    }\n' in found
    assert f"\n    00000000  {'00 ff 01':<47}  ...\n" in found
    assert '"id"' not in cat(talk, "--payload", "none")


def test_all_is_as_on_the_wire(talk: Path) -> None:
    found = cat(talk, "--all")
    assert "PING" in found
    assert f"PUB     {ACK.decode()}  ack ORDERS/worker #7" in found
    assert "PING" in cat(talk, "--op", "PING")
    assert "PING" not in cat(talk)


def test_json_has_every_frame_and_its_meaning(talk: Path) -> None:
    rows = [json.loads(line) for line in cat(talk, "--json").splitlines()]
    assert [row["op"] for row in rows] == [
        "INFO",
        "CONNECT",
        "PING",
        "PONG",
        "HPUB",
        "MSG",
        "MSG",
        "PUB",
        "PUB",
        "-ERR",
    ]
    assert rows[4]["headers"] == {"A": "b"}
    assert rows[5]["request"] == {"subject": "quotes.price", "after_ns": MS}
    assert (
        rows[7]["meaning"] | {"kind": "ack", "stream": "ORDERS", "stream_seq": 7, "delivered": 2}
        == rows[7]["meaning"]
    )
    assert {row["client"] for row in rows[1:]} == {"shop"}


@pytest.mark.parametrize(
    ("words", "ops"),
    [
        ("--role ack", "PUB"),
        ("--role ack --role redelivery", "MSG PUB"),
        ("--client sh?p --op MSG", "MSG MSG"),
        ("--client other", ""),
        ("--header a", "HPUB"),
        ("--header A:b", "HPUB"),
        ("--header A:c", ""),
        ("--subject quotes.>", "HPUB"),
        ("--subject quotes.> --exchange", "HPUB MSG"),
        ("--role ack --exchange", "MSG PUB"),
        ("--from 5s", "-ERR"),
        ("--to 85s --role ack", "PUB"),
        ("--from 2026-01-01T02:00:00.008", "PUB -ERR"),
        ("--from 2026-01-01T00:00:00.008+00:00 --to 5s", "PUB"),
    ],
)
def test_filters(talk: Path, words: str, ops: str) -> None:
    assert [
        json.loads(line)["op"] for line in cat(talk, "--json", *words.split()).splitlines()
    ] == ops.split()
    shown = [line for line in cat(talk, *words.split()).splitlines() if "→" in line or "←" in line]
    assert len(shown) == len(ops.split())


def test_an_exchange_has_a_number(talk: Path) -> None:
    assert "(1) → HPUB" in cat(talk, "--subject", "quotes.>", "--exchange", width=100)
    rows = [
        json.loads(line) for line in cat(talk, "--json", "--subject", "quotes.>", "--exchange").splitlines()
    ]
    assert [row["exchange"] for row in rows] == [1, 1]


def test_a_time_that_is_none_is_refused(talk: Path) -> None:
    done = CliRunner().invoke(main, ["capture", "cat", str(talk), "--from", "noon"])
    assert (done.exit_code, "or a duration before the end as 5m" in done.output) == (2, True)


def test_times_of_a_hostile_capture_are_shown(tmp_path: Path) -> None:
    """Beyond all calendars."""
    scribe = Scribe()
    for t in (-WALL * 2, 0, 1 << 62):
        scribe.frame(t, 1, C2S, b"PUB a 0\r\n\r\n")
    path = write(tmp_path / "x.ncap", scribe.items)
    assert len([line for line in cat(path).splitlines() if "PUB" in line]) == 3
    assert len(cat(path, "--json").splitlines()) == 3


def test_deliveries_tell_their_subscription(tmp_path: Path) -> None:
    """Where it is another subject, or has a queue; an UNSUB tells the subject."""
    scribe = Scribe()
    for sid, rest in (b"1", b""), (b"2", b"workers "), (b"3", b""):
        subject = b"orders.new" if sid == b"3" else b"orders.>"
        scribe.frame(0, 1, C2S, b"SUB %s %s%s\r\n" % (subject, rest, sid))
        scribe.frame(0, 1, S2C, b"MSG orders.new %s 0\r\n\r\n" % sid)
    scribe.frame(0, 1, C2S, b"UNSUB 1 5\r\n")
    lines = cat(write(tmp_path / "x.ncap", scribe.items), width=100).splitlines()
    assert [line.split(maxsplit=3)[3] for line in lines if "MSG" in line or "UNSUB" in line] == [
        "MSG     orders.new  sub orders.>  0B",
        "MSG     orders.new  queue workers  0B",
        "MSG     orders.new  0B",
        "UNSUB   orders.>  sid 1  after 5",
    ]


RECORDINGS = Path(__file__).parents[2] / "recordings"


def test_a_conversation_with_a_real_server() -> None:
    """A client of JetStream, as nats-server answered it."""
    found = cat(RECORDINGS / "jetstream-v1.1.ncap", width=110)
    for text in (
        "→ PUB     STREAM.CREATE DEMO",
        "← MSG     answer to STREAM.CREATE DEMO after ",
        "← MSG     stored DEMO #3  answer to demo.item after ",
        "← MSG     error 10014: consumer not found  answer to CONSUMER.INFO DEMO/reader",
        "→ PUB     CONSUMER.MSG.NEXT DEMO/reader batch=3 expires=5s no_wait",
        "← MSG     demo.item  DEMO/reader #1, 2 pending",
        "→ PUB     nak DEMO/reader #1",
        "← MSG     demo.item  DEMO/reader #1 (2nd delivery)",
        "→ PUB     ack DEMO/reader #1 (2nd delivery)",
    ):
        assert text in found
    assert found.count("INFO    nats-server") == 1
    whole = cat(RECORDINGS / "jetstream-v1.1.ncap", "--role", "nak", "--exchange", width=110).splitlines()[1:]
    assert [line.partition("(2) ")[2].partition("  reply")[0].partition(" after")[0] for line in whole] == [
        "→ PUB     demo.item",
        "← MSG     stored DEMO #1  answer to demo.item",
        "← MSG     demo.item  DEMO/reader #1, 2 pending  6B  item 0",
        "→ PUB     nak DEMO/reader #1",
        "← MSG     demo.item  DEMO/reader #1 (2nd delivery)  6B  item 0",
        "→ PUB     ack DEMO/reader #1 (2nd delivery)",
        "← MSG     answer to ack DEMO/reader #1 (2nd delivery)",
    ]
