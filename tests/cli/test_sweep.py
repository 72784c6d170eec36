"""`natsproxy sweep`, as a user types it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from natsproxy.cli import main
from natsproxy.cli.sweep import _again, sweep
from natsproxy.processes.family import processes
from natsproxy.testing import NatsServer
from tests.kit.authority import Authority
from tests.kit.process import ProxyProcess, wait_until
from tests.sweep.kit import HELLO, lives

WAITS = """
link.sendall(b"SUB job 1\\r\\nPUB job 2\\r\\nhi\\r\\n")
while not (line := lines.readline()).startswith(b"MSG"):
    assert line, "the connection has ended"
"""
GIVES_UP = "link.settimeout(0.3)" + WAITS
HANGS_ONCE = """
link.settimeout(0.3)
link.sendall(b"SUB job 1\\r\\nPUB job 2\\r\\nhi\\r\\n")
try:
    lines.readline()
except TimeoutError:
    try:
        os.open("hung", os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        sys.exit(0)
    time.sleep(60)
"""
QUICK = ("--faults", "drop", "--subject", "job", "--baseline", "2", "--confirm", "2", "--patience", "1500ms")
Swept = Callable[..., "subprocess.CompletedProcess[str]"]


def written(text: str, folder: Path) -> str:
    """Write a program that begins with `HELLO`; return its path."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(HELLO) + text)
    return str(path)


@pytest.fixture
def swept(tmp_path: Path) -> Swept:
    """Run the command in a folder of its own: `(text of a program, *options, world)`."""

    def go(
        text: str, *options: str, world: tuple[str, ...] = ("--server",)
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "natsproxy", "sweep", *world, *options]
        program = [sys.executable, "-S", written(text, tmp_path)]
        return subprocess.run(
            [*command, "--", *program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )

    return go


@pytest.mark.server
def test_a_finding_is_reported_reproduced_and_accepted(swept: Swept, tmp_path: Path) -> None:
    done = swept(WAITS, *QUICK)
    assert done.returncode == 1, done.stderr
    first, second = done.stdout.splitlines()
    assert re.match(
        r"01-deaf-drop-PUB-of-job-in-module: After the 1st PUB of job from client hello is lost, ", first
    )
    assert first.endswith("(2 of 2)")
    assert second.startswith("02-deaf-drop-MSG-of-job-in-module")
    names = [line.partition(": ")[0].partition("-")[2] for line in (first, second)]
    assert "2 tried: 2 deaf" in done.stderr
    facts = json.loads((tmp_path / "sweep-out/report.json").read_text())
    assert [one["name"] for one in facts["findings"]] == names
    assert names[0] in (tmp_path / "sweep-out/report.html").read_text()
    assert len(ElementTree.parse(tmp_path / "sweep-out/junit.xml").findall(".//failure")) == 2

    (readme,) = (tmp_path / "sweep-out").glob("01-*/README.txt")
    (command,) = (line.strip() for line in readme.read_text().splitlines() if "--only" in line)
    assert f"again: {command}\n" in done.stderr
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    again = subprocess.run(
        command, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert again.returncode == 1, again.stderr
    assert again.stdout.startswith("drop at hello · c2s · 1st PUB on job: deaf, 2 of 2 runs\n")

    (tmp_path / "known").write_text(f"{names[0]} # issue 7\n{names[1]}\nhung-no-more\n")
    known = swept(WAITS, *QUICK, "--accept", "known")
    assert known.returncode == 0
    assert known.stdout.count("(2 of 2, accepted)") == 2
    assert "accepted, and not found: hung-no-more" in known.stderr


@pytest.mark.long
@pytest.mark.server
@pytest.mark.parametrize(
    ("then", "code", "said"),
    [
        (GIVES_UP + "sys.exit(0)", 0, "failed loudly, 2 of 2 runs"),
        ("ask(b'SUB job 1\\r\\n')", 2, "not reached, 2 of 2 runs\n  the fault's place did not come\n"),
        (HANGS_ONCE, 1, "flaky, it failed in 1 of 2 runs\n  deaf at first, then passed 1\n"),
    ],
    ids=["mended", "without-its-place", "hangs-at-times"],
)
def test_a_finding_that_is_run_again_says_if_it_is_mended(
    swept: Swept, then: str, code: int, said: str
) -> None:
    assert swept(WAITS, *QUICK).returncode == 1
    again = swept(then, *QUICK, "--only", "01")
    assert again.returncode == code, again.stderr
    assert said in again.stdout


def test_the_command_that_is_printed_is_the_one_that_was_typed() -> None:
    """But for the password of a URL, which the shell takes from where a user may keep it."""
    typed = [
        "--upstream",
        "nats://u:secret@h:4222",
        "--reset",
        "echo 'a b' > x",
        "--",
        "prog",
        "a\nb",
        "{number}",
    ]
    context = sweep.make_context("sweep", list(typed))
    command = _again(context).replace("{number}", "01", 1)
    assert "secret" not in command
    shown = subprocess.run(
        ["/bin/sh", "-c", f'printf "%s\\0" {command}'],
        env={"NATS_URL": typed[1]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split("\0")[:-1] == ["natsproxy", "sweep", "--only", "01", *typed]
    joined = sweep.make_context("sweep", ["--upstream=nats://u:secret@h:4222", "--", "prog"])
    assert _again(joined) == 'natsproxy sweep --only {number} --upstream="$NATS_URL" -- prog'


@pytest.mark.long
@pytest.mark.server
def test_the_rules_of_a_finding_break_the_program_by_hand(swept: Swept, tmp_path: Path) -> None:
    swept(WAITS, *QUICK)
    (rules,) = tmp_path.glob("sweep-out/01-*/fault.toml")
    program = [sys.executable, "-S", written(GIVES_UP, tmp_path)]
    with NatsServer() as server:
        for options, code in (((), 0), (("--rules", str(rules)), 1)):
            with ProxyProcess(server.url, *options) as proxy:
                environment = {**os.environ, "NATS_URL": f"nats://127.0.0.1:{proxy.port}"}
                assert (
                    subprocess.run(program, env=environment, check=False, capture_output=True).returncode
                    == code
                )


@pytest.mark.server
def test_a_sound_program_has_no_finding(swept: Swept) -> None:
    done = swept(GIVES_UP, *QUICK)
    assert (done.returncode, done.stdout) == (0, "")
    assert "2 tried: 2 failed loudly" in done.stderr


@pytest.mark.long
@pytest.mark.server
def test_a_sweep_whose_time_is_over_says_what_it_did_not_try(swept: Swept) -> None:
    done = swept(GIVES_UP, *QUICK, "--for", "0s")
    assert (done.returncode, done.stdout) == (0, "")
    assert "0 tried: nothing; its time was over: 2 not tried" in done.stderr


@pytest.mark.long
@pytest.mark.server
def test_a_server_of_the_users_is_cleaned_before_each_run(swept: Swept, tmp_path: Path) -> None:
    with NatsServer() as server:
        world = (
            "--upstream",
            server.url,
            "--reset",
            f"echo $NATS_URL >> {shlex.quote(str(tmp_path))}/resets",
        )
        done = swept(GIVES_UP, *QUICK, world=world)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "resets").read_text().splitlines() == [server.url] * 4


@pytest.mark.server
def test_a_signal_ends_with_a_report_and_leaves_nothing(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = f"open({str(pids)!r}, 'a').write(str(os.getpid()) + '\\n')" + WAITS
    command = [sys.executable, "-m", "natsproxy", "sweep", "--server", *QUICK, "--patience", "60"]
    program = [sys.executable, "-S", written(text, tmp_path)]
    with subprocess.Popen(
        [*command, "--", *program], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as sweep:
        while (
            not pids.exists() or len(pids.read_text().splitlines()) < 3
        ):  # two clean runs, and one that hangs
            assert sweep.poll() is None, sweep.stderr and sweep.stderr.read()
            os.sched_yield()
        sweep.send_signal(signal.SIGINT)
        _, said = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert "a signal stopped it" in said
    facts = json.loads((tmp_path / "sweep-out/report.json").read_text())
    assert facts["stopped"] == "a signal stopped it"
    kept = {one.name for one in (tmp_path / "sweep-out/runs").iterdir()}
    assert kept == {"baseline-1", "baseline-2"}
    for pid in pids.read_text().split():
        assert not Path(f"/proc/{pid}").exists()


FULL = """
import errno, os, sys
from natsproxy.sweep import folder
def full(path, text):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
if "note" in sys.argv[1]:
    folder.SweepFolder.restored = lambda self, trials: setattr(folder, "STATE", "/dev/full") or []
folder.write_whole = full
sys.argv[:2] = ["natsproxy"]
from natsproxy.__main__ import start
start()
"""


@pytest.mark.server
@pytest.mark.parametrize(
    ("text", "when", "code", "said"),
    [
        (WAITS, "end", 1, "2 tried: 2 deaf"),
        pytest.param(GIVES_UP, "end", 2, "2 tried: 2 failed loudly", marks=pytest.mark.long),
        pytest.param(
            WAITS,
            "note",
            1,
            " deaf; sweep-out cannot be used for the results: No space left on device: ",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_full_disk_keeps_no_finding_from_being_told(
    text: str, when: str, code: int, said: str, tmp_path: Path
) -> None:
    """At the very end, or where the first trial cannot be written down: then the sweep stops."""
    options = ["--server", *QUICK, "--jobs", "1", "--", sys.executable, "-S", written(text, tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", FULL, when, "sweep", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    assert bool(done.stdout) == ("deaf" in said)
    assert said in done.stderr
    left = (
        "the report could not be written: sweep-out cannot be used for the results: No space left on device"
    )
    assert left in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.server
def test_trials_that_cannot_be_run_are_no_success(swept: Swept, tmp_path: Path) -> None:
    """The setup works for the two clean runs; then it works again for one trial."""
    setup = "echo >> n; n=$(wc -l < n); test $n -le 2 || { echo disk full; exit 1; }"
    done = swept(GIVES_UP, *QUICK, "--jobs", "1", "--setup", setup)
    assert done.returncode == 2
    assert "could not run: 2 of the trials: the setup command" in done.stderr
    assert "disk full" in done.stderr
    (tmp_path / "n").unlink()
    again = swept(GIVES_UP, *QUICK, "--jobs", "1", "--setup", setup.replace("2", "3"), "--resume")
    assert again.returncode == 0
    assert "2 tried: 1 failed loudly, 1 not reached" in again.stderr
    assert "could not run: 1 of the trials" in again.stderr


@pytest.mark.long
@pytest.mark.server
def test_a_check_that_does_not_end_stops_the_sweep_at_its_first_clean_run(
    swept: Swept, tmp_path: Path
) -> None:
    check = "echo looking; echo $$ > pid; setsid sleep 100"
    done = swept(GIVES_UP, *QUICK, "--check", check, "--timeout", "2s")
    assert (done.returncode, done.stdout) == (2, "")
    said = f"Error: the check command {check!r} did not end within 2 s: looking\n"
    assert done.stderr == f"running without a fault\n{said}"
    assert not lives((tmp_path / "pid").read_text().strip())


@pytest.mark.long
@pytest.mark.server
def test_a_check_that_ends_not_after_a_fault_is_no_verdict(swept: Swept) -> None:
    """It may be the check itself that hangs: that is said, and is neither a finding nor a success."""
    check = "echo >> n; test $(wc -l < n) -le 2 || sleep 100"
    done = swept(GIVES_UP, *QUICK, "--check", check, "--timeout", "2s", "--jobs", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "could not run: 2 of the trials: the check command" in done.stderr
    assert "did not end within 2 s" in done.stderr


@pytest.mark.long
@pytest.mark.server
def test_a_server_with_tls(swept: Swept, tmp_path: Path) -> None:
    """The program speaks plain NATS; a wrong authority is a sentence, and no run begins."""
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    with NatsServer(authority.server_config()) as server:
        world = ("--upstream", f"tls://localhost:{server.port}", "--upstream-tls-ca")
        done = swept(WAITS, *QUICK, world=(*world, str(authority.file)))
        assert done.returncode == 1, done.stderr
        assert [line.partition("-of-")[0] for line in done.stdout.splitlines()] == [
            "01-deaf-drop-PUB",
            "02-deaf-drop-MSG",
        ]
        refused = swept(WAITS, *QUICK, world=(*world, str(other.file)))
        assert (refused.returncode, refused.stdout) == (2, "")
        _, said = refused.stderr.splitlines()
        assert "the peer's certificate was refused" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "name one server"),
        (("--server", "--cassette", "x.ncap"), "name one server"),
        (("--server", "--faults", "drops"), "there is no fault 'drops'"),
        (("--server", "--shard", "5/4"), "--shard must be like 1/4, not 5/4"),
        (("--server", "--reset", "true"), "--reset goes with --upstream"),
        (("--upstream", "nats://127.0.0.1:1", "--server-config", "x"), "--server-config goes with --server"),
        (("--server", "/no/such/server"), "/no/such/server"),
        (("--server", "--only", "01"), "has no finding '01'"),
        (("--server", "--resume"), "has no sweep to resume"),
        (("--server", "--page", "0.0.0.0:0"), "serves this machine only: give 127.0.0.1, not 0.0.0.0:0"),
        (("--server", "--page", "nowhere"), "--page: "),
        (("--cassette", "x.ncap"), "x.ncap"),
        (("--upstream", "nats://127.0.0.1:1"), "127.0.0.1:1"),
        (("--server", "--accept", "none"), "none cannot be read"),
        (("--server", "--server-config", sys.executable), "it is not text in UTF-8"),
    ],
)
def test_bad_input_is_one_sentence(
    options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["sweep", *options, "--", sys.executable, "-S", written(GIVES_UP, tmp_path)]
    done = CliRunner().invoke(main, command)
    assert (done.exit_code, type(done.exception)) == (2, SystemExit)
    assert said in done.stderr


@pytest.mark.server
def test_a_sweep_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    """Neither the server nor the program, nor a child of it in a session of its own."""
    text = f"""
child = os.spawnlp(os.P_NOWAIT, "setsid", "setsid", "sleep", "100")
open({str(tmp_path / "new")!r}, "w").write(f"{{os.getpid()}} {{child}}")
os.rename({str(tmp_path / "new")!r}, {str(tmp_path / "pids")!r})
time.sleep(100)
"""
    command = [sys.executable, "-m", "natsproxy", "sweep", "--server", "--", sys.executable, "-S"]
    sweep = subprocess.Popen([*command, written(text, tmp_path)], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: (tmp_path / "pids").exists())
        servers = [one for one in processes() if one.parent == sweep.pid and "nats-server" in one.command]
        assert servers
    finally:
        sweep.kill()
        sweep.wait()
    pids = [*(tmp_path / "pids").read_text().split(), *(str(one.pid) for one in servers)]
    wait_until(lambda: not any(map(lives, pids)))


@pytest.mark.server
def test_the_page_shows_a_sweep_while_it_runs(tmp_path: Path) -> None:
    """Before the clean runs have ended, too; and it refuses what other sites send."""
    text = "while not os.path.exists('go'): time.sleep(0.01)\n" + WAITS
    options = ["--server", "--page", "--for", "60s", *QUICK, "--patience", "60s"]
    command = [sys.executable, "-m", "natsproxy", "sweep", *options, "--", sys.executable, "-S"]
    with subprocess.Popen(
        [*command, written(text, tmp_path)], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as sweep:
        assert sweep.stderr is not None
        url = sweep.stderr.readline().removeprefix("page: ").strip()

        def page(path: str = "/", **headers: str) -> tuple[int, str]:
            request = urllib.request.Request(url + path, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        try:
            status, body = page()
            assert (status, "running without a fault" in body, "http-equiv" in body) == (200, True, True)
            assert json.loads(page("/report.json")[1]) == {"running": True, "trials": None}
            (tmp_path / "go").touch()
            wait_until(lambda: "running: 0 of 2 tried, " in page()[1])
            facts = json.loads(page("/report.json")[1])
            assert facts["running"]
            assert 0 < facts["seconds_left"] <= 60
            assert page("/sweep.jsonl")[0] == 404
            assert page(Host="evil.example")[0] == 421
            assert page("/report.json", Origin="http://evil.example")[0] == 403
        finally:
            sweep.send_signal(signal.SIGINT)
            sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)
