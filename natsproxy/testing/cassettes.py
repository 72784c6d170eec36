"""A cassette for tests: the server of a capture in a separate thread, behind a proxy for faults and frames.

The proxy stands in front in every mode, so a fault acts between the client and the server, recorded or real.
The capture holds the frames that the server saw; playing it under the same fault gives the same conversation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import trio

from natsproxy.config.endpoints import Server, parse_listener, parse_server
from natsproxy.config.settings import TLS_OPTIONS, legs
from natsproxy.errors import NatsproxyError
from natsproxy.replay.cassette.record_anew import ANY_SERVER
from natsproxy.replay.cassette.record_mode import CassetteUse, parse_mode, plays, use
from natsproxy.replay.conversation.exchanges import RecordedExchange
from natsproxy.replay.conversation.match_options import DEFAULT, Given, MatchOptions, read
from natsproxy.replay.server_playback.mismatch import preview
from natsproxy.replay.transport_proxy import plain_upstream
from natsproxy.testing.harness import ANY_PORT, SERVER, ProxyHarness
from natsproxy.testing.thread import refuse_in_loop

_DRAIN: Final = 2.0  # seconds to wait at the end for answers to the last frames of clients
_SHOWN: Final = 5  # problems shown in a message: one mismatch may cause a thousand
_LEARNED: Final = 20  # learned values shown in a report


class CassetteMismatch(AssertionError, NatsproxyError):
    """The program under test sent frames that were never recorded; the message names the nearest ones."""


class cassette(ProxyHarness):
    """Play (or record) a capture for the duration of a `with`; `url` is the address for clients.

        with cassette("orders.ncap", "once", upstream="nats://127.0.0.1:4222") as tape:
            client = connect(tape.url)
            with tape.fault(drop(first=1), subject="orders.new"):
                ...

    Inside an event loop use `async with`, since clients may have to read while the cassette ends.

    Identifiers and times that the program generates may differ from run to run (`learned` lists them).

    mode: none (default; never dials a server), once, new_episodes, all or rewrite; the recording modes need
    `upstream`, a NATS URL.  setup: a shell command that prepares that server, whose URL it gets in NATS_URL;
    it runs before a recording, and before new_episodes sends the first frame there.
    listen: the address for clients, with a scheme.  seed: the seed of random faults.
    options: those of the comparison, as flags of `natsproxy cassette run` have them (`match_on`,
    `ignore_headers`, `ignore_json`, ...), one text or a list: `ignore_json=["/ts", "orders.> /id"]`; and
    `bodies`, functions that compare two payloads by subject pattern: `{"orders.>": same}`; and `scrub`, a
    function of (subject, headers, payload) that returns the payload to write.  `match_as` may map such
    patterns to functions that read a payload, or to pairs that write it too.  A recording keeps all but the
    functions and commands.  Also those of TLS, as flags of `natsproxy run`: `upstream_tls_ca="ca.pem"`.

    The end raises CassetteMismatch for frames never recorded, and for recorded ones that must not be left out
    (strict=True: for any recorded frame, strict=False: for none).  If the block raises, no recording is kept.
    Raises CaptureError and ConfigError when it cannot start.
    """

    def __init__(
        self,
        path: Path | str,
        mode: str = "none",
        *,
        upstream: str | None = None,
        setup: str = "",
        listen: str = ANY_PORT,
        strict: bool | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(seed=seed)
        self.path = Path(path)
        self.mode = parse_mode(mode)
        self.strict = strict
        self._setup = setup
        self._use: CassetteUse | None = None
        tls = {key: options.pop(key) for key in TLS_OPTIONS.keys() & options.keys()}
        self._options = read(options)
        server = None if upstream is None or mode == "none" else parse_server(upstream, SERVER)
        self._legs = legs(tls, listen=parse_listener(listen, "listen"), upstream=server)
        self._keep = True
        self.record_anew = f'cassette({str(self.path)!r}, "all", upstream="{ANY_SERVER}")'

    @property
    def options(self) -> Given:
        """The options of the comparison that were given."""
        return self._options

    @property
    def in_force(self) -> MatchOptions:
        """The options of the comparison, those that the capture holds included."""
        return DEFAULT if self._use is None else self._use.options

    @property
    def recording(self) -> bool:
        """True if this use writes the capture."""
        return self._use is not None and self._use.recording

    @property
    def added(self) -> int:
        """The number of frames that new_episodes added to the capture, known after the end."""
        return 0 if self._use is None else self._use.added

    # -- start and end

    def __enter__(self) -> cassette:
        refuse_in_loop("leaving `with cassette(...)`", "`async with cassette(...)`")
        return super().__enter__()

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(keep=exc_type is None)
        self._judge(error)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep = exc_type is None
        await self._thread.stop_async()
        self._judge(error)

    def _judge(self, error: BaseException | None) -> None:
        """Raise CassetteMismatch, or attach the mismatches to the error that they probably caused."""
        if error is None:
            self.check()
        elif self.mismatches():
            error.add_note(self.complaint(ended=False))
        elif awaited := self.waiting_for():
            error.add_note(f"{self.path} was waiting for {awaited}")

    def close(self, *, keep: bool = True) -> None:
        """Stop without a check; idempotent.  keep: False discards the recording."""
        self._keep = keep
        self._thread.stop()

    async def _serve(self, started: Callable[[], None], stop: trio.Event) -> None:
        async with (
            plain_upstream(self._legs, now=not plays(self.path, self.mode)) as upstream,
            use(self.path, self.mode, upstream=upstream, options=self._options, setup=self._setup) as used,
        ):
            self._use = used
            self._seen.filters = used.options.filters
            settings = replace(self._legs, upstream=(Server(used.address),), seed=self.seed)
            async with self._run_proxy(settings) as proxy:
                started()
                await stop.wait()
                await proxy.drain(_DRAIN, answers=False)
            await used.wait_for_clients()
            if not self._keep:
                used.discard()

    # -- differences

    def mismatches(self) -> list[str]:
        """Return the client frames that were never recorded, each with the nearest recorded one."""
        played = None if self._use is None else self._use.played
        return [] if played is None else [str(one) for one in list(played.mismatches)]

    def unused(self) -> list[str]:
        """Return the recorded client frames that no client has sent (yet)."""
        played = None if self._use is None else self._use.played
        if played is None:
            return []
        find = played.unused
        found = self._thread.call(find) if self._thread.running else find()
        return [preview(one.frame) for one in found]

    def waiting_for(self) -> str:
        """Return a phrase for the next recorded client frame, `""` when all were sent."""
        played = None if self._use is None else self._use.played
        if played is None or not self.unused():
            return ""
        find = played.machine.waiting_for
        return self._thread.call(find) if self._thread.running else find()

    def _missed(self) -> list[RecordedExchange]:
        if self._use is None:
            return []
        find = partial(self._use.missed, self.strict)
        return self._thread.call(find) if self._thread.running else find()

    def _hollow(self) -> str:
        """Return a sentence about a play that has shown nothing, though there was something to show."""
        used = self._use
        if used is None or used.played is None:
            return ""
        if used.changed:
            return f"{self.path} changed while it was played"
        if self.strict is False or not used.played.machine.recording.connections:
            return ""
        find = partial(used.hollow, self.url)
        return self._thread.call(find) if self._thread.running else find()

    def summary(self, *, passed: bool) -> dict[str, Any]:
        """Return what was served, as plain data for a receipt; known after the end.

        passed: the block succeeded, so that what it left out is its own fault.
        """
        if self._use is None:
            return {}
        failures = self._use.differences(self.strict if passed else False)
        if passed and (hollow := self._hollow()):
            failures.append(hollow)
        good = passed and not failures
        return asdict(self._use.summary(strict=self.strict, passed=good, failures=tuple(failures)))

    def learned(self) -> list[str]:
        """Return the places of values that differ from run to run, each with the first pair of values."""
        played = None if self._use is None else self._use.played
        found = {} if played is None else played.machine.identifiers.learned
        return [str(one) for one in list(found.values())]

    def shared(self) -> list[str]:
        """Return the messages of a consumer or queue group that went to another client than recorded."""
        played = None if self._use is None else self._use.played
        return [] if played is None else played.machine.handed_over

    def complaint(self, since: int = 0, *, ended: bool = True) -> str:
        """Return the message of a failure, `""` where there is none; its first line is the first cause.

        since: the number of earlier mismatches to ignore.  ended: False while clients may send more.
        """
        played = None if self._use is None else self._use.played
        mismatches = [] if played is None else list(played.mismatches)
        found = mismatches[since:]
        lines = [str(one) for one in found]
        if ended and not mismatches:  # otherwise those are the reason why it was not sent
            hollow, missed = self._hollow(), self._missed()
            lines = [f"recorded, but not sent by any client: {preview(one.frame)}" for one in missed]
            lines = [hollow, *lines] if hollow else lines
        more = [f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        head = [one.summary for one in found[:1]] or [line.partition("\n")[0] for line in lines[:1]]
        if lines and not found and not (self._use and self._use.changed):
            more.append("strict=False allows that (pytest: --nats-no-strict)")
        anew = f"to record it anew: {self.record_anew}"
        return "\n".join([*head, f"{self.path}:", *lines[:_SHOWN], *more, anew]) if lines else ""

    def check(self) -> None:
        """Raise CassetteMismatch for frames never recorded, and for recorded ones not sent."""
        complaint = self.complaint()
        if complaint:
            raise CassetteMismatch(complaint)

    def failure_report(self, count: int = 20) -> str:
        """Return the report for a failed test.

        It has what the cassette waits for, learned values, messages that clients shared, faults, firings, and
        the last `count` frames.
        """
        end = ", recording: kept only if the test passes" if self.recording else ""
        head = f"cassette {self.path}, mode {self.mode}, seed {self.seed}{end}"
        played = None if self._use is None else self._use.played
        lacking = [] if played is None or not played.unprepared else [played.unprepared]
        learned = [f"learned: {one}" for one in self.learned()[:_LEARNED]]
        shared = [f"shared: {one}" for one in self.shared()[:_LEARNED]]
        awaited = "" if self.mismatches() else self.waiting_for()
        waiting = [f"waiting for: {awaited}"] if awaited else []
        return "\n".join([head, *lacking, *waiting, *learned, *shared, super().failure_report(count)])
