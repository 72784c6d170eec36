"""Scopes: one address, and a cassette for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from natsproxy.capture.read.reader import open_capture
from natsproxy.errors import ConfigError
from natsproxy.replay.cassette import scopes as scopes_module
from natsproxy.replay.cassette.record_mode import use
from natsproxy.replay.cassette.scopes import ScopeError, Scopes, ScopeVerdict, cassette_of, running
from tests.replay.kit import nats_server
from tests.replay.scripted import hello, write

Start = Callable[..., Scopes]


def tape(path: Path, *words: bytes, connections: int = 1) -> Path:
    """Write a cassette in which each connection publishes the words."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for conn in range(1, connections + 1):
        lines += hello(conn, f"c{conn}")
        lines += [(conn, ">", b"SUB w 1\r\n")]
        for word in words:
            lines += [
                (conn, ">", b"PUB w %d\r\n%b\r\n" % (len(word), word)),
                (conn, "<", b"MSG w 1 %d\r\n%b\r\n" % (len(word), word)),
            ]
    return write(path, lines)


async def talk(scopes: Scopes, *words: bytes, name: str = "c1", stays: trio.Event | None = None) -> bytes:
    """Connect and publish words to ourselves; return the bytes up to the PONG."""
    async with await trio.open_tcp_stream(scopes.address.host, scopes.address.port) as stream:
        sent = b'CONNECT {"verbose":false,"name":"%b"}\r\nSUB w 1\r\n' % name.encode()
        sent += b"".join(b"PUB w %d\r\n%b\r\n" % (len(word), word) for word in words)
        received = b""
        with trio.fail_after(10):
            await stream.send_all(sent + b"PING\r\n")
            while b"PONG\r\n" not in received and (more := await stream.receive_some()):
                received += more
        if stays is not None:
            await stays.wait()
    return received


async def until(true: Callable[[], object]) -> None:
    with trio.fail_after(10):
        while not true():  # noqa: ASYNC110
            await trio.sleep(0.001)


@asynccontextmanager
async def scopes_of(folder: Path, **options: object) -> AsyncIterator[tuple[Scopes, list[ScopeVerdict]]]:
    verdicts: list[ScopeVerdict] = []
    opener = options.pop("opener", use)
    scopes = Scopes(partial(cassette_of, folder), opener, report=verdicts.append, **options)  # type: ignore[arg-type]
    async with running(scopes):
        yield scopes, verdicts


# -- names


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("pays", "pays.ncap"),
        ("Orders/pays_twice", "Orders/pays_twice.ncap"),
        ("old", "old.nats.txt"),
        ("orders > pays twice", "orders-pays-twice-46a6e3b3.ncap"),
        ("a\0b\r\n", "a-b--f6ae0a0f.ncap"),
        ("C:\\x", "C-x-1b2c0a5f.ncap"),
    ],
)
def test_a_scope_is_a_file_of_its_name(name: str, path: str, tmp_path: Path) -> None:
    (tmp_path / "old.nats.txt").touch()
    found = cassette_of(tmp_path, name).relative_to(tmp_path)
    assert str(found).rsplit("-", 1)[0] == path.rsplit("-", 1)[0]
    assert len(str(found)) == len(path)


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/../b", "/etc/passwd", "a//b", "a/", ".x", "a/.b", "./a", "x" * 501]
)
def test_a_name_that_would_lead_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ScopeError, match="is not the name of a scope"):
        cassette_of(tmp_path, name)


def test_a_pattern_has_one_place_for_the_name(tmp_path: Path) -> None:
    for pattern in ("orders", "a*b*"):
        with pytest.raises(ConfigError, match="must contain one"):
            Scopes(partial(cassette_of, tmp_path), use, by_name=pattern, report=print)


# -- the choice


