"""Record modes: one use of a cassette plays it or records it.

| mode | the capture exists | it does not |
| --- | --- | --- |
| none | play; upstream is never dialled | CaptureError |
| once | play | record |
| new_episodes | play; unrecorded input goes to the upstream and is added | record |
| all, rewrite | record anew, in its place | record |

A recording replaces the old capture at the end, in one step.  If the block fails or calls `discard`, the old
capture stays as it was (if there was none, there is none).  Without an upstream `new_episodes` plays as
`none` does.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import trio

from natsproxy.addresses import Address
from natsproxy.capture.read.reader import open_capture
from natsproxy.errors import CaptureError, ConfigError
from natsproxy.net.proxy import Proxy
from natsproxy.replay.cassette.cassette_file import beside, replace
from natsproxy.replay.cassette.cassette_used import differences, played, untouched
from natsproxy.replay.cassette.fingerprint import Fingerprint, fingerprint
from natsproxy.replay.cassette.merge import merge
from natsproxy.replay.cassette.modes import MODES, Mode
from natsproxy.replay.cassette.setup import run_setup
from natsproxy.replay.conversation.exchanges import RecordedExchange
from natsproxy.replay.conversation.match_options import Given, MatchOptions
from natsproxy.replay.observe import observe
from natsproxy.replay.receipt import CassetteUsed
from natsproxy.replay.server_playback.server import CassetteServer

_DIAL_SECONDS: Final = 5.0
_LEAVE: Final = 1.0  # seconds for clients to disconnect at the end


class CassetteUse:
    """A cassette in use.

    address: for clients.  played: the server that plays, None while recording.  proxy: the one that records,
    None while playing.  options: of the comparison and the filters, including those in the capture.  before:
    the capture as it is played.  left_behind: the number of clients still connected at the end.  Known once
    the use has ended: added: the number of frames added to the capture; changed: another process wrote it
    meanwhile; kept: a recording was kept.
    """

    def __init__(
        self,
        path: Path,
        mode: Mode,
        address: Address,
        options: MatchOptions,
        *,
        played: CassetteServer | None = None,
        before: Fingerprint | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        self.path = path
        self.mode = mode
        self.address = address
        self.options = options
        self.played = played
        self.before = before
        self.proxy = proxy
        self.added = 0
        self.left_behind = 0
        self.changed = False
        self.kept = False
        self.discarded = False

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"nats://{self.address}"

    @property
    def recording(self) -> bool:
        """True while this use records the capture."""
        return self.played is None

    @property
    def clients(self) -> int:
        """The number of clients that have connected."""
        if self.played is not None:
            return self.played.accepted
        return 0 if self.proxy is None else self.proxy.accepted

    @property
    def mismatched(self) -> bool:
        """True when clients sent unrecorded frames."""
        return self.played is not None and bool(self.played.mismatches)

    def missed(self, strict: bool | None = None) -> list[RecordedExchange]:
        """Return the unsent recorded client frames for which a use fails.

        strict: True for all kinds, False for none.  None for those that a program must send, but none while
        new episodes are added, as the program has changed.
        """
        if self.played is None or strict is False:
            return []
        if strict:
            return self.played.unused()
        growing = self.played.machine.new_episodes is not None
        return [] if growing else self.played.machine.omitted()

    def hollow(self, url: str) -> str:
        """Return a sentence about a use in which nothing was recorded or played, `""` for any other.

        url: what the program had to connect to.
        """
        if self.played is not None:
            return untouched(self.played, url)
        return "" if self.clients else f"no client connected to {url}, so nothing was recorded"

    def differences(self, strict: bool | None) -> list[str]:
        """Return sentences about frames that were never recorded, and about those that `missed` returns."""
        return [] if self.played is None else differences(self.played, self.missed(strict))

    async def wait_for_clients(self) -> None:
        """Wait until clients have disconnected and all that they sent was compared."""
        if self.played is not None:
            await self.played.wait_for_clients(_LEAVE)
            self.left_behind = self.played.connected

    def summary(self, *, whole: bool = True, **more: Any) -> CassetteUsed:
        """Return the use for a receipt, once it has ended.

        whole: also count what the playback has not read.  more: other members.
        """
        more = {"mode": self.mode, "added": self.added, "left_behind": self.left_behind, **more}
        if self.played is not None and self.before is not None:
            return played(self.played, self.before, whole=whole, changed=self.changed, **more)
        made = fingerprint(self.path) if self.kept else None
        sha256, recorders = ("", ()) if made is None else (made.sha256, made.recorders)
        return CassetteUsed(
            str(self.path),
            played=False,
            options=self.options.stored(),
            sha256=sha256,
            recorded_by=recorders,
            clients=self.clients,
            reached_server=True,
            **more,
        )

    def discard(self) -> None:
        """Discard what this use recorded: the capture stays as it was."""
        self.discarded = True


def parse_mode(text: str) -> Mode:
    """Return the mode of that name.

    Raises ConfigError, which lists the modes.
    """
    for mode in get_args(Mode):
        if mode == text:
            return mode  # type: ignore[no-any-return]
    raise ConfigError(f"{text!r} is not a cassette mode: choose one of {', '.join(MODES)}")


def plays(path: Path, mode: Mode) -> bool:
    """True if a use in this mode plays the capture, else it records it.

    A pattern of file names (the segments of one recording) can only be played.
    """
    if mode == "none" and glob.glob(str(path)):  # noqa: PTH207 - absolute or not
        return True
    return mode in ("none", "once", "new_episodes") and path.exists()


@asynccontextmanager
async def use(
    path: Path,
    mode: Mode = "none",
    *,
    upstream: Address | None = None,
    options: Given | None = None,
    listen: Address | None = None,
    setup: str = "",
) -> AsyncIterator[CassetteUse]:
    """Play or record a cassette for the length of the block.

    options: of the comparison; a new recording keeps them.  setup: a shell command that prepares the server
    before a recording, and before the first frame that new_episodes sends to it.  Raises CaptureError if
    there is no capture to play or it is cut short, ConfigError if recording lacks an upstream or cannot reach
    it.
    """
    parse_mode(mode)  # a mistyped mode must never record over a cassette
    listen = listen or Address()
    if mode == "none" and not plays(path, mode):
        raise CaptureError("there is no such cassette, and mode none never records one", path=path)
    if plays(path, mode):
        _refuse_cut(path)
        before = await trio.to_thread.run_sync(fingerprint, path)
        real_server = upstream if mode == "new_episodes" else None
        server = CassetteServer(
            path,
            listen=listen,
            options=options,
            upstream=real_server,
            unrecorded="record" if real_server else "error",
        )
        if setup and real_server is not None:
            server.prepare = partial(run_setup, setup, real_server)
        async with play(server, mode, before) as cassette_use:
            yield cassette_use
        return
    if upstream is None:
        raise ConfigError(f"mode {mode} has to record {path}: name an upstream server to record from")
    await _check_upstream(upstream, mode)
    if setup:
        await run_setup(setup, upstream)
    async with _record(path, mode, upstream, listen, options or {}) as cassette_use:
        yield cassette_use


async def _check_upstream(upstream: Address, mode: str) -> None:
    """Raise ConfigError if no server listens there.

    Else the program under test would only see a connection that fails, without the reason.
    """
    try:
        with trio.fail_after(_DIAL_SECONDS):
            stream = await trio.open_tcp_stream(upstream.host, upstream.port)
    except (OSError, trio.TooSlowError) as error:
        reason = getattr(error, "strerror", None) or "no answer"
        raise ConfigError(
            f"mode {mode} records from nats://{upstream}, which cannot be reached: {reason}"
        ) from None
    await stream.aclose()


def _refuse_cut(path: Path) -> None:
    """Raise CaptureError for a capture that is cut short: frames of the missing part would mismatch."""
    cut = open_capture(path).tail()
    if cut is not None:
        raise CaptureError(
            "the capture is cut short: `natsproxy capture recover SOURCE TARGET` keeps its whole blocks",
            path=cut[0],
            offset=cut[1],
        )


@asynccontextmanager
async def play(server: CassetteServer, mode: Mode, before: Fingerprint) -> AsyncIterator[CassetteUse]:
    """Play a cassette for the length of the block, then add the new episodes to it.

    before: the fingerprint of the capture now, so that a change is seen.
    """
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(_serve, server)
        cassette_use = CassetteUse(
            server.path, mode, server.address, server.options, played=server, before=before
        )
        yield cassette_use
        scope.cancel()
    if server.failure is not None:
        raise server.failure
    cassette_use.changed = before.changed()
    server.options.filters.check(server.path)
    if not cassette_use.discarded:
        cassette_use.added = merge(server.path, server.take_additions(), server.options.filters)


async def _serve(
    server: CassetteServer, *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve)
            task_status.started(scope)


@asynccontextmanager
async def _record(
    path: Path, mode: Mode, upstream: Address, listen: Address, options: Given
) -> AsyncIterator[CassetteUse]:
    """Record to a new file, which replaces the old one if the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = beside(path)
    try:
        kept = MatchOptions(**options)
        async with observe(fresh, upstream, listen, kept) as proxy:
            cassette_use = CassetteUse(path, mode, proxy.listen[0], kept, proxy=proxy)
            yield cassette_use
        if not cassette_use.discarded:
            kept.filters.check(path)
            if path.is_dir():  # noqa: ASYNC240 (a folder cannot be replaced by a file)
                remove(path)
            replace(fresh, path)
            cassette_use.kept = True
    finally:
        remove(fresh)


def remove(path: Path) -> None:
    """Remove a capture (a file, or a folder of segments) if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
