"""The session as playbooks: transparency, greetings, fences, denial, rewriting, delay, limits, the end."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproxy import close_reasons
from natsproxy.capture.format.records import Flags
from natsproxy.events import Greeted, Notice
from natsproxy.rules.interface import Decision, EmptyChain, LinkConditions
from natsproxy.rules.model.verdicts import Close
from natsproxy.session.session import Session
from natsproxy.session.values import End, Send, SessionSettings
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, S2C, Direction, Op, op_mask
from tests.session.playbook import CONNECT, INFO, OneRule, Playbook

PING, PONG = encode.PING, encode.PONG
PUBS = op_mask(Op.PUB, Op.HPUB)


def deny(direction: Direction, frame: Frame, now: int) -> Decision | None:
    """Deny publishes below `no`."""
    if direction == C2S and frame.op == Op.PUB and frame.subject.startswith(b"no"):
        answer = encode.err(f'Permissions Violation for Publish to "{frame.subject.decode()}"')
        return Decision(out=(), answer=answer, cause="deny")
    if frame.op == Op.SUB and frame.subject.startswith(b"no"):
        return Decision(out=(), answer=encode.err("no sub"), cause="deny")
    return None


def test_a_suspended_connection_loses_messages_and_lives() -> None:
    play = Playbook().greeted()
    play.session.suspend(0, on=True)
    play.do(play.session.take_actions())

    play.client(b"PUB a 2\r\nhi\r\nPING\r\nSUB a 1\r\nPUB b 0\r\n\r\nPONG\r\n")
    play.server(b"MSG a 1 2\r\nhi\r\nPING\r\nPONG\r\n+OK\r\nMSG a 1 0\r\n\r\n")

    assert play.to_server == b"PING\r\nSUB a 1\r\nPONG\r\n"
    assert play.to_client == b"PING\r\nPONG\r\n+OK\r\n"

    # A server that has stopped: its client is answered after a moment, and once.
    play.client(b"PING\r\nSUB b 2\r\nPING\r\n")
    assert (play.to_server, play.to_client) == (b"PING\r\nSUB b 2\r\nPING\r\n", b"")
    play.at(play.now + 100_000_000)
    assert play.to_client == b"PONG\r\nPONG\r\n"
    play.server(b"PONG\r\nPONG\r\n")
    play.nothing()
    play.client(b"PING\r\n").server(b"PONG\r\n")
    assert (play.to_server, play.to_client) == (b"PING\r\n", b"PONG\r\n")
    play.session.suspend(0, on=False)
    play.do(play.session.take_actions())
    assert play.client(b"PUB c 0\r\n\r\n").to_server == b"PUB c 0\r\n\r\n"
    assert play.server(b"MSG a 1 0\r\n\r\n").to_client == b"MSG a 1 0\r\n\r\n"


def test_the_client_of_a_suspended_connection_is_answered_behind_a_backlog() -> None:
    """Its frames are read, and none is torn: those that pass wait for the server, the others are lost."""
    play = Playbook(queue_bytes=100_000, frame_hold_limit=0).greeted()
    play.client(b"PUB a 5\r\nwh")
    play.session.suspend(0, on=True)
    c2s = play.session.pipes[C2S]
    c2s.outbox.blocked = True
    assert play.to_server == b"PUB a 5\r\nwh"

    play.client(b"ole\r\nPUB a 4\r\nlost\r\nPING\r\nSUB a 1\r\nPUB a 9\r\nal").client(b"so lost\r\nPING\r\n")
    play.nothing()
    play.at(play.now + 100_000_000)
    assert (play.to_server, play.to_client) == (b"", b"PONG\r\nPONG\r\n")
    assert [record.data for record in play.records if record.cause == "swallow"] == [
        b"PUB a 4\r\nlost\r\n",
        b"PING\r\n",
        b"PUB a 9\r\nalso lost\r\n",
        b"PING\r\n",
    ]
    while not c2s.full:
        play.client(b"SUB b 2\r\n")
    assert c2s.outbox.bytes < 250_000

    c2s.outbox.blocked = False
    assert play.at(play.now).to_server.startswith(b"ole\r\nSUB a 1\r\nSUB b 2\r\n")
    play.session.suspend(0, on=False)
    play.do(play.session.take_actions())
    play.client(b"PUB a 2\r\nhi\r\nPING\r\n").server(b"PONG\r\n")
    assert (play.to_server, play.to_client) == (b"PUB a 2\r\nhi\r\nPING\r\n", b"PONG\r\n")


def test_a_verbose_client_is_told_that_a_lost_message_is_good() -> None:
    """Each +OK has its place among those of the server, as that of a message that a rule drops."""
    play = Playbook()
    play.server(INFO).client(b'CONNECT {"verbose":true}\r\nPING\r\n').server(b"+OK\r\nPONG\r\n")
    assert (play.to_server, play.to_client)[1].endswith(b"+OK\r\nPONG\r\n")
    play.session.suspend(0, on=True)
    play.do(play.session.take_actions())

    play.client(b"SUB a 1\r\nPUB a 2\r\nhi\r\nPUB a 0\r\n\r\nPING\r\nSUB b 2\r\n")
    assert play.to_server == b"SUB a 1\r\nPING\r\nSUB b 2\r\n"
    play.server(b"+OK\r\nPONG\r\n+OK\r\n")
    assert play.to_client == b"+OK\r\n+OK\r\n+OK\r\nPONG\r\n+OK\r\n"

    # The rest of a fence that has gone by without its PONG is no place for other work.
    play.client(b"PUB a 0\r\n\r\n").at(play.now + 100_000_000)
    assert (play.to_server, play.to_client) == (b"PING\r\n", b"+OK\r\n")
    play.client(b"BOGUS\r\n")
    assert play.to_server == b"PING\r\n"
    play.server(b"PONG\r\nPONG\r\n")
    assert play.to_client == b"-ERR 'Unknown Protocol Operation'\r\n"


def test_the_first_ping_of_a_client_is_the_servers_to_answer() -> None:
    """It asks whether the login is good, also where messages are lost from the start."""
    play = Playbook()
    play.session.suspend(0, on=True)
    play.do(play.session.take_actions())
    play.server(INFO).client(CONNECT + b"PING\r\n").at(1_000_000_000)
    assert play.to_client == INFO
    play.server(b"-ERR 'Authorization Violation'\r\n").eof(S2C)
    assert play.to_client == b"-ERR 'Authorization Violation'\r\n"


@pytest.mark.parametrize(
    ("sent", "said"), [(b"", "said nothing"), (b'CONNECT {"verb', "did not finish its CONNECT")]
)
def test_a_client_that_stalls_is_named_by_what_it_did(sent: bytes, said: str) -> None:
    play = Playbook(auth_timeout=1_000_000_000)
    play.server(INFO).client(sent).at(1_000_000_000)
    assert play.to_client == INFO + b"-ERR 'Authentication Timeout'\r\n"
    assert play.end is not None
    assert (play.end.cause, play.end.detail) == (
        close_reasons.STALLED,
        f"the client {said} in the auth time-out",
    )


def test_every_byte_passes_as_it_came() -> None:
    """Odd spacing, letter case and leading zeros are the client's own."""
    play = Playbook().greeted()
    odd = b"pUb  foo\t 000000002 \r\nhi\r\nSUB foo  1\r\nunsub 1 \nPING xyz\r\n"

    play.client(odd)

    assert play.to_server == odd


