"""Captures by HTTP: begun, marked, rotated, fetched while they grow, ended."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
import trio

from natsproxy.capture.format.records import Frames, Note
from natsproxy.capture.read.reader import open_capture
from natsproxy.config.recording import RecordSettings
from natsproxy.testing import NatsServer
from tests.admin.kit import client_of, running


async def test_a_capture_from_begin_to_download(nats_server: NatsServer, tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    async with running(nats_server, folder) as api, client_of(api) as client:
        body = {"name": "run", "settings": {"flush": "1ms", "subject": ["orders.>"]}}
        begun = await api.ask("POST", "capture", body)
        assert begun.status == 201
        assert begun.json["path"] == str(folder / "run")
        assert (await api.ask("POST", "capture", {"name": "other"})).status == 409
        await client.send(b"PUB orders.1 2\r\nhi\r\nPUB other 2\r\nno\r\n")
        await client.ping()
        assert (await api.ask("POST", "capture/mark", {"text": "here"})).status == 200
        with trio.fail_after(20):
            while (await api.ask("GET", "capture")).json["waiting"]:
                pass
        (segment,) = (await api.ask("GET", "capture/segments")).json["segments"]
        assert segment["writing"] is True
        assert segment["name"].startswith("run/")
        part = await api.ask("GET", f"capture/segments/{segment['name'].replace('/', '%2F')}")
        assert part.headers["content-disposition"].startswith('attachment; filename="')
        assert len(part.body) == int(part.headers["content-length"])
        growing = tmp_path / "part.ncap"
        growing.write_bytes(part.body)
        assert marks_of(growing) == ["capture started by admin, name run", "here"]
        assert b"orders.1" in part.body
        assert b"other" not in part.body
        assert (await api.ask("POST", "capture/rotate")).status == 200
        ended = await api.ask("DELETE", "capture")
        assert ended.json["recording"] is False
        assert ended.json["unwritten"] is None
        assert (await api.ask("DELETE", "capture")).status == 409
        for row in (await api.ask("GET", "capture/segments")).json["segments"]:
            whole = await api.ask("GET", f"capture/segments/{row['name']}")
            assert whole.body == (folder / row["name"]).read_bytes()
            assert row["writing"] is False


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def marks_of(path: Path) -> list[object]:
    items = [item for _, item in open_capture(path).items()]
    assert any(isinstance(item, Frames) for item in items)
    return [item.info["mark"] for item in items if isinstance(item, Note) and "mark" in item.info]


async def test_the_segments_of_a_configured_recording(nats_server: NatsServer, tmp_path: Path) -> None:
    path = tmp_path / "traffic.ncap"
    (tmp_path / "other.ncap").write_bytes(b"")
    async with running(nats_server, record=RecordSettings(path)) as api, client_of(api):
        rows = (await api.ask("GET", "capture/segments")).json
        assert [row["name"] for row in rows["segments"]] == ["@record/traffic.ncap"]
        assert (await api.ask("GET", "capture/segments/@record/traffic.ncap")).body[:4] == path.read_bytes()[
            :4
        ]
        refused = await api.ask("POST", "capture", {"name": "x"})
        assert refused.status == 409
        assert "--admin-captures" in refused.json["error"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", ".hidden", "", "x" * 200])
async def test_no_other_place_can_be_named(nats_server: NatsServer, tmp_path: Path, name: str) -> None:
    async with running(nats_server, tmp_path / "captures") as api:
        assert (await api.ask("POST", "capture", {"name": name})).status == 400
        secret = tmp_path / "secret.ncap"
        secret.write_bytes(b"x")
        assert (await api.ask("GET", "capture/segments/..%2Fsecret.ncap")).status == 404
    assert names_in(tmp_path) == [secret.name]


async def test_a_folder_that_cannot_be_used_is_said(nats_server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    async with running(nats_server, tmp_path / "file" / "captures") as api:
        answer = await api.ask("POST", "capture", {"name": "x.ncap"})
        assert (answer.status, answer.json) == (409, {"error": f"{tmp_path}/file/captures: Not a directory"})
        assert (await api.ask("GET", "capture")).json["recording"] is False


async def test_a_wrong_setting_is_said(nats_server: NatsServer, tmp_path: Path) -> None:
    async with running(nats_server, tmp_path) as api:
        for settings, status, text in (
            ({"flush": "soon"}, 422, "flush must be a duration"),
            ({"frame-max": 10**30}, 422, "frame-max must be at most 1PiB"),
            ({"flsh": "1s"}, 400, "did you mean 'flush'?"),
            ({"subject": ["a..b"]}, 422, "subject must be a valid subject pattern"),
        ):
            answer = await api.ask("POST", "capture", {"name": "x", "settings": settings})
            assert answer.status == status
            assert text in answer.json["error"]
    assert names_in(tmp_path) == []


async def test_any_name_of_a_file_can_be_downloaded(nats_server: NatsServer, tmp_path: Path) -> None:
    async with running(nats_server, tmp_path) as api:
        assert (await api.ask("POST", "capture", {"name": "x.ncap"})).status == 201
        assert (await api.ask("DELETE", "capture")).status == 200
        for name in ("日本.ncap", 'a"b.ncap', "x\udcff.ncap"):  # the last one is not UTF-8
            (tmp_path / name).write_bytes((tmp_path / "x.ncap").read_bytes())
        rows = (await api.ask("GET", "capture/segments")).json["segments"]
        assert {row["name"] for row in rows} == {"x.ncap", "日本.ncap", 'a"b.ncap', "x?.ncap"}
        for name in ("日本.ncap", 'a"b.ncap'):
            answer = await api.ask("GET", f"capture/segments/{quote(name)}")
            assert answer.body == (tmp_path / "x.ncap").read_bytes()
            assert answer.headers["content-disposition"] == f"attachment; filename*=utf-8''{quote(name)}"
