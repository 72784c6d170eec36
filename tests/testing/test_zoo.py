"""Programs as people write them: recorded once, they play; a change in them is caught and named."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path as File
from typing import Any

import pytest
import trio

from natsproxy.capture.format.records import Frames
from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import open_capture
from natsproxy.capture.text.brief import brief_items
from natsproxy.capture.text.writer import write_text
from natsproxy.protocol import headers
from natsproxy.protocol.places import Path, pointer_text
from natsproxy.replay.conversation.exchanges import key_of
from natsproxy.replay.conversation.frame_kind import is_required
from natsproxy.replay.conversation.match_options import MatchOptions
from natsproxy.replay.diff.compare import compare
from natsproxy.replay.diff.report import DiffReport
from natsproxy.replay.server_playback.advice import Advice
from natsproxy.replay.server_playback.mismatch import Mismatch
from natsproxy.replay.server_playback.playback import ServerPlayback
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame
from natsproxy.wire.ops import C2S, Op
from natsproxy.wire.parse import frames
from tests.kit.captures import write
from tests.kit.go import MISSING as MISSING_GO
from tests.kit.node import MISSING as MISSING_NODE
from tests.testing.zoo import (
    GO,
    JAVASCRIPT,
    OPTIONS,
    PRINTED,
    PYTHON,
    Played,
    Told,
    play,
    record,
    retell,
)

pytestmark = pytest.mark.server
PROGRAMS = [*PYTHON, *JAVASCRIPT, *GO]
Change = tuple[bytes, str]
"""A changed frame, and the place that a mismatch has to name."""


@pytest.fixture(scope="module")
def printed(zoo: File) -> dict[str, str]:
    """The output of each program while it was recorded."""
    found: dict[str, str] = json.loads((zoo / PRINTED).read_text())
    return found


@pytest.fixture(scope="module")
def played(zoo: File, printed: dict[str, str]) -> dict[str, Played]:
    """Each program, played once."""
    return trio.run(play, list(printed), zoo)


def _one(name: str, played: dict[str, Played]) -> Played:
    if name not in played:
        pytest.skip(MISSING_GO if name in GO else MISSING_NODE)
    return played[name]


def _check(one: Played, printed: str) -> None:
    assert [str(mismatch) for mismatch in one.server.mismatches] == []
    assert one.error == ""
    assert one.printed == printed
    assert [exchange.frame.line for exchange in one.server.unused()] == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_plays(name: str, printed: dict[str, str], played: dict[str, Played]) -> None:
    _check(_one(name, played), printed[name])


@pytest.mark.long
def test_programs_play_from_a_text(zoo: File, printed: dict[str, str], tmp_path: File) -> None:
    for name in printed:
        with (tmp_path / f"{name}.ncap").open("wb") as text:
            write_text(open_capture(zoo / f"{name}.ncap"), text, brief=True)
    for name, one in trio.run(play, list(printed), tmp_path).items():
        _check(one, printed[name])


@pytest.mark.long
def test_programs_play_twenty_times_under_load(zoo: File, printed: dict[str, str]) -> None:
    """In fresh processes; two plays of half of them at once are the load."""

    async def twice(names: list[str]) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(once, names)

    async def once(names: list[str]) -> None:
        for name, one in (await play(names, zoo)).items():
            _check(one, printed[name])

    for n in range(20):
        trio.run(twice, list(printed)[n % 2 :: 2])


# -- changes


def _publishes(told: Told) -> Iterator[tuple[int, Frame]]:
    """Yield the frames that a program publishes of itself: place and frame."""
    for at, (_, data) in enumerate(told):
        (frame,) = frames(data, C2S)
        if frame.op in (Op.PUB, Op.HPUB) and not frame.subject.startswith((b"$JS.", b"$SRV.", b"_INBOX.")):
            yield at, frame


def _with(told: Told, at: int, data: bytes) -> Told:
    return [*told[:at], (told[at][0], data), *told[at + 1 :]]


def _pub(frame: Frame, **other: bytes) -> bytes:
    fields = {"body": frame.body, "reply": frame.reply, "headers": frame.headers, **other}
    return encode.pub(fields.pop("subject", frame.subject), **fields)


def _subjects(frame: Frame) -> Iterator[Change]:
    yield _pub(frame, subject=frame.subject + b".other"), "of the subject"


def _headers(frame: Frame) -> Iterator[Change]:
    pairs = list(headers.parse(frame.headers).pairs) if frame.header_size else []
    for at, (name, _) in enumerate(pairs):
        if name not in (b"traceparent", b"Nats-Msg-Id"):  # ignored by value
            block = headers.build([*pairs[:at], (name, b"changed"), *pairs[at + 1 :]])
            yield _pub(frame, headers=block), f"header {name.decode()}"
    yield _pub(frame, headers=headers.build([*pairs, (b"X-Unknown", b"new")])), "header X-Unknown"


def _members(name: str, frame: Frame) -> Iterator[Change]:
    try:
        body = json.loads(frame.body)
    except ValueError:
        yield _pub(frame, body=frame.body + b" or so"), "body"
        return
    volatile = {"mtime", "nuid"} if frame.subject.startswith(b"$O.") else set()
    given = OPTIONS.get(name, {}).get("ignore_json", ())
    ignored = {"/" + str(place).partition("/")[2] for place in given}
    for path, value in _leaves(body):
        place = pointer_text(path)
        if not (volatile.intersection(path) or place in ignored):
            changed = f"{value} or so" if isinstance(value, str) else -7
            yield _pub(frame, body=json.dumps(_replaced(body, path, changed)).encode()), place


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the members of a JSON value that hold no others, at any depth."""
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in entries:
            yield from _leaves(entry, (*path, str(key)))
    elif path:
        yield path, value


