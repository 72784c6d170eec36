"""Delivery: effects are sent in order, when they are due."""

from __future__ import annotations

from natsproxy.replay.conversation.exchanges import END, RecordedExchange
from natsproxy.replay.conversation.identifier_map import IdentifierMap
from natsproxy.replay.conversation.recording import Recording
from natsproxy.replay.server_playback.actions import Action, DisconnectClient, SendToClient
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.delivery_requests import DeliveryRequests
from natsproxy.replay.server_playback.progress import Progress
from natsproxy.replay.server_playback.recorded_effects import RecordedEffects
from tests.replay.scripted import MS, Line, events, hello, named

CONVERSATION: list[Line] = [
    *hello(1, "a"),
    (1, ">", b"SUB a 1\r\nPUB q 0\r\n\r\n"),
    (1, "<", b"MSG a 1 1\r\n1\r\n"),
    (1, "<", b"MSG a 1 1\r\n2\r\n"),
    (1, "closed", b"server-closed"),
]


class Table:
    """A recording with one client on its only connection."""

    def __init__(self, *, recorded_timing: bool = False) -> None:
        self.progress = Progress(Recording(events(CONVERSATION)))
        self.progress.fill()
        self.connection = self.progress.connections[named(1)]
        self.connection.client_id = 5
        self.effects = RecordedEffects(
            self.progress,
            IdentifierMap(),
            {5: Client(5)},
            DeliveryRequests(),
            recorded_timing=recorded_timing,
            codec_of=lambda subject: None,
        )
        self.sub, self.publish = sorted(
            (x for queue in self.connection.unused.by_key.values() for x in queue), key=lambda x: x.seq
        )

    def use(self, exchange: RecordedExchange, now: int) -> list[Action]:
        return self.effects.caused(self.progress.use(exchange, exchange.frame, now), now)


def test_effects_wait_for_their_subscription_and_keep_their_order() -> None:
    table = Table()
    assert table.use(table.publish, 0) == []
    table.progress.use(table.sub, table.sub.frame, 0)
    table.connection.sids[b"1"] = b"9"
    assert table.effects.arrived(table.connection, b"1", 0) == [
        SendToClient(5, b"MSG a 9 1\r\n1\r\n"),
        SendToClient(5, b"MSG a 9 1\r\n2\r\n"),
    ]


def test_recorded_timing_and_the_end_keep_their_distance() -> None:
    table = Table(recorded_timing=True)
    table.progress.use(table.sub, table.sub.frame, 0)
    table.connection.sids[b"1"] = b"9"
    assert table.use(table.publish, 0) == []
    assert table.effects.next_due() == MS
    assert len(table.effects.on_time(2 * MS)) == 2
    assert table.effects.release(table.connection, END, 2 * MS) == []
    assert table.effects.on_time(3 * MS) == [DisconnectClient(5)]
    assert table.effects.next_due() is None
