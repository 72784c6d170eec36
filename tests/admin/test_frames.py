"""Frames as they go: samples for several viewers, exact totals, no secrets, traffic that stays native."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from natsproxy.admin import live_frames
from natsproxy.admin.api.app import SHAPES
from natsproxy.admin.api.schema import check
from natsproxy.admin.live_frames import MOST
from natsproxy.capture.filter.recording_filter import PayloadPolicy, Selection
from natsproxy.config.recording import RecordSettings
from natsproxy.events import Event, RecordingResumed
from natsproxy.testing import NatsServer
from tests.admin.kit import Api, client_of, running
from tests.kit.disks import Disk


class View:
    """A viewer's end of a stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._bytes = b""
        self.total = 0

    async def event(self) -> dict[str, Any]:
        """Return the data of the next event."""
        while True:
            part, mark, rest = self._bytes.partition(b"\n\n")
            if not mark:
                piece = await self._stream.receive_some()
                assert piece, "the stream ended"
                self._bytes += piece
                continue
            self._bytes = rest
            if b"event: frames\n" in part:
                data = json.loads(part.partition(b"data: ")[2])
                check(data, SHAPES["LiveFrames"], SHAPES)
                self.total += data["total"]
                return data  # type: ignore[no-any-return]

    async def frames(self, count: int) -> list[dict[str, Any]]:
        """Return the next frames that are shown."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += (await self.event())["frames"]
        return found


@asynccontextmanager
async def viewing(api: Api, query: str = "") -> AsyncIterator[View]:
    async with await api.open("GET", f"frames/stream?{query}") as stream:
        received = b""
        while b": natsproxy" not in received:
            received += await stream.receive_some()
        yield View(stream)


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_frames_are_shown_as_they_go(
    nats_server: NatsServer, plane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    async with running(nats_server) as api, client_of(api, "app") as client, viewing(api) as view:
        await client.send(b"SUB a.* q 1\r\nHPUB a.b r.s 25 27\r\nNATS/1.0\r\nX-One: \xc3\xa4 x\r\n\r\nhi\r\n")
        await client.ping()
        shown = {(one["direction"], one["op"]): one for one in await view.frames(5)}
        assert {op for _, op in shown} == {"SUB", "HPUB", "HMSG", "PING", "PONG"}
        sent = shown["c2s", "HPUB"]
        assert (sent["subject"], sent["reply"], sent["client"]) == ("a.b", "r.s", "app")
        assert sent["out"] is not None
        assert (sent["headers"], sent["payload"], sent["size"]) == ({"X-One": "ä x"}, "hi", 27)
        assert shown["c2s", "SUB"]["queue"] == "q"
        assert view.total == 5


async def test_filters_and_payloads(nats_server: NatsServer) -> None:
    async with running(nats_server) as api, client_of(api, "app") as client, client_of(api, "other") as other:
        async with (
            viewing(api, "subject=a.*&op=PUB,HPUB&payload=5") as by_subject,
            viewing(api, "client=oth*&direction=c2s") as by_name,
            viewing(api, "conn=1&op=ping") as by_conn,
        ):
            await client.send(b"PUB a.1 7\r\nabcd\xc3\xa4z\r\nPUB b 1\r\nx\r\nPUB a.2 2\r\n\xff\x00\r\n")
            await client.ping()
            await other.ping()
            first, second = await by_subject.frames(2)
            assert (first["payload"], first["payload_cut"]) == ("abcd", True)
            assert second["payload_hex"] == "ff00"
            assert "payload_cut" not in second
            (one,) = await by_name.frames(1)
            assert (one["client"], one["op"]) == ("other", "PING")
            assert [one["conn"] for one in await by_conn.frames(1)] == [1]
            async with viewing(api, "subject=a.1&subject=b&client=x*&client=app") as by_several:
                await client.send(b"PUB c 1\r\nx\r\nPUB a.1 1\r\nx\r\nPUB b 1\r\nx\r\n")
                assert [one["subject"] for one in await by_several.frames(2)] == ["a.1", "b"]
        assert (await api.ask("GET", "frames/stream?" + "conn=1&" * 21)).status == 400
        for query in ("subject=a..b", "op=NOPE", "limit=0", "payload=99999999", "subjct=x", "role=nobody"):
            assert (await api.ask("GET", f"frames/stream?{query}")).status == 400


async def test_roles_answers_and_exchanges(nats_server: NatsServer) -> None:
    async with (
        running(nats_server) as api,
        client_of(api, "app") as client,
        viewing(api, "role=pull") as pulls,
        viewing(api, "header=x-trace:t*&exchange=true") as traced,
        viewing(api, "op=MSG") as answers,
    ):
        pull = b"$JS.API.CONSUMER.MSG.NEXT.S.C"
        await client.send(b"SUB r.* 1\r\nSUB svc 2\r\nPUB %b r.0 1\r\n1\r\n" % pull)
        await client.ping()
        await client.send(b"HPUB svc r.1 27 29\r\nNATS/1.0\r\nX-Trace: t1\r\n\r\n\r\nhi\r\n")
        await client.ping()
        await client.send(b"PUB r.1 2\r\nok\r\n")
        await client.ping()
        (one,) = await pulls.frames(1)
        assert (one["meaning"]["kind"], one["meaning"]["stream"]) == ("pull", "S")
        (answer,) = [one for one in await answers.frames(1) if one["subject"] == "r.1"]
        assert answer["request"]["subject"] == "svc"
        assert answer["request"]["after_ns"] >= 0
        exchange = await traced.frames(4)
        assert [one["op"] for one in exchange] == ["HPUB", "HMSG", "PUB", "MSG"]
        assert len({one["exchange"] for one in exchange}) == 1


async def test_totals_are_exact_where_frames_are_a_sample(nats_server: NatsServer) -> None:
    count = 20_000
    async with running(nats_server) as api, client_of(api) as client:
        async with viewing(api) as view, viewing(api, "subject=a") as narrow:
            assert not api.proxy._recording._taps
            for _ in range(10):
                await client.send(b"PUB a 2\r\nhi\r\n" * (count // 10))
            await client.ping()
            shown = seen = 0
            while view.total < count + 2:
                event = await view.event()
                shown, seen = shown + len(event["frames"]), seen + event["seen"]
                assert event["seen"] <= MOST
            assert view.total == count + 2  # PING, PONG
            assert 0 < shown <= seen < count
            while narrow.total < count:
                await narrow.event()
        # When nobody looks any more, nothing is taken.
        with trio.fail_after(10):
            while api.proxy._recording.active:  # noqa: ASYNC110 - the server notices that viewers leave
                await trio.sleep(0.01)


async def test_a_viewer_while_a_capture_begins_and_ends(nats_server: NatsServer, tmp_path: Path) -> None:
    async with (
        running(nats_server, tmp_path) as api,
        client_of(api) as client,
        viewing(api, "op=PUB") as view,
    ):
        total = 0
        for step in ("before", "during", "after"):
            if step == "during":
                assert (await api.ask("POST", "capture", {"name": "x.ncap"})).status == 201
            if step == "after":
                assert (await api.ask("DELETE", "capture")).json["unwritten"] is None
            await client.send(b"PUB %s 2\r\nhi\r\n" % step.encode())
            await client.ping()
            (one,) = await view.frames(1)
            assert one["subject"] == step
            total += 3
        assert view.total == total


async def test_secrets_reach_no_viewer(nats_server: NatsServer, tmp_path: Path) -> None:
    """Neither those of the protocol, nor payloads that a capture would not have, even when none is made."""
    selection = Selection(payloads=(PayloadPolicy(b"pin", "drop"),))
    policy = RecordSettings(tmp_path / "x.ncap", selection=selection)
    async with running(nats_server, record=policy) as api, viewing(api, "payload=65536") as view:
        for _ in range(2):
            async with client_of(api) as client:
                await client.send(b"PUB pin 9\r\nsecretive\r\n")
                await client.ping()
            text, ops = "", set[str]()
            while not {"CONNECT", "PUB", "INFO"} <= ops:
                event = await view.event()
                text += json.dumps(event)
                ops |= {one["op"] for one in event["frames"]}
            assert "hush-hush" not in text
            assert "secretive" not in text
            await api.ask("DELETE", "capture")


async def test_a_viewer_that_reads_nothing_costs_no_other(nats_server: NatsServer) -> None:
    async with (
        running(nats_server) as api,
        client_of(api) as client,
        viewing(api, "payload=65536&limit=400"),
        viewing(api, "limit=1") as view,
    ):
        for _ in range(4):
            await client.send(b"PUB a 60000\r\n%b\r\n" % bytes(60000) * 20)
            await client.ping()
            while not (await view.event())["total"]:
                pass


async def test_there_are_so_many_viewers_and_no_more(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_frames, "VIEWERS", 2)
    async with running(nats_server) as api, viewing(api):
        async with viewing(api):
            answer = await api.ask("GET", "frames/stream")
            assert answer.status == 429
            assert "viewers already" in answer.json["error"]
        with trio.fail_after(10):  # the server sees a little later that one has gone
            while api.managed.live_frames.full:
                await trio.lowlevel.checkpoint()
        async with viewing(api):
            pass


async def test_the_headers_of_a_stream_alone(nats_server: NatsServer) -> None:
    async with running(nats_server) as api:
        for path in ("firings/stream", "frames/stream"):  # the answer ends, and the connection with it
            answer = await api.ask("HEAD", path)
            assert (answer.status, answer.body) == (200, b"")


async def test_many_headers_are_cut(nats_server: NatsServer) -> None:
    async with running(nats_server) as api, client_of(api) as client, viewing(api, "op=HPUB") as view:
        for count in (3, 9000):
            block = b"NATS/1.0\r\n" + b"".join(b"K%d: v\r\n" % n for n in range(count)) + b"\r\n"
            await client.send(b"HPUB a %d %d\r\n%s\r\n" % (len(block), len(block), block))
            await client.ping()
        few, many = await view.frames(2)
        assert (few["headers"], "headers_cut" in few) == ({"K0": "v", "K1": "v", "K2": "v"}, False)
        assert {**many["headers"], **few["headers"]} == many["headers"]
        assert len(str(many["headers"])) < 10_000
        assert many["headers_cut"] is True
        assert "headers_raw" not in many


async def test_a_header_is_looked_for_among_the_first_ones(nats_server: NatsServer) -> None:
    async with (
        running(nats_server) as api,
        client_of(api) as client,
        viewing(api, "header=K2") as near,
        viewing(api, "header=K999") as far,
    ):
        for count in (3, 1000, 1001):
            first = b"K999: v\r\n" if count == 1001 else b""
            lines = first + b"".join(b"K%d: v\r\n" % n for n in range(min(count, 1000)))
            block = b"NATS/1.0\r\n" + lines + b"\r\n"
            await client.send(b"HPUB a.%d %d %d\r\n%s\r\n" % (count, len(block), len(block), block))
            await client.ping()
        assert [frame["subject"] for frame in await near.frames(3)] == ["a.3", "a.1000", "a.1001"]
        assert [frame["subject"] for frame in await far.frames(1)] == ["a.1001"]


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_a_full_disk_blinds_no_viewer(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plane: str
) -> None:
    """What the capture misses is shown and counted, to a viewer that comes then, too."""
    monkeypatch.setenv("NATSPROXY_PLANE", plane)
    disk = Disk(monkeypatch)
    record = RecordSettings(tmp_path / "x.ncap", queue=100_000)
    async with running(nats_server, record=record) as api, client_of(api) as client, viewing(api) as view:
        gaps, over = list[RecordingResumed](), trio.Event()

        def note(event: Event) -> None:
            if isinstance(event, RecordingResumed):
                gaps.append(event)
                if event.frames:
                    over.set()

        api.proxy.subscribe(note)
        recorder = api.proxy.recorder
        assert recorder is not None
        await client.ping()
        while view.total < 2:
            await view.event()
        total, before = view.total, recorder.frames - view.total
        disk.fill()
        for _ in range(30):
            await client.send(b"PUB a 10000\r\n" + bytes(10_000) + b"\r\n")
            await client.ping()
        while view.total < total + 30 * 3:
            await view.event()
        assert view.total == total + 30 * 3
        recorded = recorder.frames
        async with viewing(api, "subject=b") as late:
            await client.send(b"PUB b 0\r\n\r\n")
            await client.ping()
            for one in (view, late):
                while not any(frame.get("subject") == "b" for frame in (await one.event())["frames"]):
                    pass
            assert late.total <= 3
        assert recorder.frames == recorded
        disk.error = 0
        await over.wait()
        while recorder.frames + sum(gap.frames for gap in gaps) > before + view.total:  # a PING of the server
            await view.event()
        assert recorder.frames + sum(gap.frames for gap in gaps) == before + view.total
