"""`natsproxy cassette run`: programs against captures."""

from __future__ import annotations

import os
import select
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import main
from tests.kit.process import wait_until
from tests.replay.kit import PROGRAMS, record_program
from tests.replay.scripted import Line, hello, write
from tests.sweep.kit import lives

NATSPROXY = str(Path(sys.executable).parent / "natsproxy")


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return write(tmp_path / "x.ncap", hello(1, "a"))


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["{x}", "--mode", "once", "--", "true"], 2, "--mode stands after CAPTURE, where COMMAND begins"),
        (["{x}", "--", "/no/such/program"], 2, "cannot run /no/such/program"),
        (["--mode", "sometimes", "{x}", "--", "true"], 2, "one of none, once"),
        (["{x}.not", "--", "true"], 2, "there is no such cassette"),
        (["--mode", "all", "{x}", "--", "true"], 2, "name an upstream server"),
        (["--timeout", "0.01", "{x}", "--", "sleep", "60"], 1, "sleep did not end within 0.01 s"),
        (["{x}", "--", "sh", "-c", "exit 7"], 7, ""),
        (["{x}", "--", "true"], 1, "no client connected to NATS_URL=nats://127.0.0.1:"),
        (["--min-served", "0", "{x}", "--", "true"], 0, ""),
    ],
)
def test_exit_codes_and_sentences(arguments: list[str], code: int, expected: str, capture: Path) -> None:
    done = CliRunner().invoke(main, ["cassette", "run", *(a.format(x=capture) for a in arguments)])
    assert done.exit_code == code
    assert expected in done.output


def test_a_program_ends_though_its_command_is_killed(capture: Path, tmp_path: Path) -> None:
    """And so does a child of it in a session of its own."""
    shell = "setsid sleep 100 & echo $! $$ > new; mv new pids; wait"
    command = [NATSPROXY, "cassette", "run", str(capture), "--", "sh", "-c", shell]
    run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "pids").exists)
    finally:
        run.kill()
        run.wait()
    pids = (tmp_path / "pids").read_text().split()
    wait_until(lambda: not any(map(lives, pids)))


FORGETS = [
    (*hello(1, "a"), (1, ">", b"PUB $JS.API.STREAM.INFO.S _INBOX.1 0\r\n\r\n")),
    (*hello(1, "a"), (1, ">", b"PUB x 1\r\n1\r\nPUB x 1\r\n2\r\n")),
]
"""Recordings of programs that ask, and that publish."""


@pytest.mark.parametrize(
    ("lines", "flags", "code", "last"),
    [
        (FORGETS[0], [], 0, None),
        (
            FORGETS[0],
            ["--strict"],
            1,
            "no client sent PUB $JS.API.STREAM.INFO.S reply _INBOX.1 '' (--no-strict allows that)",
        ),
        (FORGETS[1], [], 1, "no client sent PUB x '1', and 1 more (--no-strict allows that)"),
        (FORGETS[1], ["--no-strict"], 0, None),
    ],
)
def test_a_publish_that_is_forgotten_fails(
    lines: list[Line], flags: list[str], code: int, last: str | None, tmp_path: Path
) -> None:
    capture = write(tmp_path / "x.ncap", list(lines))
    flags = ["--min-served", "0", *flags]
    done = CliRunner().invoke(main, ["cassette", "run", *flags, str(capture), "--", "true"])
    assert done.exit_code == code
    assert ("the first cause: " in done.output) == (last is not None)
    assert last is None or done.output.splitlines()[-1] == f"the first cause: {last}"
    assert CliRunner().invoke(main, ["cassette", "run", str(capture), "--", "false"]).exit_code == 1


