"""A sweep from a test, of a callable or a command, with its verdict as a value or an error."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import trio

from natsproxy.addresses import mask_addresses
from natsproxy.config.endpoints import parse_listener, parse_server
from natsproxy.config.settings import TLS_OPTIONS, legs
from natsproxy.errors import ConfigError, NatsproxyError, first_error
from natsproxy.replay.cassette.file_names import safe_name
from natsproxy.replay.conversation.match_options import OPTIONS, read
from natsproxy.sweep.function import Function
from natsproxy.sweep.kept_sweep import KeptSweep, Outcome
from natsproxy.sweep.programs import Command, Program
from natsproxy.sweep.sweeping import SweepOptions
from natsproxy.sweep.worlds import OwnServer, Played, UserServer, World
from natsproxy.testing.harness import ANY_PORT, SERVER
from natsproxy.testing.thread import Library, TrioThread, refuse_in_loop, running_loop

OUT: Final = Path("sweep-out")
_SWEEP: Final = {one.name for one in fields(SweepOptions)}
_OF_KIND: Final = {"upstream": {*TLS_OPTIONS}, "cassette": {"bodies", *(one.key for one in OPTIONS)}}
"""The further options of a kind of world."""
_NAMES: Final = {"upstream": "upstream", "cassette": "a cassette", "server": "a fresh nats-server"}
_NO_USE: Final = {
    "upstream": ("server", "server_config"),
    "cassette": ("server", "server_config", "setup", "reset"),
    "server": ("reset",),
}
"""The arguments that a kind of world has no use for."""


def sweep(
    program: Callable[[str], Any] | Sequence[str],
    *,
    upstream: str | None = None,
    cassette: Path | str | None = None,
    server: Path | str | None = None,
    server_config: str = "",
    setup: str = "",
    reset: str = "",
    faults: Iterable[str] = (),
    subjects: Iterable[str] = (),
    patience: float | None = None,
    out: Path | str | None = None,
    library: Library | None = None,
    **options: Any,
) -> Outcome:
    """Run a program once for each place in its conversation and each fault there; return what was found.

        async def worker(url):
            client = await nats.connect(url)
            ...

        def test_worker():
            sweep(worker, faults=["drop", "cut"], subjects=["orders.>"]).check()

    program: a callable that gets the URL of a proxy before the server, or the words of a command that gets it
    in NATS_URL.  It must do its work and end; a callable that raises has failed, and said so.
    Each run has a fresh nats-server with JetStream.  server: another executable than the installed one.
    server_config: the text of its configuration file.  upstream: the URL of a server in place of that, for
    one run after the other.  cassette: a capture that is played in its place.  setup: a shell command that
    prepares the server, reset: one that cleans `upstream` before each run; both get its URL in NATS_URL.
    faults: names of `natsproxy sweep --faults`, () for its defaults.  subjects: patterns of those that the
    frames are about, () for any.  patience: seconds that a run has at least; None: by the program's own
    timers, 30 s at least.  out: the folder of the results; None: one in `sweep-out/`.  library: of the event
    loop of a coroutine function; None: that of the loop that runs, else asyncio.  options: the other fields
    of `SweepOptions` (`budget`, seconds in which trials begin, `baseline`, `confirm`, `jobs`, `check`, ...);
    with `upstream` those of TLS, as flags of `natsproxy run`; with `cassette` those of the comparison, as
    `cassette` has them.

    The result has `findings`, and `check()` raises SweepFailure with all of them.  Raises ConfigError for
    arguments that cannot be used, and where the program does not run well without a fault.
    Inside an event loop it raises BlockingCall: there, `await sweep_async(...)`.
    """
    refuse_in_loop("sweep()", "await sweep_async()")
    given: dict[str, Any] = {
        "upstream": upstream,
        "cassette": cassette,
        "server": server,
        "server_config": server_config,
        "setup": setup,
        "reset": reset,
        "faults": faults,
        "subjects": subjects,
        "patience": patience,
        "out": out,
        "library": library,
    }
    return Sweeping(_kept(program, **given, **options)).finish()


async def sweep_async(program: Callable[[str], Any] | Sequence[str], **given: Any) -> Outcome:
    """Do the same as `sweep`, with the same arguments, in asyncio and trio, without blocking."""
    return await Sweeping(_kept(program, **given)).finish_async()


class Sweeping:
    """A sweep in a thread of its own."""

    def __init__(self, kept: KeptSweep) -> None:
        self._kept = kept
        self._outcome: Outcome | None = None
        self._thread = TrioThread(self._serve, "sweep")

    def finish(self) -> Outcome:
        """Run it, and return what was found; Ctrl-C ends it with all that it has started."""
        self._thread.start()
        self._thread.finish()
        return self._found

    async def finish_async(self) -> Outcome:
        """Do the same in asyncio and trio; one that is cancelled ends it too."""
        self._thread.start()
        await self._thread.finish_async()
        return self._found

    @property
    def _found(self) -> Outcome:
        assert self._outcome is not None, "the thread has raised its error"
        return self._outcome

    async def _serve(self, started: Callable[[], None], stop: trio.Event) -> None:
        started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_at, stop, nursery.cancel_scope)
                await self._kept.run()
                self._outcome = self._kept.finish()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            ours, others = errors.split(NatsproxyError)
            if ours is None or others is not None:
                raise
            raise first_error(ours) from None


async def _cancel_at(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


def _kept(
    program: Callable[[str], Any] | Sequence[str],
    *,
    faults: Iterable[str] = (),
    subjects: Iterable[str] = (),
    patience: float | None = None,
    out: Path | str | None = None,
    library: Library | None = None,
    **given: Any,
) -> KeptSweep:
    made = _program(program, library)
    more = {name: given.pop(name) for name in sorted(_SWEEP & given.keys())}
    options = SweepOptions(
        faults=_several("faults", faults),
        subjects=_several("subjects", subjects),
        patience=patience,
        **{"jobs": os.cpu_count() or 1, **more},
    )
    folder = OUT / safe_name(made.line) if out is None else Path(out)
    said = {"faults": options.faults, "subjects": options.subjects, "patience": patience, "library": library}
    again = _call(program, {**said, **given, **more, "out": folder})
    return KeptSweep(world_of(**given), made, options, folder, again)


def _call(program: Callable[[str], Any] | Sequence[str], given: dict[str, Any]) -> str:
    """Return the call of `sweep` that shows findings again: what failed in that folder comes first.

    The password of a URL is on no disk and in no log: that argument is `os.environ["NATS_URL"]`.
    """
    words = [Function(program).line if callable(program) else repr(list(program))]
    for name, value in given.items():
        shown = repr(str(value) if isinstance(value, Path) else value)
        if mask_addresses(shown) != shown:
            shown = 'os.environ["NATS_URL"]'
        if value not in (None, "", ()):
            words.append(f"{name}={shown}")
    return f"natsproxy.testing.sweep({', '.join(words)})"


def _program(program: Callable[[str], Any] | Sequence[str], library: Library | None) -> Program:
    if callable(program):
        return Function(program, library or running_loop() or "asyncio")
    if isinstance(program, str) or not program or not all(isinstance(word, str) for word in program):
        raise ConfigError(f"the program must be a callable, or a command as a list of words, not {program!r}")
    if library is not None:
        raise ConfigError("library is for callables: a command has its own")
    return Command(program, os.environ)


def _several(name: str, values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise ConfigError(f"{name} must be a list, not {values!r}")
    return tuple(values)


def world_of(
    upstream: str | None = None,
    cassette: Path | str | None = None,
    server: Path | str | None = None,
    server_config: str = "",
    setup: str = "",
    reset: str = "",
    **options: Any,
) -> World:
    """Return the servers of a sweep, as `sweep` has the arguments.  Raises ConfigError."""
    if upstream and cassette:
        raise ConfigError("name one server: upstream or cassette, or none for a fresh one in each run")
    kind = "upstream" if upstream else "cassette" if cassette else "server"
    named = {"server": server, "server_config": server_config, "setup": setup, "reset": reset}
    for name in _NO_USE[kind]:
        if named[name]:
            raise ConfigError(f"{_NAMES[kind]} has no use for {name}")
    known = _OF_KIND.get(kind, set())
    for name in options.keys() - known:
        near = difflib.get_close_matches(name, {*_SWEEP, *known}, 1)
        raise ConfigError(f"there is no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if upstream:
        ends = legs(
            options, listen=parse_listener(ANY_PORT, "listen"), upstream=parse_server(upstream, SERVER)
        )
        return UserServer(ends, setup, reset, upstream)
    if cassette:
        return Played(Path(cassette), read(options))
    return OwnServer(Path(server) if server else None, server_config, setup)
