"""The machine of a sweep: clean runs, trials in their order, confirmations, findings.

1. The program runs clean a few times.  What all of these runs have in common has places for faults.
2. Each trial is one run.  It has the patience of the program's own timers from the start, so that no verdict
   is due to a short time-out.  A program that hangs mostly does nothing: a run that takes longer than the
   clean ones did lends its turn on the processors to the next run, and goes on beside it.
3. The first trial of a cause is repeated until it has `confirm` runs.  It is confirmed if all of them have
   one verdict; if not it is flaky, and the next trial of that cause is repeated.
4. Before the first wrong result counts, the program runs clean `confirm` times more, and the result is judged
   again: what chance decides, such as the number of its messages, may be alike in three clean runs.
5. A flaky trial is made again when the others have ended, alone: the runs beside it may have been the reason.
6. With depth 2, the connections that a fault made have places too, for a second fault.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

import trio

from natsproxy.converters import duration
from natsproxy.errors import ConfigError
from natsproxy.processes.user_command import LIMIT
from natsproxy.sweep import faults, plan
from natsproxy.sweep.causes import FailureCause, Judged, cause_of
from natsproxy.sweep.folder import SweepFolder
from natsproxy.sweep.positions import common, name, places_of
from natsproxy.sweep.programs import Program
from natsproxy.sweep.runner import run_once
from natsproxy.sweep.stack_place import stack_place
from natsproxy.sweep.timers import UNKNOWN, timers
from natsproxy.sweep.traffic import RunNames, common_names, traffic
from natsproxy.sweep.values import Judgement, Place, ProgramRun, Trial, Verdict
from natsproxy.sweep.verdicts import Baseline, judge
from natsproxy.sweep.worlds import OwnServer, World
from natsproxy.units import in_seconds

_WAITING: Final = 8  # runs beside each one that has a turn, when they have lent theirs
_LENT: Final = 2.0  # a run lends its turn after so many times a clean one
_LEAST: Final = 4.0  # times a clean run that every run has, whatever patience was asked for
_LONG_SILENCE: Final = 120.0  # seconds that a run with a pause may have where nobody asked for it
_SHOWN: Final = 2_000  # characters of a program's output in an error
_STUCK: Final = {Verdict.HUNG, Verdict.DEAF}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The trials that are wanted, and how often each run is made.

    faults: names of groups or variants; () for those that are tried where nobody names any.  subjects:
    patterns of those that the frames are about; () for any.  everything: all places, not one of each class.
    shard: number and number of parts.  baseline: clean runs.  confirm: runs of a trial before it is a
    finding.  budget: seconds in which trials begin, None: until all are done.  jobs: runs at once, where the
    world allows it.  patience: seconds that a run has at least, and never below four clean runs; None: by the
    traffic.  limit: seconds for a clean run, and for `check` (60 at most).  depth: 2 for faults in the
    recovery from another one.  check: a shell command that tells, by exit code and output, whether the
    program has done its work.
    """

    faults: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    everything: bool = False
    shard: tuple[int, int] = (1, 1)
    baseline: int = 3
    confirm: int = 5
    budget: float | None = None
    jobs: int = 2
    patience: float | None = None
    limit: float = 600.0
    depth: int = 1
    check: str = ""
    seed: int = 1


class RunTurns:
    """Limits how many runs use the processors at once.

    turns: runs at once.  waiting: runs beside each of them that only wait, and have no turn.  most: of both.
    """

    def __init__(self, turns: int, waiting: int) -> None:
        self.most = turns * (1 + waiting)
        self._turns = trio.CapacityLimiter(turns)
        self._all = trio.CapacityLimiter(self.most)

    async def take(self, work: Callable[[], Awaitable[T]], lend_after: float) -> T:
        """Do the work when its turn comes, and return its result.

        lend_after: seconds after which it goes on without the turn, which the next one gets.
        """
        turn = object()
        async with self._all:
            await self._turns.acquire_on_behalf_of(turn)

            async def lend() -> None:
                await trio.sleep(lend_after)
                self._turns.release_on_behalf_of(turn)

            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lend)
                    found = await work()
                    nursery.cancel_scope.cancel()
            finally:
                if turn in self._turns.statistics().borrowers:
                    self._turns.release_on_behalf_of(turn)
        return found


