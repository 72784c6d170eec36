"""A world gives each run of the program its server.

| world | its server | side by side | before a run |
| --- | --- | --- | --- |
| OwnServer | a fresh nats-server with an empty JetStream folder | yes | setup |
| Upstream | the user's | no | reset, then setup; setup alone before the first run only |
| Played | a cassette that plays one | yes | nothing |

The commands get the server's own URL in NATS_URL, not the proxy's.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import trio

from natsproxy.addresses import Address, mask_addresses
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import CaptureError, ConfigError, NatsproxyError
from natsproxy.processes.nats_server import NatsServer
from natsproxy.processes.user_command import run_user_command
from natsproxy.replay.cassette.record_mode import plays, use
from natsproxy.replay.conversation.match_options import Given

_LOG_HEAD: Final = re.compile(r"^\[\d+\] [\d/]+ [\d:.]+ \[\w+\] ")


@dataclass(frozen=True, slots=True)
class RunServer:
    """The server of one run.

    legs: of the proxy before it.  url: for commands that go to it directly.  restart: stops it and starts it
    again on the same port, with what JetStream has stored (True) or without; None where it is not ours.
    probe: it may be away, and a connection more does no harm.
    """

    legs: ProxySettings
    url: str
    restart: Callable[[bool], Awaitable[None]] | None = None
    probe: bool = False


class World(Protocol):
    """The server of each run.

    parallel: runs may go side by side.  name: a phrase for people.
    """

    parallel: bool
    name: str

    def server(self) -> AbstractAsyncContextManager[RunServer]:
        """Yield the server of one run; raise NatsproxyError where there is none."""


class OwnServer:
    """A fresh nats-server for each run.

    executable: None for the installed one.  config: the text of its configuration file.  setup: a shell
    command that fills it.
    """

    parallel = True
    name = "a fresh nats-server for each run"

    def __init__(self, executable: Path | None = None, config: str = "", setup: str = "") -> None:
        self._executable, self._config, self._setup = executable, config, setup

    @asynccontextmanager
    async def server(self) -> AsyncIterator[RunServer]:
        """Yield the server of one run."""
        server = NatsServer(self._config, jetstream=True, executable=self._executable)

        def restart(keep: bool) -> None:
            server.stop()
            if not keep:
                server.forget()
            server.start()

        try:
            await trio.to_thread.run_sync(server.__enter__)
        except NatsproxyError as error:
            said = server.log().strip().rpartition("\n")[2]
            reason = _LOG_HEAD.sub("", said).removeprefix("nats-server: ")
            if "'store_dir'" in reason:
                reason += ": leave it out, each run has a folder of its own"
            raise ConfigError(f"nats-server did not start: {reason}" if said else str(error)) from None
        try:
            address = Address(port=server.port)
            if self._setup:
                await run_user_command("setup", self._setup, server.url)
            yield RunServer(
                ProxySettings(listen=(Listener(Address()),), upstream=(Server(address),)),
                server.url,
                lambda keep: trio.to_thread.run_sync(restart, keep),
            )
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(server.discard)


class UserServer:
    """The user's server.

    legs: of a proxy before it (`config.settings.legs`).  setup, reset: shell commands.  url: for commands, as
    the user gave it; "" for that of `legs`.
    """

    parallel = False

    def __init__(self, legs: ProxySettings, setup: str = "", reset: str = "", url: str = "") -> None:
        self._legs = legs
        self._url = url or str(legs.upstream[0])
        self.name = f"the server {mask_addresses(self._url)}"
        self._setup, self._reset = setup, reset
        self._used = False
        self._one = trio.Lock()

    @asynccontextmanager
    async def server(self) -> AsyncIterator[RunServer]:
        """Yield the server of one run, when no other run has it."""
        async with self._one:
            if self._reset:
                await run_user_command("reset", self._reset, self._url)
            if self._setup and (self._reset or not self._used):
                await run_user_command("setup", self._setup, self._url)
            self._used = True
            yield RunServer(self._legs, self._url, probe=True)


class Played:
    """A cassette that plays the server.

    options: of the comparison with what was recorded.
    """

    parallel = True

    def __init__(self, cassette: Path, options: Given | None = None) -> None:
        self._cassette, self._options = cassette, options
        self.name = f"the cassette {cassette}"

    @asynccontextmanager
    async def server(self) -> AsyncIterator[RunServer]:
        """Yield the server of one run."""
        if not plays(self._cassette, "none"):
            raise CaptureError("there is no such cassette", path=self._cassette)
        async with use(self._cassette, options=self._options) as cassette:
            yield RunServer(
                ProxySettings(listen=(Listener(Address()),), upstream=(Server(cassette.address),)),
                cassette.url,
            )
