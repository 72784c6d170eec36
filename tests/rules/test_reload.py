"""Rules that come into force on open connections, with the subscriptions made before."""

from __future__ import annotations

import json

import pytest
import trio

from natsproxy import close_reasons
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.engine.subscription_check import LEAST
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.session.values import WorkLimit
from natsproxy.wire.ops import S2C, Op
from natsproxy.wire.parse import frames
from tests.differential.wirelog import settings_before
from tests.kit.servers import NatsServer
from tests.session.playbook import Playbook

DENY = '[[rules]]\nname = "r"\nkind = "deny"\nsubject = "a.secret"\n'
ALLOW = '[[rules]]\nname = "r"\nkind = "permissions"\nsubscribe = ["a.*", "b q"]\n'


def chain(text: str) -> RuleChain:
    return RuleChain(load(text, KINDS))


def test_subscriptions_that_a_new_map_does_not_admit_end() -> None:
    play = Playbook().greeted()
    play.client(b"SUB a.x 1\r\nSUB b q 2\r\nSUB b 3\r\nSUB > g 4\r\n")
    assert play.to_server
    play.do(play.session.swap(chain(ALLOW), 0))
    assert list(play.session.subs) == [b"1", b"2"]
    assert [line for line in play.to_server.split(b"\r\n") if line[:5] == b"UNSUB"] == [
        b"UNSUB 3",
        b"UNSUB 4",
    ]
    play.server(b"MSG b 3 0\r\n\r\nMSG a.x 1 0\r\n\r\n" + b"PONG\r\n" * 3)
    assert [frame.raw for frame in frames(play.to_client, S2C)] == [
        b"MSG a.x 1 0\r\n\r\n",
        b'-ERR \'Permissions Violation for Subscription to "b" (sid "3")\'\r\n',
        b'-ERR \'Permissions Violation for Subscription to ">" using queue "g" (sid "4")\'\r\n',
    ]
    play.do(play.session.swap(chain(ALLOW), 0))
    assert play.to_server == b""


class OneSlice(WorkLimit):
    """A slice that is over as soon as anybody asks."""

    def reached(self) -> bool:
        return True


def test_many_subscriptions_are_looked_at_in_slices_and_those_that_come_meanwhile() -> None:
    play = Playbook().greeted()
    play.client(b"".join(b"SUB s.%d %d\r\n" % (n, n) for n in range(10 * LEAST)))
    new = chain('[[rules]]\nname = "r"\nkind = "deny"\nsubject = ["s.3", "late.x"]\n')
    play.do(play.session.swap(new, 0, OneSlice()))
    assert play.session.chain is not new
    assert b"UNSUB 3\r\n" in play.to_server, "what was found ends at once"
    play.client(b"SUB late.x a\r\nSUB late.* b\r\nUNSUB 9\r\nSUB s.3 9\r\nPUB late.x 0\r\n\r\n")
    assert b"PUB late.x" in play.to_server, "the old rules are in force until the new ones are, all of them"
    slices = 1
    while play.session.chain is not new:
        play.do(play.session.swap(new, 0, OneSlice()))
        slices += 1
    assert 10 <= slices <= 12
    assert not {b"3", b"9", b"a"} & set(play.session.subs)
    play.server(b"PONG\r\n" * 30)
    play.server(b"MSG late.x b 0\r\n\r\nMSG late.y b 0\r\n\r\n")
    assert play.to_client.endswith(b"MSG late.y b 0\r\n\r\n")
    assert b"MSG late.x" not in play.to_client


def test_rules_that_change_again_during_a_look_are_looked_at_anew() -> None:
    play = Playbook().greeted()
    play.client(b"".join(b"SUB s.%d %d\r\n" % (n, n) for n in range(3 * LEAST)))
    play.do(play.session.swap(chain(ALLOW), 0, OneSlice()))
    assert play.to_server.count(b"UNSUB") == LEAST
    play.do(play.session.swap(chain(DENY), 0))
    assert len(play.session.subs) == 2 * LEAST


def test_a_sid_that_was_taken_away_is_free() -> None:
    play = Playbook().greeted()
    play.client(b"SUB a.secret 1\r\nSUB a.* 2\r\n")
    play.do(play.session.swap(chain(DENY), 0))
    play.server(b"PONG\r\n" * 3)
    assert play.to_client.startswith(b"-ERR")
    play.client(b"SUB a.open 1\r\n")
    play.server(b"MSG a.open 1 0\r\n\r\nMSG a.secret 2 0\r\n\r\nMSG a.open 2 0\r\n\r\n")
    assert play.to_client == b"MSG a.open 1 0\r\n\r\nMSG a.open 2 0\r\n\r\n"


