"""Addresses are read one way, and shown without the secrets in them."""

from __future__ import annotations

import pytest

from natsproxy.addresses import (
    Address,
    mask_addresses,
    mask_url,
    mask_urls,
    parse_address,
    split_host_port,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("nats://host:1", Address("host", 1)),
        ("nats://host/", Address("host", 4222)),
        ("host", Address("host", 4222)),
        ("[::1]:5", Address("::1", 5)),
        ("nats://[fe80::1%eth0]", Address("fe80::1%eth0", 4222)),
        (":7", Address("", 7)),
        ("host:0", Address("host", 0)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tls://x:1", "must be nats://HOST:PORT, not 'tls://x:1': tls:// is not supported"),
        ("a:b:c", "must be HOST:PORT or nats://HOST:PORT (IPv6 as [::1]:4222), not "),
        ("::1", "must be HOST:PORT or nats://HOST:PORT (IPv6 as [::1]:4222), not "),
        ("", "must be HOST:PORT or nats://HOST:PORT (IPv6 as [::1]:4222), not ''"),
        ("nats://", "must be HOST:PORT or nats://HOST:PORT (IPv6 as [::1]:4222), not 'nats://'"),
        ("a..b:1", "must be HOST:PORT or nats://HOST:PORT (IPv6 as [::1]:4222), not 'a..b:1'"),
        ("h:1/path", "must be HOST:PORT or nats://HOST:PORT (IPv6 as [::1]:4222), not 'h:1/path'"),
        ("4222", "must be HOST:PORT, such as 127.0.0.1:4222, not '4222'"),
        ("host:99999", "must have a port up to 65535, not 99999"),
        ("nats://a:1,nats://b:1", "must be one server, not 'nats://a:1,nats://b:1'"),
        (
            "u:secret@h:1",
            "must have no credentials, not 'u:***@h:1': clients bring their own "
            "(or see upstream_credentials)",
        ),
        ("nats://u:secret", "must be HOST:PORT or nats://HOST:PORT (IPv6 as [::1]:4222), not 'nats://u:***'"),
    ],
)
def test_another_text_is_refused_without_its_password(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"^must ") as caught:
        parse_address(text)
    assert str(caught.value).startswith(says)


def test_a_caller_says_which_parts_may_be_missing() -> None:
    assert parse_address(":7", host="127.0.0.1") == Address("127.0.0.1", 7)
    assert parse_address("nats://u:secret@h:1", credentials=True) == Address("h", 1)
    with pytest.raises(ValueError, match=r"^must be HOST:PORT, such as host:4222, not 'host'$"):
        parse_address("host", port=None)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("h:1", ("h", 1)),
        ("[::1]:5", ("::1", 5)),
        ("[::1]", ("::1", 0)),
        ("gone", ("gone", 0)),
        ("h:x", ("h", 0)),
        ("h:99999", ("h", 0)),
        ("h:" + "9" * 5000, ("h", 0)),
    ],
)
def test_the_parts_of_an_address_in_a_capture(text: str, parts: tuple[str, int]) -> None:
    assert split_host_port(text) == parts


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
    """A text that may be a password without its host is hidden too."""
    assert mask_url(url) == masked


def test_in_texts_too() -> None:
    text = "see 'nats://u:p@h:1', tls://t@h or v:q@i: must be nats://HOST:PORT"
    shown = "see 'nats://u:***@h:1', tls://***@h or "
    assert mask_urls(text) == shown + "v:q@i: must be nats://HOST:PORT"
    assert mask_addresses(text) == shown + "v:***@i: must be nats://HOST:PORT"
    assert mask_urls("nothing: here") == mask_addresses("nothing: here") == "nothing: here"
