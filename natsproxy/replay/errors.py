"""The error of a replay that cannot go on."""

from __future__ import annotations

from natsproxy.errors import NatsproxyError


class ReplayError(NatsproxyError):
    """A replay that cannot go on: what it waited for, or what is not there."""


class Stalled(ReplayError):
    """Nothing happened for as long as was allowed; it says what it was waiting for."""
