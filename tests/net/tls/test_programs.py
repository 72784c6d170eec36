"""The programs of the tests through a proxy with TLS: each prints what it prints without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.kit.authority import Authority
from tests.kit.node import run_node
from tests.kit.servers import NatsServer
from tests.net.tls.legs import between, server_config
from tests.replay.kit import PROGRAMS, run_program

pytestmark = pytest.mark.server
SHORT = {("objects.py", "after INFO"), ("core.js", "plain")}


def programs() -> list[Any]:
    """Return each program with each kind of server leg; all but a few take long together."""
    found = []
    for path in sorted([*PROGRAMS.glob("*.py"), *PROGRAMS.glob("*.js")]):
        for server in ("plain", "after INFO"):
            short = (path.name, server) in SHORT
            name = f"{path.name}-{server}"
            found.append(pytest.param(path, server, marks=[] if short else pytest.mark.long, id=name))
    return found


async def printed(program: Path, url: str, authority: Authority) -> str:
    """Run a program and return its output.  It trusts the CA by the variable of its language."""
    if program.suffix == ".js":
        env = {"NATS_URL": url, "NODE_EXTRA_CA_CERTS": str(authority.file)}
        return await trio.to_thread.run_sync(lambda: run_node(program, env=env))
    return await run_program(program, url, env={"SSL_CERT_FILE": str(authority.file)})


@pytest.mark.parametrize(("program", "server"), programs())
async def test_programs(authority: Authority, program: Path, server: str) -> None:
    with NatsServer(jetstream=True) as direct:
        expected = await printed(program, direct.url, authority)
    with NatsServer(server_config(authority, server), jetstream=True) as real:
        async with between(authority, "after INFO", real, server) as one:
            assert await printed(program, f"tls://{one.address}", authority) == expected
            assert (await one.closed()).c2s_frames > 2
    assert expected
