"""The lines that traffic needs: one row for each form of a subject."""

from __future__ import annotations

from pathlib import Path

import pytest

from natsproxy.permissions.formats import evidence_text
from natsproxy.permissions.needs import needs_of
from natsproxy.permissions.templates import COUNTED, Evidence
from natsproxy.permissions.uses import By, Verb
from natsproxy.units import MINUTE, SECOND
from tests.permissions.kit import (
    NUID,
    UUID,
    connect,
    items,
    msg,
    need,
    pub,
    published,
    segments,
    sub,
    subscribed,
)

ROWS = [
    (b"orders.created", "orders.created"),
    (b"orders.%b.created" % UUID, "orders.*.created"),
    (b"orders.%b.created" % NUID, "orders.*.created"),
    (b"orders.17.created", "orders.17.created"),
    (b"%b.17" % UUID, "*.17"),
    (b"_INBOX.%b.%b1f2e" % (NUID, NUID), "_INBOX.>"),
    (b"replies.%b.aB3dE5gH" % NUID, "replies.*.*"),
    (b"$JS.ACK.S.C.1.2.3.1795650499850975629.4", "$JS.ACK.S.C.>"),
    (b"$JS.ACK.S.aB3dE5gH.1.2.3.1795650499850975629.4", "$JS.ACK.S.*.>"),
    (b"$JS.ACK.hub.szMpdrwD.S.C.1.2.3.1795650499850975629.4", "$JS.ACK.hub.*.S.C.>"),
    (b"$JS.FC.S.C.aB3dE5gH", "$JS.FC.S.C.*"),
    (b"$JS.FC.hub.szMpdrwD.S.C.aB3dE5gH", "$JS.FC.hub.*.S.C.*"),
    (b"$JS.API.INFO", "$JS.API.INFO"),
    (b"$JS.API.STREAM.INFO.ORDERS1234", "$JS.API.STREAM.INFO.ORDERS1234"),
    (b"$JS.hub.API.STREAM.INFO.S", "$JS.hub.API.STREAM.INFO.S"),
    (b"$JS.API.CONSUMER.CREATE.S.billing.orders.*.>", "$JS.API.CONSUMER.CREATE.S.billing.orders.*.>"),
    (b"$JS.API.CONSUMER.CREATE.S.oc_%b_2.a.b" % NUID, "$JS.API.CONSUMER.CREATE.S.*.a.b"),
    (b"$JS.API.CONSUMER.MSG.NEXT.S.aB3dE5gH", "$JS.API.CONSUMER.MSG.NEXT.S.*"),
    (b"$JS.API.DIRECT.GET.KV_b.$KV.b.k", "$JS.API.DIRECT.GET.KV_b.$KV.b.k"),
    (b"$JS.API.ACCOUNT.STREAM.MOVE.A1234.S1234", "$JS.API.ACCOUNT.STREAM.MOVE.A1234.S1234"),
    (b"$JS.API.ACCOUNT.STREAM.MOVE..S", "$JS.API.ACCOUNT.STREAM.MOVE..S"),
    (b"$JS.API.CONSUMER.CREATE.S..a.%b" % NUID, "$JS.API.CONSUMER.CREATE.S..a.*"),
    (b"$JS.API.NEW.VERB.S.17", "$JS.API.NEW.VERB.S.17"),
    (b"$KV.b.k.%b" % UUID, "$KV.b.k.*"),
    (b"$O.b.C.%b" % NUID, "$O.b.C.*"),
    (b"$O.b.M.Y2F0", "$O.b.M.Y2F0"),
    (b"$SRV.INFO.catalog.%b" % NUID, "$SRV.INFO.catalog.*"),
]


@pytest.mark.parametrize(("subject", "line"), ROWS, ids=[line for _, line in ROWS])
def test_one_publish(subject: bytes, line: str, tmp_path: Path) -> None:
    assert published(need(tmp_path, pub(subject))) == [line]


