"""Programs as people write them: the generated block is within one written by hand, and each line is needed.

A program runs green on a real server with its block; without any one of its lines the server reports a
violation.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from natsproxy.permissions.formats import permission_lines
from natsproxy.permissions.needs import ClientNeeds, needs_of
from natsproxy.permissions.proof import RESPONSES
from natsproxy.permissions.templates import MappedPermission
from natsproxy.permissions.uses import By
from natsproxy.protocol.subjects import is_subset
from tests.kit.node import MISSING, node_path
from tests.kit.servers import NatsServer
from tests.permissions.minimal import MINIMAL
from tests.testing.zoo import HERE, JAVASCRIPT

pytestmark = pytest.mark.server
PASSWORD = "secret"
QUICK = "seats"
LIMIT = 60.0
VIOLATION = re.compile("(?:Publish|Subscription) Violation")


def _need(name: str, zoo: Path) -> ClientNeeds:
    """Return the need of all clients of a program: one URL serves them all."""
    if not (zoo / f"{name}.ncap").exists():
        pytest.skip(MISSING)
    (need,) = needs_of([zoo / f"{name}.ncap"], By.ACCOUNT)
    return need


@pytest.mark.parametrize("name", MINIMAL)
def test_the_block_is_within_the_one_written_by_hand(name: str, zoo: Path) -> None:
    need, minimal = _need(name, zoo), MINIMAL[name]
    written = {"publish": minimal.publish, "subscribe": minimal.subscribe}
    for place in need.lines:
        wider = [entry.encode().split() for entry in written[place.verb]]
        assert any(
            is_subset(place.subject, subject) and b"".join(queue) == place.queue for subject, *queue in wider
        ), place
    assert (need.responses is not None) == minimal.responses


@asynccontextmanager
async def _system(
    need: ClientNeeds, without: MappedPermission | None, *, others: bool
) -> AsyncIterator[NatsServer]:
    """Run a server on which the program may do what its block says, and the other services anything."""
    permissions = need.permissions(without, responses=without != RESPONSES)
    block = "\n".join(permission_lines(permissions, lambda verb, entry: ""))
    # nats.js takes no credentials from a URL.
    config = (
        f'authorization: {{ users: [ {{ user: "others", password: "{PASSWORD}" }}, '
        f'{{ user: "program", password: "", permissions: {{\n{block}\n}} }} ] }}\nno_auth_user: "program"'
    )
    with NatsServer(config, jetstream=True) as server:
        if not others:
            yield server
            return
        process = subprocess.Popen(  # noqa: ASYNC220 (it ends with the block)
            [sys.executable, str(HERE / "others.py")],
            env={**os.environ, "NATS_URL": f"nats://others:{PASSWORD}@127.0.0.1:{server.port}"},
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            await trio.to_thread.run_sync(process.stdout.readline)
            yield server
        finally:
            process.kill()
            process.communicate()


async def _run(name: str, server: NatsServer) -> tuple[str, list[str]]:
    """Run a program up to its end, or to the first violation; return its report, and the violations."""
    url = f"{name}={server.url}"
    if name in JAVASCRIPT:
        command = ["node", str(HERE / "run.js"), url]
        environment = {**os.environ, "NODE_PATH": node_path()}
    else:
        command, environment = [sys.executable, "-W", "ignore", str(HERE / "run.py"), url], {**os.environ}
    process = subprocess.Popen(  # noqa: ASYNC220 (killed below)
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        with trio.fail_after(LIMIT):
            while process.poll() is None and not _violations(server):  # noqa: ASYNC110 (a log has no event)
                await trio.sleep(0.02)
    finally:
        process.kill()
        printed, _ = process.communicate()
    return printed, _violations(server)


def _violations(server: NatsServer) -> list[str]:
    return [line for line in server.log().splitlines() if VIOLATION.search(line)]


async def _check(name: str, need: ClientNeeds) -> None:
    others = name != QUICK
    async with _system(need, None, others=others) as server:
        printed, violations = await _run(name, server)
        assert violations == []
        _, error = json.loads(printed)[name]
        assert error == ""
    for line in [*need.lines, *([RESPONSES] if need.responses is not None else [])]:
        async with _system(need, line, others=others) as server:
            _, violations = await _run(name, server)
            assert violations, f"{name} runs without {line}"


@pytest.mark.parametrize(
    "name", [name if name == QUICK else pytest.param(name, marks=pytest.mark.long) for name in MINIMAL]
)
async def test_a_program_runs_with_its_block_and_not_without_a_line(name: str, zoo: Path) -> None:
    await _check(name, _need(name, zoo))