HANGS = """
import os, signal, socket, sys, time
program = socket.create_connection(("127.0.0.1", int(os.environ["NATS_URL"].rsplit(":")[-1])))
program.sendall(b"CONNECT {}\\r\\nPUB other 0\\r\\n\\r\\n")
while b"-ERR" not in program.recv(4096):
    pass
if sys.argv[1:]:
    os.kill(os.getppid(), signal.SIGINT)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("flags", "arguments", "code", "begin"),
    [
        (["--timeout", "2"], [], 1, "python did not end within 2 s\n"),
        ([], ["interrupted"], 130, ""),
    ],
)
def test_the_first_cause_is_told_of_a_program_that_hangs_and_of_one_that_is_interrupted(
    flags: list[str], arguments: list[str], code: int, begin: str, tmp_path: Path, capture: Path
) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    program = ["python", "-S", "-c", HANGS, *arguments]
    done = subprocess.run(
        [NATSPROXY, "cassette", "run", *flags, str(capture), "--", *program],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == code
    cause = "the first cause: connection 1 sent a frame that was never recorded: PUB other ''\n"
    lines = done.stderr.decode().splitlines(keepends=True)
    anew = lines.pop(len(begin.splitlines()) + 1)
    command = f"natsproxy cassette run --mode all --upstream nats://HOST:PORT {capture} -- python -S -c "
    assert anew.startswith(f"to record it anew: {command}")
    receipt = f"receipt: 0 of 0 recorded exchanges served, 1 missed, not isolated ({capture}.receipt.json)\n"
    assert "".join(lines) == f"{begin}{receipt}{cause}  recorded on this subject: nothing\n"


WAITS: list[Line] = [*hello(1, "a"), (1, ">", b"PUB x 1\r\n1\r\nPUB x 1\r\n2\r\n")]


@pytest.mark.parametrize(
    ("lines", "flags", "program", "code", "cause"),
    [
        (WAITS, ["--timeout", "0.5"], "sleep 60", 1, "PUB x '1' from client 'a'"),
        (WAITS, [], "exit 7", 7, "PUB x '1' from client 'a'"),
        (WAITS, ["--no-strict"], "exit 7", 7, "PUB x '1' from client 'a'"),
        (WAITS, ["--no-strict", "--min-served", "0"], "exit 0", 0, None),
        (hello(1, "a"), ["--timeout", "0.5"], "sleep 60", 1, "all that was recorded was played"),
        (hello(1, "a"), [], "exit 7", 7, None),
    ],
)
def test_the_first_cause_is_what_the_recording_waited_for(
    lines: list[Line], flags: list[str], program: str, code: int, cause: str | None, tmp_path: Path
) -> None:
    """Of a program that hangs or fails, where frames were left out and nothing else was wrong."""
    capture = write(tmp_path / "x.ncap", lines)
    done = CliRunner().invoke(main, ["cassette", "run", *flags, str(capture), "--", "sh", "-c", program])
    assert done.exit_code == code
    assert ("the first cause: " in done.output) == (cause is not None)
    last = done.output.splitlines()[-1:]
    assert cause is None or (last[0].startswith("the first cause: ") and cause in last[0])


def test_the_command_that_records_anew_has_the_options_of_the_cassette(tmp_path: Path) -> None:
    kept = {"ignore_json": ["orders.> /ts"], "match_on": ["subject", "body"], "learn": False}
    capture = write(tmp_path / "x.ncap", WAITS, cassette=kept)
    flags = ["--ignore-json", "/a b", "--upstream", "nats://me:secret@127.0.0.1:4222"]
    done = CliRunner().invoke(main, ["cassette", "run", *flags, str(capture), "--", "sh", "-c", "exit 0"])
    (line,) = (one for one in done.output.splitlines() if one.startswith("to record it anew: "))
    words = shlex.split(line.partition(": ")[2])
    assert words[:5] == ["natsproxy", "cassette", "run", "--mode", "all"]
    assert "secret" not in line
    assert "127.0.0.1:4222" in words[6]
    assert words[7:-5] == [
        "--match-on=subject,body",
        "--ignore-json=> /a b",
        "--ignore-json=orders.> /ts",
        "--no-learn",
    ]
    assert words[-5:] == [str(capture), "--", "sh", "-c", "exit 0"]
    again = CliRunner().invoke(main, [*words[1:-5], "--mode", "none", *words[-5:]])
    assert again.exit_code == 1
    assert (
        "to record it anew: "
        not in CliRunner().invoke(main, ["cassette", "run", "--no-strict", str(capture), "--", "true"]).output
    )


def ends(pid: int) -> bool:
    """Return True if a process has been killed: it is gone, or will be in a moment."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 10)[0])
    finally:
        os.close(process)


