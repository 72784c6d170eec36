"""The option that a mismatch recommends accepts the frame."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from natsproxy.replay.conversation.identifier_map import IdentifierMap, LearnedPairs
from natsproxy.replay.conversation.match_options import Given, MatchOptions, combine, read
from natsproxy.replay.conversation.matching import Matcher
from natsproxy.replay.server_playback.mismatch import advice_for
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S
from natsproxy.wire.parse import frames

_subjects = st.sampled_from(
    ["orders.new", "/orders", "header:x", "token", "a.6f1c0f2e-5b1c-4e6e-9d52-0d3c5c1d8a11"]
)
_keys = st.sampled_from(["id", "a/b", "~", "*", "", "first name", " x ", "token", "0", "\u00fc"])
_leaves = st.one_of(
    st.integers(0, 20),
    st.floats(0, 1),
    st.booleans(),
    st.none(),
    st.sampled_from(["", "x", "2026-11-22T10:00:00Z", "6f1c0f2e-5b1c-4e6e-9d52-0d3c5c1d8a11", "oc_7_1"]),
)
_json = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=6,
)
_bodies = st.one_of(
    _json.map(lambda value: json.dumps(value).encode()), st.sampled_from([b"", b"x", b"\xff{"])
)
_names = st.sampled_from(["A", "X-Id", "traceparent", "Nats-Msg-Id", "a*b"])
_blocks = st.dictionaries(_names, st.sampled_from(["1", "2", "x y", "\u00fc"]), max_size=3).map(
    lambda pairs: b"NATS/1.0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in pairs.items()).encode() + b"\r\n"
)


def frame(subject: str, block: bytes, body: bytes) -> Frame:
    return next(frames(encode.pub(subject.encode(), body, headers=block), C2S))


@given(_subjects, st.tuples(_blocks, _bodies), st.tuples(_blocks, _bodies))
def test_each_option_removes_its_difference(
    subject: str, recorded: tuple[bytes, bytes], live: tuple[bytes, bytes]
) -> None:
    ours, theirs = frame(subject, *recorded), frame(subject, *live)
    options: Given = {}
    seen: set[Any] = set()
    while (
        found := Matcher(IdentifierMap(), MatchOptions(**options)).differs(ours, theirs, LearnedPairs())
    ) is not None:
        advice = advice_for(ours, theirs, found, used=False)
        assert advice is not None
        assert advice not in seen
        seen.add(advice)
        options = combine(options, read({advice.key: advice.value}))
