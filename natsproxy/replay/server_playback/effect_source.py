"""The sources of what live clients are sent, behind one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from natsproxy.replay.conversation.exchanges import RecordedExchange
from natsproxy.replay.conversation.frame_kind import DeliveryRequest, FrameKind
from natsproxy.replay.server_playback.actions import Action
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.played import PlayedPoll
from natsproxy.replay.server_playback.progress import PendingEffect
from natsproxy.wire.frames import Frame


class ClientFrame(NamedTuple):
    """A frame of a live client, and what it matched.

    exchange: the recorded exchange that it matched; None for an unrecorded frame.  again: the earlier poll
    that it repeats, whose exchange that is.  request: the exchange as a delivery request, if it is one.
    effects: those that waited for the exchange.
    """

    client: Client
    frame: Frame
    kind: FrameKind
    now: int
    exchange: RecordedExchange | None = None
    request: DeliveryRequest | None = None
    effects: list[PendingEffect] | tuple[()] = ()
    again: PlayedPoll | None = None


class EffectSource(ABC):
    """A source of frames for clients; each method returns the actions to take."""

    @abstractmethod
    def on_frame(self, sent: ClientFrame) -> list[Action]:
        """Handle a frame of a client."""

    def next_due(self) -> int | None:
        """Return the next time at which `on_time` has to be called, in ns; None for never."""
        return None

    def on_time(self, now: int) -> list[Action]:
        """Take the actions that are due."""
        return []

    def on_leave(self, client: Client, now: int) -> list[Action]:
        """Handle the end of a client's connection."""
        return []
