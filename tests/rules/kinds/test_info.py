"""INFO is changed where it is told, and nowhere else."""

from __future__ import annotations

import pytest

from natsproxy.errors import ConfigError
from tests.rules.kit import Wire


def rule(*lines: str) -> str:
    return "\n".join(["[[rules]]", 'name = "r"', 'kind = "info"', *lines, ""])


def test_members_are_set_and_removed_and_the_rest_is_kept() -> None:
    raw = b'INFO {"server_id":"X", "max_payload":1048576,"jetstream":true} \r\n'
    out = Wire(rule('max_payload = "1KiB"', 'remove = ["jetstream"]')).s2c(raw)
    assert out == b'INFO {"server_id":"X","max_payload":1024} \r\n'


def test_lame_duck_and_urls() -> None:
    out = Wire(rule("lame_duck = true", 'connect_urls = "10.0.0.1:4222"')).s2c(b'INFO {"server_id":"X"} \r\n')
    assert out == b'INFO {"server_id":"X","ldm":true,"connect_urls":["10.0.0.1:4222"]} \r\n'


def test_an_info_with_the_wanted_members_passes() -> None:
    raw = b'INFO {"ldm": true} \r\n'
    assert Wire(rule("lame_duck = true")).s2c(raw) == raw


def test_it_needs_something_to_do() -> None:
    with pytest.raises(ConfigError, match="it needs something to set or remove"):
        Wire(rule())
