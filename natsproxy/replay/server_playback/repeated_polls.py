"""Polls that come more often than recorded, or at other times.

A READ then gets the last answer again.  A pull request stays open until its turn comes or it expires.
"""

from __future__ import annotations

from natsproxy.replay.conversation.frame_kind import FrameKind
from natsproxy.replay.server_playback.actions import Action, SendToClient
from natsproxy.replay.server_playback.client import Client
from natsproxy.replay.server_playback.delivery_requests import DeliveryRequests
from natsproxy.replay.server_playback.effect_source import ClientFrame, EffectSource
from natsproxy.replay.server_playback.pairing import Pairing
from natsproxy.replay.server_playback.played import PlayedPoll
from natsproxy.replay.server_playback.recorded_effects import RecordedEffects
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame


class RepeatedPolls(EffectSource):
    """Repeats the answers of earlier polls, and matches open pull requests when their turn comes."""

    def __init__(self, pairing: Pairing, requests: DeliveryRequests, effects: RecordedEffects) -> None:
        self._pairing = pairing
        self._requests = requests
        self._effects = effects

    def on_frame(self, sent: ClientFrame) -> list[Action]:
        """Repeat the answer of a poll; after a change, match the open pull requests whose turn has come."""
        if sent.again is not None:
            return self._answer_again(sent.client, sent.again, sent.frame)
        if sent.kind is FrameKind.CHANGE and sent.exchange is not None and self._requests.pulls:
            return self._fulfil(sent.now)
        return []

    def _answer_again(self, client: Client, poll: PlayedPoll, frame: Frame) -> list[Action]:
        sid = client.listening_sid(frame.reply)
        if sid is None:
            return []
        actions: list[Action] = []
        for answer in poll.answers:
            body, block = self._effects.payload(answer), self._effects.live(answer.headers)
            actions.append(SendToClient(client.id, encode.msg(frame.reply, sid, body, headers=block)))
            client.received(sid, answer)
        return actions

    def _fulfil(self, now: int) -> list[Action]:
        """Match the open pull requests of all clients whose turn has come with a change."""
        actions: list[Action] = []
        for pull in self._requests.unrecorded():
            match = self._pairing.in_turn(pull.client, pull.frame, FrameKind.PULL)
            if match is not None:
                pull.unrecorded = False
                actions += self._effects.caused(self._pairing.fulfil(match, pull.frame, now), now)
        return actions