@given(st.lists(st.integers(0, 400), max_size=8), st.integers(0, 2**32))
def test_a_conversation_split_anywhere_is_byte_exact(cuts: list[int], seed: int) -> None:
    """However TCP cuts the streams, the bytes that go out came in like that, and are recorded like that."""
    rng = random.Random(seed)
    sent = (
        CONNECT
        + b"PING\r\n"
        + b"".join(
            rng.choice(
                [
                    b"PUB a 2\r\nhi\r\n",
                    b"SUB a.* 1\r\n",
                    b"UNSUB 1\r\n",
                    b"PING\r\n",
                    b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
                    b"PUB big 90\r\n" + b"x" * 90 + b"\r\n",
                ]
            )
            for _ in range(12)
        )
    )
    play = Playbook(frame_hold_limit=40)
    play.server(INFO)
    assert play.to_client == INFO
    points = sorted({min(cut, len(sent)) for cut in cuts})

    for start, end in zip([0, *points], [*points, len(sent)], strict=True):
        play.client(sent[start:end])

    assert play.to_server == sent
    recorded = b"".join(record.data for record in play.records if record.direction == C2S)
    assert recorded == sent
    firsts = [(r.in_first, r.frames) for r in play.records if r.direction == C2S]
    assert all(first is not None for first, _ in firsts)
    assert [first for first, _ in firsts] == [sum(n for _, n in firsts[:i]) for i in range(len(firsts))]


def note_each(direction: Direction, frame: Frame, now: int) -> Decision | None:
    """Let each delivery be answered to the server, as some rules do."""
    return Decision(answer=b"PUB seen 0\r\n\r\n") if direction == S2C and frame.op == Op.MSG else None


def streaming(**settings: object) -> Playbook:
    """A client in the middle of a payload that passes as it comes."""
    play = Playbook(OneRule(note_each, ops=Op.MSG.bit | Op.PUB.bit), **settings).greeted()
    play.client(b"SUB a 1\r\nPUB big 100000\r\n" + b"x" * 70_000)
    assert len(play.to_server) > 60_000
    return play


