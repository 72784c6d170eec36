"""Rules that come into force on open connections: what was subscribed to before is theirs to judge too."""

from __future__ import annotations

import json

import pytest
import trio

from natsproxy.net.proxy import Proxy
from natsproxy.rules.chain import RuleChain
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.spec import load
from natsproxy.wire.ops import S2C
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
    play.server(b"MSG b 3 0\r\n\r\nMSG a.x 1 0\r\n\r\n" + b"PONG\r\n" * 6)
    assert [frame.raw for frame in frames(play.to_client, S2C)] == [
        b"MSG a.x 1 0\r\n\r\n",
        b'-ERR \'Permissions Violation for Subscription to "b" (sid "3")\'\r\n',
        b'-ERR \'Permissions Violation for Subscription to ">" using queue "g" (sid "4")\'\r\n',
    ]
    play.do(play.session.swap(chain(ALLOW), 0))
    assert play.to_server == b""


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

            async def say(data: bytes) -> list[bytes]:
                heard = b""
                await stream.send_all(data + b"PING\r\n")
                while b"PONG\r\n" not in heard:
                    heard += await stream.receive_some(65536)
                return [frame.raw for frame in frames(heard, S2C) if frame.raw[:4] not in (b"INFO", b"PONG")]

            told = json.dumps({"verbose": verbose, "pedantic": False, "headers": True}).encode()
            ok = [b"+OK\r\n"] * verbose
            assert await say(b"CONNECT " + told + b"\r\nSUB a.secret 1\r\nSUB a.open 2\r\n") == ok * 3
            proxy.swap(chain(DENY))
            assert await say(b"") == [
                b'-ERR \'Permissions Violation for Subscription to "a.secret" (sid "1")\'\r\n'
            ]
            proxy.swap(chain(""))
            heard = await say(b"PUB a.secret 1\r\nx\r\nPUB a.open 1\r\ny\r\n")
            assert [raw for raw in heard if raw not in ok] == [b"MSG a.open 2 1\r\ny\r\n"]
            assert len(heard) == 1 + 2 * verbose
        nursery.cancel_scope.cancel()
