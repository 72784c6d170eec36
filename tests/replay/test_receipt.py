"""The receipt of a run: its sums, its judgement, its bounds, and no secret in it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from natsproxy.replay.cassette.cassette_used import played
from natsproxy.replay.cassette.fingerprint import fingerprint
from natsproxy.replay.receipt import (
    SUBJECTS,
    CassetteUsed,
    Minimum,
    Receipt,
    SubjectCount,
    coverage,
    masked,
    use_of,
)
from natsproxy.replay.server_playback.counts import Counts
from natsproxy.replay.server_playback.server import CassetteServer
from tests.kit.documents import ROOT
from tests.replay.scripted import MS, Line, hello, write
from tests.replay.server_playback.playing import Play


def used(served: int = 1, unused: int = 0, **more: object) -> CassetteUsed:
    return CassetteUsed("x.ncap", served=served, unused=unused, connections=1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ([], None),
        ([used(0, 0)], None),
        ([used(2, 1)], 66.66),
        ([used(9999, 1)], 99.99),
        ([used(99999, 1)], 99.99),
        ([used(1), used(0, 1)], 50.0),
        ([used(1), used(9, 9, played=False)], 100.0),
        ([used(1, whole=False)], None),
    ],
)
def test_coverage_is_that_of_what_was_played_to_its_end(
    uses: list[CassetteUsed], expected: float | None
) -> None:
    assert coverage(uses) == expected


@pytest.mark.parametrize(
    ("minimum", "uses", "unmet"),
    [
        (Minimum(), [], 0),
        (Minimum(1), [], 1),
        (Minimum(1, 1), [], 2),
        (Minimum(0, 0), [used(0, 1)], 0),
        (Minimum(2, 50), [used(1, 1)], 1),
        (Minimum(1, 50.1), [used(1, 1)], 1),
        (Minimum(9), [used(1), used(0, played=False)], 0),
    ],
)
def test_a_run_that_recorded_is_not_judged(minimum: Minimum, uses: list[CassetteUsed], unmet: int) -> None:
    assert len(minimum.unmet(uses)) == unmet


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ([], False),
        ([used(0, 1)], False),
        ([used(1)], True),
        ([used(0, 1), used(1)], True),
        ([used(1, reached_server=True), used(1)], False),
        ([used(1, played=False), used(1)], False),
    ],
)
def test_isolated_means_that_something_was_served_and_no_server_was_reached(
    uses: list[CassetteUsed], expected: bool
) -> None:
    assert Receipt("pytest", 0, 0, tuple(uses)).isolated is expected
    assert not Receipt("pytest", 0, 0, tuple(uses), real_server=True).isolated


def test_a_use_survives_the_way_from_a_worker() -> None:
    use = used(
        1, recorded_by=("1.0",), failures=("x",), subjects=(SubjectCount("a", 1),), options={"a": ["b"]}
    )
    assert use_of(json.loads(json.dumps(asdict(use)))) == use


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--password hunter2 x", "--password *** x"),
        ("--password --verbose", "--password --verbose"),
        ("--db-password=hunter2", "--db-password=***"),
        ("NATS_TOKEN=hunter2 x", "NATS_TOKEN=*** x"),
        ("tls://ann:hunter2@host:4222/x", "tls://ann:***@host:4222/x"),
        ("nats://hunter2@host", "nats://***@host"),
        ("ann:hunter2@host", "ann:***@host"),
        ("SUAMK2FG4MI6UE3ACF3FK3OIQBCEIEZV7NSWFFEW63UXMRLFM2XLAXK4GY", "[withheld: seed]"),
        ("eyJ0eXAiOiJKV1QifQ.eyJqdGkiOiJ4In0.c2ln", "***"),
        ("--user ann tests/test_tokens.py -k password", "--user ann tests/test_tokens.py -k password"),
        ("--api-key hunter2 --apikey=hunter2", "--api-key *** --apikey=***"),
    ],
)
def test_secrets_of_a_command_line_are_masked(words: str, expected: str) -> None:
    assert masked(words.split()) == expected.split(" ") if " seed" not in expected else [expected]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("curl -H 'Authorization: Bearer hunter2' x", "curl -H 'Authorization: *** ***' x"),
        ("TOKEN=hunter2 app --secret 'hun ter2' && ls", "TOKEN=*** app --secret *** && ls"),
        ("app --verbose --password hunter2", "app --verbose --password ***"),
        ('{"password": "hunter2", "a": 1}', '{"password": ***, "a": 1}'),
    ],
)
def test_secrets_inside_a_word_are_masked(word: str, expected: str) -> None:
    assert masked([word]) == [expected]


def test_a_long_command_line_is_cut() -> None:
    made = masked(["a-" * 100_000] * 1000)
    assert sum(map(len, made)) <= 100 * 2000


def test_subjects_are_bounded_and_none_is_lost() -> None:
    counts = Counts(3)
    for subject in (b"a", b"b", b"orders.1", b"orders.2", b"d", b"e"):
        counts.of(subject).recorded += 1
    assert sorted(counts.by_template) == [b"a", b"b", b"orders.*"]
    assert (counts.others.recorded, counts.total.recorded) == (2, 6)


async def test_subjects_beyond_those_that_are_listed_are_one_sum(tmp_path: Path) -> None:
    """So are frames that the playback has not read when it ends."""
    names = ["".join(chr(97 + (n // 26**k) % 26) for k in range(3)).encode() for n in range(300)]
    sent = b"".join(b"PUB %b 1\r\n1\r\n" % name for name in names)
    lines: list[Line] = [*hello(1, "a"), (1, ">", sent), (1, ">", b"SUB _INBOX.x 1\r\n")]
    capture = write(tmp_path / "x.ncap", lines)
    server = CassetteServer(capture, window=20_000)
    assert not server.machine.recording.whole
    stopped = played(server, fingerprint(capture), whole=False)
    assert (stopped.whole, stopped.recorded < 300, coverage([stopped])) == (False, True, None)
    use = played(server, fingerprint(capture))
    assert (use.whole, use.recorded, use.unused, use.exempt, use.served) == (True, 301, 300, 1, 0)
    assert len(use.subjects) == SUBJECTS + 1
    assert use.subjects[-1].subject == ""
    assert sum(one.unused for one in use.subjects) == 300


@pytest.mark.parametrize(("leaves", "undelivered"), [(True, 1), (False, 0)])
def test_the_answer_to_a_client_that_has_left_is_counted(leaves: bool, undelivered: int) -> None:
    """It was to come later."""
    lines: list[Line] = [
        *hello(1, "a"),
        (1, ">", b"SUB x 1\r\nPUB x 1\r\n1\r\n"),
        (1, "<", b"MSG x 1 1\r\n1\r\n"),
    ]
    play = Play(lines, timing="recorded")
    play.open(1, "a")
    play.send(1, b"SUB x 1\r\nPUB x 1\r\n1\r\n")
    if leaves:
        play.machine.closed(1, play.now)
    play.wait(10 * MS)
    assert play.machine.progress.undelivered == undelivered
    assert play.machine.done


def test_a_fingerprint_tells_other_bytes_from_another_time(tmp_path: Path) -> None:
    capture = write(tmp_path / "x.ncap", hello(1, "a"))
    before, data = fingerprint(capture), capture.read_bytes()
    assert not before.changed()
    capture.write_bytes(data)
    assert not before.changed()
    capture.write_bytes(data + b"x")
    assert before.changed()
    capture.unlink()
    assert before.changed()


def test_the_guide_names_each_member() -> None:
    guide = (ROOT / "deploy" / "cassettes.md").read_text()
    section = guide[guide.index("## Receipts") : guide.index("## Faults before")]
    members = {*Receipt("pytest", 0, 0).facts(), *(one.name for one in fields(CassetteUsed))}
    missing = [name for name in sorted(members) if f"`{name}`" not in section]
    assert missing == []
