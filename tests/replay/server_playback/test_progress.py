"""The progress of a playback: exchanges with effects, and the index of those that are left."""

from __future__ import annotations

import gc

import pytest

from natsproxy.errors import CaptureError
from natsproxy.replay.conversation.exchanges import RecordedExchange, key_of
from natsproxy.replay.conversation.frame_kind import FrameKind, kind_of
from natsproxy.replay.conversation.identifier_map import IdentifierMap, LearnedPairs
from natsproxy.replay.conversation.recording import Recording
from natsproxy.replay.server_playback.progress import Progress
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import frames
from tests.replay.scripted import MS, events, hello, named


def test_an_exchange_hands_out_the_effects_that_waited_for_it_alone() -> None:
    progress = Progress(
        Recording(
            events(
                [*hello(1, "a"), (1, ">", b"SUB i 1\r\nPUB q i 0\r\n\r\n"), (1, "<", b"MSG i 1 0\r\n\r\n")]
            )
        )
    )
    progress.fill()
    recorded = progress.connections[named(1)]
    assert recorded.name == "a"
    sub, request = (queue[0] for queue in recorded.unused.by_key.values())
    assert progress.use(sub, sub.frame, 5) == []
    (effect,) = progress.use(request, request.frame, 7)
    assert (effect.caused_at, effect.effect.offset, effect.pending_causes) == (7, MS, 0)
    assert (recorded.unused_changes, recorded.unsent) == (0, 1)
    assert progress.recording.whole


def test_an_effect_read_after_its_cause_was_used_waits_for_nothing() -> None:
    lines = [*hello(1, "a"), (1, ">", b"SUB i 1\r\nPUB q i 0\r\n\r\n"), (1, "<", b"MSG i 1 0\r\n\r\n")]
    progress = Progress(Recording(events(lines)), window=1)
    progress.fill()
    assert not progress.recording.whole
    while progress.connections[named(1)].unused.by_key:
        exchange = next(iter(progress.connections[named(1)].unused.by_key.values()))[0]
        progress.use(exchange, exchange.frame, 3)
        progress.fill()
    (pending,) = progress.take_ready()
    assert (pending.effect.conn, pending.effect.queue, pending.caused_at) == (named(1), (b"1", b"i"), 3)


def test_unsubscribing_and_flow_control_are_optional() -> None:
    found = list(frames(b"UNSUB 1\r\nPUB $JS.FC.S.C.x 0\r\n\r\nPUB a 0\r\n\r\n", C2S))
    assert [kind_of(frame) is FrameKind.OPTIONAL for frame in found] == [True, True, False]


def test_an_invalid_connect_is_reported() -> None:
    with pytest.raises(CaptureError, match="connection 1 has an invalid CONNECT"):
        Recording(events([(1, ">", b"CONNECT nonsense\r\n")])).read()


def test_used_exchanges_leave_also_behind_one_that_never_comes() -> None:
    def in_memory() -> int:
        return sum(isinstance(one, RecordedExchange) for one in gc.get_objects())

    before = in_memory()
    progress = Progress(Recording(events([*hello(1, "a"), (1, ">", b"PUB a 0\r\n\r\n" * 3000)])))
    progress.fill()
    (publish,) = frames(b"PUB a 0\r\n\r\n", C2S)
    first, *others = progress.connections[named(1)].unused.by_key[key_of(publish)]
    for exchange in others:
        progress.use(exchange, exchange.frame, 1)
    del others, exchange
    assert progress.next_change({None}) == first.seq  # type: ignore[arg-type]
    assert in_memory() - before <= 1 + len(progress.recent) < 1100


def test_what_waits_or_was_used_keeps_only_its_own_bytes_alive() -> None:
    many = b"".join(b"PUB a%d 3\r\nxyz\r\n" % n for n in range(1000))
    sent = b"".join(b"MSG a%d 1 3\r\nxyz\r\n" % n for n in range(1000))
    progress = Progress(Recording(events([*hello(1, "a"), (1, ">", many), (1, "<", sent)])))
    progress.fill()
    recorded = progress.connections[named(1)]
    exchanges = [queue[0] for queue in recorded.unused.by_key.values()]
    effects = [pending.effect.frame for queue in recorded.queues.values() for pending in queue]
    assert sum(len(exchange.frame.buffer) for exchange in exchanges) == len(many)
    assert sum(len(frame.buffer) for frame in effects if frame is not None) == len(sent)
    for exchange in exchanges:
        raw = exchange.frame.raw
        progress.use(exchange, exchange.frame, 1)
        assert (exchange.frame.raw, exchange.frame.body) == (raw, b"xyz")
    assert sum(len(exchange.frame.buffer) for exchange in progress.recent) == len(many)


def _uuid(of: int) -> bytes:
    return b"%08d-4f89-41d3-9a0c-0305e82c3301" % of


def _order(n: int, of: int) -> bytes:
    body = b'{"id":"%b","n":%d}' % (_uuid(of), n)
    return b"PUB orders %d\r\n%b\r\n" % (len(body), body)


def test_a_frame_that_is_equal_but_for_known_identifiers_is_looked_at_first() -> None:
    made = Progress(Recording(events([*hello(1, "a"), (1, ">", b"".join(_order(1, n) for n in range(9)))])))
    made.fill()
    identifiers, new = IdentifierMap(), LearnedPairs()
    assert identifiers.unify(_uuid(7), _uuid(1000), new, "/id")
    identifiers.learn(new)
    (live,) = frames(_order(1, 1000), C2S)
    looked_at = [one.frame.body for one in made.connections[named(1)].unused.candidates(live, identifiers)]
    assert _uuid(7) in looked_at[0]
    assert len(set(looked_at)) == len(looked_at) == 9


def test_a_frame_far_from_its_turn_is_compared_with_those_of_its_shape_first() -> None:
    """Else clients that send a thousand frames in another order would cost a million comparisons."""
    count = 100
    made = Progress(
        Recording(events([*hello(1, "a"), (1, ">", b"".join(_order(n, n) for n in range(count)))]))
    )
    made.fill()
    (live,) = frames(_order(90, 1000), C2S)
    looked_at = [one.seq for one in made.connections[named(1)].unused.candidates(live, IdentifierMap())]
    first = min(looked_at)
    assert [seq - first for seq in looked_at[:17]] == [*range(16), 90]
    assert sorted(looked_at) == [*range(first, first + count)]