def test_nothing_of_ours_goes_into_the_middle_of_a_frame() -> None:
    """It follows when the frame has ended, before the client's next one; so does the fence of a drain."""
    play = streaming()
    play.server(b"MSG a 1 1\r\ny\r\n")
    play.session.drain(play.now)
    play.do(play.session.take_actions())
    assert play.to_client == b"MSG a 1 1\r\ny\r\n"
    play.nothing()

    play.client(b"x" * 30_000 + b"\r\nPUB next 0\r\n\r\n")

    assert play.to_server.removeprefix(b"x" * 30_000) == b"\r\nPUB seen 0\r\n\r\nPING\r\nPUB next 0\r\n\r\n"
    play.server(b"PONG\r\n")
    assert play.end is not None
    assert play.end.cause == close_reasons.DRAINED


def test_a_frame_that_never_ends_ends_the_connection() -> None:
    """Only where something waits behind it, and after the time that the settings give."""
    play = streaming(boundary_timeout=7)
    play.at(1_000)
    assert play.end is None
    play.server(b"MSG a 1 1\r\ny\r\n").at(1_006)
    assert play.end is None

    play.at(1_007)

    assert play.end is not None
    assert play.end.cause == close_reasons.MID_FRAME
    assert play.to_server == b""


def test_connect_is_read_and_emitted() -> None:
    """The session knows who the client is as soon as CONNECT passes."""
    play = Playbook().greeted()

    assert [e.name for e in play.events if isinstance(e, Greeted)] == ["app"]
    assert not play.session.connect.verbose


def test_the_account_stays_known() -> None:
    """The server names it once; later INFO, as of a cluster that changes, is about other things."""
    play = Playbook().greeted()
    play.server(INFO.replace(b'"headers"', b'"connect_info":true,"remote_account":"ACC","headers"'))
    play.server(INFO.replace(b'"headers"', b'"ldm":true,"headers"'))
    assert play.session.who.account == "ACC"


def test_bad_connect_closes_silently_after_earlier_replies() -> None:
    """nats-server closes without a word on bad JSON; its earlier replies still arrive."""
    play = Playbook().server(INFO)
    assert play.to_client == INFO
    play.client(b"PING\r\nCONNECT {bad}\r\nPUB a 1\r\nx\r\n")
    assert play.to_server == PING + PING

    play.server(PONG + PONG)

    assert play.to_client == PONG
    assert play.end is not None
    assert play.end.cause == close_reasons.CLIENT_PROTOCOL


def test_unknown_op_is_answered_in_order_and_closes() -> None:
    """The -ERR stands behind the replies to all earlier frames; no later frame goes on."""
    play = Playbook().greeted()
    play.client(b"SUB a 1\r\nPUB a 2\r\nhi\r\nBOGUS\r\nPUB a 2\r\nno\r\n")
    assert play.to_server == b"SUB a 1\r\nPUB a 2\r\nhi\r\n" + PING

    play.server(b"MSG a 1 2\r\nhi\r\n" + PONG)

    assert play.to_client == b"MSG a 1 2\r\nhi\r\n-ERR 'Unknown Protocol Operation'\r\n"
    assert play.end is not None


def test_argument_errors_close_without_a_word() -> None:
    """Wrong counts and numbers get no -ERR from nats-server."""
    play = Playbook().greeted()
    play.client(b"PUB a b c d\r\n").server(PONG)

    assert play.to_server == PING
    assert play.to_client == b""
    assert play.end is not None
    assert play.end.cause == close_reasons.CLIENT_PROTOCOL


def test_long_line_gets_the_servers_text() -> None:
    """max_control_line counts arguments only, on unfinished lines too."""
    play = Playbook().greeted()
    play.client(b"PUB " + b"a" * 4097)
    play.server(PONG)

    assert play.to_client == b"-ERR 'maximum control line exceeded'\r\n"


def test_a_fence_that_never_returns_ends_at_its_deadline() -> None:
    """A dead server does not keep the client waiting for its -ERR."""
    play = Playbook().greeted()
    play.client(b"BOGUS\r\n")
    assert play.to_server == PING

    play.at(6_000_000_000)

    assert play.to_client == b"-ERR 'Unknown Protocol Operation'\r\n"
    assert play.end is not None


def test_tls_hello_is_refused_by_name() -> None:
    """The end names the protocol of a client that does not speak NATS; the answer is the server's."""
    play = Playbook()
    play.server(INFO).client(b"\x16\x03\x01\x02\x00")

    assert play.end is not None
    assert "TLS ClientHello" in play.end.detail
    assert play.to_client == INFO + b"-ERR 'Unknown Protocol Operation'\r\n"
    play.nothing()


def test_another_port_of_the_server_is_refused_in_a_sentence() -> None:
    """A leafnode port cannot be proxied: its client gets the reason, once it has introduced itself."""
    play = Playbook()
    play.server(b'INFO {"leafnode_urls":["127.0.0.1:7422"],"version":"2.15.1"} \r\n')
    play.client(b'CONNECT {"name":"app"')
    assert play.to_server == b""
    play.client(b"}\r\nPING\r\n")
    assert play.to_server == b""
    assert b"-ERR 'natsproxy: the upstream is a leafnode port" in play.to_client
    assert play.end is not None
    assert (play.end.cause, "leafnode port" in play.end.detail) == (close_reasons.REFUSED, True)


