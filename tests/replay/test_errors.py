"""The replay's own error belongs to the one family."""

from __future__ import annotations

from natsproxy.errors import NatsproxyError
from natsproxy.replay.errors import ReplayError


def test_it_is_one_of_ours() -> None:
    assert issubclass(ReplayError, NatsproxyError)