VALUES = [
    ([b"o.1.x", b"o.2.x"], ["o.1.x", "o.2.x"]),
    ([b"o.1.x", b"o.2.x", b"o.3.x"], ["o.*.x"]),
    ([b"o.1.x", b"o.2.x", b"o.3.y"], ["o.1.x", "o.2.x", "o.3.y"]),
    ([b"o.1.7", b"o.2.7", b"o.3.7", b"o.3.8"], ["o.*.7", "o.*.8"]),
    ([b"o.1.7", b"o.2.8", b"o.3.9"], ["o.*.*"]),
    ([b"o.new", b"o.1", b"o.2", b"o.3"], ["o.*"]),
    ([b"1.x", b"2.x", b"3.x"], ["1.x", "2.x", "3.x"]),
    (
        [b"$JS.API.STREAM.INFO.S%d" % n for n in (100, 200, 300)],
        [f"$JS.API.STREAM.INFO.S{n}00" for n in (1, 2, 3)],
    ),
    ([b"$JS.API.CONSUMER.INFO.S.c-%d" % n for n in (1, 2, 3)], ["$JS.API.CONSUMER.INFO.S.*"]),
    ([b"$KV.b%d.k" % n for n in (100, 200, 300)], ["$KV.b100.k", "$KV.b200.k", "$KV.b300.k"]),
    ([b"$O.b.M.a", b"$O.b.M.b", b"$O.b.M.c"], ["$O.b.M.*"]),
    ([b"a.%b.x" % word for word in (b"b", b"c", b"d", b"e")], ["a.*.x"]),
    ([b"a.%b.x" % word for word in (b"b", b"c", b"d")], ["a.b.x", "a.c.x", "a.d.x"]),
]


@pytest.mark.parametrize(("subjects", "lines"), VALUES, ids=[" ".join(lines) for _, lines in VALUES])
def test_values_become_a_star_from_some_on(subjects: list[bytes], lines: list[str], tmp_path: Path) -> None:
    for order in (subjects, subjects[::-1]):
        assert (
            published(need(tmp_path / str(len(list(tmp_path.iterdir()))), *map(pub, order), words=4)) == lines
        )


def test_a_line_has_its_evidence(tmp_path: Path) -> None:
    frames = [pub(b"o.%d.created" % n) for n in (1, 2, 3, 3, 3)]
    ((place, evidence),) = need(tmp_path, *frames).lines.items()
    assert (place.subject, evidence.frames, evidence.distinct) == (b"o.*.created", 5, (3,))
    assert evidence.last - evidence.first == 40_000_000


@pytest.mark.parametrize(
    ("values", "text"), [(COUNTED - 1, f"{COUNTED - 1} values,"), (COUNTED + 1, f"{COUNTED}+ values,")]
)
def test_values_are_counted_up_to_a_bound(values: int, text: str) -> None:
    evidence = Evidence(frames=values, first=0, last=0)
    for value in range(values):
        evidence.note(1, (b"%d" % value,))
    assert text in evidence_text(evidence)
    assert len(evidence.values[1]) <= COUNTED


def test_a_subscription_keeps_its_queue(tmp_path: Path) -> None:
    one = need(tmp_path, sub(b"work.>", b"crew"), sub(b"work.>"), sub(b"_INBOX.%b.*" % NUID))
    assert subscribed(one) == ["_INBOX.>", "work.>", "work.> crew"]


def test_responses_need_no_line(tmp_path: Path) -> None:
    asked = msg(b"ask", b"_INBOX.%b.1" % NUID)
    answer = pub(b"_INBOX.%b.1" % NUID)
    one = need(tmp_path, sub(b"ask"), asked, answer, answer)
    assert (published(one), subscribed(one)) == ([], ["ask"])
    assert one.responses is not None
    assert (one.responses.most, one.responses.longest) == (2, 20_000_000)
    assert one.permissions() == {
        "publish": {"deny": [">"]},
        "subscribe": {"allow": ["ask"]},
        "allow_responses": {"max": 2, "expires": "10s"},
    }


def test_the_answer_of_another_connection_needs_a_line(tmp_path: Path) -> None:
    asked, answer = msg(b"ask", b"_INBOX.%b.1" % NUID), pub(b"_INBOX.%b.1" % NUID)
    found = items([(1, connect("it")), (2, connect("it")), (1, sub(b"ask")), (1, asked), (2, answer)])
    (one,) = needs_of(segments(tmp_path / "c", found, 9), By.NAME)
    assert (published(one), one.responses) == (["_INBOX.>"], None)


def test_an_ack_is_no_response(tmp_path: Path) -> None:
    ack = b"$JS.ACK.S.C.1.2.3.1795650499850975629.4"
    one = need(tmp_path, msg(b"orders", ack), pub(ack))
    assert (published(one), one.responses) == (["$JS.ACK.S.C.>"], None)


def test_a_late_response_gets_time(tmp_path: Path) -> None:
    asked, answer = msg(b"ask", b"r.1"), pub(b"r.1")
    found = items([(1, connect("it")), (1, asked), *[(1, pub(b"tick"))] * 700, (1, answer)])
    (one,) = needs_of(segments(tmp_path / "c", found, 999), By.NAME)
    assert one.responses is not None
    assert 7 * SECOND < one.responses.longest < one.responses.expires == 2 * MINUTE


