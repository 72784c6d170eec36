"""A cassette for tests: the server of a capture, in a thread of its own, behind a proxy that shows and bends.

The proxy stands in front in every mode, so a fault acts between the client and the server, recorded or real:
what is recorded is what the server saw, and the same fault over the recording gives the same conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

import trio

from natsproxy.addresses import Address
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import NatsproxyError
from natsproxy.replay.cassette.record_mode import CassetteUse, parse_mode, use
from natsproxy.replay.conversation.matching import BodyMatcher
from natsproxy.replay.server_playback.suggestions import preview
from natsproxy.testing.front import Front, server_address
from natsproxy.testing.thread import refuse_in_loop

_DRAIN: Final = 2.0  # seconds for what clients have sent to be answered at the end
_SHOWN: Final = 20  # complaints in a message
_SETTLE: Final = 1.0  # seconds for the player to read what was sent before


class CassetteMismatch(AssertionError, NatsproxyError):
    """The program under test sent what was never recorded; the message names the nearest recorded frames."""


def brief(found: list[str]) -> list[str]:
    """Return the first of many complaints, and how many more there are: one wrong turn makes a thousand."""
    more = len(found) - _SHOWN
    return found if more <= 0 else [*found[:_SHOWN], f"... and {more} more"]


class cassette(Front):
    """Play (or record) a capture for the time of a `with`; `url` is where clients connect.

        with cassette("orders.ncap", "once", upstream="nats://127.0.0.1:4222") as tape:
            client = connect(tape.url)
            with tape.fault(drop(first=1), subject="orders.new"):
                ...

    Inside an event loop it is `async with`, since clients may have to read on while it ends.

    mode: none (default; never dials a server), once, new_episodes, all or rewrite; those that record need
    `upstream`, a NATS URL.  bodies: subject patterns and functions that say whether two application payloads
    are the same, `{"orders.>": ignoring_json(["/ts"])}`; by bytes otherwise.  seed: of the faults' chance.

    At the end CassetteMismatch is raised for what was never recorded; with `strict` also for what was
    recorded and not used.  What is recorded in a block that fails is not kept.  Raises CaptureError and
    ConfigError, in a sentence, when it cannot start.
    """

    def __init__(
        self,
        path: Path | str,
        mode: str = "none",
        *,
        upstream: str | None = None,
        strict: bool = False,
        bodies: Mapping[str, BodyMatcher] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.path = Path(path)
        self.mode = parse_mode(mode)
        self.strict = strict
        self.session: CassetteUse | None = None
        self._bodies = [(pattern.encode(), same) for pattern, same in (bodies or {}).items()]
        self._upstream = None if upstream is None or mode == "none" else server_address(upstream)
        self._keep = True

    @property
    def recording(self) -> bool:
        """Whether this use makes the capture."""
        return self.session is not None and self.session.recording

    @property
    def added(self) -> int:
        """How many frames new_episodes added to the capture, once it has stopped."""
        return 0 if self.session is None else self.session.added

    # -- life

    def __enter__(self) -> cassette:
        refuse_in_loop("leaving `with cassette(...)`", "`async with cassette(...)`")
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(keep=kind is None)
        if kind is None:
            self.check()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep = kind is None
        await self._thread.stop_async()
        if kind is None:
            self.check()

    def close(self, *, keep: bool = True) -> None:
        """Stop without judging; keep: whether what was recorded becomes the capture.  Idempotent."""
        self._keep = keep
        self._thread.stop()

    async def _serve(self, started: Callable[[], None], stop: trio.Event) -> None:
        async with use(self.path, self.mode, upstream=self._upstream, bodies=self._bodies) as session:
            self.session = session
            behind = server_address(session.url)
            async with self._before(
                ProxySettings(listen=(Address(),), upstream=behind, seed=self.seed)
            ) as proxy:
                started()
                await stop.wait()
                await proxy.drain(_DRAIN)
            await _settled(session)
            if not self._keep:
                session.discard()

    # -- what differed

    def mismatches(self) -> list[str]:
        """Return what clients sent that was never recorded, each with the nearest that was."""
        played = None if self.session is None else self.session.played
        return [] if played is None else [str(one) for one in list(played.mismatches)]

    def unused(self) -> list[str]:
        """Return the recorded client frames that no client has sent (yet)."""
        played = None if self.session is None else self.session.played
        if played is None:
            return []
        find = played.unused
        found = self._thread.call(find) if self._thread.running else find()
        return [preview(one.frame) for one in found]

    def complaints(self) -> list[str]:
        """Return what `check` finds fault with."""
        found = self.mismatches()
        if self.strict:
            found += [f"recorded, but not sent by any client: {one}" for one in self.unused()]
        return found

    def check(self) -> None:
        """Raise CassetteMismatch if anything went differently."""
        found = self.complaints()
        if found:
            raise CassetteMismatch("\n".join([f"{self.path}:", *brief(found)]))

    def story(self, count: int = 20) -> str:
        """Return what a person wants to see when a test failed: what differed, faults, the last frames."""
        end = ", recording: kept only if the test passes" if self.recording else ""
        head = f"cassette {self.path}, mode {self.mode}, seed {self.seed}{end}"
        return "\n".join([head, *brief(self.mismatches()), super().story(count)])


async def _settled(session: CassetteUse) -> None:
    """Wait until the player has read all that clients sent before they left."""
    played = session.played
    with trio.move_on_after(_SETTLE):
        while played is not None and played.connected:  # noqa: ASYNC110 (clients tell nobody that they left)
            await trio.sleep(0.001)
