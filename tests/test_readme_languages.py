"""The test in three languages, as the documents print it: recorded and played by their commands, in order."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from natsproxy.testing import NatsServer
from tests.kit.documents import blocks
from tests.kit.node import node_path

PAIRS = [pair.splitlines() for pair in "\n".join(blocks("console")).strip().split("\n\n")]
GO_SOURCES = Path("/usr/share/gocode")
GO_CACHE = Path(sys.prefix) / "go"


def program(language: str, name: str, folder: Path) -> Path:
    """Write the file of that name that a document prints."""
    (text,) = (block for block in blocks(language) if block.partition("\n")[0][2:].strip().startswith(name))
    path = folder / name
    path.write_text(text)
    return path


@contextmanager
def prices(server: NatsServer) -> Iterator[None]:
    """Run the other service: it tells prices while the block runs."""
    ready, done = threading.Event(), threading.Event()

    async def answer(message: Msg) -> None:
        order = json.loads(message.data)
        await message.respond(json.dumps({"id": order["id"], "price": round(4.2 * order["qty"], 1)}).encode())

    async def serve() -> None:
        client = await nats.connect(server.url)
        await client.subscribe("quotes.price", cb=answer)
        await client.flush()
        ready.set()
        await asyncio.to_thread(done.wait)
        await client.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        done.set()
        thread.join()


def run(command: str, folder: Path, url: str, env: dict[str, str]) -> tuple[int, str]:
    """Run a printed command; return its exit code and output."""
    words = shlex.split(command.replace("nats://127.0.0.1:4222", url))
    if words[0] in ("pytest", "natsproxy"):
        words[:1] = [sys.executable, "-m", words[0]]
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": "", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def check(pair: list[str], path: Path, env: dict[str, str]) -> None:
    """Record and play; another quantity is refused, and named."""
    record, play = pair
    with NatsServer() as server, prices(server):
        code, said = run(record, path.parent, server.url, env)
        assert code == 0, said
    code, said = run(play, path.parent, "", env)
    assert code == 0, said
    path.write_text(re.sub(r"qty(\W+)3\b", r"qty\g<1>4", path.read_text()))
    code, said = run(play, path.parent, "", env)
    assert code != 0
    assert "/qty: 3 recorded, 4 sent" in said


@pytest.mark.long
@pytest.mark.server
def test_python(tmp_path: Path) -> None:
    pytest.importorskip("pytest_asyncio")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    check(PAIRS[0], program("python", "test_price.py", tmp_path), {})


@pytest.mark.long
@pytest.mark.server
def test_javascript(tmp_path: Path) -> None:
    check(PAIRS[1], program("js", "price.test.js", tmp_path), {"NODE_PATH": node_path()})


@pytest.mark.long
@pytest.mark.server
def test_go(tmp_path: Path) -> None:
    """With the packages of Debian; the first run compiles the client."""
    if shutil.which("go") is None or not (GO_SOURCES / "src/github.com/nats-io/nats.go").exists():
        pytest.skip("there is no Go client: apt-get install golang-go golang-github-nats-io-go-nats-dev")
    env = {"GO111MODULE": "off", "GOPATH": str(GO_SOURCES), "GOCACHE": str(GO_CACHE), "GOFLAGS": ""}
    check(PAIRS[2], program("go", "price_test.go", tmp_path), env)
