"""INFO: reading it, and changing it without touching another byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.protocol import gojson, info
from natsproxy.protocol.info import Info, parse_greeting, parse_info, redact_info, rewrite_info, why_unusable
from natsproxy.protocol.redaction import INFO_SECRETS, redact_object

ARGS = (
    b'{"server_id":"N","version":"2.15.1","proto":1,"go":"\\u003cgo\\u003e","host":"h","port":4222,'
    b'"headers":true,"max_payload":1048576,"client_id":5,"nonce":"abc","connect_urls":["a:1","b:2"],"api_lvl":5}'
)


def test_parse() -> None:
    """The members that the proxy needs are read."""
    info = parse_info(ARGS)
    assert (info.version, info.port, info.headers, info.max_payload) == ("2.15.1", 4222, True, 1048576)
    assert info.connect_urls == ("a:1", "b:2")
    assert info.nonce is True
    assert info.ldm is False
    assert info.other_port == ""
    assert "abc" not in repr(info)


@pytest.mark.parametrize(
    ("args", "port"),
    [
        (b'{"proto":3,"route_pool_size":3}', "route"),
        (b'{"proto":3}', "route"),
        (b'{"leafnode_urls":["x"],"proto":3}', "leafnode"),
        (b'{"gateway":"A"}', "gateway"),
    ],
)
def test_other_ports_are_recognised(args: bytes, port: str) -> None:
    """An INFO of a route, leafnode or gateway port is known by its members."""
    assert parse_info(args).other_port == port


@pytest.mark.parametrize("args", [b"", b"{", b"[]", b'{"port":"x"}', b"{}{}"])
def test_bad_info(args: bytes) -> None:
    """What does not parse is an error."""
    with pytest.raises(ValueError, match=r"."):
        parse_info(args)


@pytest.mark.parametrize("name", [b"INFO", b"info"])
@pytest.mark.parametrize("end", [b"\r\n", b" \r\nPING\r\n", b""])
def test_the_first_line_of_a_server_tells_its_info(name: bytes, end: bytes) -> None:
    info = parse_greeting(name + b' {"max_payload":7}' + end)
    assert info is not None
    assert info.max_payload == 7


@pytest.mark.parametrize("line", [b"HTTP/1.1 400 Bad Request\r\n", b"INFO nothing\r\n", b""])
def test_another_first_line_is_no_info(line: bytes) -> None:
    assert parse_greeting(line) is None


def test_only_a_port_for_clients_can_be_proxied() -> None:
    client, leaf = parse_info(ARGS), parse_info(b'{"leafnode_urls":["127.0.0.1:7422"]}')
    assert why_unusable(client) is None
    assert "leaf" in (why_unusable(leaf) or "")


def test_unchanged_is_the_same_object() -> None:
    """Removing what is not there and setting what is so already changes nothing."""
    assert rewrite_info(ARGS, remove=["ws_connect_urls"], set={"port": 4222}) is ARGS


@pytest.mark.parametrize(
    ("args", "remove", "put", "expected"),
    [
        (b'{"a":1,"b": [1, 2] ,"c":3}', ["b"], {}, b'{"a":1,"c":3}'),
        (b'{"a":1,"b":[{"b":1}],"c":3}', [], {"b": ["<x>"]}, b'{"a":1,"b":["\\u003cx\\u003e"],"c":3}'),
        (b'{"a":1}', [], {"ldm": True}, b'{"a":1,"ldm":true}'),
        (b"{}", [], {"ldm": True}, b'{"ldm":true}'),
        (b'{"a":1}', ["a"], {}, b"{}"),
        (b'{"A":1,"a":2,"x":"\\u003c\xff"}', [], {"a": 3}, b'{"a":3,"x":"\\u003c\xff"}'),
        (b'{"A":1,"a":2,"x":1}', ["a"], {}, b'{"x":1}'),
        (b'{"a":{"b":1},"b":2}', ["b"], {}, b'{"a":{"b":1}}'),
    ],
)
def test_rewrite(args: bytes, remove: list[str], put: dict[str, object], expected: bytes) -> None:
    """Named members change, order and all other bytes stay."""
    assert rewrite_info(args, remove=remove, set=put) == expected


MEMBERS = st.dictionaries(
    st.sampled_from("abcdef"), st.integers(0, 3) | st.lists(st.text(max_size=2)), max_size=6
)


@given(MEMBERS, st.sets(st.sampled_from("abcdef")), MEMBERS)
def test_rewrite_changes_only_the_named_members(
    old: dict[str, object], remove: set[str], new: dict[str, object]
) -> None:
    """The result is the old object without `remove`, with `new` in place."""
    new = {key: value for key, value in new.items() if key not in remove}
    result = json.loads(rewrite_info(json.dumps(old).encode(), remove=remove, set=new))
    assert result == {key: value for key, value in {**old, **new}.items() if key not in remove}


def test_rewrite_refuses_a_text_that_is_no_object() -> None:
    """There is nothing to rewrite in null or in bad JSON."""
    for args in (b"null", b"{"):
        with pytest.raises(ValueError, match=r"."):
            rewrite_info(args)


def test_redact_info() -> None:
    """The nonce is withheld and nothing else."""
    assert redact_info(ARGS) == ARGS.replace(b'"abc"', b'"[withheld: secret]"')
    assert b"secret" not in redact_info(b'{"nonce":"secret"')


NAMES = [b'"client_id":', b'"client_id" :', b'"CLIENT_ID":', b'"client\\u005fid":', b'"\\"client_id":']
NUMBERS = [b"1", b"5", b"120", b"007", b"1.5", b"1e3", b"-4", b"9" * 18, b"9" * 19, b'"5"', b"null", b"{}"]
PLACES = st.sampled_from([b"%b", b'"jwt":{%b}', b'"x":[{%b}]', b'"x":"\\"%b"'])


def read(args: bytes, keep: bool) -> Info | str:
    """Return an INFO, or the reason why it is none.  keep: with what is kept of others."""
    try:
        return parse_info(args) if keep else info._parse.__wrapped__(args)
    except ValueError as error:
        return str(error)


@given(
    st.lists(
        st.tuples(PLACES, st.sampled_from(NAMES), st.sampled_from([*NUMBERS, info._ANY_ID])), max_size=2
    ),
    st.booleans(),
)
def test_what_is_kept_of_one_info_is_right_for_others(
    ids: list[tuple[bytes, bytes, bytes]], nonce: bool
) -> None:
    """Only their client_id differs; one at an unusual place, or another text, is read by itself."""
    members = [place % (name + number) for place, name, number in ids]
    members += [b'"nonce":"abc"'] * nonce
    put = {"host": "proxy", "port": 1, "connect_urls": ["a:1"]}
    for first in (b"", b'"client_id":71,', b'"client_id":72,'):
        args = b'{"server_id":"N",' + first + b",".join([*members, b'"port":4222}'])
        assert read(args, keep=True) == read(args, keep=False)
        redacted = redact_object(args, INFO_SECRETS)
        assert redact_info(args) == redacted or (redacted is None and b"withheld" in redact_info(args))
        try:
            expected = gojson.rewrite(args, remove=["nonce"], set=put)
        except ValueError:
            with pytest.raises(ValueError, match=r"."):
                rewrite_info(args, remove=["nonce"], set=put)
        else:
            assert rewrite_info(args, remove=["nonce"], set=put) == expected
