"""The machine: what is tried, how often, and what becomes a finding."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from natsproxy.errors import ConfigError
from natsproxy.sweep.findings import group
from natsproxy.sweep.folder import SweepFolder
from natsproxy.sweep.programs import Program
from natsproxy.sweep.sweeping import RunTurns, Sweep, SweepOptions, title
from natsproxy.sweep.values import Verdict
from natsproxy.sweep.worlds import OwnServer
from tests.sweep.kit import HELLO, python

QUICK = SweepOptions(faults=("drop",), subjects=("job",), baseline=2, confirm=3, patience=1.5)

WAITS = """
    link.sendall(b"SUB job 1\\r\\n")
    link.sendall(b"PUB job 2\\r\\nhi\\r\\n")
    while not (line := lines.readline()).startswith(b"MSG"):
        assert line, "the connection has ended"
"""
"""It waits for its message without end, whatever else comes."""

GIVES_UP = """
    link.settimeout(0.3)
    link.sendall(b"SUB job 1\\r\\nPUB job 2\\r\\nhi\\r\\n")
    assert lines.readline().startswith(b"MSG"), "no message"
"""
"""It fails where its message does not come."""


def named(expression: str) -> str:
    """Return the begin of a program whose client has the name of an expression."""
    return HELLO.replace('"hello"}\\r\\n\'', '"%s"}\\r\\n\' % (' + expression + ").encode()")


Sweeping = Callable[..., Awaitable[Sweep]]


@pytest.fixture
def swept(tmp_path: Path) -> Sweeping:
    """Sweep a program: `(program, **options)`."""

    async def go(program: Program, *, resume: bool = False, **options: object) -> Sweep:
        folder = SweepFolder.begin(tmp_path / "out", {}, resume=resume)
        one = Sweep(OwnServer(), program, folder, replace(QUICK, **options))  # type: ignore[arg-type]
        await one.run()
        return one

    return go


# -- before the trials


@pytest.mark.server
async def test_no_run_has_less_time_than_a_few_clean_ones(swept: Sweeping) -> None:
    """A patience that is too short would call a slow program hung."""
    one = await swept(python(WAITS + "    time.sleep(0.5)"), patience=0.1, budget=0.0)
    assert one.baseline is not None
    assert one.patience() == pytest.approx(4 * max(run.seconds for run in one.baseline.runs), abs=0.1)
    assert one.patience() > 2


@pytest.mark.server
@pytest.mark.parametrize(
    ("program", "options", "said"),
    [
        (python(WAITS), {"subjects": ("jobs.>", "x")}, "no frame of the clean runs is on jobs.> or x"),
        (
            python(named("'w%s' % ''.join(chr(97 + int(c)) for c in str(time.time_ns()))"), hello=False),
            {"subjects": ()},
            "worker-1f3a, worker-77\nw",
        ),
    ],
)
async def test_a_sweep_that_can_try_nothing_is_no_success(
    program: Program, options: dict[str, object], said: str, swept: Sweeping
) -> None:
    with pytest.raises(ConfigError) as refused:
        await swept(program, **options)
    assert said in str(refused.value)


@pytest.mark.server
@pytest.mark.parametrize(
    "expression",
    [
        "f'worker-{os.getpid()}'",
        pytest.param("f'worker-{__import__(\"uuid\").uuid4()}'", marks=pytest.mark.long),
    ],
)
async def test_a_client_with_another_name_in_each_run_is_known_by_its_template(
    expression: str, swept: Sweeping, tmp_path: Path
) -> None:
    one = await swept(python(named(expression) + WAITS, hello=False))
    assert {title(judged.trial) for judged in one.judged} == {
        "drop at worker-* · c2s · 1st PUB on job",
        "drop at worker-* · s2c · 1st MSG on job",
    }
    assert {judged.judgement.verdict for judged in one.judged} == {Verdict.DEAF}
    assert [finding.rate for finding in group(one.judged)] == [(3, 3), (3, 3)]


# -- verdicts of a whole sweep


@pytest.mark.server
@pytest.mark.parametrize(
    ("alike", "verdict"), [(2, Verdict.PASSED), (6, Verdict.WRONG)], ids=["by chance", "always"]
)
async def test_a_result_is_not_wrong_where_further_clean_runs_have_it_too(
    alike: int, verdict: Verdict, swept: Sweeping, tmp_path: Path
) -> None:
    """Its first runs sent two messages, all of them clean; now and then a later one sends one."""
    program = python(f"""
    import pathlib
    runs = pathlib.Path({str(tmp_path / "runs")!r})
    with runs.open("a") as file:
        file.write("x")
    faulty = runs.stat().st_size == 3
    ask(b"PUB job 2\\r\\nhi\\r\\n")
    ask(b"PUB more 1\\r\\n1\\r\\n")
    if runs.stat().st_size <= {alike} and not faulty:
        ask(b"PUB more 1\\r\\n2\\r\\n")
    """)
    one = await swept(program, jobs=1, confirm=3)
    assert [(judged.judgement.verdict, judged.runs) for judged in one.judged] == [
        (verdict, 1 if verdict is Verdict.PASSED else 3)
    ]
    assert any("more is not compared" in text for text in one.differs) == (verdict is Verdict.PASSED)


@pytest.mark.server
async def test_a_program_that_waits_for_ever_is_found_each_time(swept: Sweeping) -> None:
    one = await swept(python(WAITS))
    assert {title(judged.trial) for judged in one.judged} == {
        "drop at hello · c2s · 1st PUB on job",
        "drop at hello · s2c · 1st MSG on job",
    }
    assert {judged.judgement.verdict for judged in one.judged} == {Verdict.DEAF}  # it answers no PING
    findings = group(one.judged)
    assert [finding.rate for finding in findings] == [(3, 3), (3, 3)]
    assert not one.running


@pytest.mark.server
async def test_a_program_that_gives_up_fails_loudly(swept: Sweeping) -> None:
    one = await swept(python(GIVES_UP))
    assert {judged.judgement.verdict for judged in one.judged} == {Verdict.FAILED_LOUDLY}
    assert group(one.judged) == []


def failing(folder: Path, in_runs: str, then: str) -> Program:
    """Return a program that does `then` where its PUB is lost, in the n-th of such runs for each digit n."""
    return python(f"""
    import pathlib, signal, faulthandler
    def waits():
        time.sleep(60)
    link.settimeout(0.3)
    link.sendall(b"SUB job 1\\r\\nSUB job 2\\r\\nPUB job 2\\r\\nhi\\r\\n")
    try:
        lines.readline()
    except TimeoutError:
        runs = pathlib.Path({str(folder)!r})
        runs.mkdir(exist_ok=True)
        number = len(list(runs.iterdir())) + 1
        (runs / str(number)).touch()
        if str(number) in {in_runs!r}:
            {then}
    """)


@pytest.mark.server
@pytest.mark.parametrize(
    ("hangs_in", "options", "verdict", "same"),
    [
        ("1", {}, Verdict.PASSED, 3),
        pytest.param("14", {}, Verdict.FLAKY, 1, marks=pytest.mark.long),
        pytest.param("13456", {}, Verdict.DEAF, 3, marks=pytest.mark.long),
        # Its time was over.
        pytest.param("1", {"budget": 3.0, "patience": 4.0}, Verdict.FLAKY, 1, marks=pytest.mark.long),
    ],
)
async def test_what_does_not_happen_every_time_is_tried_again_alone(
    hangs_in: str,
    options: dict[str, object],
    verdict: Verdict,
    same: int,
    swept: Sweeping,
    tmp_path: Path,
) -> None:
    one = await swept(failing(tmp_path / "runs", hangs_in, "waits()"), jobs=1, **options)
    (judged,) = (judged for judged in one.judged if judged.trial.place.position.what == "PUB")
    assert (judged.judgement.verdict, judged.same, judged.runs) == (verdict, same, 3)
    assert [finding.rate for finding in group(one.judged)] == [(3, 3)] * verdict.found
    if verdict is Verdict.FLAKY:
        assert judged.judgement.reasons[0] == "deaf at first, then passed 2"


@pytest.mark.server
async def test_a_finding_has_the_stack_of_one_of_its_runs(swept: Sweeping, tmp_path: Path) -> None:
    """The first one says nothing when it is asked."""
    silent = (
        "number == 1 and [signal.signal(signal.SIGUSR2, signal.SIG_IGN), faulthandler.disable()]; waits()"
    )
    one = await swept(failing(tmp_path / "runs", "123", silent), jobs=1)
    (finding,) = group(one.judged)
    assert finding.name == "deaf-drop-PUB-of-job-in-waits"
    assert "in waits" in finding.least.run.stack
    assert finding.least.run.capture.exists()
    resumed = await swept(failing(tmp_path / "runs", "123", silent), jobs=1, resume=True)
    assert [again.name for again in group(resumed.judged)] == [finding.name]


@pytest.mark.server
@pytest.mark.parametrize("deaf_first", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_a_program_that_is_now_hung_and_now_deaf_never_ends(
    deaf_first: bool, swept: Sweeping, tmp_path: Path
) -> None:
    """It listens to nothing any more in some of its runs."""
    mark = tmp_path / "first"
    one = await swept(
        python(f"""
    import pathlib
    link.settimeout(0.3)
    link.sendall(b"SUB job 1\\r\\nPUB job 2\\r\\nhi\\r\\n")
    try:
        lines.readline()
    except TimeoutError:
        first = not pathlib.Path({str(mark)!r}).exists()
        pathlib.Path({str(mark)!r}).touch()
        if first is not {deaf_first!r}:
            link.sendall(b"UNSUB 1\\r\\n")
        time.sleep(60)
    """),
        subjects=("job",),
        jobs=1,
    )
    (finding,) = (found for found in group(one.judged) if found.cause.what == "PUB")
    assert finding.name.startswith("hung-drop-PUB-of-job")
    assert finding.rate == (3, 3)
    assert finding.least.judgement.reasons[0] == f"deaf in {1 if deaf_first else 2} of 3 runs"


@pytest.mark.server
async def test_a_finding_is_reproduced_alone(swept: Sweeping, tmp_path: Path) -> None:
    found = (await swept(python(WAITS))).judged[0]
    again = Sweep(OwnServer(), python(WAITS), SweepFolder.begin(tmp_path / "again", {}), QUICK)
    one = await again.reproduce(found.trial)
    assert (one.judgement.verdict, one.same, one.runs, one.confirmed) == (Verdict.DEAF, 3, 3, True)


@pytest.mark.long
@pytest.mark.server
async def test_faults_in_a_recovery_are_tried_with_depth_two(swept: Sweeping) -> None:
    """It connects anew once, and the second fault acts on that connection."""
    program = python(
        """
    def connect(number):
        global link, lines
        link = socket.create_connection((host, int(port)))
        link.settimeout(0.5)
        lines = link.makefile("rb")
        lines.readline()
        ask(b'CONNECT {"verbose":false,"name":"worker"}\\r\\n')
        link.sendall(b"SUB job 1\\r\\nPUB job 2\\r\\nhi\\r\\n")
        return lines.readline().startswith(b"MSG")
    try:
        got = connect(1)
    except OSError:
        got = False
    if not got:
        sys.exit(0 if connect(2) else 3)
    """
    )
    shallow = await swept(program, faults=("cut",), subjects=("job",))
    deep = await swept(program, faults=("cut",), subjects=("job",), depth=2)
    assert {judged.trial.depth for judged in shallow.judged} == {1}
    second = [judged for judged in deep.judged if judged.trial.depth == 2]
    assert second
    assert {judged.trial.place.position.connection for judged in second} == {"worker/2"}
    assert Verdict.FAILED_LOUDLY in {judged.judgement.verdict for judged in second}


# -- what is tried


@pytest.mark.server
async def test_shards_share_the_trials_out(swept: Sweeping) -> None:
    program = python(GIVES_UP)
    parts = [await swept(program, shard=(number, 2), budget=0.0) for number in (1, 2)]
    whole = await swept(program, budget=0.0)
    names = [[title(trial) for trial in one.trials] for one in (*parts, whole)]
    assert sorted(names[0] + names[1]) == sorted(names[2])
    assert not whole.judged


@pytest.mark.server
async def test_a_sweep_that_was_stopped_goes_on(swept: Sweeping) -> None:
    program = python(WAITS)
    stopped = await swept(program, budget=0.0)
    assert (len(stopped.trials), stopped.judged) == (2, [])
    first = await swept(program, resume=True)
    again = await swept(program, resume=True)
    assert {title(one.trial) for one in again.judged} == {title(one.trial) for one in first.judged}
    assert [one.rate for one in group(again.judged)] == [(3, 3), (3, 3)]


@pytest.mark.server
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sys.exit(4)", "ended with 4, without any fault"),
        ("print('no such stream'); sys.exit(1)", "no such stream"),
        ("time.sleep(60)", "did not end within 5 s, without any fault"),
    ],
)
async def test_a_program_that_fails_by_itself_is_not_swept(swept: Sweeping, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await swept(python(text), limit=5.0)


@pytest.mark.server
async def test_a_program_that_fails_now_and_then_by_itself_is_told_so(
    swept: Sweeping, tmp_path: Path
) -> None:
    program = python(f"""
    import pathlib
    mark = pathlib.Path({str(tmp_path / "mark")!r})
    if mark.exists():
        sys.exit(4)
    mark.touch()
    """)
    said = "ended with 4, without any fault, in clean run 2 and not in the first"
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=said), flatten_subgroups=True):
        await swept(program)


@pytest.mark.server
async def test_a_check_that_fails_by_itself_stops_the_sweep(swept: Sweeping) -> None:
    with pytest.raises(ConfigError, match="the check ended with 3, without any fault"):
        await swept(python(GIVES_UP), check="exit 3")


# -- turns


async def test_a_run_that_waits_lends_its_turn(autojump_clock: trio.testing.MockClock) -> None:
    turns = RunTurns(1, 2)
    ended: list[tuple[str, float]] = []

    async def run(name: str, seconds: float) -> None:
        async def work() -> None:
            await trio.sleep(seconds)

        await turns.take(work, lend_after=2.0)
        ended.append((name, trio.current_time() - began))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "hangs", 30.0)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(run, "first", 1.0)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(run, "second", 1.0)
    assert ended == [("first", 3.0), ("second", 4.0), ("hangs", 30.0)]


async def test_no_more_runs_wait_than_may(autojump_clock: trio.testing.MockClock) -> None:
    turns = RunTurns(1, 1)
    at_once, most = 0, 0

    async def work() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await trio.sleep(30)
        at_once -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(turns.take, work, 1.0)
    assert most == 2


async def test_a_failed_run_gives_its_turn_back(autojump_clock: trio.testing.MockClock) -> None:
    turns = RunTurns(1, 0)

    async def fails() -> None:
        raise ValueError

    async def works() -> int:
        return 1

    with pytest.RaisesGroup(ValueError):
        await turns.take(fails, 1.0)
    with trio.fail_after(1):
        assert await turns.take(works, 1.0) == 1


@pytest.mark.server
async def test_a_pause_is_tried_by_default_only_where_the_client_finds_out_soon(swept: Sweeping) -> None:
    """The client of this program would PING for minutes; one run is given a patience of its own."""
    program = python(GIVES_UP)
    default, patient, asked = [
        await swept(program, baseline=1, budget=0.0, subjects=(), **options)
        for options in (
            {"faults": (), "patience": None},
            {"faults": (), "patience": 1.0},
            {"faults": ("pause",), "patience": None},
        )
    ]
    for one, tried in ((default, False), (patient, True), (asked, True)):
        assert ("pause" in {trial.fault for trial in one.trials}) is tried
        assert any(text.startswith("pause is not tried") for text in one.differs) is not tried
