"""Each check finds what it is for, and not its nearest sound twin."""

from __future__ import annotations

from pathlib import Path

import pytest

from natsproxy.check.checker import CHECKS
from tests.check.kit import statements

INBOX = "_INBOX.oMssyhzujTKOBAXWf1wuAX"
ASK = f"a > SUB {INBOX}.* 1\na > PUB quotes {INBOX}.1\n  | acme\n"
PULL = f"""
a > SUB {INBOX} 1
a > PUB $JS.API.CONSUMER.MSG.NEXT.ORDERS.worker {INBOX}
  json {{"batch":2,"expires":1000000000}}
"""
ORDERED = f"""
a > SUB {INBOX}.* 1
a > SUB _INBOX.d1 2
a > PUB $JS.API.CONSUMER.CREATE.S {INBOX}.1
  json {{"config":{{"ack_policy":"none","mem_storage":true,"num_replicas":1,"deliver_subject":"_INBOX.d1"}}}}
a < MSG {INBOX}.1 1
  json {{"type":"x"}}
a < MSG s.1 2 $JS.ACK.S.c.1.5.1.1795340332080752913.3
  | one
"""
AGAIN = f"""
a > UNSUB 2
a > SUB _INBOX.d2 3
a > PUB $JS.API.CONSUMER.CREATE.S {INBOX}.2
  json {{"config":{{"ack_policy":"none","mem_storage":true,"num_replicas":1,"deliver_subject":"_INBOX.d2",\
"deliver_policy":"by_start_sequence","opt_start_seq":START}}}}
a < MSG {INBOX}.2 1
  json {{"type":"x"}}
"""
CREATED = f"""
a > SUB {INBOX}.* 1
a > PUB $JS.API.CONSUMER.CREATE.S.c {INBOX}.1
  json {{"stream_name":"S","config":{{"name":"c","ack_policy":"explicit"}}}}
a < MSG {INBOX}.1 1
  json {{"name":"c","stream_name":"S","config":{{"name":"c","ack_policy":"explicit","ack_wait":1000000000}}}}
a > SUB d 2
a < MSG s.1 2 $JS.ACK.S.c.1.1.1.1795340332080752913.1
a < MSG s.2 2 $JS.ACK.S.c.1.2.2.1795340332080752913.0
"""
PUBLISHED = f"""
a > SUB {INBOX}.* 1
a > PUB s.1 {INBOX}.1
  | one
"""
TWICE = f"""
@ +1s
a > PUB s.1 {INBOX}.2
  | one
"""
STORED = f"""
b opened
b > CONNECT {{"verbose":false,"headers":true,"name":"publisher"}}
b > SUB {INBOX}.* 1
b > PUB $JS.API.STREAM.INFO.S {INBOX}.0
b < MSG {INBOX}.0 1
  json {{"config":{{"name":"S","retention":"limits"}}}}
"""


def acked(seq: int) -> str:
    """Return a publish on `s.<seq>` and its ack."""
    return (
        f"b > PUB s.{seq} {INBOX}.{seq}\n  | {seq}\nb < MSG {INBOX}.{seq} 1\n"
        f'  json {{"stream":"S","seq":{seq}}}\n'
    )