def _replaced(value: Any, path: Path, changed: Any) -> Any:
    """Return a JSON value with another one at a path."""
    if not path:
        return changed
    first, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {**value, first: _replaced(value[first], rest, changed)}
    at = int(first)
    return [*value[:at], _replaced(value[at], rest, changed), *value[at + 1 :]]


def _differences(machine: ServerPlayback) -> list[str]:
    first = machine.mismatches[0]
    return [one.difference.place for one in first.candidates if one.difference is not None]


@pytest.mark.parametrize("most", [8, pytest.param(sys.maxsize, marks=pytest.mark.long, id="all")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_change_is_caught_and_named(name: str, most: int, zoo: File, played: dict[str, Played]) -> None:
    """Of one publish, one header, one member: in each frame, each alone; of many changes some."""
    told = _one(name, played).told
    assert retell(name, zoo, told).mismatches == []
    changes = [
        (at, frame, *change)
        for at, frame in _publishes(told)
        for change in (*_subjects(frame), *_headers(frame), *_members(name, frame))
    ]
    assert changes
    for at, frame, changed, place in changes[:: -(-len(changes) // most)]:
        machine = retell(name, zoo, _with(told, at, changed))
        assert machine.mismatches, f"{changed!r} plays in place of {frame.raw!r}"
        assert any(place in found for found in _differences(machine)), str(machine.mismatches[0])


def _extra(told: Told) -> Iterator[Told]:
    """Yield a program with one frame more: a publish again or on another subject, or a call of the API."""
    api = encode.pub(b"$JS.API.CONSUMER.LIST.NONE", b"{}", reply=b"_INBOX.extra.1")
    for at, frame in _publishes(told):
        first, _, last = frame.subject.rpartition(b".")
        others = [frame.raw, _pub(frame, subject=last + b".and.more"), api]
        if first:
            others.append(_pub(frame, subject=first + b".else"))
        for other in others:
            yield [*told[: at + 1], (told[at][0], other), *told[at + 1 :]]


def _advice(mismatch: Mismatch) -> Advice | None:
    return next((one.accepted for one in mismatch.candidates if one.accepted is not None), None)


@pytest.mark.parametrize("most", [4, pytest.param(sys.maxsize, marks=pytest.mark.long, id="all")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_option_of_a_mismatch_accepts_its_frame(
    name: str, most: int, zoo: File, played: dict[str, Played]
) -> None:
    """The first that is printed, given in a second run."""
    told = _one(name, played).told
    changed = (
        _with(told, at, data)
        for at, frame in _publishes(told)
        for data, _ in (*_subjects(frame), *_headers(frame), *_members(name, frame))
    )
    mutants = [*changed, *_extra(told)]
    for mutant in mutants[:: -(-len(mutants) // most)]:
        refused: dict[int, Mismatch] = {}
        retell(name, zoo, mutant, refused)
        for at, mismatch in refused.items():
            advice = _advice(mismatch)
            if advice is not None:
                again: dict[int, Mismatch] = {}
                retell(name, zoo, mutant, again, **{advice.key: list(advice.values)})
                assert at not in again, f"{mismatch}\n\nand with {advice}:\n\n{again[at]}"
                assert not mutant[at][1].startswith((b"PUB $JS.", b"SUB _INBOX.")), str(mismatch)


@pytest.mark.parametrize("most", [4, pytest.param(sys.maxsize, marks=pytest.mark.long, id="all")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_forgotten_publish_is_named(name: str, most: int, zoo: File, played: dict[str, Played]) -> None:
    told = _one(name, played).told
    published = [] if OPTIONS.get(name, {}).get("repeat") else list(_publishes(told))
    for at, frame in published[:: -(-len(published) // most)] if published else ():
        machine = retell(name, zoo, [*told[:at], *told[at + 1 :]])
        assert key_of(frame) in {one.key for one in machine.unused()}, frame.raw


@pytest.mark.parametrize("most", [4, pytest.param(sys.maxsize, marks=pytest.mark.long, id="all")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_forgotten_ack_or_change_is_an_error(
    name: str, most: int, zoo: File, played: dict[str, Played]
) -> None:
    """An ack, a STREAM.DELETE: what JetStream is told and nobody publishes."""
    told = _one(name, played).told
    places = []
    for at, (_, data) in enumerate(told):
        (frame,) = frames(data, C2S)
        if frame.subject.startswith(b"$JS.") and is_required(frame):
            places.append(at)
    for at in places[:: -(-len(places) // most)] if places else ():
        machine = retell(name, zoo, [*told[:at], *told[at + 1 :]])
        machine.tick(10**15)  # redeliveries come by time
        assert machine.omitted(), told[at][1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_version_with_another_header_plays(name: str, zoo: File, played: dict[str, Played]) -> None:
    """A trace header as it is, any other one when it is ignored."""
    told = _one(name, played).told
    for header, options in ((b"tracestate", {}), (b"X-Version", {"ignore_headers": "X-Version"})):
        newer = told
        for at, frame in _publishes(told):
            pairs = headers.parse(frame.headers).pairs if frame.header_size else ()
            newer = _with(newer, at, _pub(frame, headers=headers.build([*pairs, (header, b"2")])))
        _heard_all(retell(name, zoo, newer, None, **options))


def test_a_version_that_swaps_two_publishes_plays(zoo: File, played: dict[str, Played]) -> None:
    """Two that a client sends one after the other, on different subjects."""
    swaps = 0
    for name, one in played.items():
        for first, second in _neighbours(one.told):
            swapped = list(one.told)
            swapped[first], swapped[second] = one.told[second], one.told[first]
            _heard_all(retell(name, zoo, swapped))
            swaps += 1
    assert swaps > 25


def _neighbours(told: Told) -> Iterator[tuple[int, int]]:
    """Yield the places of publishes between which their client sends nothing but acks and PINGs."""
    published = dict(_publishes(told))
    for client in dict(told):
        own = [
            at
            for at, (sender, data) in enumerate(told)
            if sender == client and not data.startswith((b"PING", b"PONG", b"PUB $JS.ACK."))
        ]
        for first, second in itertools.pairwise(own):
            if {first, second} <= published.keys() and published[first].subject != published[second].subject:
                yield first, second


def _heard_all(machine: ServerPlayback) -> None:
    assert [str(mismatch) for mismatch in machine.mismatches] == []
    assert [exchange.frame.line for exchange in machine.unused()] == []


# -- two recordings

VARIES = {
    "crew": ("two workers make one consumer, if it is not there yet", "$JS.API.CONSUMER.*"),
    "desk": ("another service asks as long as it likes", "desk.ask*"),
    "ledger": ("one client asks for a stream's state while others write", "$JS.API.STREAM.INFO.*"),
    "poller": ("a monitor asks as long as the program runs", "$JS.API.CONSUMER.INFO.*"),
    "pool": ("the server chooses the worker of a task, which says its name", "tasks.done"),
    "raffle": ("five clients write one key until they succeed", "*numbers*"),
    "retries": ("a request is repeated until another service is there", "quotes.*"),
    "seats": ("three tasks write one key until they succeed", "*seats*"),
    "status": ("a job is done after a number of questions that is random", "*"),
    "tally": ("two clients write one key until they succeed", "*tally*"),
    "worker": ("pulls that wait and pulls that do not end on one inbox", "$JS.API.CONSUMER.MSG.NEXT.*"),
}
"""Programs of which two recordings differ, with the reason, and the rows of a comparison that do."""


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory, printed: dict[str, str]) -> File:
    """The folder of the captures of a second run of each program."""
    folder = tmp_path_factory.mktemp("again")
    trio.run(record, list(printed), folder)
    return folder


def _compared(name: str, recorded: File, observed: File) -> DiffReport:
    return compare(recorded, observed, MatchOptions(**OPTIONS.get(name, {})))


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_recordings_of_a_program_are_the_same(name: str, zoo: File, again: File) -> None:
    path = again / f"{name}.ncap"
    if not path.exists():
        pytest.skip(MISSING_GO if name in GO else MISSING_NODE)
    rows = [row for row in _compared(name, zoo / path.name, path).rows if not row.same]
    _, varies = VARIES.get(name, ("", ""))
    assert [(row.group, row.sample) for row in rows if not fnmatchcase(row.group, varies)] == []


@pytest.mark.parametrize("most", [2, pytest.param(sys.maxsize, marks=pytest.mark.long, id="all")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_comparison_names_a_change(name: str, most: int, zoo: File, again: File, tmp_path: File) -> None:
    """As a playback does: of one publish, one header, one member, and of a publish that is left out."""
    path = (zoo if name in VARIES else again) / f"{name}.ncap"
    if not path.exists():
        pytest.skip(MISSING_GO if name in GO else MISSING_NODE)
    items = [item for _, item in brief_items(open_capture(path), Query())]
    sent = {
        at: (item.conn, bytes(item.data))
        for at, item in enumerate(items)
        if isinstance(item, Frames) and item.direction == C2S
    }
    changes: list[tuple[int, bytes, str]] = []
    for nth, frame in _publishes(list(sent.values())):
        at = list(sent)[nth]
        changed = [*_subjects(frame), *_headers(frame), *_members(name, frame)]
        if "repeat" not in OPTIONS.get(name, {}):
            changed.append((b"", "presence"))
        changes += [(at, *change) for change in changed]
    for number, (at, data, place) in enumerate(changes[:: -(-len(changes) // most)]):
        mutant = [*items[:at], *([items[at]._replace(data=data)] if data else []), *items[at + 1 :]]  # type: ignore[call-arg]
        report = _compared(name, zoo / path.name, write(tmp_path / f"{number}.ncap", mutant))
        rows = [row for row in report.rows if not row.same]
        assert rows, f"{data!r} is the same as {items[at]!r}"
        fields = [row.sample.field for row in rows if row.sample is not None]
        if place == "of the subject":
            assert any(place in field for field in fields) or any(row.added > row.missing for row in rows)
        else:
            named = (place, "presence") if "repeat" in OPTIONS.get(name, {}) else (place,)
            assert any(one in field for field in fields for one in named), (place, data, fields)