@pytest.mark.parametrize("sent", [b"PING\r\n", b"PUB a 1\r\nx\r\n", b"SUB a 1\r\n", b"nonsense\r\n"])
def test_nothing_goes_to_a_port_that_is_not_for_clients(sent: bytes) -> None:
    play = Playbook()
    play.server(b'INFO {"leafnode_urls":["127.0.0.1:7422"]} \r\n').client(sent)
    assert play.to_server == b""
    assert b"-ERR 'natsproxy: the upstream is a leafnode port" in play.to_client
    assert play.end is not None


@pytest.mark.parametrize("advertise", ["strip", "pass"])
@pytest.mark.parametrize("offer", [(), ("tls_required",), ("tls_required", "tls_verify")])
@pytest.mark.parametrize("server", [(), ("tls_available",), ("tls_required", "tls_verify")])
def test_info_says_what_tls_the_client_leg_has(
    server: tuple[str, ...], offer: tuple[str, ...], advertise: str
) -> None:
    """Whatever the server leg has: clients upgrade, or fail, as INFO says."""
    settings = SessionSettings(tls=offer, advertise=advertise)
    session = Session(settings, EmptyChain(), conn=1, ordinal=1, address="", record=False, now=0)
    members = {"version": "2.15.1", **dict.fromkeys(server, True)}
    for _ in range(2):  # the first one and those that follow
        (send,) = session.receive(S2C, b"INFO " + json.dumps(members).encode() + b" \r\n", 0)
        assert isinstance(send, Send)
        shown = json.loads(bytes(send.data)[5:])
        assert shown == {"version": "2.15.1", **dict.fromkeys(offer, True)}


SECOND = 1_000_000_000


@pytest.mark.parametrize("sent", [b"", b"CONN", b'CONNECT {"verbose":false}'])
def test_a_client_that_stalls_before_its_first_frame_is_timed_out(sent: bytes) -> None:
    """As the server does whose users must say who they are."""
    play = Playbook(auth_timeout=2 * SECOND)
    play.server(INFO).client(sent).at(2 * SECOND - 1)
    assert play.end is None
    assert play.at(2 * SECOND).to_client == INFO + b"-ERR 'Authentication Timeout'\r\n"
    assert play.end is not None
    assert play.end.cause == close_reasons.STALLED


@pytest.mark.parametrize(
    "sent", [CONNECT, b"PING\r\n", b"PUB a 0\r\n\r\n", b"PUB a 1000000\r\n" + bytes(70_000)]
)
def test_a_client_may_be_silent_after_its_first_frame(sent: bytes) -> None:
    """A server without users asks for no CONNECT."""
    play = Playbook(auth_timeout=2 * SECOND)
    play.server(INFO).client(sent).at(60 * SECOND)
    assert play.end is None
    assert play.session.next_tick() is None


def test_the_servers_own_time_out_comes_alone() -> None:
    play = Playbook(auth_timeout=2 * SECOND)
    play.server(INFO + b"-ERR 'Authentication Timeout'\r\n").at(2 * SECOND)
    assert play.to_client == INFO + b"-ERR 'Authentication Timeout'\r\n"
    play.eof(S2C)
    assert play.end is not None
    assert play.end == End(close_reasons.SERVER_CLOSED, "the server said 'Authentication Timeout'")


def test_a_client_that_closes_after_a_refusal_of_a_played_capture_has_closed_itself() -> None:
    play = Playbook()
    play.server(INFO).client(CONNECT + b"PUB x 0\r\n\r\n")
    play.server(
        b"-ERR 'Permissions Violation for Publish to \"x\": not in the capture: body: 1 recorded'\r\n"
    )
    play.eof(C2S).eof(S2C)
    assert play.end is not None
    assert play.end.cause == close_reasons.CLIENT_CLOSED


def test_a_client_without_info_is_not_timed_out() -> None:
    """A rule keeps INFO back: the time counts anew."""
    play = Playbook(OneRule(lambda *_: None, link=LinkConditions(paused=True)), auth_timeout=2 * SECOND)
    play.server(INFO).at(9 * SECOND)
    assert (play.to_client, play.end) == (b"", None)