def test_the_subject_of_a_trace_is_published(tmp_path: Path) -> None:
    block = b"NATS/1.0\r\nNats-Trace-Dest: traces.here\r\n\r\n"
    frame = b"HPUB orders %d %d\r\n%b\r\n" % (len(block), len(block), block)
    assert published(need(tmp_path, (">", frame))) == ["orders", "traces.here"]


def test_clients_are_told_apart(tmp_path: Path) -> None:
    sent = [(1, connect("a", "ann")), (2, connect("b", "ann")), (1, pub(b"x")), (2, pub(b"y"))]
    paths = segments(tmp_path / "c", items(sent), 9)
    by_user, by_name = needs_of(paths, By.USER), needs_of(paths, By.NAME)
    assert [(one.label, published(one)) for one in by_user] == [("ann", ["x", "y"])]
    assert [(one.label, published(one)) for one in by_name] == [("a", ["x"]), ("b", ["y"])]


CHOICES = [
    ([pub(b"$JS.API.CONSUMER.MSG.NEXT.S.C")], "python3", ["$JS.ACK.S.C.>"]),
    ([pub(b"$JS.API.CONSUMER.MSG.NEXT.S.C")], "go", ["$JS.ACK.S.C.>", "$JS.API.CONSUMER.INFO.S.C"]),
    (
        [pub(b"$JS.API.CONSUMER.CREATE.S.oc_%b_2.a" % NUID)],
        "nats.js",
        ["$JS.API.CONSUMER.DELETE.S.*", "$JS.API.CONSUMER.INFO.S.*"],
    ),
    ([pub(b"$JS.ACK.S.C.1.2.3.1795650499850975629.4")], "go", ["$JS.ACK.*.*.S.C.>"]),
    ([pub(b"$JS.ACK.hub.szMpdrwD.S.C.1.2.3.1795650499850975629.4")], "go", ["$JS.ACK.S.C.>"]),
    ([pub(b"$JS.API.CONSUMER.CREATE.S", b"", b'{"config":{"flow_control":true}}')], "", ["$JS.FC.S.*.*"]),
    ([pub(b"$JS.API.CONSUMER.CREATE.S", b"", b'{"config":{"flow_control":false}}')], "", []),
    (
        [
            pub(b"$JS.API.CONSUMER.CREATE.S.c-%d" % n, b"", b'{"config":{"flow_control":true}}')
            for n in (1, 2, 3)
        ],
        "",
        ["$JS.FC.S.*.*"],
    ),
    ([pub(b"$JS.API.CONSUMER.CREATE.S.C", b"", b'{"config":{"flow_control":true}}')], "", ["$JS.FC.S.C.*"]),
    (
        [pub(b"$JS.API.CONSUMER.CREATE.S", b"", b'{"config":{"flow_control":true}}'), pub(b"$JS.API.>")],
        "",
        ["$JS.FC.*.*.*"],
    ),
    ([pub(b"orders")], "go", []),
]


@pytest.mark.parametrize(("frames", "lang", "wanted"), CHOICES)
def test_choices(frames: list[tuple[str, bytes]], lang: str, wanted: list[str], tmp_path: Path) -> None:
    found = items([(1, frame) for frame in (connect("it", lang=lang), *frames)])
    (one,) = needs_of(segments(tmp_path / "c", found, 9), By.NAME)
    assert [choice.subject.decode() for choice in one.choices] == wanted
    assert {place.verb for place in one.lines} == {Verb.PUBLISH}


DENIED = ("<", b"-ERR 'Permissions Violation for Publish to \"secret.plan\"'\r\n")


def test_what_the_server_denied_each_time_is_a_choice(tmp_path: Path) -> None:
    denied = ("<", b'-ERR \'Permissions Violation for Subscription to "x" using queue "q"\'\r\n')
    one = need(tmp_path, pub(b"secret.plan"), DENIED, pub(b"open"), sub(b"x", b"q"), denied)
    assert (published(one), subscribed(one)) == (["open"], [])
    assert [str(choice.place) for choice in one.choices] == ["secret.plan", "x q"]


def test_what_the_server_denied_at_times_is_a_line(tmp_path: Path) -> None:
    one = need(tmp_path, pub(b"secret.plan"), DENIED, pub(b"secret.plan"))
    ((place, evidence),) = one.lines.items()
    assert (str(place), evidence.frames, evidence.denied) == ("secret.plan", 2, 1)
    assert evidence_text(evidence).startswith("2 frames, 1 denied, ")
    assert one.choices == []


def test_a_denial_of_what_is_not_recorded_is_nothing(tmp_path: Path) -> None:
    one = need(tmp_path, DENIED, pub(b"open"))
    assert (published(one), one.choices) == (["open"], [])
