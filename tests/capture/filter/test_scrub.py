"""Filters: the values at the places that a user named are in no block, however frames are cut and written."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy.capture.filter.filters import Filters, PayloadScrub
from natsproxy.capture.filter.recording_filter import PayloadPolicy, RecordingFilter, Selection
from natsproxy.capture.filter.redact import Secrets
from natsproxy.capture.filter.scrub import Scrubber
from natsproxy.capture.format.records import CloseRecord, FiringRecord, Flags, Frames, Item, Preamble, decode
from natsproxy.capture.write import _builder_py
from natsproxy.capture.write.builder import BlockBuilder
from natsproxy.protocol.places import parse_pointer
from natsproxy.wire import encode
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from natsproxy.wire.parse import frames

FILTERS = Filters(
    headers=("authorization", "x-secret-*"),
    json=tuple(map(parse_pointer, ["/card", "/items/*/pin", "orders.> /name", "/a~1b", "/deep/0/x"])),
    subjects=(b"customers.*.orders", b"vault.>"),
)
HEAD = b"NATS/1.0\r\n"


def scrubbed(*raws: bytes, direction: Direction = C2S, filters: Filters = FILTERS) -> bytes:
    """Return frames as they are recorded; a second pass changes nothing."""
    scrubber = Scrubber(filters)
    found = b"".join(scrubber.frame(frame) for frame in frames(b"".join(raws), direction))
    again = Scrubber(filters)
    assert b"".join(again.frame(frame) for frame in frames(found, direction)) == found
    return found


def body(raw: bytes) -> bytes:
    """Return the payload of the last frame."""
    return [*frames(raw, C2S)][-1].body


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b'{"card":"4111","n":1.50}', b'{"card":"[filtered]","n":1.50}'),
        (b'{ "CARD" : 4111, "card": -1e9 }', b'{ "CARD" : 0, "card": 0 }'),
        (rb'{"c\u0061rd":true,"n":"card"}', rb'{"c\u0061rd":false,"n":"card"}'),
        (b'{"card":{"no":"4111"},"card":[1],"card":null}', b'{"card":{},"card":[],"card":null}'),
        (b'{"items":[{"pin":"1","q":2},{"pin":3}]}', b'{"items":[{"pin":"[filtered]","q":2},{"pin":0}]}'),
        (b'{"items":{"x":{"pin":"1"}}}', b'{"items":{"x":{"pin":"[filtered]"}}}'),
        (b'{"a/b":"x","deep":[{"x":1},{"x":2}]}', b'{"a/b":"[filtered]","deep":[{"x":0},{"x":2}]}'),
        (b'[{"card":1}]', b'[{"card":1}]'),
        (b'{"sub":{"card":1}}', b'{"sub":{"card":1}}'),
        (b'{"card":"4111"', b'"[filtered]"'),
        (rb'{"c\u0061rd":"4111"', b'"[filtered]"'),
        (b'{"card":"4111"} {}', b'"[filtered]"'),
        (b"\xef\xbb\xbf" + b'{"card":1}', b'"[filtered]"'),
        ('{"card":1}'.encode("utf-16"), b'"[filtered]"'),
        (b'{"card":NaN}', b'"[filtered]"'),
        (b"[" * 100_000, b'"[filtered]"'),
        (b'{"card":"\xff","x":"\xff"}', b'{"card":"[filtered]","x":"\xff"}'),
        (b"card 4111", b"card 4111"),
        (b"", b""),
        (b'{"name":"x"}', b'{"name":"x"}'),
    ],
)
def test_members_of_json(sent: bytes, kept: bytes) -> None:
    """Of any type, in every duplicate and letter case; what some reader may read as JSON goes whole."""
    assert body(scrubbed(encode.pub(b"a", sent))) == kept


def test_a_place_on_subjects_counts_for_answers_and_stored_messages_too() -> None:
    named, hidden = b'{"name":"x"}', b'{"name":"[filtered]"}'
    request, answer = encode.pub(b"orders.new", named, reply=b"_INBOX.1"), encode.pub(b"_INBOX.1", named)
    assert scrubbed(answer) == answer
    assert body(scrubbed(request, answer)) == hidden
    direct = encode.msg(b"_INBOX.2", b"1", named, headers=HEAD + b"Nats-Subject: orders.7\r\n\r\n")
    assert hidden in scrubbed(direct, direction=S2C)
    stored = {"subject": "orders.7", "data": base64.b64encode(named).decode(), "seq": 1}
    got = {"type": "io.nats.jetstream.api.v1.stream_msg_get_response", "message": stored}
    (frame,) = frames(scrubbed(encode.msg(b"_I.3", b"1", json.dumps(got).encode()), direction=S2C), S2C)
    message = json.loads(frame.body)["message"]
    assert base64.b64decode(message["data"]) == hidden
    assert message["seq"] == 1
    error = json.dumps({"type": got["type"], "error": {"code": 404}}).encode()
    assert error in scrubbed(encode.msg(b"_I.4", b"1", error), direction=S2C)


def test_payloads_that_are_secret_as_a_whole() -> None:
    filters = Filters(bodies=(b"$KV.vault.>",))
    for sent in (
        encode.pub(b"$KV.vault.k", b"x" * 40, reply=b"_INBOX.1"),
        encode.msg(b"_INBOX.2", b"1", b"\0", headers=HEAD + b"Nats-Subject: $KV.vault.k\r\n\r\n"),
    ):
        direction = C2S if sent.startswith(b"PUB") else S2C
        (frame,) = frames(scrubbed(sent, direction=direction, filters=filters), direction)
        assert frame.body == b"[filtered]"
    for same in (encode.pub(b"$KV.other.vault", b"x"), encode.pub(b"$KV.vault.k")):
        assert scrubbed(same, filters=filters) == same
    request = encode.pub(b"$KV.vault.k", b"x", reply=b"_INBOX.3")
    for answer, body in (
        (b'{"stream":"S","seq":7}', None),
        (b'{"error":{"code":400,"err_code":10071,"description":"wrong"}}', None),
        (b'{"seq":7,"pin":1}', b"[filtered]"),
        (b'{"error":"4711"}', b"[filtered]"),
        (b"4711", b"[filtered]"),
    ):
        told = scrubbed(request, encode.pub(b"_INBOX.3", answer), filters=filters)
        assert [*frames(told, C2S)][1].body == (body or answer)
    cut = encode.pub(b"$KV.vault.k", b"secret")[:-5]
    assert Scrubber(filters).cut(cut, C2S) == b"PUB $KV.vault.k 6\r\n"


def test_headers() -> None:
    block = HEAD + b"AUTHORIZATION:  Bearer x\r\n folded y\r\nX-Secret-A :z\r\n"
    block += b"Other: v\r\n more\r\nTo: vault.k\r\n\r\n"
    (frame,) = frames(scrubbed(encode.pub(b"a", b"hi", headers=block)), C2S)
    secrets = b"AUTHORIZATION: [filtered]\r\nX-Secret-A : [filtered]\r\n"
    assert frame.headers == HEAD + secrets + b"Other: v\r\n more\r\nTo: vault.[filtered]\r\n\r\n"
    assert frame.body == b"hi"


@pytest.mark.parametrize(
    ("filters", "sent"),
    [
        (Filters(headers=("*",)), encode.pub(b"a", headers=HEAD + b"B: c\r\n\r\n")),
        (Filters(headers=("x-*-key",)), encode.pub(b"a", headers=HEAD + b"X-My-Key: c\r\n\r\n")),
        (Filters(json=(parse_pointer("/0"),)), encode.pub(b"a", b"[1]")),
        (Filters(json=(parse_pointer("/*/2/*"),)), encode.pub(b"a", b'{"a":[0,0,[1]]}')),
        (Filters(json=(parse_pointer("/a b"),)), encode.pub(b"a", b'{"A B":1}')),
        (Filters(json=(parse_pointer("/key"),)), encode.pub(b"a", '{"\u212aey":1}'.encode())),
        (Filters(json=(parse_pointer("/\u00e9"),)), encode.pub(b"a", '{"\u00c9":1}'.encode())),
        (Filters(subjects=(b"*.*",)), encode.pub(b"a.b")),
    ],
)
def test_places_without_a_plain_word(filters: Filters, sent: bytes) -> None:
    assert scrubbed(sent, filters=filters) != sent


@pytest.mark.parametrize(
    ("direction", "sent", "kept"),
    [
        (C2S, b"PUB customers.bob.orders 0\r\n\r\n", b"PUB customers.[filtered].orders 0\r\n\r\n"),
        (C2S, b"PUB  customers.bob.carts 0\r\n\r\n", None),
        (C2S, b"SUB vault.a.b q 1\r\n", b"SUB vault.[filtered].[filtered] q 1\r\n"),
        (C2S, b"SUB customers.*.orders 1\r\n", None),
        (C2S, b"SUB customers.bob.> 1\r\n", b"SUB customers.[filtered].> 1\r\n"),
        (C2S, b"SUB > 1\r\n", None),
        (C2S, b"PUB a vault.k 1\r\nx\r\n", b"PUB a vault.[filtered] 1\r\nx\r\n"),
        (S2C, b"MSG vault.k 7 1\r\nx\r\n", b"MSG vault.[filtered] 7 1\r\nx\r\n"),
        (
            S2C,
            b"-ERR 'Permissions Violation for Publish to \"vault.k\"'\r\n",
            b"-ERR 'Permissions Violation for Publish to \"vault.[filtered]\"'\r\n",
        ),
        (
            C2S,
            b"PUB $JS.hub.API.DIRECT.GET.S.customers.bob.orders 0\r\n\r\n",
            b"PUB $JS.hub.API.DIRECT.GET.S.customers.[filtered].orders 0\r\n\r\n",
        ),
        (
            C2S,
            encode.pub(b"$JS.API.CONSUMER.CREATE.S", b'{"config":{"filter_subjects":["vault.k","a"]}}'),
            encode.pub(
                b"$JS.API.CONSUMER.CREATE.S", b'{"config":{"filter_subjects":["vault.[filtered]","a"]}}'
            ),
        ),
        (
            S2C,
            encode.msg(b"_I.1", b"1", b'{"type":"io.nats.x","state":{"subjects":{"vault.k":1}}}'),
            encode.msg(b"_I.1", b"1", b'{"type":"io.nats.x","state":{"subjects":{"vault.[filtered]":1}}}'),
        ),
        (C2S, b"PING\r\n", None),
    ],
)
def test_subjects(direction: Direction, sent: bytes, kept: bytes | None) -> None:
    """Only where a wildcard stands, and wherever NATS repeats them."""
    assert scrubbed(sent, direction=direction) == (sent if kept is None else kept)


def record(direction: Direction, raws: list[bytes], flags: int = 0, **more: object) -> Frames:
    """Return a record as a session makes it; of a frame that is not whole it gives no op."""
    data = b"".join(raws)
    ops = 0 if flags else sum({1 << frame.op for frame in frames(data, direction)})
    return Frames(1, direction, data, len(raws), ops, 0, 1, 0, 1, None, flags)._replace(**more)  # type: ignore[arg-type]


def kept(*items: Item, policies: tuple[str, ...] = ()) -> list[Item]:
    """Return the items that are left, which both filters agree on."""
    selection = Selection(payloads=tuple(map(PayloadPolicy.parse, policies)), filters=FILTERS)
    both = []
    for make in (BlockBuilder, _builder_py.BlockBuilder):
        builder = make(RecordingFilter(selection))
        builder.begin(0, 0)
        for item in items:
            builder.put(item)
        both.append(b"".join(builder.seal().buffers))
    assert both[0] == both[1]
    return [decode(fields, 0) for fields in msgpack.Unpacker(BytesIO(both[0]), raw=False)]  # type: ignore[misc]


def records(*items: Item, policies: tuple[str, ...] = ()) -> list[Frames]:
    """Return the records that are left."""
    return [item for item in kept(*items, policies=policies) if isinstance(item, Frames)]


def test_records_say_that_frames_were_changed_and_the_others_stay_a_run() -> None:
    plain, secret = encode.pub(b"a", b"x"), encode.pub(b"a", b'{"card":"4"}')
    first, changed, last = records(record(C2S, [plain, plain, secret, plain]))
    assert b"".join((first.data, changed.data, last.data)) == plain + plain + scrubbed(secret) + plain
    assert (changed.flags, changed.in_first, last.in_first) == (Flags.REDACTED, 2, 3)
    assert (first.flags, first.frames, last.flags) == (0, 2, 0)


def test_a_policy_acts_on_what_is_left() -> None:
    """The hash of a short secret would tell it."""
    secret = encode.pub(b"a", b'{"card":"4"}')
    first, second = (
        records(record(C2S, [secret]), policies=(policy,)) for policy in ("a=hash", "a=truncate:9")
    )
    (plain,) = records(record(C2S, [scrubbed(secret)]), policies=("a=hash",))
    assert first[0].extra == plain.extra
    assert bytes(second[0].data).endswith(b'\r\n{"card":"')


def test_events_and_preambles_lose_secret_tokens() -> None:
    firing = FiringRecord(
        1, 1, {"rule": "r", "subject": "vault.k", "detail": "denied 'customers.bob.orders'"}
    )
    close = CloseRecord(1, 1, "x", {"detail": 'no "vault.k"', "c2s_bytes": 5})
    preamble = Preamble(1, 1, {"connect": b"", "subs": [[b"1", b"vault.k", b"", 0, 0]], "ordinals": {}})
    found = [
        item.info
        for item in kept(firing, close, preamble)
        if isinstance(item, FiringRecord | CloseRecord | Preamble)
    ]
    assert found[0]["subject"] == "vault.[filtered]"
    assert found[0]["detail"] == "denied 'customers.[filtered].orders'"
    assert found[1] == {"detail": 'no "vault.[filtered]"', "c2s_bytes": 5}
    assert found[2]["subs"] == [[b"1", b"vault.[filtered]", b"", 0, 0]]


# -- no secret, however frames are cut

SECRET = "hunter2"
_json = st.sampled_from(
    [
        f'{{"card":"{SECRET}","n":1}}',
        f'{{"n":"\\u00e9","CARD":{{"x":["{SECRET}"]}}}}',
        f'{{"items":[{{"pin":"{SECRET}"}},{{"q":1}}]}}',
        f'  {{"card" :["{SECRET}"],"card":"{SECRET}"}}',
        f'{{"card":"{SECRET}"',
        f'{{"\\u0063ard":"{SECRET}"}}',
        '[1,{"card":"no secret here"}]',
    ]
).map(str.encode)
_blocks = st.lists(
    st.sampled_from([f"Authorization: {SECRET}", f"x-secret-1:{SECRET}", "A: b", f"To: vault.{SECRET}"]),
    max_size=3,
).map(lambda lines: HEAD + "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n")
_subjects = st.sampled_from(["a", "orders.1", f"vault.{SECRET}", f"customers.{SECRET}.orders"]).map(
    str.encode
)
_replies = st.sampled_from([b"", b"_INBOX.1", f"vault.{SECRET}".encode()])


@st.composite
def _sent(draw: st.DrawFn) -> tuple[Direction, list[bytes]]:
    direction = draw(st.sampled_from([C2S, S2C]))
    raws = []
    for _ in range(draw(st.integers(1, 3))):
        subject, reply, payload = draw(_subjects), draw(_replies), draw(_json)
        block = draw(_blocks | st.just(b""))
        if direction == C2S:
            raws.append(encode.pub(subject, payload, reply=reply, headers=block))
        else:
            raws.append(encode.msg(subject, b"1", payload, reply=reply, headers=block))
        if draw(st.booleans()):
            error = b"-ERR 'no permission for %b'\r\n" % subject
            raws.append(encode.sub(subject, b"1") if direction == C2S else error)
    return direction, raws


def _records(direction: Direction, raws: list[bytes], at: int) -> Iterator[Frames]:
    """Yield the record of all frames, then those that the last one makes when it is cut or too long."""
    yield record(direction, raws)
    last = raws[-1][: at % len(raws[-1])]
    yield record(direction, [last], Flags.CUT)
    yield record(direction, [*raws[:-1], last], Flags.CUT)._replace(frames=1)
    begun = last.find(b"\n") + 1
    if begun:
        op = next(frames(raws[-1], direction)).op
        for flags in (Flags.TRUNCATED, Flags.PAYLOAD):
            yield record(direction, [last], flags, ops=1 << op)


@given(_sent(), st.integers(0, 10_000))
def test_no_secret_is_in_a_block(sent: tuple[Direction, list[bytes]], at: int) -> None:
    direction, raws = sent
    for one in _records(direction, raws, at):
        for clean in Secrets().clean(one):
            for item in records(clean):
                whole = bytes(item.data) + repr(item.extra).encode()
                assert SECRET.encode() not in whole
                assert b'"card":"h' not in whole  # nor a part of one
                assert b"rization: h" not in whole
                if not item.flags & ~Flags.REDACTED:
                    assert len(list(frames(bytes(item.data), direction))) == item.frames


def test_ops_of_records_are_those_of_their_frames() -> None:
    """A frame never changes its op, so the summaries of blocks stay true."""
    hpub = encode.pub(b"a", b"", headers=HEAD + b"Authorization: x\r\n\r\n")
    (changed,) = records(record(C2S, [hpub]))
    assert [frame.op for frame in frames(bytes(changed.data), C2S)] == [Op.HPUB]


_token = st.binary(min_size=1, max_size=4).filter(lambda raw: not set(raw) & set(b" \t\r\n\0"))
_odd_bodies = st.one_of(
    st.binary(max_size=40),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["card", "message", "data", "subject", ""]), inner)
        ),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [
            b'{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","message":%b}' % inner
            for inner in (
                b"1",
                b"[]",
                b'{"subject":1}',
                b'{"subject":"a","data":"%%","hdrs":"\\u0000"}',
                b'"\\ud800"',
            )
        ]
    ),
)


@given(
    st.lists(_token, min_size=1, max_size=3).map(b".".join),
    st.sampled_from([b"", b"$JS.API.x.", b"vault.", b"customers."]),
    st.binary(max_size=30) | st.just(b""),
    _odd_bodies,
    st.integers(0, 200),
)
def test_no_frame_makes_it_fail(name: bytes, before: bytes, block: bytes, payload: bytes, at: int) -> None:
    raw = encode.pub(before + name, payload, reply=name, headers=block)
    (frame,) = frames(raw, C2S)
    scrubber = Scrubber(FILTERS)
    clean = scrubber.frame(frame)
    assert len(list(frames(clean, C2S))) == 1
    scrubber.cut(raw[:at], C2S)
    scrubber.text(payload)


# -- a user's function


def test_a_function_gets_each_payload_once_with_the_subject_that_it_is_about() -> None:
    """That of the request for an answer, of the message for a stored one; acks of JetStream are kept."""
    calls: list[tuple[str, dict[str, str], bytes]] = []

    def scrub(subject: str, headers: Mapping[str, str], payload: bytes) -> bytes:
        calls.append((subject, dict(headers), payload))
        return b"x" * 3

    scrubber = Scrubber(Filters(scrub=PayloadScrub(scrub)))
    stored = base64.b64encode(b"secret").decode()
    raws = [
        encode.pub(b"orders.new", b"pin", reply=b"_INBOX.1", headers=HEAD + b"A: b\r\n\r\n"),
        encode.pub(b"_INBOX.1", b"known"),
        encode.pub(b"_INBOX.1", b'{"stream":"S","seq":1}'),
        encode.pub(b"orders.new", b""),
        encode.pub(b"_INBOX.2", b"other"),
        encode.pub(
            b"_INBOX.3",
            json.dumps(
                {
                    "type": "io.nats.jetstream.api.v1.stream_msg_get_response",
                    "message": {"subject": "orders.old", "data": stored},
                }
            ).encode(),
        ),
    ]
    kept = [scrubber.frame(frame) for frame in frames(b"".join(raws), C2S)]
    assert [body(one) for one in kept] == [b"xxx", b"xxx", b'{"stream":"S","seq":1}', b"", b"xxx", b"xxx"]
    assert calls[:4] == [
        ("orders.new", {"A": "b"}, b"pin"),
        ("orders.new", {}, b"known"),
        ("_INBOX.2", {}, b"other"),
        ("orders.old", {}, b"secret"),
    ]
    assert calls[4][0] == "_INBOX.3"
    assert stored.encode() not in calls[4][2]
    cut = scrubber.cut(b"PUB orders.new 6\r\nsec", C2S)
    assert cut == b"PUB orders.new 6\r\n"


def test_a_function_that_fails_keeps_nothing_and_says_where() -> None:
    def scrub(subject: str, headers: Mapping[str, str], payload: bytes) -> bytes:
        raise ValueError(payload)

    function = PayloadScrub(scrub)
    scrubber = Scrubber(Filters(scrub=function))
    kept = [scrubber.frame(one) for one in frames(encode.pub(b"a", b"1") + encode.pub(b"b", b"2"), C2S)]
    assert [body(one) for one in kept] == [b"[filtered]"] * 2
    failure = function.failure.replace(str(_line_in(scrub)), "N")
    assert failure == "the function that scrubs payloads raised ValueError at test_scrub.py:N, for a"


def _line_in(function: Callable[..., object]) -> int:
    """Return the line of the first statement of a function."""
    return function.__code__.co_firstlineno + 1