@pytest.mark.server
@pytest.mark.parametrize("verbose", [False, True])
async def test_a_denial_that_is_loaded_later_holds_before_a_real_server(
    nats_server: NatsServer, verbose: bool
) -> None:
    proxy = Proxy(settings_before(nats_server.port))
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)
        async with await trio.open_tcp_stream("127.0.0.1", address.port) as stream:

            async def exchange(data: bytes) -> list[bytes]:
                received = b""
                await stream.send_all(data + b"PING\r\n")
                while b"PONG\r\n" not in received:
                    received += await stream.receive_some(65536)
                return [
                    frame.raw for frame in frames(received, S2C) if frame.raw[:4] not in (b"INFO", b"PONG")
                ]

            connect = json.dumps({"verbose": verbose, "pedantic": False, "headers": True}).encode()
            ok = [b"+OK\r\n"] * verbose
            assert await exchange(b"CONNECT " + connect + b"\r\nSUB a.secret 1\r\nSUB a.open 2\r\n") == ok * 3
            proxy.swap(chain(DENY))
            await proxy.rules_in_force()
            assert await exchange(b"") == [
                b'-ERR \'Permissions Violation for Subscription to "a.secret" (sid "1")\'\r\n'
            ]
            proxy.swap(chain("rules = []"))
            received = await exchange(b"PUB a.secret 1\r\nx\r\nPUB a.open 1\r\ny\r\n")
            assert [raw for raw in received if raw not in ok] == [b"MSG a.open 2 1\r\ny\r\n"]
            assert len(received) == 1 + 2 * verbose
        nursery.cancel_scope.cancel()


A, B = (f'[[rules]]\nname = "{name}"\nkind = "rewrite"\nprefix = "{name}"\n' for name in "ab")
PART = '[[rules]]\nname = "part"\nkind = "rewrite"\nfrom = "o.*"\nto = "p.o.$1"\n'


def lines(raw: bytes) -> list[bytes]:
    """Return lines without blanks at their ends."""
    return raw.split(b"\r\n")[:-1]


def test_open_subscriptions_follow_their_mapping() -> None:
    play = Playbook().greeted()
    play.do(play.session.swap(chain(A), 0))
    play.client(b"SUB o.x 1\r\nSUB o.y q 2\r\nSUB _INBOX.z 3\r\n")
    assert lines(play.to_server) == [b"SUB a.o.x 1", b"SUB a.o.y q 2", b"SUB _INBOX.z 3"]
    play.do(play.session.swap(chain(B), 0))
    moved = [b"UNSUB 1", b"UNSUB 2", b"PING", b"SUB b.o.x 1", b"SUB b.o.y q 2"]
    assert lines(play.to_server) == moved
    # Messages that the server sent before it knew come by the old subject; the client sees no change.
    play.server(b"MSG a.o.x 1 0\r\n\r\nPONG\r\nMSG b.o.y 2 0\r\n\r\n")
    assert play.to_client == b"MSG o.x 1 0\r\n\r\nMSG o.y 2 0\r\n\r\n"
    play.do(play.session.swap(chain(B + DENY), 0))
    assert play.to_server == b""
    play.do(play.session.swap(chain("rules = []"), 0))
    assert lines(play.to_server) == [b"UNSUB 1", b"UNSUB 2", b"PING", b"SUB o.x 1", b"SUB o.y q 2"]
    assert not any(pipe.scanner.watch_sids for pipe in play.server(b"PONG\r\n").session.pipes)


def test_changes_that_follow_closely_are_kept_apart() -> None:
    play = Playbook().greeted()
    play.client(b"SUB o.x 1\r\n")
    for text in (A, B, A):
        play.do(play.session.swap(chain(text), 0))
    assert lines(play.to_server) == [
        b"SUB o.x 1",
        b"UNSUB 1",
        b"PING",
        b"SUB a.o.x 1",
        b"UNSUB 1",
        b"PING",
        b"SUB b.o.x 1",
        b"UNSUB 1",
        b"PING",
        b"SUB a.o.x 1",
    ]
    for subject in (b"o.x", b"a.o.x", b"b.o.x", b"a.o.x"):
        assert play.server(b"MSG %s 1 0\r\n\r\n" % subject).to_client == b"MSG o.x 1 0\r\n\r\n"
        play.server(b"PONG\r\n")


def test_a_subscription_that_cannot_follow_ends_with_an_error() -> None:
    play = Playbook().greeted()
    play.client(b"SUB > 1\r\nSUB o.x 2\r\nSUB o.y 3\r\nSUB o.z 3\r\n")
    play.server(b"-ERR 'maximum subscriptions exceeded'\r\n")  # to which of the two of sid 3, it does not say
    assert play.to_client
    play.do(play.session.swap(chain(PART), 0))
    assert list(play.session.subs) == [b"2"]
    play.server(b"PONG\r\n" * 9)
    assert [frame.raw for frame in frames(play.to_client, S2C) if frame.op != Op.PONG] == [
        b'-ERR \'Permissions Violation for Subscription to ">" (sid "1")\'\r\n',
        b'-ERR \'Permissions Violation for Subscription to "o.y" (sid "3")\'\r\n',
    ]


