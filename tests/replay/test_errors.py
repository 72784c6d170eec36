"""The errors of a replay belong to natsproxy's family."""

from __future__ import annotations

from natsproxy.errors import NatsproxyError
from natsproxy.replay.errors import ReplayError


def test_it_belongs_to_our_errors() -> None:
    assert issubclass(ReplayError, NatsproxyError)
