"""Errors of a replay that cannot continue."""

from __future__ import annotations

from natsproxy.errors import NatsproxyError


class ReplayError(NatsproxyError):
    """A replay cannot continue; the text says why."""


class ServerLost(ReplayError):
    """The real server closed a playback's connection before sending INFO."""


class Stalled(ReplayError):
    """No traffic within the time-out; the text names the awaited frame."""
