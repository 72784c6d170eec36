"""Permissions: read from a plain dict, decided as a real server decides them."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from natsproxy.errors import ConfigError
from natsproxy.protocol import errors
from natsproxy.protocol.permissions import (
    DEFAULT_EXPIRES,
    Permissions,
    ResponsePermissions,
    ResponseRule,
    duration,
    parse_permissions,
)
from tests.kit.servers import NatsServer
from tests.protocol.live import Client

SECOND = 10**9


def publish(table: dict[str, Any], subject: bytes) -> bool:
    return parse_permissions(table).can_publish(subject)


@pytest.mark.parametrize(
    ("table", "subject", "allowed"),
    [
        ({}, b"a", True),
        ({"publish": "a"}, b"a", True),
        ({"pub": ["a", "b"]}, b"c", False),
        ({"publish": {"allow": ["a.>"], "deny": ["a.x"]}}, b"a.x", False),
        ({"publish": {"allow": ["a.>"], "deny": ["a.x"]}}, b"a.y", True),
        ({"publish": {"deny": "x"}}, b"y", True),
        ({"publish": {"allow": "w.*"}}, b"w.>", True),
        ({"publish": {"allow": ">"}}, b"a.", False),
        ({"publish": {"deny": ">"}}, b"a.", True),
        ({"allow_responses": True}, b"a", False),
        ({"allow_responses": True, "publish": {"deny": "b"}}, b"a", False),
        ({"allow_responses": True, "publish": "a"}, b"a", True),
    ],
)
def test_can_publish(table: dict[str, Any], subject: bytes, allowed: bool) -> None:
    """Allow first, deny wins, no allow list is everything."""
    assert publish(table, subject) is allowed


QUEUES = {"subscribe": {"allow": ["q.b grp", "q.c", "q.c g.*", "y.>"], "deny": ["y.* qg"]}}


@pytest.mark.parametrize(
    ("subject", "queue", "allowed", "arms"),
    [
        (b"q.b", b"", False, False),
        (b"q.b", b"grp", True, False),
        (b"q.b", b"other", False, False),
        (b"q.c", b"", True, False),
        (b"q.c", b"g.x", True, False),
        (b"q.c", b"h.x", False, False),
        (b"y.1", b"", True, False),
        (b"y.1", b"qg", False, True),
        (b"y.1", b"zz", True, True),
        (b"y.>", b"", True, True),
    ],
)
def test_queue_entries(subject: bytes, queue: bytes, allowed: bool, arms: bool) -> None:
    """An entry with a queue speaks of queue subscriptions only."""
    permissions = parse_permissions(QUEUES)
    assert permissions.can_subscribe(subject, queue) is allowed
    assert permissions.arms_filter(subject, queue) is arms


def test_delivery_filter() -> None:
    """A wide SUB is taken, arms the filter, and the denied messages are filtered."""
    permissions = parse_permissions({"subscribe": {"deny": ["foo.bar", "x.*"]}})
    assert permissions.can_subscribe(b"foo.*")
    assert permissions.arms_filter(b"foo.*")
    assert permissions.can_subscribe(b"foo.baz")
    assert not permissions.arms_filter(b"foo.baz")
    assert permissions.can_subscribe(b"bar.*")
    assert not permissions.arms_filter(b"bar.*")
    assert not permissions.can_subscribe(b"x.>")
    assert permissions.delivery_denied(b"foo.bar")
    assert not permissions.delivery_denied(b"foo.baz")


def test_delivery_filter_and_queues() -> None:
    """A plain deny entry catches queues too, one with a queue only that queue."""
    permissions = parse_permissions({"subscribe": {"deny": ["> q", "b.a"]}})
    assert not permissions.can_subscribe(b"b.a", b"h")
    assert permissions.can_subscribe(b"b.*", b"h")
    assert permissions.arms_filter(b"b.*", b"h")
    assert not permissions.can_subscribe(b"b.a", b"q")
    assert permissions.delivery_denied(b"b.a", b"h")
    assert permissions.delivery_denied(b"c", b"q")
    assert not permissions.delivery_denied(b"c", b"h")
    assert not permissions.delivery_denied(b"c")


def test_default_permissions() -> None:
    """A user without a map of its own has the default one."""
    default = parse_permissions({"publish": "a"})
    assert parse_permissions(None, default=default) is default
    assert parse_permissions(None).can_publish(b"anything")


def test_response_is_counted_and_overrides_deny() -> None:
    """A delivered reply may be used `max` times, whatever the deny list says."""
    table = {"publish": {"deny": ">"}, "allow_responses": {"max_msgs": 2, "ttl": "1s"}}
    state = ResponsePermissions(parse_permissions(table))
    assert not state.can_publish(b"r", 0)
    state.delivered(b"r", 0)
    assert [state.can_publish(b"r", 1) for _ in range(4)] == [True, True, False, False]
    state.delivered(b"r", 5)
    assert not state.can_publish(b"r", 5 + SECOND + 1)
    assert len(state) == 0


def test_negative_limits_are_none() -> None:
    """A negative max or expiry means no limit."""
    state = ResponsePermissions(parse_permissions({"allow_responses": {"max": -1, "expires": -1}}))
    state.delivered(b"r", 0)
    assert all(state.can_publish(b"r", now * SECOND * 10**6) for now in range(10))


def test_response_memory_is_bounded() -> None:
    """The oldest open reply goes when there are too many, expired ones first."""
    state = ResponsePermissions(Permissions(responses=ResponseRule(1, 10)), limit=3)
    for index in range(5):
        state.delivered(b"r%d" % index, 0)
    assert len(state) == 3
    assert [state.can_publish(b"r%d" % index, 1) for index in range(5)] == [False, False, True, True, True]
    state.delivered(b"later", 100)
    assert len(state) == 1


def test_publishable_replies_are_not_tracked() -> None:
    """Only what could not be published anyway is remembered, and nothing without allow_responses."""
    state = ResponsePermissions(parse_permissions({"publish": "a", "allow_responses": True}))
    state.delivered(b"a", 0)
    state.delivered(b"", 0)
    assert len(state) == 0
    plain = ResponsePermissions(parse_permissions({"publish": "a"}))
    plain.delivered(b"r", 0)
    assert not plain.can_publish(b"r", 0)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"publsh": "a"}, "publsh"),
        ({"publish": {"alow": "a"}}, "permissions.publish has no key 'alow'"),
        ({"publish": 1}, "permissions.publish must be"),
        ({"publish": ["a", 1]}, "permissions.publish must be"),
        ({"publish": "a..b"}, "'a..b' is not a valid subject"),
        ({"publish": "a q"}, "names a queue"),
        ({"subscribe": "a q r"}, "not a valid subject"),
        ({"subscribe": " "}, "not a valid subject"),
        ({"subscribe": {"deny": {"a": 1}}}, "permissions.subscribe.deny must be"),
        ({"publish": "a", "pub": "b"}, "twice"),
        ({"allow_responses": "yes"}, "permissions.allow_responses must be a table"),
        ({"allow_responses": {"max": "1"}}, "max must be a whole number"),
        ({"allow_responses": {"expires": "1 day"}}, "expires must be a duration"),
        ([], "permissions must be a table"),
    ],
)
def test_bad_maps(table: Any, says: str) -> None:
    """Each mistake is one sentence that names the key."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse_permissions(table)


