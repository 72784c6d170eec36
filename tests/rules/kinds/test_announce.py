"""An INFO of ours has the members of the server's last one and those of the rule."""

from __future__ import annotations

import json

import pytest

from natsproxy.errors import ConfigError
from natsproxy.protocol.info import Info
from natsproxy.wire.ops import S2C
from tests.rules.kit import FakeView, S, Wire

TEXT = '[[rules]]\nname = "r"\nkind = "announce"\nbetween = ["2s"]\n'


def test_lame_duck_is_announced_in_time_and_once() -> None:
    info = Info(
        server_id="X", version="2.15.1", headers=True, max_payload=7, connect_urls=("a:1",), nonce=True
    )
    wire = Wire(TEXT + "lame_duck = true\n", view=FakeView(info=info))
    assert wire.rules.due(S) == ([], None, 2 * S)
    ((direction, raw),), close, again = wire.rules.due(2 * S)
    assert (direction, close, again) == (S2C, None, None)
    announced = json.loads(raw.removeprefix(b"INFO "))
    assert announced == {
        "server_id": "X",
        "version": "2.15.1",
        "headers": True,
        "max_payload": 7,
        "ldm": True,
    }
    assert wire.rules.due(3 * S) == ([], None, None)


def test_it_needs_something_to_say() -> None:
    with pytest.raises(ConfigError, match="it needs something to announce"):
        Wire(TEXT)
