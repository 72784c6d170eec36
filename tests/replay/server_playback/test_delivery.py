"""Delivery: effects are sent in order, when they are due."""

from __future__ import annotations

from natsproxy.replay.conversation.exchanges import END, RecordedExchange
from natsproxy.replay.conversation.identifier_map import IdentifierMap
from natsproxy.replay.conversation.recorded_conversation import RecordedConversation
from natsproxy.replay.server_playback.actions import Action, DisconnectClient, SendToClient
from natsproxy.replay.server_playback.binding import Client
from natsproxy.replay.server_playback.delivery import Delivery
from tests.replay.scripted import MS, Line, events, hello, named

CONVERSATION: list[Line] = [
    *hello(1, "a"),
    (1, ">", b"SUB a 1\r\nPUB q 0\r\n\r\n"),
    (1, "<", b"MSG a 1 1\r\n1\r\n"),
    (1, "<", b"MSG a 1 1\r\n2\r\n"),
    (1, "closed", b"server-closed"),
]


class Table:
    """A conversation with one client on its only connection."""

    def __init__(self, *, recorded: bool = False) -> None:
        self.conversation = RecordedConversation(events(CONVERSATION))
        self.conversation.fill()
        self.actions: list[Action] = []
        self.recorded = self.conversation.connections[named(1)]
        self.recorded.client_id = 5
        self.delivery = Delivery(
            self.conversation, IdentifierMap(), {5: Client(5)}, self.actions, recorded=recorded
        )
        self.sub, self.publish = sorted(
            (x for queue in self.recorded.exchanges.values() for x in queue), key=lambda x: x.seq
        )

    def use(self, exchange: RecordedExchange, now: int) -> None:
        self.delivery.caused(self.conversation.use(exchange, exchange.frame, now), now)


def test_effects_wait_for_their_subscription_and_keep_their_order() -> None:
    table = Table()
    table.use(table.publish, 0)
    assert table.actions == []
    table.conversation.use(table.sub, table.sub.frame, 0)
    table.recorded.sids[b"1"] = b"9"
    table.delivery.arrived(table.recorded, b"1", 0)
    assert table.actions == [SendToClient(5, b"MSG a 9 1\r\n1\r\n"), SendToClient(5, b"MSG a 9 1\r\n2\r\n")]


def test_recorded_timing_and_the_end_keep_their_distance() -> None:
    table = Table(recorded=True)
    table.conversation.use(table.sub, table.sub.frame, 0)
    table.recorded.sids[b"1"] = b"9"
    table.use(table.publish, 0)
    assert table.delivery.deadline == MS
    table.delivery.tick(2 * MS)
    assert len(table.actions) == 2
    table.delivery.release(table.recorded, END, 2 * MS)
    table.delivery.tick(3 * MS)
    assert table.actions[2:] == [DisconnectClient(5)]
    assert table.delivery.deadline is None