@pytest.mark.parametrize(
    ("value", "nanoseconds"),
    [
        ("1m30s", 90 * SECOND),
        ("1.5s", 1_500_000_000),
        ("-1s", -SECOND),
        (2, 2 * SECOND),
        ("250ms", 250_000_000),
        ("0", 0),
    ],
)
def test_duration(value: Any, nanoseconds: int) -> None:
    """Durations are Go's, numbers are seconds."""
    assert duration(value, "x") == nanoseconds
    assert parse_permissions({"allow_responses": {"expires": 0}}).responses == ResponseRule(
        1, DEFAULT_EXPIRES
    )


# --- against a real server ---------------------------------------------------------------------------------

WORDS = ["a", "b", "*", ">"]
LITERALS = [b"a", b"b", b"a.a", b"a.b", b"b.a", b"b.b", b"a.a.a", b"a.b.a", b"b.a.b"]
QUEUE_NAMES = ["q", "g.x", "h"]
QUEUE_PATTERNS = [*QUEUE_NAMES, "g.*", "*"]


def a_pattern(rng: random.Random) -> str:
    tokens = rng.choices(WORDS, k=rng.randint(1, 3))
    while ">" in tokens[:-1]:
        tokens.pop()
    return ".".join(tokens)


def a_map(rng: random.Random) -> dict[str, Any]:
    def entries(queues: bool) -> list[str]:
        made = [a_pattern(rng) for _ in range(rng.randint(0, 3))]
        return [m + (f" {rng.choice(QUEUE_PATTERNS)}" if queues and rng.random() < 0.4 else "") for m in made]

    sides = {"publish": False, "subscribe": True}
    table: dict[str, Any] = {
        side: {key: entries(queues) for key in ("allow", "deny") if rng.random() < 0.7}
        for side, queues in sides.items()
    }
    return table


