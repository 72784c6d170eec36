"""One run of the program: its server, a proxy with the trial's rules before it, and what came of it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from natsproxy.config.recording import RecordSettings
from natsproxy.errors import ConfigError, NatsproxyError, first_error
from natsproxy.events import Event, Firing
from natsproxy.net.proxy import Proxy
from natsproxy.processes.program import Tail
from natsproxy.processes.starvation import lost_by, wait_for
from natsproxy.processes.user_command import LIMIT, command_failed, run_shell
from natsproxy.replay.transport_proxy import running_proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import parse_rules
from natsproxy.rules.kinds import KINDS
from natsproxy.sweep.open_connections import open_connections
from natsproxy.sweep.programs import Program, Started
from natsproxy.sweep.values import ProgramRun, Trial
from natsproxy.sweep.worlds import RunServer, World
from natsproxy.units import in_seconds

CAPTURE: Final = "run.ncap"
OUTPUT: Final = "output.txt"
_DRAIN: Final = 1.0  # seconds in which frames that the program sent at its end may reach the server
_KILLED_DRAIN: Final = 0.1  # the same for a program that was ended: a fault may hold them for hours
_NEEDS_TERMINAL: Final = re.compile(
    r"EOF when reading a line|/dev/tty|[Nn]ot a (tty|terminal)|[Ii]nappropriate ioctl"
)
_MOST_FIRINGS: Final = 10_000
_LEAVE: Final = 0.3  # seconds in which the children of a program that has ended may end too


async def run_once(
    world: World,
    program: Program,
    folder: Path,
    limit: float,
    *,
    trial: Trial | None = None,
    check: str = "",
    check_limit: float = LIMIT,
    seed: int = 1,
) -> ProgramRun:
    """Run a program once, before a server that `world` gives it; everything has ended when this returns.

    trial: its rules are in force from the start; None for a baseline.  folder: gets the recording
    (`run.ncap`, in place of an older one) and the end of the output (`output.txt`).  limit: seconds that the
    program has.  check: a shell command that looks at the server after the run.  check_limit: seconds that it
    has.  seed: of the rules' random choices.
    Where there is no server, or the program cannot be started, the run has that as its problem.  Raises
    ConfigError for rules that cannot be used.
    """
    rules = parse_rules(trial.rules, KINDS) if trial else ()
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - at once
    (folder / CAPTURE).unlink(missing_ok=True)
    one = _OneRun(
        program, folder, ProgramRun(None, 0.0, limit, folder / CAPTURE), trial, RuleChain(rules, seed=seed)
    )
    try:
        async with world.server() as server:
            await one.run(server, seed)
            if check and not one.result.problem:
                await one.check(check, server.url, check_limit)
    except* NatsproxyError as errors:
        one.result.problem = one.result.problem or str(first_error(errors))
    try:
        (folder / OUTPUT).write_text(one.result.output, encoding="utf-8")
    except OSError as error:
        one.result.problem = one.result.problem or f"cannot write into {folder}: {error.strerror}"
    return one.result


class _OneRun:
    """A run while it goes on."""

    def __init__(
        self, program: Program, folder: Path, result: ProgramRun, trial: Trial | None, chain: RuleChain
    ) -> None:
        self._program = program
        self._name = program.name
        self._folder = folder
        self.result = result
        self._trial = trial
        self._chain = chain
        self._tail = Tail()
        self._fired = trio.Event()  # the rule that marks the place

    async def run(self, server: RunServer, seed: int) -> None:
        """Run the program before a server, and keep what comes of it."""
        record = RecordSettings(self.result.capture, rotate_size=0, overflow="wait")
        settings = replace(server.legs, seed=seed, record=record)
        async with running_proxy(settings, self._chain) as proxy:
            proxy.subscribe(self._notice)
            if server.probe:
                await proxy.try_upstream()
                if proxy.unready is not None:
                    raise ConfigError(proxy.unready)
            async with self._restarting(server):
                await self._program_before(proxy)
                # What the faults hold is late, and not lost: it arrives before the check.
                proxy.swap(RuleChain(seed=seed))
                await proxy.rules_in_force()
                proxy.send_held()
                await proxy.drain(_KILLED_DRAIN if self.result.code is None else _DRAIN, answers=False)
            if not self.result.problem:
                self.result.problem = self._unusable(proxy)
        if proxy.unwritten is not None:
            self.result.problem = proxy.unwritten

    def _notice(self, event: Event) -> None:
        if isinstance(event, Firing) and len(self.result.firings) < _MOST_FIRINGS:
            self.result.firings.append(event)
            if event.acted and self._chain.rules and event.rule == self._chain.rules[0].name:
                self._fired.set()

    @asynccontextmanager
    async def _restarting(self, server: RunServer) -> AsyncIterator[None]:
        """Restart the server when the trial's place comes, where the trial asks for that."""
        how = self._trial.restart if self._trial else ""
        if not how:
            yield
            return
        if server.restart is None:
            raise ConfigError("only a server of the sweep's own can be restarted (--server)")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._restart, server.restart, how == "keep")
            yield
            nursery.cancel_scope.cancel()

    async def _restart(self, restart: Callable[[bool], Awaitable[None]], keep: bool) -> None:
        await self._fired.wait()
        await restart(keep)

    async def _program_before(self, proxy: Proxy) -> None:
        url = f"nats://{proxy.listen[0]}"
        result, left = self.result, ""
        async with self._program.run(url, self._tail, self._folder) as program:
            began = trio.current_time()
            result.code, result.limit = await wait_for(program.wait, result.limit, self._losing(program))
            result.seconds = trio.current_time() - began
            if result.code is None:
                result.open = await open_connections(proxy)
                result.output = self._tail.text()
                result.stack = await program.stack()
            else:
                left = await self._left(program)
        if result.code is not None:
            result.output = self._tail.text() + left

    def _losing(self, program: Started) -> Callable[[], Awaitable[float]]:
        """Return what tells the seconds that a busy machine takes from now on, from the program or the proxy.

        A clean run has the seconds that the user gave it, and no more.
        """
        pid, thread = os.getpid(), threading.get_native_id()
        before = lost_by(pid, thread)

        async def lost() -> float:
            if self._trial is None:
                return 0.0
            return await program.lost() + lost_by(pid, thread) - before

        return lost

    async def _left(self, program: Started) -> str:
        """Return a line about the processes that the program left behind; those about to end are none."""
        left = await program.left()
        with trio.move_on_after(_LEAVE):
            while left:
                await trio.sleep(_LEAVE / 6)
                left = await program.left()
        if not left:
            return ""
        said = f"{self._name} ended and left {len(left)} running, now ended: {', '.join(left)}"
        if self._trial is None:
            self.result.problem = f"{said}: it must run in the foreground"
        return f"\n{said}\n"

    def _unusable(self, proxy: Proxy) -> str:
        """Return a sentence about a run that says nothing of the program; "" where it does."""
        result = self.result
        how = f"ended with {result.code}"
        if result.code is None:
            how = f"did not end within {in_seconds(result.limit)}"
        if not proxy.accepted:
            url = f"nats://{proxy.listen[0]}"
            where = f"no client connected to NATS_URL={url}: it must connect there"
            return f"{self._name} {how} and {where}{result.printed}"
        if self._trial is None and result.code and _NEEDS_TERMINAL.search(result.output):
            return f"{self._name} {how}: it needs a terminal or an input, and has none{result.printed}"
        return ""

    async def check(self, command: str, url: str, limit: float) -> None:
        """Run the user's check."""
        code, output = await run_shell(command, url, limit)
        if code is None:
            how = f"did not end within {in_seconds(limit)}"
            self.result.problem = str(command_failed("check", command, how, output))
        self.result.check_code, self.result.check_output = code, output