def test_denied_publish_is_answered_at_its_place() -> None:
    """PING, denied PUB, PING: the client sees PONG, -ERR, PONG, as from the server."""
    play = Playbook(OneRule(deny, PUBS)).greeted()
    play.client(b"PING\r\nPUB no.x 1\r\nx\r\nPUB no.y 1\r\ny\r\nPING\r\nPUB ok 1\r\nz\r\n")
    assert play.to_server == PING + PING + PING + b"PUB ok 1\r\nz\r\n"  # neighbours share a fence

    play.server(PONG + PONG + PONG)

    assert play.to_client == (
        PONG
        + b"-ERR 'Permissions Violation for Publish to \"no.x\"'\r\n"
        + b"-ERR 'Permissions Violation for Publish to \"no.y\"'\r\n"
        + PONG
    )
    dropped = [r for r in play.records if r.cause == "deny"]
    assert [(r.data, r.out_first) for r in dropped] == [
        (b"PUB no.x 1\r\nx\r\n", None),
        (b"PUB no.y 1\r\ny\r\n", None),
    ]


def test_large_denied_publish_is_discarded_as_it_streams() -> None:
    """A denied payload is never buffered whole and never reaches the server."""
    play = Playbook(OneRule(deny, PUBS), frame_hold_limit=100).greeted()
    play.client(b"PUB no 1000\r\n" + b"x" * 10)
    for _ in range(99):
        play.client(b"x" * 10)
        assert play.session.pipes[C2S].scanner.held < 200
    play.client(b"\r\nPUB ok 1\r\nx\r\n").server(PONG)

    assert play.to_server == PING + b"PUB ok 1\r\nx\r\n"
    assert play.to_client.startswith(b"-ERR")


def test_a_denied_subscription_is_not_kept() -> None:
    """The sid of a denied SUB is free again."""
    play = Playbook(OneRule(deny, op_mask(Op.SUB))).greeted()
    play.client(b"SUB no 1\r\nSUB yes 1\r\n")

    assert list(play.session.subs) == [b"1"]
    assert play.session.subs[b"1"].subject == b"yes"


def test_second_info_waits_for_the_clients_own_pong() -> None:
    """A fence may provoke the INFO that follows the first PONG; clients expect PONG first."""
    play = Playbook(OneRule(deny, PUBS)).server(INFO).client(CONNECT + b"PUB no 1\r\nx\r\n")
    assert play.to_server == CONNECT + PING
    second = b'INFO {"connect_info":true,"remote_account":"$G"} \r\n'
    play.server(PONG + second)
    assert play.to_client == INFO + b"-ERR 'Permissions Violation for Publish to \"no\"'\r\n"

    play.client(PING).server(PONG)

    assert play.to_client == PONG + second


def test_rewritten_frames_are_recorded_on_both_legs() -> None:
    """A rewritten frame is two records tied by its ordinal."""

    def rewrite(direction: Direction, frame: Frame, now: int) -> Decision | None:
        if frame.op == Op.PUB:
            return Decision(out=(encode.with_line(frame, subject=b"t." + frame.subject),), cause="map")
        return None

    play = Playbook(OneRule(rewrite, PUBS), frame_hold_limit=20).greeted()
    play.client(b"PUB a 2\r\nhi\r\nPUB b 50\r\n" + b"x" * 20).client(b"x" * 30 + b"\r\n")

    assert play.to_server == b"PUB t.a 2\r\nhi\r\nPUB t.b 50\r\n" + b"x" * 50 + b"\r\n"
    mapped = [(r.data[:7], r.in_first, r.out_first, r.extra) for r in play.records if r.cause == "map"]
    assert mapped == [
        (b"PUB a 2", 2, None, None),
        (b"PUB t.a", None, 2, {"of": 2}),
        (b"PUB b 5", 3, None, None),
        (b"PUB t.b", None, 3, {"of": 3}),
    ]


def test_a_held_frame_holds_those_behind_it() -> None:
    """Order belongs to the direction; the record has both times."""

    def hold(direction: Direction, frame: Frame, now: int) -> Decision | None:
        return Decision(until=now + 1_000, cause="late") if frame.subject == b"slow" else None

    play = Playbook(OneRule(hold, PUBS)).greeted()
    play.client(b"PUB slow 1\r\na\r\nPUB fast 1\r\nb\r\nPING\r\n")
    play.nothing()
    assert play.at(999).to_server == b""

    assert play.at(1_000).to_server == b"PUB slow 1\r\na\r\nPUB fast 1\r\nb\r\nPING\r\n"
    late = next(r for r in play.records if b"slow" in r.data)
    assert (late.in_t, late.out_t) == (0, 1_000)


def test_overtaking_is_for_who_asks() -> None:
    """With `overtake` the frames behind go ahead."""

    def hold(direction: Direction, frame: Frame, now: int) -> Decision | None:
        return Decision(until=now + 1_000, overtake=True) if frame.subject == b"slow" else None

    play = Playbook(OneRule(hold, PUBS)).greeted()
    play.client(b"PUB slow 1\r\na\r\nPUB fast 1\r\nb\r\n")
    play.at(1)
    assert play.to_server == b"PUB fast 1\r\nb\r\n"

    assert play.at(1_000).to_server == b"PUB slow 1\r\na\r\n"


