"""Where a recording is partial a check says so, once for each reason, and finds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import natsproxy.bounded
from natsproxy.capture.format.records import Flags, Frames, Item, OpenRecord, Preamble
from natsproxy.check.checker import check_captures
from natsproxy.check.statement import Statement
from natsproxy.wire.ops import C2S, S2C
from tests.check.kit import statements, written
from tests.check.test_checks import ASK, CREATED, INBOX
from tests.kit.captures import MONO, Scribe, write

LOST = ASK + "@ +6s\na closed server-closed\n"
TWICE = ASK + f"a > PUB prices {INBOX}.2\n@ +6s\na closed server-closed\n"


def reasons(made: list[Statement]) -> list[tuple[str, str]]:
    return [(one.check, one.sentence.removeprefix("the recording does not tell: ")) for one in made]


@pytest.mark.parametrize("place", ["a gap", "gap"])
def test_a_gap_after_a_request_may_hold_its_answer(place: str, tmp_path: Path) -> None:
    text = TWICE.replace("@ +6s", f"{place}\n  reason: full\n@ +6s")
    made = statements(tmp_path, text, "wrong", "request_without_answer")
    assert reasons(made) == [("request_without_answer", "frames are missing in the recording")]
    assert made[0].verdict == "cannot say"
    assert made[0].frames[0].text.startswith("PUB quotes")


def test_a_gap_before_a_request_explains_nothing(tmp_path: Path) -> None:
    text = "gap\n  reason: full\n@ +1s\n" + LOST
    (found,) = statements(tmp_path, text, "wrong", "request_without_answer")
    assert found.found


def test_a_stream_that_cannot_be_framed_tells_nothing(tmp_path: Path) -> None:
    text = LOST.replace("@ +6s", "a < opaque 100\n@ +6s")
    made = statements(tmp_path, text, "wrong", "request_without_answer")
    assert reasons(made) == [("request_without_answer", "the stream could not be framed")]


@pytest.mark.parametrize("kept", ["connections", "subjects"])
def test_a_filtered_recording_misses_frames(kept: str, tmp_path: Path) -> None:
    path = written(tmp_path / "x.nats.txt", LOST)
    head, rest = path.read_text().split("\na opened", 1)
    path.write_text(f'{head}settings\n  {kept}: ["x"]\n\na opened{rest}')
    made = check_captures([path], ["request_without_answer"])
    assert reasons(made) == [("request_without_answer", f"only some {kept} were recorded")]


def test_a_recording_that_was_cut_off_may_miss_the_end(tmp_path: Path) -> None:
    scribe = Scribe()
    scribe.items.append(OpenRecord(1, MONO, {}))
    scribe.frame(0, 1, C2S, b"PING\r\n")
    scribe.frame(10**9, 1, C2S, b"PUB x 0\r\n\r\n")
    path = write(tmp_path / "whole.ncap", scribe.items)
    assert check_captures([path]) == []
    cut = tmp_path / "cut.ncap"
    cut.write_bytes(path.read_bytes()[:-20])
    made = check_captures([cut])
    assert reasons(made) == [("ping_without_pong", "it was cut off while something was open")]


def test_withheld_payloads_of_pulls_tell_nothing(tmp_path: Path) -> None:
    raw = f"PUB $JS.API.CONSUMER.MSG.NEXT.ORDERS.worker {INBOX} 31\r\n".encode()
    scribe = Scribe()
    scribe.items.append(OpenRecord(1, MONO, {}))
    scribe.frame(0, 1, C2S, f"SUB {INBOX} 1\r\n".encode())
    scribe.items.append(Frames(1, C2S, raw, 1, 0, 1, MONO, 1, MONO, None, Flags.PAYLOAD, {"policy": "drop"}))
    scribe.frame(9 * 10**9, 1, S2C, b"PING\r\n")
    made = check_captures([write(tmp_path / "x.ncap", scribe.items)])
    said = dict(reasons(made))
    assert said.pop("pull_without_end") == "the payloads of pull requests are withheld"
    assert said.pop("payload_changed") == "payloads are withheld"
    assert set(said.values()) == {"payloads are withheld"}
    assert not any(one.found for one in made)


def late(*items: tuple[int, bytes], subs: list[list[object]]) -> list[Item]:
    """Return a connection that was open before the recording began."""
    scribe = Scribe()
    scribe.items.append(Preamble(1, MONO, {"connect": b'CONNECT {"name":"worker"}\r\n', "subs": subs}))
    for n, (direction, raw) in enumerate(items):
        scribe.frame(n * 10**9, 1, S2C if direction else C2S, raw)
    return scribe.items


def test_the_subscriptions_of_a_late_connection_are_known(tmp_path: Path) -> None:
    message, publish = (1, b"MSG x 7 0\r\n\r\n"), (0, b"PUB y 0\r\n\r\n")
    subs: list[list[object]] = [[b"7", b"x", b"", 3, 2]]
    items = late(message, publish, publish, message, subs=subs)
    (found,) = check_captures([write(tmp_path / "x.ncap", items)])
    assert found.check == "message_after_unsub"
    assert (
        found.sentence
        == "worker (connection 1): a message on x came after its UNSUB for 3 messages, and 4 came"
    )
    sound = late(message, publish, publish, subs=subs)
    assert check_captures([write(tmp_path / "sound.ncap", sound)]) == []


def test_messages_of_a_late_connection_are_no_gap(tmp_path: Path) -> None:
    items = late(
        (1, b"MSG s.1 7 $JS.ACK.S.c.1.9.5.1795340332080752913.3 0\r\n\r\n"),
        (1, b"MSG s.1 7 $JS.ACK.S.c.1.11.7.1795340332080752913.3 0\r\n\r\n"),
        (0, b"PING\r\n"),
        subs=[[b"7", b"_INBOX.d", b"", 0, 0]],
    )
    assert check_captures([write(tmp_path / "x.ncap", items)], ["ordered_consumer_gap"]) == []


def test_an_unknown_ack_policy_is_said(tmp_path: Path) -> None:
    lines = CREATED.strip().split("\n")
    text = "\n".join(lines[5:]) + "\na > PUB $JS.ACK.S.c.1.2.2.1795340332080752913.0\n@ +40s\na > PING\n"
    made = statements(tmp_path, text, "wrong", "delivery_never_acked")
    assert reasons(made) == [("delivery_never_acked", "the ack policy of a consumer is not in it")]


def test_a_consumer_that_others_share_is_said(tmp_path: Path) -> None:
    more = (
        "a < MSG s.4 2 $JS.ACK.S.c.1.4.4.1795340332080752913.0\n"
        "a > PUB $JS.ACK.S.c.1.4.4.1795340332080752913.0\n@ +4s\na > PING\n"
    )
    made = statements(tmp_path, CREATED + more, "wrong", "delivery_never_acked")
    assert reasons(made) == [("delivery_never_acked", "a consumer is shared with clients that are not in it")]


def test_a_subscription_that_gets_nothing_may_be_denied_it(tmp_path: Path) -> None:
    text = (
        "a > SUB s.1 7\na > PING\na < PONG\nb opened\n"
        f"b > SUB {INBOX}.* 1\nb > PUB s.1 {INBOX}.1\nb < MSG {INBOX}.1 1\n"
        '  json {"stream":"S","seq":1}\na > PING\na < PONG\n@ +3s\na > PING\na < PONG\n'
    )
    made = statements(tmp_path, text, "wrong", "acked_publish_not_delivered")
    assert reasons(made) == [
        (
            "acked_publish_not_delivered",
            "a subscription got nothing of a subject: permissions or mappings may be why",
        )
    ]


def test_what_was_forgotten_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natsproxy.bounded, "LIMIT", 3)
    text = f"a > SUB {INBOX}.* 1\n" + "".join(
        f"a > PUB quotes.{n} {INBOX}.{n}\na < MSG {INBOX}.{n} 1\n" for n in range(9)
    )
    assert statements(tmp_path, text, "wrong", "request_without_answer") == []
    text += "".join(f"a > PUB quotes.{n} {INBOX}.1{n}\n" for n in range(5)) + "@ +6s\na > PING\n"
    made = statements(tmp_path, text, "wrong", "request_without_answer")
    assert [one.verdict for one in made] == ["found"] * 3 + ["cannot say"]
    assert made[-1].sentence.endswith("more was open at once than a check remembers")


@pytest.mark.parametrize("value", ["null", "[]", "{}", "-1", "1e400", '"x"', "true", "[1]", '{"a":[]}'])
def test_strange_values_in_a_configuration_break_nothing(value: str, tmp_path: Path) -> None:
    names = (
        "ack_policy ack_wait filter_subject filter_subjects deliver_subject deliver_policy opt_start_seq "
        "mem_storage num_replicas pause_until max_msgs max_age retention durable_name name"
    )
    for name in names.split():
        config = f'{{"ack_policy":"none","mem_storage":true,"num_replicas":1,"{name}":{value}}}'
        text = (
            f"a > SUB {INBOX}.* 1\na > PUB $JS.API.CONSUMER.CREATE.S.c {INBOX}.1\n"
            f'  json {{"config":{config}}}\n'
            f'a < MSG {INBOX}.1 1\n  json {{"name":"c","config":{config}}}\n'
            f"a > PUB $JS.API.STREAM.INFO.S {INBOX}.2\n"
            f'a < MSG {INBOX}.2 1\n  json {{"config":{{"name":"S","{name}":{value}}}}}\n'
            f'a > PUB s.3 {INBOX}.3\na < MSG {INBOX}.3 1\n  json {{"stream":"S","seq":2}}\n'
            "a > SUB d 2\na < MSG s.1 2 $JS.ACK.S.c.1.1.1.1795340332080752913.1\n"
            "a < MSG s.1 2 $JS.ACK.S.c.1.4.3.1795340332080752913.1\n"
            "a > PUB $JS.ACK.S.c.1.4.3.1795340332080752913.1\n@ +99s\na closed client-closed\n"
        )
        assert {one.clients for one in statements(tmp_path, text, "wrong") if one.found} <= {("worker",)}


def test_the_findings_of_a_check_are_bounded(tmp_path: Path) -> None:
    text = f"a > SUB {INBOX}.* 1\n" + "".join(f"a > PUB q.{n} {INBOX}.{n}\n" for n in range(130))
    made = statements(tmp_path, text + "@ +6s\na > PING\n", "wrong", "request_without_answer")
    assert len(made) == 101
    assert made[-1].sentence == "30 more of these were found"