LISTENED = STORED + "a > SUB s.* 7\na > PING\na < PONG\n" + acked(1) + f"a < MSG s.1 7 {INBOX}.1\n  | 1\n"
CASES = {
    "request_without_answer, until the end": (
        "request_without_answer",
        ASK + f"sound: a < MSG {INBOX}.1 1\n@ +6s\na closed server-closed\n",
    ),
    "request_without_answer, 503": (
        "request_without_answer",
        ASK + f"sound: a < HMSG {INBOX}.1 1\n  NATS/1.0 503\n@ +6s\na closed server-closed\n",
    ),
    "request_without_answer, asked again": (
        "request_without_answer",
        ASK + f"@ +1s\na > PUB quotes {INBOX}.2\n  | acme\nsound: a < MSG {INBOX}.2 1\n@ +6s\n"
        "a closed client-closed\n",
    ),
    "request_without_answer, it left": (
        "request_without_answer",
        ASK + "@ +0.5s\nsound: a > PUB other\na closed client-closed\n",
    ),
    "request_without_answer, it unsubscribed": (
        "request_without_answer",
        f"a > SUB {INBOX} 1\na > PUB quotes {INBOX}\n@ +1s\n"
        f"sound: a < MSG {INBOX} 1\na > UNSUB 1\n@ +0.1s\na > PUB other\na closed client-closed\n",
    ),
    "request_without_answer, dropped answer": (
        "request_without_answer",
        ASK + f"a < MSG {INBOX}.1 1\nwrong:   * not passed\n@ +6s\na closed client-closed\n",
    ),
    "stored_twice": (
        "stored_twice",
        PUBLISHED
        + f'a < MSG {INBOX}.1 1\nwrong:   * not passed\n  json {{"stream":"S","seq":1}}\n'
        + TWICE
        + f'a < MSG {INBOX}.2 1\n  json {{"stream":"S","seq":2}}\n',
    ),
    "stored_twice, no duplicate": (
        "stored_twice",
        PUBLISHED
        + f'a < MSG {INBOX}.1 1\n  * not passed\n  json {{"stream":"S","seq":1}}\n'
        + TWICE
        + f'wrong: a < MSG {INBOX}.2 1\n  json {{"stream":"S","seq":2}}\n'
        + f'sound: a < MSG {INBOX}.2 1\n  json {{"stream":"S","seq":1,"duplicate":true}}\n',
    ),
    "stored_twice, known from a delivery": (
        "stored_twice",
        PUBLISHED
        + "a > SUB d 2\nwrong: a < MSG s.1 2 $JS.ACK.S.c.1.1.1.1795340332080752913.0\n  | one\n"
        + TWICE
        + f'a < MSG {INBOX}.2 1\n  json {{"stream":"S","seq":2}}\n',
    ),
    "ordered_consumer_gap, it goes on": (
        "ordered_consumer_gap",
        ORDERED
        + "sound: a < MSG s.2 2 $JS.ACK.S.c.1.6.2.1795340332080752913.1\n"
        + "a < MSG s.3 2 $JS.ACK.S.c.1.7.3.1795340332080752913.1\n@ +3s\na > PING\n",
    ),
    "ordered_consumer_gap, it starts again": (
        "ordered_consumer_gap",
        ORDERED
        + "a < MSG s.3 2 $JS.ACK.S.c.1.7.3.1795340332080752913.1\n"
        + "".join(
            f"{which}: {line}\n" if line and not line.startswith(" ") else line + "\n"
            for which, start in (("sound", "6"), ("wrong", "8"))
            for line in AGAIN.replace("START", start).strip().split("\n")
        )
        + "@ +3s\na > PING\n",
    ),
    "ordered_consumer_gap, a heartbeat tells": (
        "ordered_consumer_gap",
        ORDERED
        + "sound: a < MSG s.2 2 $JS.ACK.S.c.1.6.2.1795340332080752913.0\n"
        + "a < HMSG _INBOX.d1 2\n  NATS/1.0 100 Idle Heartbeat\n  Nats-Last-Consumer: 2\n@ +3s\na > PING\n",
    ),
    "ordered_consumer_repetition": (
        "ordered_consumer_repetition",
        ORDERED
        + "wrong: a < MSG s.1 2 $JS.ACK.S.c.1.5.1.1795340332080752913.3\n"
        + "a < MSG s.2 2 $JS.ACK.S.c.1.6.2.1795340332080752913.1\n@ +3s\na > PING\n",
    ),
    "delivery_never_acked": (
        "delivery_never_acked",
        CREATED + "sound: a > PUB $JS.ACK.S.c.1.1.1.1795340332080752913.1\n  | +ACK\n"
        "a > PUB $JS.ACK.S.c.1.2.2.1795340332080752913.0\n  | +ACK\n@ +4s\na > PING\n",
    ),
    "delivery_never_acked, redelivered": (
        "delivery_never_acked",
        CREATED + "a > PUB $JS.ACK.S.c.1.2.2.1795340332080752913.0\n  | +ACK\n@ +1s\n"
        "a < MSG s.1 2 $JS.ACK.S.c.2.1.3.1795340332080752913.0\n"
        "wrong: a < MSG s.3 2 $JS.ACK.S.c.1.3.4.1795340332080752913.0\n"
        "wrong: a > PUB $JS.ACK.S.c.1.3.4.1795340332080752913.0\n  | +ACK\n"
        "sound: a > PUB $JS.ACK.S.c.2.1.3.1795340332080752913.0\n  | +TERM\n@ +4s\na > PING\n",
    ),
    "pull_without_end": (
        "pull_without_end",
        PULL + f"a < MSG s.1 1 $JS.ACK.S.c.1.1.1.1795340332080752913.1\n@ +1s\n"
        f"sound: a < HMSG {INBOX} 1\n  NATS/1.0 408 Request Timeout\n@ +4s\na > PING\n",
    ),
    "pull_without_end, all came": (
        "pull_without_end",
        PULL + "a < MSG s.1 1 $JS.ACK.ORDERS.worker.1.1.1.1795340332080752913.1\n"
        "sound: a < MSG s.2 1 $JS.ACK.ORDERS.worker.1.2.2.1795340332080752913.1\n@ +4s\na > PING\n",
    ),
    "pull_without_end, heartbeats": (
        "pull_without_end",
        PULL + f"a < HMSG {INBOX} 1\n  NATS/1.0 100 Idle Heartbeat\n@ +4s\nsound: a > UNSUB 1\na > PING\n",
    ),
    "consumer_stalled": (
        "consumer_stalled",
        "a > SUB d 1\n"
        "a < HMSG d 1\n  NATS/1.0 100 Idle Heartbeat\n  Nats-Consumer-Stalled: $JS.FC.S.c.x\n@ +1s\n"
        "sound: a > PUB $JS.FC.S.c.x\n"
        "a < HMSG d 1\n  NATS/1.0 100 Idle Heartbeat\n  Nats-Consumer-Stalled: $JS.FC.S.c.x\n",
    ),
    "acked_publish_not_delivered, to a subscription": (
        "acked_publish_not_delivered",
        LISTENED
        + f"b > PUB s.1 {INBOX}.2\n  | 2\nb < MSG {INBOX}.2 1\n"
        + '  json {"stream":"S","seq":2}\n'
        + f"sound: a < MSG s.1 7 {INBOX}.2\n  | 2\na > PING\na < PONG\n@ +3s\na > PING\na < PONG\n",
    ),
    "acked_publish_not_delivered, unsubscribed": (
        "acked_publish_not_delivered",
        LISTENED
        + f"b > PUB s.1 {INBOX}.2\n  | 2\nb < MSG {INBOX}.2 1\n"
        + '  json {"stream":"S","seq":2}\n'
        + "sound: a > UNSUB 7\na > PING\na < PONG\n@ +3s\na > PING\na < PONG\n",
    ),
    "acked_publish_not_delivered, dropped here": (
        "acked_publish_not_delivered",
        STORED
        + "a > SUB s.* 7\na > PING\na < PONG\n"
        + acked(1)
        + f"a < MSG s.1 7 {INBOX}.1\nwrong:   * not passed\nwrong:   * cause: gone\n  | 1\n"
        + "a > PING\na < PONG\n@ +3s\na > PING\na < PONG\n",
    ),
    "acked_publish_not_delivered, to a consumer": (
        "acked_publish_not_delivered",
        STORED
        + CREATED
        + acked(3)
        + "a < MSG s.3 2 $JS.ACK.S.c.1.3.3.1795340332080752913.0\nwrong:   * not passed\n@ +4s\n"
        + acked(4)
        + "a < MSG s.4 2 $JS.ACK.S.c.1.4.4.1795340332080752913.0\n",
    ),
    "acked_publish_not_delivered, passed over": (
        "acked_publish_not_delivered",
        STORED
        + CREATED
        + acked(3)
        + acked(4)
        + "sound: a < MSG s.3 2 $JS.ACK.S.c.1.3.3.1795340332080752913.0\n"
        + "sound: a < MSG s.4 2 $JS.ACK.S.c.1.4.4.1795340332080752913.0\n"
        + "wrong: a < MSG s.4 2 $JS.ACK.S.c.1.4.3.1795340332080752913.0\n",
    ),
    "acked_publish_not_delivered, another filter": (
        "acked_publish_not_delivered",
        STORED
        + CREATED
        + acked(3).replace("PUB s.3", "PUB t.3")
        + f"a > PUB $JS.API.CONSUMER.INFO.S.c {INBOX}.9\na < MSG {INBOX}.9 1\n"
        + 'wrong:   json {"name":"c","config":{"name":"c","ack_policy":"explicit","filter_subject":">"}}\n'
        + 'sound:   json {"name":"c","config":{"name":"c","ack_policy":"explicit","filter_subject":"s.*"}}\n'
        + acked(4)
        + "a < MSG s.4 2 $JS.ACK.S.c.1.4.3.1795340332080752913.0\n",
    ),
    "delivered_twice_in_group, by the proxy": (
        "delivered_twice_in_group",
        "a > SUB x g 1\na < MSG x 1\n  * not passed\n  | 1\n"
        'a < MSG x 1\n  * made here\n  * extra: {"of":0}\n  | 1\n'
        'wrong: a < MSG x 1\n  * made here\n  * extra: {"of":0}\n  | 1\n'
        'sound: a < MSG x 1\n  * made here\n  * extra: {"of":1}\n  | 1\n',
    ),
    "delivered_twice_in_group, to two members": (
        "delivered_twice_in_group",
        'c opened\nc > CONNECT {"name":"worker"}\nc > SUB x g 1\na > SUB x g 1\nb opened\n'
        f"b > SUB {INBOX}.* 1\nb > PUB x {INBOX}.1\n  | 1\n"
        f"sound: b > PUB x {INBOX}.2\n  | 1\nc < MSG x 1 {INBOX}.1\n  | 1\n"
        f"sound: a < MSG x 1 {INBOX}.2\n  | 1\nwrong: a < MSG x 1 {INBOX}.1\n  | 1\n",
    ),
    "delivered_twice_in_group, of a consumer": (
        "delivered_twice_in_group",
        CREATED
        + "sound: a < MSG s.2 2 $JS.ACK.S.c.2.2.3.1795340332080752913.0\n"
        + "wrong: a < MSG s.2 2 $JS.ACK.S.c.1.2.2.1795340332080752913.0\n",
    ),
    "message_after_unsub, after a PONG": (
        "message_after_unsub",
        "a > SUB x 1\na > UNSUB 1\nsound: a < MSG x 1\na > PING\na < PONG\nwrong: a < MSG x 1\n",
    ),
    "message_after_unsub, beyond its count": (
        "message_after_unsub",
        "a > SUB x 1\na > UNSUB 1 2\na > PING\na < PONG\na < MSG x 1\na < MSG x 1\n"
        "wrong: a < MSG x 1\nsound: a < HMSG x 1\n  NATS/1.0 503\n",
    ),
    "message_after_unsub, made here": (
        "message_after_unsub",
        "a > SUB x 1\na > UNSUB 1 1\na < MSG x 1\n  * not passed\n"
        'a < MSG x 1\n  * made here\n  * extra: {"of":0}\n'
        'wrong: a < MSG x 1\n  * made here\n  * extra: {"of":0}\n',
    ),
    "payload_changed, of a request": (
        "payload_changed",
        f"a > SUB x 1\na > SUB {INBOX}.* 2\na > PUB x {INBOX}.1\n  | 1\n"
        f"sound: a < MSG x 1 {INBOX}.1\n  | 1\nwrong: a < MSG x 1 {INBOX}.1\n  | 2\n",
    ),
    "payload_changed, of a stored message": (
        "payload_changed",
        f"a > SUB {INBOX}.* 2\na > PUB s.1 {INBOX}.1\n  | 1\na < MSG {INBOX}.1 2\n"
        '  json {"stream":"S","seq":1}\na > SUB d 3\n'
        "wrong: a < MSG s.1 3 $JS.ACK.S.c.1.1.1.1795340331000000000.0\n  | 2\n"
        "sound: a < MSG s.1 3 $JS.ACK.S.c.1.1.1.1795340339000000000.0\n  | 2\n",
    ),
    "ping_without_pong, of the client": (
        "ping_without_pong",
        "a > PING\nsound: a < PONG\n@ +6s\na closed client-closed\n",
    ),
    "ping_without_pong, of the server": (
        "ping_without_pong",
        "a < PING\nsound: a > PONG\n@ +6s\na > PUB x\n",
    ),
    "ping_without_pong, late": (
        "ping_without_pong",
        "a > PING\n@ +1s\nsound: a closed client-closed\nwrong: a > PUB x\n@ +6s\nb opened\n",
    ),
    "deaf_client": (
        "deaf_client",
        "a > SUB x 1\na < PING\na > PONG\n@ +6s\na < PING\nsound: a > PONG\n@ +1s\na < MSG x 1\n@ +6s\n"
        "a closed server-closed\n",
    ),
    "deaf_client, without subscriptions": (
        "deaf_client",
        "wrong: a > SUB x 1\na < PING\na > PONG\n@ +6s\na < PING\n@ +7s\na closed server-closed\n",
    ),
    "deaf_client, slow": (
        "deaf_client",
        "a > SUB x 1\na < MSG x 1\nwrong: a closed slow\nsound: a closed client-closed\n",
    ),
}


@pytest.mark.parametrize(("check", "text"), CASES.values(), ids=CASES)
def test_a_check_finds_what_it_is_for(check: str, text: str, tmp_path: Path) -> None:
    (found,) = statements(tmp_path, text, "wrong", check)
    assert (found.check, found.verdict) == (check, "found")
    assert found.clients[0] == "worker"
    assert "worker (connection 1): " in found.sentence


@pytest.mark.parametrize(("check", "text"), CASES.values(), ids=CASES)
def test_the_sound_twin_has_no_finding(check: str, text: str, tmp_path: Path) -> None:
    assert statements(tmp_path, text, "sound", check) == []


def test_each_check_has_a_case() -> None:
    assert {check for check, _ in CASES.values()} == set(CHECKS)