def test_the_children_of_a_program_that_hangs_end_too(tmp_path: Path, capture: Path) -> None:
    """That of a shell, and one that ignores SIGTERM."""
    stubborn = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    script = (
        f"sleep 60 & echo $! > {tmp_path}/a\n"
        f"{sys.executable} -c '{stubborn}; open(sys.argv[1], \"w\").write(str(os.getpid())); time.sleep(60)'"
        f" {tmp_path}/b &\nwait\n"
    )
    flags = ["--timeout", "2", str(capture)]
    done = CliRunner().invoke(main, ["cassette", "run", *flags, "--", "sh", "-c", script])
    assert done.exit_code == 1
    assert all(ends(int((tmp_path / name).read_text())) for name in "ab")


def _recorded_options(tmp_path: Path, *flags: str) -> object:
    """Record nothing with the flags; return the options that the cassette keeps."""
    path = tmp_path / "new.ncap"
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        url = f"127.0.0.1:{upstream.getsockname()[1]}"
        flags = ("--mode", "all", "--upstream", url, "--min-served", "0", *flags)
        done = CliRunner().invoke(main, ["cassette", "run", *flags, str(path), "--", "true"])
    assert done.exit_code == 0, done.output
    (segment,) = open_capture(path).segments()
    return segment.settings.get("cassette")


def test_options_come_from_a_file_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "match.toml"
    file.write_text(
        'match-on = "subject"\nignore_json = ["/a", "orders.> /b"]\nlearn = false\nrepeat = "x"\n'
    )
    assert _recorded_options(tmp_path) is None
    flags = ["--config", str(file), "--ignore-json", "/c", "--learn", "--ignore-headers", "X-*"]
    assert _recorded_options(tmp_path, *flags, "--match-on", "body", "--match-on", "subject,headers") == {
        "match_on": ["subject", "headers", "body"],
        "ignore_headers": ["x-*"],
        "ignore_json": ["/c", "/a", "orders.> /b"],
        "repeat": ["x"],
    }


@pytest.mark.parametrize("command", [["cassette", "run"], ["replay", "to-client"]])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--ignore-json", "ts"], "--ignore-json must be a JSON pointer (/id)"),
        (["--config", "{file}"], "match.toml:2: there is no option 'ignore_jsn'; did you mean 'ignore_json'"),
        (["--config", "/no/such"], "cannot read the configuration /no/such"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    command: list[str], flags: list[str], expected: str, tmp_path: Path, capture: Path
) -> None:
    file = tmp_path / "match.toml"
    file.write_text('learn = true\nignore_jsn = "/a"\n')
    arguments = [*command, *(flag.format(file=file) for flag in flags), str(capture), "true"]
    done = CliRunner().invoke(main, arguments[:-1] if "replay" in command else arguments)
    assert done.exit_code == 2
    assert expected in done.output


@pytest.mark.server
async def test_a_program_runs_against_the_capture_alone(tmp_path: Path) -> None:
    capture, program = tmp_path / "x.ncap", str(PROGRAMS / "core.py")
    printed = await record_program(PROGRAMS / "core.py", capture)
    command = [NATSPROXY, "cassette", "run", "--strict", str(capture), "--", sys.executable, program]
    done = await trio.run_process(
        command, capture_stdout=True, check=False, env={**os.environ, "NATS_URL": ""}
    )
    assert done.returncode == 0
    assert done.stdout.decode() == printed


