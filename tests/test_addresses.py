"""Addresses are shown without the secrets in them."""

from __future__ import annotations

import pytest

from natsproxy.addresses import mask_addresses, mask_url, mask_urls


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("nats://h:4222", "nats://h:4222"),
        ("h:4222", "h:4222"),
        ("[::1]:4222", "[::1]:4222"),
        ("::1", "::1"),
        ("nats://a:1,b:2", "nats://a:1,b:2"),
        ("nats://h:1/path", "nats://h:1/path"),
        ("nats://u:p@h:4222", "nats://u:***@h:4222"),
        ("nats://token@h", "nats://***@h"),
        ("u:p@h", "u:***@h"),
        ("nats://u:p@x/y@h:1", "nats://u:***@h:1"),
        ("nats://u:a,b@h", "nats://u:***@h"),
        ("nats://u:p@h1,tls://t@h2,h3", "nats://u:***@h1,tls://***@h2,h3"),
        ("u:p@h1,u:q@h2", "u:***@h2"),
        ("nats://u:p", "nats://u:***"),
        ("u:p", "u:***"),
        ("nats://h:1?token=t", "nats://h:***"),
        ("nats://u:p#1", "nats://u:***"),
    ],
)
def test_passwords_and_tokens_never_show(url: str, masked: str) -> None:
    """What may be one without its host is hidden too."""
    assert mask_url(url) == masked


def test_in_texts_too() -> None:
    text = "see 'nats://u:p@h:1', tls://t@h or v:q@i: must be nats://HOST:PORT"
    shown = "see 'nats://u:***@h:1', tls://***@h or "
    assert mask_urls(text) == shown + "v:q@i: must be nats://HOST:PORT"
    assert mask_addresses(text) == shown + "v:***@i: must be nats://HOST:PORT"
    assert mask_urls("nothing: here") == mask_addresses("nothing: here") == "nothing: here"