def test_dropped_verbose_publish_still_earns_its_ok() -> None:
    """A verbose client counts replies."""

    def drop(direction: Direction, frame: Frame, now: int) -> Decision | None:
        return Decision(out=(), ok=True, cause="drop") if frame.op == Op.PUB else None

    play = Playbook(OneRule(drop, PUBS)).server(INFO)
    play.client(b'CONNECT {"verbose":true,"protocol":1}\r\nPUB a 1\r\nx\r\n')
    assert play.to_client == INFO

    play.server(b"+OK\r\n" + PONG)

    assert play.to_client == b"+OK\r\n+OK\r\n"


def test_a_failing_rule_closes_its_connection_only() -> None:
    """The rule is named in the event; nothing else is harmed."""

    def fail(direction: Direction, frame: Frame, now: int) -> Decision | None:
        raise RuntimeError("broken")

    play = Playbook(OneRule(fail, PUBS)).greeted()
    play.client(b"PUB a 1\r\nx\r\n")

    assert play.end is not None
    assert play.end.cause == close_reasons.RULE_FAILED
    (notice,) = [e for e in play.events if isinstance(e, Notice)]
    assert notice.text.startswith("a rule failed on PUB: RuntimeError at test_session.py:")
    assert "broken" not in notice.text  # it might quote the frame
    assert play.to_server == b""


def test_close_verdict_answers_first() -> None:
    """`-ERR` with close: in order, then the end."""

    def close(direction: Direction, frame: Frame, now: int) -> Decision | None:
        return Decision(close=Close("kick", encode.err("Stale Connection")), cause="kick")

    play = Playbook(OneRule(close, PUBS)).greeted()
    play.client(b"PUB a 1\r\nx\r\n").server(PONG)

    assert play.to_client == b"-ERR 'Stale Connection'\r\n"
    assert play.end is not None
    assert play.end.cause == close_reasons.RULE


def test_subscriptions_follow_the_server() -> None:
    """UNSUB max counts from the SUB; a live sid is not replaced; errors of the server free sids."""
    play = Playbook().greeted()
    play.client(b"SUB a 1\r\nSUB b 1\r\nSUB c 2\r\nUNSUB 2 1\r\nSUB d 3\r\n")
    assert {sid: sub.subject for sid, sub in play.session.subs.items()} == {
        b"1": b"a",
        b"2": b"c",
        b"3": b"d",
    }

    play.server(b"MSG c 2 1\r\nx\r\n" + b"-ERR 'Permissions Violation for Subscription to \"d\"'\r\n")

    assert list(play.session.subs) == [b"1"]


def test_unsub_max_is_ours_under_a_delivery_filter() -> None:
    """Filtered messages do not count: the server gets no limit, we unsubscribe after the last delivery."""

    def filtered(direction: Direction, frame: Frame, now: int) -> Decision | None:
        return Decision(out=(), cause="filter") if frame.body == b"no" else None

    chain = OneRule(filtered, op_mask(Op.MSG), alters_delivery=True)
    play = Playbook(chain).greeted()
    play.client(b"SUB a 1\r\nUNSUB 1 2\r\n")
    assert play.to_server == b"SUB a 1\r\n" + PING + b"UNSUB 1 999999999\r\n"
    one, no = b"MSG a 1 2\r\nhi\r\n", b"MSG a 1 2\r\nno\r\n"

    play.server(PONG + one + no + no + one + one)

    assert play.to_client == one + one
    assert play.to_server == PING + b"UNSUB 1\r\n" + PING
    assert play.server(one + PONG + PONG).to_client == b""
    assert dict(play.session.subs) == {}


def test_messages_in_flight_before_an_unsub_count_and_arrive() -> None:
    """A client that pipelines gets all that the server had sent when it read the UNSUB, and then no more."""
    chain = OneRule(lambda direction, frame, now: None, op_mask(Op.MSG), alters_delivery=True)
    play = Playbook(chain).greeted()
    play.client(b"SUB a 1\r\nPUB a 0\r\n\r\nPUB a 0\r\n\r\nUNSUB 1 1\r\n")
    message = b"MSG a 1 0\r\n\r\n"

    assert play.server(message + message).to_client == message + message
    assert play.server(PONG).to_server.endswith(b"UNSUB 1\r\n" + PING)
    assert play.server(message).to_client == b""


def test_advertised_addresses_go() -> None:
    """Clients must not learn a way around the proxy, in any INFO."""
    settings = SessionSettings(self_host="10.0.0.1", self_port=4222)
    session = Session(settings, EmptyChain(), conn=1, ordinal=1, address="", record=False, now=0)
    info = b'INFO {"host":"1.2.3.4","port":9,"connect_urls":["1.2.3.4:9"],"tls_available":true} \r\n'

    (send,) = session.receive(S2C, info, 0)

    assert isinstance(send, Send)
    assert send.data == b'INFO {"host":"10.0.0.1","port":4222} \r\n'