class _TrialGroup:
    """The trials that fail for one cause by their first runs.  lock: of the task that repeats one."""

    def __init__(self) -> None:
        self.members: list[Judged] = []
        self.lock = trio.Lock()

    def confirmed(self) -> Judged | None:
        """Return the one that did the same every time."""
        return next((one for one in self.members if one.confirmed), None)

    def unsure(self) -> Judged | None:
        """Return a trial that was not repeated yet."""
        return next((one for one in self.members if one.runs == 1), None)


class Sweep:
    """A sweep of one program; `run` may be cancelled, and what was found till then stays.

    baseline, timers: of the clean runs, once they were made.  differs: what differs between them, or is not
    tried, a sentence each.  places: those that all of them have.  trials: all that were chosen.  judged:
    those that were tried.  running: the names of those that run now.  repeated: those that run again,
    until it is known whether they are findings.
    """

    def __init__(self, world: World, program: Program, folder: SweepFolder, options: SweepOptions) -> None:
        self.options = options
        self.baseline: Baseline | None = None
        self.timers = UNKNOWN
        self.differs: list[str] = []
        self._faults = options.faults or faults.DEFAULTS
        self.places: list[Place] = []
        self.trials: list[Trial] = []
        self.judged: list[Judged] = []
        self.running: Counter[str] = Counter()
        self.repeated: list[Judged] = []
        self._names = RunNames(frozenset(), frozenset())
        self._world, self._program, self._folder = world, program, folder
        self._turns = self._turns_for(options.jobs)
        self._lend_after = math.inf
        self._deadline: float | None = None
        self._numbers = count(1)
        self._writing = trio.CapacityLimiter(1)
        self._queue: deque[Trial] = deque()
        self._groups: dict[FailureCause, _TrialGroup] = {}
        self._clean_again: trio.Event | None = None  # set once there are further clean runs

    def seconds_left(self) -> float | None:
        """Return the time in which further trials begin; None for no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def patience(self, trial: Trial | None = None) -> float:
        """Return the seconds that a run with a fault has."""
        silent = trial is not None and trial.fault == "pause"
        least = self.options.patience
        if least is None:
            least = self.timers.patience(self._slowest, silent=silent)
        return round(max(least, _LEAST * self._slowest), 1) + (_delay(trial) if trial else 0.0)

    @property
    def _slowest(self) -> float:
        """The seconds that the longest clean run took."""
        return max((run.seconds for run in self.baseline.runs), default=0.0) if self.baseline else 0.0

    def _turns_for(self, jobs: int) -> RunTurns:
        return RunTurns(jobs, _WAITING) if self._world.parallel else RunTurns(1, 0)

    async def run(self) -> None:
        """Run the program clean, and then once for each trial; those that are flaky once more at the end.

        Raises ConfigError where the program does not run well without a fault.
        """
        await self._run_clean()
        self.trials = self._chosen(self.places)
        self.judged = self._folder.restored(self.trials)
        done = {id(one.trial) for one in self.judged}
        self._queue.extend(trial for trial in self.trials if id(trial) not in done)
        if self.options.budget is not None:
            self._deadline = time.monotonic() + self.options.budget
        await self._work_all()
        flaky = [one for one in self.judged if one.judgement.verdict is Verdict.FLAKY]
        if flaky:
            self._turns = self._turns_for(1)
            async with trio.open_nursery() as nursery:
                for one in flaky:
                    nursery.start_soon(self._try_again, one)
            await self._work_all()

    async def reproduce(self, trial: Trial) -> Judged:
        """Run the program clean, and then `confirm` times with one trial; return what came of it."""
        await self._run_clean()
        self.trials = [trial]
        one = Judged(trial, *await self._turns.take(partial(self._judged, trial), self._lend_after))
        self.judged.append(one)
        await self._doubt(one)
        await self._repeat(one)
        return one

    # -- clean runs

    async def _run_clean(self) -> None:
        runs = [await self._clean_run(1)]  # alone: if it fails, the others need not start

        async def another(number: int) -> None:
            runs.append(await self._turns.take(partial(self._clean_run, number), math.inf))

        async with trio.open_nursery() as nursery:
            for number in range(2, self.options.baseline + 1):
                nursery.start_soon(another, number)
        captures = [run.capture for run in runs]
        self.baseline = await trio.to_thread.run_sync(Baseline.of, runs)
        self.places, differs, self._names = await trio.to_thread.run_sync(_common, captures)
        self.differs = [*self.baseline.differs, *differs]
        self.timers = await trio.to_thread.run_sync(timers, captures)
        self._lend_after = _LENT * self._slowest
        self._refuse_nothing()
        self._leave_out_pauses()

    def _refuse_nothing(self) -> None:
        """Raise ConfigError where the clean runs have no frame of a client that a fault can be tried at.

        A sweep that tries nothing finds nothing: that must not look like a program that is well.
        """
        about = plan.about(self.places, self.options.subjects)
        if any(place.position.what != "INFO" for place in about):
            return
        if self.options.subjects and any(place.position.what != "INFO" for place in self.places):
            raise ConfigError(f"no frame of the clean runs is on {' or '.join(self.options.subjects)}")
        differs = "".join(f"\n{one}" for one in self.differs)
        raise ConfigError(
            "the clean runs have no frame in common, so no fault can be tried; connections are known by the "
            "name of their client, which must be the same in each run but for numbers, UUIDs and ids: "
            f"worker-1f3a, worker-77{differs}"
        )

    def _leave_out_pauses(self) -> None:
        """Try no pause that would last for long, unless somebody asked for it."""
        silence = self.timers.patience(self._slowest, silent=True)
        if self.options.faults or self.options.patience is not None or silence <= _LONG_SILENCE:
            return
        self._faults = tuple(one for one in self._faults if one != "pause")
        self.differs.append(
            f"pause is not tried: by its PINGs, the client gives up a silent connection in {silence:.0f} s "
            "(--faults pause tries it)"
        )

    async def _clean_run(self, number: int) -> ProgramRun:
        folder = self._folder.baseline(number)
        run = await self._once(f"without a fault, {number}", folder, self.options.limit)
        problem = run.problem or self._failure(run, number)
        if problem:
            raise ConfigError(problem)
        return run

    async def _doubt(self, one: Judged) -> None:
        """Judge a result that is wrong again, beside further clean runs."""
        if one.judgement.verdict is not Verdict.WRONG:
            return
        if self._clean_again is None:
            self._clean_again = trio.Event()
            await self._learn_more()
            self._clean_again.set()
        await self._clean_again.wait()
        assert self.baseline is not None, "the clean runs come first"
        one.judgement = await trio.to_thread.run_sync(judge, self.baseline, one.run, one.trial)

    async def _learn_more(self) -> None:
        """Run the program clean some times more, and leave out what differs then as well."""
        assert self.baseline is not None, "the clean runs come first"
        runs = list(self.baseline.runs)

        async def another(number: int) -> None:
            work = partial(
                self._once, f"without a fault, {number}", self._folder.baseline(number), self.options.limit
            )
            run = await self._turns.take(work, self._lend_after)
            problem = run.problem or self._failure(run, number)
            if problem:
                self.differs.append(problem.partition("\n")[0].rstrip(":"))
            else:
                runs.append(run)

        first = len(runs) + 1
        async with trio.open_nursery() as nursery:
            for number in range(first, first + self.options.confirm):
                nursery.start_soon(another, number)
        self.baseline = await trio.to_thread.run_sync(Baseline.of, runs)
        self.differs += [text for text in self.baseline.differs if text not in self.differs]

    def _failure(self, run: ProgramRun, number: int) -> str:
        """Return why a clean run is no baseline; "" where it is one.  number: of the run, from 1."""
        name = self._program.name
        fault = "any fault" if number == 1 else f"any fault, in clean run {number} and not in the first"
        if run.code is None:
            return (
                f"{name} did not end within {in_seconds(run.limit)}, without {fault}: a sweep needs a "
                "program that ends by itself (--timeout gives it longer)"
            )
        if run.code != 0:
            return f"{name} ended with {run.code}, without {fault}{_last(run.output)}"
        if run.check_code not in (None, 0):
            return f"the check ended with {run.check_code}, without {fault}{_last(run.check_output)}"
        return ""

    # -- trials

    def _chosen(self, found: list[Place], after: Trial | None = None) -> list[Trial]:
        options = self.options
        about = plan.about(found, options.subjects)
        own = isinstance(self._world, OwnServer)
        every = faults.trials(about, self._faults, self.timers, own_server=own, after=after)
        order = plan.planned(every, self._folder.failed)
        return plan.shard([*order.first, *(order.others if options.everything else [])], *options.shard)

    async def _work_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(self._turns.most):
                nursery.start_soon(self._work)

    async def _work(self) -> None:
        """Take trial after trial until none is left, or the time is over."""
        while (one := await self._turns.take(self._next, self._lend_after)) is not None:
            self.judged.append(one)
            await self._settle(one)

    async def _next(self) -> Judged | None:
        return await self._tried(self._queue.popleft()) if self._queue and self.seconds_left() != 0 else None

    async def _tried(self, trial: Trial) -> Judged:
        return Judged(trial, *await self._judged(trial))

    async def _try_again(self, flaky: Judged) -> None:
        """Repeat a trial that was flaky, if there is time, and replace what came of it."""

        async def first() -> Judged | None:
            return await self._tried(flaky.trial) if self.seconds_left() != 0 else None

        if (one := await self._turns.take(first, self._lend_after)) is not None:
            await self._repeat(one)
            self.judged[self.judged.index(flaky)] = one
            await self._settle(one)

    async def _settle(self, one: Judged) -> None:
        """Do what follows from the verdict on a trial, and write it down."""
        await self._doubt(one)
        if one.judgement.verdict.found:
            await self._confirm(one)
        elif one.judgement.verdict is Verdict.PASSED and one.trial.depth < self.options.depth:
            self._queue.extend(await trio.to_thread.run_sync(self._in_recovery, one))
        # A disk may take its time, and the traffic of other runs goes on.
        await trio.to_thread.run_sync(self._folder.note, one, limiter=self._writing)

    def _in_recovery(self, one: Judged) -> list[Trial]:
        """Return the trials on the connections that the program made because of a fault."""
        found = places_of(traffic(one.run.capture).known_by(self._names))
        return self._chosen(plan.recovery(found, self.places), after=one.trial)

    async def _judged(self, trial: Trial) -> tuple[Judgement, ProgramRun]:
        """Run a trial once, and judge it."""
        assert self.baseline is not None, "the clean runs come first"
        folder = self._folder.run(next(self._numbers))
        run = await self._once(title(trial), folder, self.patience(trial), trial)
        return await trio.to_thread.run_sync(judge, self.baseline, run, trial), run

    async def _once(self, shown: str, folder: Path, limit: float, trial: Trial | None = None) -> ProgramRun:
        self.running[shown] += 1
        try:
            return await run_once(
                self._world,
                self._program,
                folder,
                limit,
                trial=trial,
                check=self.options.check,
                check_limit=min(LIMIT, self.options.limit),
                seed=self.options.seed,
            )
        finally:
            self.running[shown] -= 1
            if not self.running[shown]:
                del self.running[shown]

    async def _confirm(self, one: Judged) -> None:
        """Repeat the trials of its cause, one after the other, until one has the same verdict every time."""
        cause = cause_of(one.trial, one.judgement, one.run)
        group = self._groups.setdefault(cause, _TrialGroup())
        group.members.append(one)
        async with group.lock:
            while group.confirmed() is None and (unsure := group.unsure()) is not None:
                await self._repeat(unsure)
        sure = group.confirmed()
        for member in group.members:
            member.cause = cause_of(sure.trial, sure.judgement, sure.run) if sure else cause

    async def _repeat(self, one: Judged) -> None:
        """Repeat a trial; it keeps the run that says best where the program is, if all end alike."""
        runs = [(one.judgement, one.run)]

        async def again() -> None:
            runs.append(await self._turns.take(partial(self._judged, one.trial), self._lend_after))

        self.repeated.append(one)
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(self.options.confirm - 1):
                    nursery.start_soon(again)
            self._conclude(one, runs)
        finally:
            self.repeated.remove(one)
            with trio.CancelScope(shield=True):
                for _, run in runs:
                    if run is not one.run:
                        await trio.to_thread.run_sync(self._folder.drop, run)

    def _conclude(self, one: Judged, runs: Sequence[tuple[Judgement, ProgramRun]]) -> None:
        """Note what the runs of a trial come to, the first of which is its own."""
        verdicts = [judgement.verdict for judgement, _ in runs]
        one.runs, one.failed = len(runs), sum(verdict.found for verdict in verdicts)
        stuck = set(verdicts) == _STUCK  # it never ends: both are one failure, and hung says less
        one.confirmed = stuck or len(set(verdicts)) == 1
        one.same = one.runs if one.confirmed else verdicts.count(verdicts[0])
        if one.confirmed:
            one.judgement, one.run = _telling(runs)
            if stuck:
                deaf = f"deaf in {verdicts.count(Verdict.DEAF)} of {one.runs} runs"
                one.judgement = Judgement(Verdict.HUNG, (deaf, *one.judgement.reasons))
        else:
            seen = ", ".join(f"{verdict.value} {n}" for verdict, n in Counter(verdicts[1:]).most_common())
            reason = f"{verdicts[0].value} at first, then {seen}"
            one.judgement = Judgement(Verdict.FLAKY, (reason, *one.judgement.reasons))


def _telling(runs: Sequence[tuple[Judgement, ProgramRun]]) -> tuple[Judgement, ProgramRun]:
    """Return the first of the runs whose stack names the place that most stacks name.

    Its cause is then the same in each sweep, also where a busy machine has kept some of the stacks back.
    """
    places = [stack_place(run.stack) for _, run in runs]
    count = Counter(filter(None, places))
    return runs[places.index(min(count, key=lambda place: (-count[place], place)) if count else "")]


def title(trial: Trial) -> str:
    """Return a trial in words."""
    after = f", after {trial.after}" if trial.after else ""
    return f"{trial.fault} at {name(trial.place)}{after}"


def _delay(trial: Trial) -> float:
    """Return the seconds by which a fault makes the program late."""
    delays = [rule["delay"] for rule in trial.rules if isinstance(rule.get("delay"), str)]
    return sum(duration(delay) for delay in delays) / 1e9


def _common(captures: list[Path]) -> tuple[list[Place], list[str], RunNames]:
    """Return the places that all runs have, what differs, and the names that all runs have."""
    runs = [traffic(one) for one in captures]
    names = common_names(runs)
    return *common([places_of(run.known_by(names)) for run in runs]), names


def _last(output: str) -> str:
    """Return the end of an output, as the end of a sentence."""
    shown = output.strip()[-_SHOWN:]
    return f":\n{shown}" if shown else ""