@pytest.mark.server
async def test_another_program_fails_and_what_it_sent_is_named(tmp_path: Path) -> None:
    capture = tmp_path / "x.ncap"
    await record_program(PROGRAMS / "core.py", capture)
    script = (
        "import os, asyncio, nats\n"
        "async def main():\n"
        "    nc = await nats.connect(os.environ['NATS_URL'], name='core')\n"
        "    await nc.publish('orders.other', b'?')\n"
        "    await nc.flush()\n"
        "    await nc.close()\n"
        "asyncio.run(main())\n"
    )
    command = [NATSPROXY, "cassette", "run", str(capture), "--", sys.executable, "-c", script]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 1
    # The first cause ends the output; what was not sent because of it is a number.
    lines = done.stderr.decode().splitlines()
    first = "the first cause: client 'core' sent a frame that was never recorded: PUB orders.other '?'"
    assert "recorded, but not sent by any client: 13 frames" in lines
    assert lines.index(first) > lines.index("recorded, but not sent by any client: 13 frames")
    assert all(line.startswith("  ") for line in lines[lines.index(first) + 1 :])


ASKS = """
import asyncio, os, nats

async def main():
    told, last = [], asyncio.Event()
    async def heard(error):
        told.append(str(error))
        if "orders.other" in told[-1]:
            last.set()
    nc = await nats.connect(os.environ["NATS_URL"], name="a", error_cb=heard)
    try:
        js = nc.jetstream()
        pull = await js.pull_subscribe_bind("C", "S")
        for call in (
            lambda: nc.request("svc.other", b"x"), lambda: js.stream_info("S"), lambda: pull.fetch(1),
            lambda: js.get_msg("S", subject="a", direct=True),
        ):
            try:
                print("answered:", await call())
            except Exception as error:
                print(type(error).__name__, error)
        await nc.publish("orders.other", b"x")
        await asyncio.wait_for(last.wait(), 30)  # the client calls it some time after the PONG
        print(nc.is_connected, [text for text in told if "_inbox" not in text])
    finally:
        await nc.close()

asyncio.run(main())
"""


PUBLISHES = """
import asyncio, os, nats

async def main():
    nc = await nats.connect(os.environ["NATS_URL"], name="a")
    try:
        await nc.jetstream().publish("s.a", b"2")
    except Exception as error:
        print(type(error).__name__, error)
    await nc.close()

asyncio.run(main())
"""


@pytest.mark.long
async def test_an_unrecorded_publish_to_a_stream_is_an_error_with_its_reason(tmp_path: Path) -> None:
    ack = b'{"stream":"S","seq":1}'
    lines: list[Line] = [
        *hello(1, "a"),
        (1, ">", b"SUB _INBOX.1.* 1\r\nPUB s.a _INBOX.1.1 1\r\n1\r\n"),
        (1, "<", b"MSG _INBOX.1.1 1 %d\r\n%b\r\n" % (len(ack), ack)),
    ]
    capture = write(tmp_path / "x.ncap", lines)
    command = [NATSPROXY, "cassette", "run", str(capture), "--", sys.executable, "-c", PUBLISHES]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.stdout.decode() == (
        "ServerError nats: ServerError: code=500 err_code=None "
        "description='natsproxy: s.a is not in the capture: body: 1 recorded, 2 sent'\n"
    )
    assert done.returncode == 1


async def test_an_unrecorded_request_is_an_error_in_the_program(capture: Path) -> None:
    """The connection of the program stays."""
    command = [NATSPROXY, "cassette", "run", str(capture), "--", sys.executable, "-c", ASKS]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.stdout.decode().splitlines() == [
        "NoRespondersError nats: no responders available for request",
        "ServerError nats: ServerError: code=500 err_code=None "
        "description='natsproxy: $JS.API.STREAM.INFO.S is not in the capture'",
        "APIError nats: APIError: code=400 err_code=None description='natsproxy: not in the capture'",
        "APIError nats: APIError: code=400 err_code=None description='natsproxy: not in the capture'",
        "True ['nats: permissions violation for publish to \"svc.other\": not in the capture', "
        "'nats: permissions violation for publish to \"orders.other\": not in the capture']",
    ]
    assert done.returncode == 1
    assert b"also sent, and not as recorded: 1 more" in done.stderr  # behind five: seven in all