def test_half_close_passes_and_the_cut_frame_with_it() -> None:
    """EOF inside a frame: the bytes go, the server sees EOF, the record is flagged."""
    play = Playbook().greeted()
    play.client(b"PUB a 10\r\nabc").eof(C2S)

    assert play.to_server == b"PUB a 10\r\nabc"
    assert play.finished == [C2S]
    assert play.records[-1].flags == 1

    play.eof(S2C)
    assert play.end is not None
    assert play.end.cause == close_reasons.CLIENT_CLOSED


def test_a_held_frame_that_the_end_cuts_is_recorded_once() -> None:
    """EOF finds it open, the end of the connection finds it in the queue."""

    def hold(direction: Direction, frame: Frame, now: int) -> Decision | None:
        return Decision(until=10**9, cause="holds") if frame.op == Op.PUB else None

    play = Playbook(OneRule(hold, ops=PUBS)).greeted()
    before = len(play.records)
    play.client(b"PUB a 100000\r\n" + b"x" * 70_000).eof(C2S)
    play.do(play.session.closed(play.now))

    assert [(record.cause, record.flags) for record in play.records[before:]] == [("holds", Flags.CUT)]


def test_the_end_of_a_stream_goes_on_behind_a_held_frame_that_it_cuts() -> None:
    """As far as the frame came, it goes at its time: nobody waits for the rest of it."""

    def hold(direction: Direction, frame: Frame, now: int) -> Decision | None:
        return Decision(until=1_000, cause="holds") if frame.op == Op.PUB else None

    play = Playbook(OneRule(hold, ops=PUBS)).greeted()
    before = len(play.records)
    cut = b"PUB a 100000\r\n" + b"x" * 70_000
    play.client(cut).eof(C2S)
    play.nothing()

    assert play.at(1_000).to_server == cut
    assert play.finished == [C2S]
    assert [record.flags for record in play.records[before:]] == [Flags.CUT]


@pytest.mark.parametrize("renamed", [False, True])
def test_a_held_frame_that_streams_is_recorded_once_on_each_leg(renamed: bool) -> None:
    """Untouched it is one record with both times, rewritten two that the ordinal ties."""

    def hold(direction: Direction, frame: Frame, now: int) -> Decision | None:
        if frame.op != Op.PUB:
            return None
        out = (encode.with_line(frame, subject=b"b"),) if renamed else None
        return Decision(out=out, until=1_000, cause="late")

    play = Playbook(OneRule(hold, PUBS), frame_hold_limit=10).greeted()
    before = len(play.records)
    play.client(b"PUB a 20\r\n" + b"x" * 5).client(b"x" * 15 + b"\r\n").at(1_000)

    records = [(r.data[:5], r.in_first, r.out_first, r.extra) for r in play.records[before:]]
    both = [(b"PUB a", 2, None, None), (b"PUB b", None, 2, {"of": 2})]
    assert records == (both if renamed else [(b"PUB a", 2, 2, None)])


def test_unknown_op_from_the_server_makes_its_stream_opaque() -> None:
    """The stream passes with one notice; with a rule on that direction the connection ends."""
    play = Playbook().greeted()
    play.server(b"NEW thing\r\nMSG a 1 1\r\nx\r\n")
    play.server(b"more")
    assert play.to_client == b"NEW thing\r\nMSG a 1 1\r\nx\r\nmore"
    assert len([e for e in play.events if isinstance(e, Notice)]) == 1
    play.session.pipes[S2C].inject(PING, Op.PING.bit, 0, "rule")
    play.nothing()

    guarded = Playbook(OneRule(deny, op_mask(Op.MSG))).greeted()
    guarded.server(b"NEW thing\r\n")
    assert guarded.end is not None


def test_drain_ends_where_everything_is_answered() -> None:
    """A shutdown waits for the answers to all that the client has sent."""
    play = Playbook().greeted()
    play.client(b"SUB a 1\r\nPUB a 1\r\nx\r\n")
    play.session.drain(0)
    play.do(play.session.take_actions())
    assert play.to_server == b"SUB a 1\r\nPUB a 1\r\nx\r\n" + PING

    play.server(b"MSG a 1 1\r\nx\r\n" + PONG)

    assert play.to_client == b"MSG a 1 1\r\nx\r\n"
    assert play.end is not None
    assert play.end.cause == close_reasons.DRAINED


def drained() -> Playbook:
    """A client with an inbox and two requests, whose connection is drained."""
    play = Playbook().greeted()
    play.client(b"SUB in.* 1\r\nPUB a in.1 1\r\nx\r\nHPUB b in.2 12 12\r\nNATS/1.0\r\n\r\n\r\n")
    play.session.drain(0)
    play.do(play.session.take_actions())
    assert play.to_server.endswith(PING)
    assert play.session.requests() == {b"in.1", b"in.2"}
    return play


