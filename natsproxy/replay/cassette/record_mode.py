"""One use of a cassette: play it, or record it, as the mode says.

| mode | the capture is there | it is not |
| --- | --- | --- |
| none | play; upstream is never dialled | CaptureError |
| once | play | record |
| new_episodes | play; what was not recorded goes to the upstream and is added to it | record |
| all, rewrite | record anew, in place of it | record |

Whatever is recorded takes the place of the old capture at the end, in one step: when the block failed, or
called `discard`, the old one stays as it was (and where there was none, there is none).  Without an upstream
`new_episodes` plays as `none` does.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal, get_args

import trio

from natsproxy.addresses import Address
from natsproxy.capture.read.reader import open_capture
from natsproxy.errors import CaptureError, ConfigError
from natsproxy.net.proxy import Proxy
from natsproxy.replay.cassette.merge import beside, merge, replace
from natsproxy.replay.conversation.matching import Matchers
from natsproxy.replay.observe import observe
from natsproxy.replay.server_playback.server import CassetteServer

Mode = Literal["none", "once", "new_episodes", "all", "rewrite"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
_REACH: Final = 5.0  # seconds for a server to record from


class CassetteUse:
    """A cassette in use.

    url: where clients connect.  played: the server that plays, None while recording.  proxy: what records.
    added: frames that were added to the capture, once the use has ended.
    """

    def __init__(self, url: str, played: CassetteServer | None, proxy: Proxy | None) -> None:
        self.url = url
        self.played = played
        self.proxy = proxy
        self.added = 0
        self.discarded = False

    @property
    def recording(self) -> bool:
        """Whether this use makes the capture."""
        return self.played is None

    @property
    def mismatched(self) -> bool:
        """Whether clients sent what was never recorded."""
        return self.played is not None and bool(self.played.mismatches)

    def discard(self) -> None:
        """Keep nothing of this use: the capture stays as it was."""
        self.discarded = True


def parse_mode(text: str) -> Mode:
    """Return the mode of that name.

    Raises ConfigError that lists the modes.
    """
    for mode in get_args(Mode):
        if mode == text:
            return mode  # type: ignore[no-any-return]
    raise ConfigError(f"{text!r} is no cassette mode: one of {', '.join(MODES)}")


@asynccontextmanager
async def use(
    path: Path,
    mode: Mode = "none",
    *,
    upstream: Address | None = None,
    bodies: Matchers = (),
    listen: Address | None = None,
) -> AsyncIterator[CassetteUse]:
    """Play or record a cassette for the length of the block.

    Raises CaptureError where there is no capture to play or it is cut short, ConfigError where recording
    needs an upstream, or cannot reach it.
    """
    listen = listen or Address()
    there = path.exists()  # noqa: ASYNC240 (once, before anything runs)
    if mode == "none" and not there:
        raise CaptureError("there is no such cassette, and mode none never records one", path=path)
    if there and mode in ("none", "once", "new_episodes"):
        _refuse_cut(path)
        behind = upstream if mode == "new_episodes" else None
        server = CassetteServer(
            path, listen=listen, bodies=bodies, upstream=behind, unrecorded="record" if behind else "error"
        )
        async with _play(server) as session:
            yield session
        return
    if upstream is None:
        raise ConfigError(f"mode {mode} has to record {path}: say the upstream server to record from")
    await _there(upstream, mode)
    async with _record(path, upstream, listen) as session:
        yield session


async def _there(upstream: Address, mode: str) -> None:
    """Raise ConfigError where nobody listens: the program under test would only be told that it failed."""
    try:
        with trio.fail_after(_REACH):
            stream = await trio.open_tcp_stream(upstream.host, upstream.port)
    except (OSError, trio.TooSlowError) as error:
        why = getattr(error, "strerror", None) or "nobody answers"
        raise ConfigError(
            f"mode {mode} records from nats://{upstream}, and it cannot be reached: {why}"
        ) from None
    await stream.aclose()


def _refuse_cut(path: Path) -> None:
    """Raise CaptureError for a capture that is cut short: its clients would look as if they were wrong."""
    cut = open_capture(path).tail()
    if cut is not None:
        raise CaptureError(
            "it is cut short: `natsproxy capture recover SOURCE TARGET` keeps what is whole",
            path=cut[0],
            offset=cut[1],
        )


@asynccontextmanager
async def _play(server: CassetteServer) -> AsyncIterator[CassetteUse]:
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(_serve, server)
        session = CassetteUse(server.url, server, None)
        yield session
        scope.cancel()
    if server.failure is not None:
        raise server.failure
    if not session.discarded:
        session.added = merge(server.path, server.take_additions())


async def _serve(
    server: CassetteServer, *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve)
            task_status.started(scope)


@asynccontextmanager
async def _record(path: Path, upstream: Address, listen: Address) -> AsyncIterator[CassetteUse]:
    """Record to a new file beside the old one, which takes its place when the block ended well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = beside(path)
    try:
        async with observe(fresh, upstream, listen) as proxy:
            session = CassetteUse(f"nats://{proxy.listen[0]}", None, proxy)
            yield session
        if not session.discarded:
            if path.is_dir():  # noqa: ASYNC240 (a folder cannot be replaced by a file)
                remove(path)
            replace(fresh, path)
    finally:
        remove(fresh)


def remove(path: Path) -> None:
    """Remove a capture, a file or a folder of segments, where there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