def with_users(users: list[dict[str, Any]]) -> str:
    return f"authorization {{ users: {json.dumps(users)} }}"


def log_in(port: int, user: str) -> Client:
    return Client(port, user=user, **{"pass": "x"})


def denied(answer: bytes) -> list[tuple[bytes, bytes]]:
    texts = [errors.err_text(line[5:]) for line in answer.split(b"\r\n") if line.startswith(b"-ERR")]
    return [(found.subject, found.queue) for found in map(errors.classify, texts)]


def check_publish(client: Client, permissions: Permissions) -> None:
    subjects = [*LITERALS, b"a.*", b"a.>", b"*", b">", b"a.", b"*.b"]
    answer = client.exchange(b"".join(b"PUB %s 0\r\n\r\n" % subject for subject in subjects))
    assert denied(answer) == [(subject, b"") for subject in subjects if not permissions.can_publish(subject)]


def check_subscribe(client: Client, admin: Client, permissions: Permissions, rng: random.Random) -> None:
    wanted = [(a_pattern(rng).encode(), b"") for _ in range(3)]
    wanted += [(a_pattern(rng).encode(), queue.encode()) for queue in QUEUE_NAMES]
    rng.shuffle(wanted)
    lines = [b"SUB %s %s %d\r\n" % (*sub, sid) for sid, sub in enumerate(wanted)]
    decisions = [permissions.can_subscribe(*sub) for sub in wanted]
    answer = client.exchange(b"".join(lines))
    assert denied(answer) == [sub for sub, allowed in zip(wanted, decisions, strict=True) if not allowed]
    armed = any(permissions.can_subscribe(*sub) and permissions.arms_filter(*sub) for sub in wanted)
    admin.exchange(b"".join(b"PUB %s 0\r\n\r\n" % subject for subject in LITERALS))
    came = client.exchange(b"".join(b"UNSUB %d\r\n" % sid for sid in range(len(wanted))))
    got = {tuple(line.split()[1:3]) for line in came.split(b"\r\n") if line.startswith(b"MSG")}
    expected = set()
    for sid, ((pattern, queue), allowed) in enumerate(zip(wanted, decisions, strict=True)):
        listening = parse_permissions({"subscribe": pattern.decode()})
        for subject in LITERALS:
            matched = allowed and listening.can_subscribe(subject)
            if matched and not (armed and permissions.delivery_denied(subject, queue)):
                expected.add((subject, b"%d" % sid))
    assert got == expected


@pytest.mark.server
def test_decisions_equal_a_real_servers() -> None:
    """200 generated maps: the same PUBs and SUBs are denied, the same messages are delivered."""
    rng = random.Random(20)
    maps = [a_map(rng) for _ in range(200)]
    users = [{"user": f"u{index}", "password": "x", "permissions": table} for index, table in enumerate(maps)]
    users.append({"user": "admin", "password": "x", "permissions": {"publish": ">"}})
    with NatsServer(with_users(users)) as server, log_in(server.port, "admin") as admin:
        for index, table in enumerate(maps):
            with log_in(server.port, f"u{index}") as client:
                check_publish(client, parse_permissions(table))
                check_subscribe(client, admin, parse_permissions(table), rng)


@pytest.mark.server
def test_responses_equal_a_real_servers() -> None:
    """Counts, the repeat of an open reply and the override of deny are the server's."""
    table = {"publish": {"deny": "x"}, "subscribe": ">", "allow_responses": {"max": 3, "expires": "1m"}}
    named: dict[str, Any] = {"user": "u", "password": "x", "permissions": table}
    users = [named, {"user": "admin", "password": "x"}]
    with (
        NatsServer(with_users(users)) as server,
        log_in(server.port, "admin") as admin,
        log_in(server.port, "u") as client,
    ):
        state = ResponsePermissions(parse_permissions(table))
        client.exchange(b"SUB in 1\r\n")
        for replies in ([b"r1"], [b"r2", b"r2"], [b"x"], [b"r1"], [b"r3"] * 5):
            admin.exchange(b"".join(b"PUB in %s 0\r\n\r\n" % reply for reply in replies))
            client.exchange(b"")
            for reply in replies:
                state.delivered(reply, 0)
            answer = client.exchange(b"PUB %s 0\r\n\r\n" % replies[0] * 5)
            expected = [state.can_publish(replies[0], 0) for _ in range(5)]
            assert len(denied(answer)) == expected.count(False), replies
