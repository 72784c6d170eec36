"""The errors of a replay that cannot go on."""

from __future__ import annotations

from natsproxy.errors import NatsproxyError


class ReplayError(NatsproxyError):
    """A replay cannot go on; the text says the reason."""


class ServerLost(ReplayError):
    """The real server closed a connection of a playback before it greeted."""


class Stalled(ReplayError):
    """Nothing happened for as long as was allowed; the text names the frame that was waited for."""