async def test_each_scope_plays_its_own_cassette_from_the_beginning(tmp_path: Path) -> None:
    """One chosen again begins again; each verdict is about one scope."""
    tape(tmp_path / "one.ncap", b"1")
    tape(tmp_path / "two.ncap", b"2", b"3")
    async with scopes_of(tmp_path) as (scopes, verdicts):
        for name, words in (("one", [b"1"]), ("two", [b"2", b"3"]), ("one", [b"1"])):
            await scopes.choose(name)
            received = await talk(scopes, *words)
            assert received.count(b"MSG w 1") == len(words)
        await scopes.choose("two")
        assert b"-ERR" in await talk(scopes, b"2", b"4")
        wrong = await scopes.end()
        await scopes.choose("two")
        await talk(scopes, b"2")
        short = await scopes.end()
        assert scopes.state == {"scope": None, "cassette": None, "clients": 0, "mismatches": 0}
    assert [(one.scope, one.ok) for one in verdicts] == [
        ("one", True),
        ("two", True),
        ("one", True),
        ("two", False),
        ("two", False),
    ]
    assert wrong is not None
    assert short is not None
    assert "PUB w '4'" in wrong.mismatches[0]
    assert (short.mismatches, short.missed) == ([], ["PUB w '3'"])


async def test_a_client_outside_of_a_scope_is_refused(tmp_path: Path) -> None:
    tape(tmp_path / "one.ncap", b"1")
    (tmp_path / "broken.ncap").write_bytes(b"no capture")
    async with scopes_of(tmp_path) as (scopes, verdicts):
        assert b"-ERR 'no scope is chosen: " in await talk(scopes)
        await scopes.choose("one")
        for name, reason in (("none", "there is no such cassette"), ("broken", "not a natsproxy capture")):
            with pytest.raises(ScopeError, match=reason):
                await scopes.choose(name)
        assert b"-ERR 'no scope is chosen: " in await talk(scopes)
        assert scopes.refused == 2
    assert [one.scope for one in verdicts] == ["one"]


async def test_a_client_that_stays_is_disconnected_with_its_scope(tmp_path: Path) -> None:
    """What it sent until then is compared."""
    tape(tmp_path / "one.ncap", b"1")
    stays = trio.Event()
    async with scopes_of(tmp_path) as (scopes, _), trio.open_nursery() as nursery:
        await scopes.choose("one")
        nursery.start_soon(partial(talk, scopes, b"1", b"more", stays=stays))
        await until(lambda: scopes.state["mismatches"])
        verdict = await scopes.end()
        assert verdict is not None
        assert "PUB w 'more'" in verdict.mismatches[0]
        stays.set()


# -- by the names of clients


async def test_clients_choose_by_name_side_by_side(tmp_path: Path) -> None:
    """Each name has a machine of its own; one that comes again begins again, and others are of the choice."""
    for name in "abc":
        tape(tmp_path / f"{name}.ncap", name.encode())
    async with scopes_of(tmp_path, by_name="shop-test/*!") as (scopes, verdicts):
        stays = trio.Event()
        async with trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(
                    partial(talk, scopes, name.encode(), name=f"shop-test/{name}!", stays=stays)
                )
            await scopes.choose("c")
            assert b"MSG w 1 1\r\nc" in await talk(scopes, b"c", name="shop-test/other")
            stays.set()
        assert b"MSG w 1 1\r\na" in await talk(scopes, b"a", name="shop-test/a!")
        assert b"-ERR" in await talk(scopes, b"c", name="shop-test/b!")
        assert b"-ERR" in await talk(scopes, name="shop-test/../b!")
    found = sorted((one.scope, one.ok) for one in verdicts)
    assert found == [("a", True), ("a", True), ("b", False), ("b", True), ("c", True)]
    assert scopes.refused == 1


# -- those that begin again


async def test_a_scope_begins_again_when_its_clients_have_left(tmp_path: Path) -> None:
    """After a whole run, after one that broke off, and after one that went wrong."""
    tape(tmp_path / "one.ncap", b"1", b"2")
    async with scopes_of(tmp_path, rewinds=True) as (scopes, verdicts):
        await scopes.choose("one")
        for words in ([b"1", b"2"], [b"1"], [b"1", b"wrong"], [b"1", b"2"]):
            received = await talk(scopes, *words)
            assert (b"-ERR" in received) == (b"wrong" in words)
        await until(lambda: len(verdicts) == 4)
    assert [one.ok for one in verdicts] == [True, False, False, True]