def test_a_limit_survives_a_resubscription() -> None:
    play = Playbook().greeted()
    play.client(b"SUB o.x 1\r\nUNSUB 1 3\r\n")
    play.server(b"MSG o.x 1 0\r\n\r\n")
    play.do(play.session.swap(chain(A), 0))
    assert play.to_server
    play.server(b"MSG o.x 1 0\r\n\r\nPONG\r\n" + b"MSG a.o.x 1 0\r\n\r\n" * 3)
    assert play.to_client == b"MSG o.x 1 0\r\n\r\n" * 3
    assert b"UNSUB 1\r\n" in play.to_server
    assert not play.session.subs


def test_a_limit_that_the_session_keeps_outlives_the_rule_that_made_it_do_so() -> None:
    play = Playbook().greeted()
    play.do(play.session.swap(chain('[[rules]]\nname = "d"\nkind = "drop"\nsubject = "o.*"\n'), 0))
    play.client(b"SUB o.x 1\r\nUNSUB 1 2\r\n")
    play.server(b"PONG\r\n")
    play.do(play.session.swap(chain("rules = []"), 0))
    assert play.to_server
    play.server(b"MSG o.x 1 0\r\n\r\n" * 3)
    assert play.to_client == b"MSG o.x 1 0\r\n\r\n" * 2
    assert b"UNSUB 1\r\n" in play.to_server


def test_a_stream_that_is_not_read_any_more_ends_when_a_rule_comes_that_needs_it() -> None:
    play = Playbook().greeted()
    play.server(b"WHAT 1\r\n")
    play.do(
        play.session.swap(chain('[[rules]]\nname = "c"\nkind = "latency"\nop = "PUB"\ndelay = "1s"\n'), 0)
    )
    assert play.end is None
    play.do(play.session.swap(chain(DENY), 0))
    assert play.end is not None
    assert play.end.cause == close_reasons.SERVER_PROTOCOL


def test_subscriptions_that_the_server_refuses_leave_nothing_behind() -> None:
    play = Playbook(chain('[[rules]]\nname = "d"\nkind = "drop"\n')).greeted()
    for sid in range(50):
        play.client(b"SUB a..b %d\r\n" % sid)
    assert not play.session.pipes[S2C].scanner.tallies
    play.client(b"SUB a.b 7\r\n")
    assert play.session.pipes[S2C].scanner.tallies == {b"7": 0}


@pytest.mark.server
@pytest.mark.parametrize("verbose", [False, True])
async def test_a_subscription_follows_before_a_real_server(nats_server: NatsServer, verbose: bool) -> None:
    proxy = Proxy(settings_before(nats_server.port), chain(A))
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(proxy.serve)

        async def exchange(stream: trio.SocketStream, data: bytes) -> list[bytes]:
            received = b""
            await stream.send_all(data + b"PING\r\n")
            while b"PONG\r\n" not in received:
                received += await stream.receive_some(65536)
            return [frame.raw for frame in frames(received, S2C) if frame.raw[:4] not in (b"INFO", b"PONG")]

        connect = json.dumps({"verbose": verbose, "pedantic": False, "headers": True}).encode()
        ok = [b"+OK\r\n"] * verbose
        async with (
            await trio.open_tcp_stream("127.0.0.1", address.port) as inside,
            await trio.open_tcp_stream("127.0.0.1", nats_server.port) as outside,
        ):
            await exchange(outside, b'CONNECT {"verbose":false}\r\n')
            subscribed = b"CONNECT " + connect + b"\r\nSUB o.x 1\r\nSUB o.x q 2\r\nUNSUB 2 2\r\n"
            assert await exchange(inside, subscribed) == ok * 4
            await exchange(outside, b"PUB a.o.x 1\r\n1\r\n")
            first = await exchange(inside, b"")
            assert sorted(first) == [b"MSG o.x 1 1\r\n1\r\n", b"MSG o.x 2 1\r\n1\r\n"]
            proxy.swap(chain(B))
            await proxy.rules_in_force()
            assert await exchange(inside, b"") == []
            await exchange(outside, b"PUB a.o.x 1\r\n2\r\n" + b"PUB b.o.x 1\r\n3\r\n" * 2)
            assert sorted(await exchange(inside, b"")) == [
                b"MSG o.x 1 1\r\n3\r\n",
                b"MSG o.x 1 1\r\n3\r\n",
                b"MSG o.x 2 1\r\n3\r\n",
            ]
            assert (
                await exchange(inside, b"PUB o.x 1\r\n4\r\n")
                == [b"MSG o.x 1 1\r\n4\r\n", *ok][:: 1 - 2 * verbose]
            )
        nursery.cancel_scope.cancel()