def test_drain_waits_for_the_answers_to_requests() -> None:
    """An answer in pieces is waited for whole; the server's 503 is an answer too."""
    play = drained()
    play.server(b"MSG in.1 1 1\r\nx\r\n" + PONG + b"MSG in.3 1 1\r\nx\r\n")
    play.client(b"PUB c in.4 0\r\n\r\n")
    assert play.session.requests() == {b"in.2", b"in.4"}
    play.server(b"HMSG in.2 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\nMSG in.4 1 90000\r\n" + b"x" * 80_000)
    assert play.end is None

    play.server(b"x" * 10_000 + b"\r\n")

    assert play.end is not None
    assert play.end.cause == close_reasons.DRAINED
    assert play.to_client.endswith(b"x\r\n")


def test_drain_waits_for_no_answer_without_a_subscription() -> None:
    play = drained()
    play.server(PONG)
    assert play.end is None
    play.client(b"UNSUB 1\r\n")
    assert play.end is not None


def test_drain_without_answers_ends_at_its_fence() -> None:
    play = drained()
    play.session.drain(0, answers=False)
    play.do(play.session.take_actions())
    assert play.server(PONG).end is not None


def test_drain_of_a_silent_server_still_waits_for_answers() -> None:
    """Its fence has a deadline, the requests have that of whoever drains."""
    play = drained()
    play.at(10_000_000_000)
    assert play.end is None
    assert play.session.next_tick() is None
    play.server(b"MSG in.1 1 0\r\n\r\nMSG in.2 1 0\r\n\r\n")
    assert play.end is not None


def test_drain_does_not_wait_for_requests_that_the_rules_denied() -> None:
    play = Playbook(OneRule(deny, PUBS)).greeted()
    play.client(b"SUB in.* 1\r\nPUB no in.1 1\r\nx\r\n")
    assert not play.session.requests()
    play.session.drain(0)
    play.do(play.session.take_actions())
    assert play.server(PONG).end is not None


def test_drain_does_not_wait_for_pulls() -> None:
    play = Playbook().greeted()
    play.client(b"SUB in.* 1\r\nPUB $JS.API.CONSUMER.MSG.NEXT.S.C in.1 0\r\n\r\n")
    play.session.drain(0)
    play.do(play.session.take_actions())
    assert play.server(PONG).end is not None


def test_nothing_of_ours_goes_out_inside_a_frame() -> None:
    """A deny while the server is in the middle of a large MSG: the -ERR waits for the frame's end."""
    play = Playbook(OneRule(deny, PUBS), frame_hold_limit=10).greeted()
    play.client(b"PUB no 1\r\nx\r\n")
    play.server(b"MSG a 1 30\r\n" + b"y" * 20)
    play.server(b"y" * 10 + b"\r\n" + PONG)

    assert play.to_client == (
        b"MSG a 1 30\r\n" + b"y" * 30 + b"\r\n" + b"-ERR 'Permissions Violation for Publish to \"no\"'\r\n"
    )


def test_unparsed_bytes_pass_where_that_is_configured() -> None:
    """From the first byte that is no NATS on, everything goes on as it came, with nothing of ours between."""
    play = Playbook(unparsed="pass").greeted()
    play.client(b"PUB a 1\r\nx\r\nBOGUS one\r\n")
    assert play.to_server == b"PUB a 1\r\nx\r\nBOGUS one\r\n"
    play.client(b"PUB a 1\r\n")
    play.do(play.session.fence(lambda now: None, 0))
    play.client(b"\x00 more")
    assert play.to_server == b"PUB a 1\r\n\x00 more"


def test_records_begin_and_end_when_asked() -> None:
    play = Playbook().greeted()
    play.session.record(False)
    play.records.clear()
    play.client(b"PUB a 1\r\nx\r\n")
    assert play.records == []
    play.session.record(True)
    play.client(b"PUB a 1\r\ny\r\n")
    assert [record.data for record in play.records] == [b"PUB a 1\r\ny\r\n"]


def test_a_snapshot_holds_the_state_of_the_connection_without_its_secrets() -> None:
    play = Playbook().server(INFO)
    play.client(b'CONNECT {"verbose":false,"pass":"hidden"}\r\nSUB a 1\r\nSUB b q 2\r\nUNSUB 2 5\r\n')
    play.server(b"MSG b 2 0\r\n\r\n")
    snapshot = play.session.snapshot()
    assert snapshot["info"] == INFO
    assert b"hidden" not in snapshot["connect"]
    assert snapshot["subs"] == [[b"1", b"a", b"", 0, 0], [b"2", b"b", b"q", 5, 1]]
    assert snapshot["ordinals"] == {"c2s_in": 4, "c2s_out": 4, "s2c_in": 2, "s2c_out": 2}
    assert snapshot["open"] == {"client": "127.0.0.1:1", "ordinal": 1, "key": "#1"}
    assert play.session.counts()["c2s_frames"] == 4