async def test_a_cassette_that_goes_on_with_another_connection_waits_for_it(tmp_path: Path) -> None:
    """A look at the port, as probes do, changes nothing."""
    tape(tmp_path / "one.ncap", b"1", connections=2)
    async with scopes_of(tmp_path, rewinds=True) as (scopes, verdicts):
        await scopes.choose("one")
        for _ in range(2):
            for name in ("c1", "c2"):
                (await trio.open_tcp_stream(scopes.address.host, scopes.address.port)).socket.close()
                assert b"MSG w 1 1\r\n1" in await talk(scopes, b"1", name=name)
        await until(lambda: len(verdicts) == 2)
    assert [one.ok for one in verdicts] == [True, True]


async def test_a_run_that_broke_off_between_connections_is_over_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one begins at the first connection."""
    monkeypatch.setattr(scopes_module, "WHEN_GONE", 0.05)
    tape(tmp_path / "one.ncap", b"1", connections=2)
    async with scopes_of(tmp_path, rewinds=True) as (scopes, verdicts):
        await scopes.choose("one")
        await talk(scopes, b"1")
        await until(lambda: len(verdicts) == 1)
        for name in ("c1", "c2"):
            assert b"MSG w 1 1\r\n1" in await talk(scopes, b"1", name=name)
        await until(lambda: len(verdicts) == 2)
    assert [one.ok for one in verdicts] == [False, True]


async def test_run_after_run_without_a_pause(tmp_path: Path) -> None:
    """Of several clients at once, each with a cassette by its name."""
    for name in "abcde":
        tape(tmp_path / f"{name}.ncap", name.encode())

    async def runs(scopes: Scopes, name: str) -> None:
        for _ in range(20):
            assert b"MSG w 1 1\r\n" + name.encode() in await talk(scopes, name.encode(), name=f"t/{name}")

    async with scopes_of(tmp_path, by_name="t/*") as (scopes, verdicts):
        async with trio.open_nursery() as nursery:
            for name in "abcde":
                nursery.start_soon(runs, scopes, name)
        await until(lambda: len(verdicts) == 100)
    assert all(one.ok for one in verdicts)


# -- recording


@pytest.mark.server
async def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    """It ends no other scope."""
    tape(tmp_path / "one.ncap", b"1")
    async with nats_server() as server:
        record = partial(use, mode="once", upstream=server)
        async with scopes_of(tmp_path, opener=record) as (scopes, verdicts):
            with pytest.raises(ScopeError, match=r"one\.ncap/x\.ncap: "):
                await scopes.choose("one.ncap/x")
            await scopes.choose("one")
            await talk(scopes, b"1")
    assert [one.ok for one in verdicts] == [True]


@pytest.mark.server
async def test_scopes_are_recorded_and_played(tmp_path: Path) -> None:
    async with nats_server() as server:
        record = partial(use, mode="once", upstream=server)
        async with scopes_of(tmp_path, opener=record) as (scopes, verdicts):
            await scopes.choose("tests/one")
            await talk(scopes, b"1")
            await scopes.choose("two")
            await talk(scopes, b"2")
            await scopes.end(keep=False)
            await scopes.choose("two")
            await talk(scopes, b"3")
    assert [(one.scope, one.recorded) for one in verdicts] == [
        ("tests/one", True),
        ("two", False),
        ("two", True),
    ]
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())  # noqa: ASYNC240
    assert [str(path.relative_to(tmp_path)) for path in files] == ["tests/one.ncap", "two.ncap"]
    assert all(open_capture(path).tail() is None for path in files)
    async with scopes_of(tmp_path) as (scopes, verdicts):
        for name, word in (("two", b"3"), ("tests/one", b"1")):
            await scopes.choose(name)
            await talk(scopes, word)
        await scopes.end()
    assert [one.ok for one in verdicts] == [True, True]
