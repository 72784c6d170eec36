"""Receipts of commands, and the eleven ways in which a run looks clean and is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from natsproxy import __version__
from natsproxy.capture.format import blocks
from natsproxy.cli import main
from tests.kit.servers import NatsServer
from tests.replay.scripted import Line, hello, write

pytestmark = pytest.mark.server
NATSPROXY = str(Path(sys.executable).parent / "natsproxy")
SHOP = """
import asyncio, os, sys
sys.modules["aiohttp"] = None  # nats-py imports it where it is installed, and that takes long
import nats

async def shop(url, body=b"1"):
    nc = await nats.connect(url, name="shop", allow_reconnect=False)
    try:
        if "connects" in sys.argv:
            return
        js = nc.jetstream()
        await js.add_stream(name="ORDERS", subjects=["orders.>"])
        if "polls" in sys.argv:
            for _ in range(30):
                await js.stream_info("ORDERS")
            return
        if "crashes" in sys.argv:
            raise SystemExit(3)
        if "hurries" in sys.argv:
            nc._transport.write(b"PUB orders.new 1\\r\\n?\\r\\n")
            os._exit(0)
        try:
            await js.publish("orders.new", body)
        except Exception as error:
            print("not stored:", error)
        print((await js.stream_info("ORDERS")).state.messages)
        if "stays" in sys.argv:
            print("done", flush=True)
            os.close(1)
            await asyncio.sleep(60)
    finally:
        await nc.close()

asyncio.run(shop(os.environ["SHOP_URL" if "elsewhere" in sys.argv else "NATS_URL"],
                 b"2" if "wrong" in sys.argv else b"1"))
"""
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command line of the program."""
    path = tmp_path_factory.mktemp("shop") / "shop.py"
    path.write_text(SHOP)
    return [sys.executable, str(path)]


@pytest.fixture(scope="module")
def recorded(shop: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program said to a real server."""
    capture = tmp_path_factory.mktemp("recorded") / "shop.ncap"
    with NatsServer(jetstream=True) as server:
        words = ["cassette", "run", "--mode", "once", "--upstream", server.url, str(capture), "--", *shop]
        done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "receipt: 1 cassette recorded, not isolated (" in done.output
    return capture


@pytest.fixture
def capture(recorded: Path, tmp_path: Path) -> Path:
    """A cassette of its own."""
    return Path(shutil.copy(recorded, tmp_path / "shop.ncap"))


@pytest.fixture
def run(capture: Path, shop: list[str]) -> Run:
    """Run the program against the cassette; `(*arguments of the program, flags=..., command=...)`."""

    def go(*arguments: str, flags: tuple[str, ...] = (), command: list[str] | None = None) -> Result:
        words = [*shop, *arguments] if command is None else command
        return CliRunner().invoke(main, ["cassette", "run", *flags, str(capture), "--", *words])

    return go


def receipt_of(capture: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{capture}.receipt.json").read_text())
    return found


def use_of(capture: Path) -> dict[str, Any]:
    (use,) = receipt_of(capture)["cassettes"]
    assert isinstance(use, dict)
    return use


def subject_of(capture: Path, subject: str) -> dict[str, Any]:
    (found,) = [one for one in use_of(capture)["subjects"] if one["subject"] == subject]
    return {key: value for key, value in found.items() if value and key != "subject"}


def cause(done: Result) -> str:
    return done.output.splitlines()[-1].partition("the first cause: ")[2]


# -- a good run


def test_a_run_that_was_served_everything_says_so(run: Run, capture: Path, shop: list[str]) -> None:
    done = run(flags=("--min-served", "4", "--min-coverage", "100%", "--strict"))
    assert done.exit_code == 0, done.output
    receipt, use = receipt_of(capture), use_of(capture)
    served = receipt["served"]
    line = f"receipt: {served} of {served} recorded exchanges served, isolated ({capture}.receipt.json)"
    assert line in done.output.splitlines()
    assert (receipt["receipt"], receipt["natsproxy"], receipt["ran"]) == (1, __version__, "cassette run")
    assert receipt["program"] == shop
    assert (receipt["program_exit_code"], receipt["exit_code"], receipt["failed_by"]) == (0, 0, None)
    assert (receipt["isolated"], receipt["coverage"], receipt["failures"]) == (True, 100.0, [])
    assert (receipt["missed"], receipt["unused"], receipt["repeated"]) == (0, 0, 0)
    assert receipt["seconds"] > 0
    assert receipt["began"].endswith("+00:00")
    assert (use["mode"], use["strict"], use["options"], use["played"]) == ("none", True, {}, True)
    assert (use["connections"], use["clients"], use["left_behind"], use["changed"]) == (1, 1, 0, False)
    assert use["recorded_by"] == [__version__]
    printed = subprocess.run(["sha256sum", capture], capture_output=True, text=True, check=True).stdout
    assert printed.split()[0] == use["sha256"]
    assert subject_of(capture, "orders.new") == {"served": 1}


def test_a_program_that_fails_has_failed_by_itself(run: Run, capture: Path) -> None:
    assert run("crashes").exit_code == 3
    receipt = receipt_of(capture)
    assert (receipt["program_exit_code"], receipt["exit_code"], receipt["failed_by"]) == (3, 3, "program")
    assert receipt["unused"] > 0


@pytest.mark.parametrize(
    ("flags", "code", "expected"),
    [
        (("--min-served", "99"), 1, "recorded exchanges were served, --min-served requires 99"),
        (("--min-served", "1"), 0, ""),
        (
            ("--min-coverage", "100"),
            1,
            "of the recorded exchanges was served, --min-coverage requires 100 %",
        ),
        (("--min-coverage", "20"), 0, ""),
    ],
)
def test_a_run_may_have_to_be_served_a_part(
    flags: tuple[str, ...], code: int, expected: str, run: Run, capture: Path
) -> None:
    done = run("polls", flags=("--no-strict", *flags))
    assert (done.exit_code, expected in cause(done)) == (code, True)
    assert receipt_of(capture)["failed_by"] == ("natsproxy" if code else None)
    assert len(receipt_of(capture)["failures"]) == code


# -- the eleven ways


def test_nothing_served(run: Run, capture: Path) -> None:
    """The program connects, and asks for nothing."""
    done = run("connects")
    assert done.exit_code == 1
    assert "but none sent any of the " in cause(done)
    assert receipt_of(capture)["failed_by"] == "natsproxy"
    assert run("connects", flags=("--min-served", "0", "--no-strict")).exit_code == 0
    receipt = receipt_of(capture)
    assert (receipt["served"], receipt["isolated"], use_of(capture)["clients"]) == (0, False, 1)


def test_the_same_answer_for_ever(run: Run, capture: Path) -> None:
    """What a program asks again is answered again, and counted; what it leaves out fails it."""
    done = run("polls")
    assert done.exit_code == 1
    assert cause(done).startswith("no client sent PUB orders.new ")
    assert run("polls", flags=("--no-strict",)).exit_code == 0
    assert subject_of(capture, "$JS.API.STREAM.INFO.ORDERS") == {"served": 1, "repeated": 29}
    assert subject_of(capture, "orders.new") == {"unused": 1}


def test_wrong_bytes(run: Run, capture: Path) -> None:
    """Another payload."""
    done = run("wrong")
    assert done.exit_code == 1
    receipt = receipt_of(capture)
    failures = ["1 client frames were never recorded, the first was PUB orders.new"]
    failures += ["1 recorded frames were sent by no client, the first is PUB orders.new"]
    assert receipt["failures"] == failures
    assert receipt["program_exit_code"] == 0
    assert subject_of(capture, "orders.new") == {"missed": 1, "unused": 1}
    assert run(flags=("--ignore-bodies", "orders.>")).exit_code == 0
    assert use_of(capture)["options"] == {"ignore_bodies": ["orders.>"]}


GARBAGE = """
import os, socket, sys
program = socket.create_connection(("127.0.0.1", int(os.environ["NATS_URL"].rsplit(":")[-1])))
said = ('CONNECT {"name":"a"}', "PUB x 1", "1", sys.argv[1], "PING", "")
program.sendall("\\r\\n".join(said).encode())
while program.recv(4096):
    if len(sys.argv) > 2:
        break
"""


@pytest.mark.parametrize(("said", "code"), [("GET / HTTP/1.1", 1), ("CONNECT {", 1), ("PING", 0)])
def test_bytes_that_are_not_nats(said: str, code: int, tmp_path: Path) -> None:
    """A program that does not look at errors."""
    capture = write(tmp_path / "x.ncap", [*hello(1, "a"), (1, ">", b"PUB x 1\r\n1\r\n")])
    program = [sys.executable, "-S", "-c", GARBAGE, said, *(() if code else ("leaves",))]
    done = CliRunner().invoke(main, ["cassette", "run", str(capture), "--", *program])
    assert done.exit_code == code, done.output
    assert ("client 'a' sent a frame that no server takes: bytes that are not NATS (" in done.output) == bool(
        code
    )
    assert receipt_of(capture)["missed"] == code


def test_a_damaged_cassette(run: Run, capture: Path) -> None:
    """Nothing is played, and the receipt of an earlier run is gone."""
    assert run().exit_code == 0
    data = bytearray(capture.read_bytes())
    data[len(data) // 2] ^= 1
    capture.write_bytes(data)
    assert run().exit_code == 2
    assert not Path(f"{capture}.receipt.json").exists()


def test_a_cassette_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose form is newer is not played; one of a newer recorder is, with a warning."""
    lines: list[Line] = [*hello(1, "a"), (1, ">", b"PUB x 1\r\n1\r\n")]
    program = [sys.executable, "-S", "-c", GARBAGE, "PING", "leaves"]

    def played(recorder: str, *version: int) -> Result:
        with monkeypatch.context() as patch:
            patch.setattr("natsproxy.capture.write.writer.__version__", recorder)
            patch.setattr("natsproxy.capture.write.writer.VERSION", version)
            capture = write(tmp_path / f"{recorder}.ncap", lines)
        return CliRunner().invoke(main, ["cassette", "run", str(capture), "--", *program])

    newer = played("98.0", blocks.VERSION[0] + 1, 0)
    assert (newer.exit_code, "upgrade natsproxy" in newer.output) == (2, True)
    done = played("99.1.0", *blocks.VERSION)
    assert done.exit_code == 0, done.output
    assert f"was recorded by natsproxy 99.1.0, which is newer than this {__version__}" in done.output
    assert use_of(tmp_path / "99.1.0.ncap")["recorded_by"] == ["99.1.0"]
    assert "Warning" not in played(__version__, *blocks.VERSION).output


def test_an_empty_cassette(tmp_path: Path) -> None:
    """It is neither played nor recorded without a word."""
    capture, fresh = write(tmp_path / "x.ncap", []), tmp_path / "new.ncap"
    done = CliRunner().invoke(main, ["cassette", "run", str(capture), "--", "true"])
    assert (done.exit_code, f"{capture} is empty: no client had connected" in cause(done)) == (1, True)
    with NatsServer() as server:
        words = ["cassette", "run", "--mode", "once", "--upstream", server.url, str(fresh), "--", "true"]
        done = CliRunner().invoke(main, words)
    assert (done.exit_code, fresh.exists()) == (1, False)
    assert cause(done).startswith("no client connected to NATS_URL=nats://127.0.0.1:")
    assert "receipt: no cassettes recorded, not isolated" in done.output


def test_a_program_that_never_connects(run: Run, capture: Path) -> None:
    done = run(command=["true"])
    assert done.exit_code == 1
    assert cause(done).startswith("no client connected to NATS_URL=nats://127.0.0.1:")
    receipt = receipt_of(capture)
    assert (receipt["isolated"], receipt["program_exit_code"], receipt["failed_by"]) == (
        False,
        0,
        "natsproxy",
    )
    assert use_of(capture)["clients"] == 0


def test_a_program_that_connects_elsewhere(run: Run, capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with NatsServer(jetstream=True) as server:
        monkeypatch.setenv("SHOP_URL", server.url)
        done = run("elsewhere")
    assert done.exit_code == 1
    assert cause(done).startswith("no client connected to NATS_URL=nats://127.0.0.1:")
    assert receipt_of(capture)["isolated"] is False


def test_a_frame_that_is_answered_after_the_end(run: Run, capture: Path) -> None:
    """A program that leaves at once is judged by all that it sent."""
    done = run("hurries", flags=("--no-strict",))
    assert done.exit_code == 1
    assert receipt_of(capture)["failures"] == [
        "1 client frames were never recorded, the first was PUB orders.new"
    ]


HURRIES = """
import array, fcntl, os, socket, sys, termios
program = socket.create_connection(("127.0.0.1", int(os.environ["NATS_URL"].rsplit(":")[-1])))
said = ["CONNECT {}", "PUB x 1", "1", *["PING"] * 20000, *sys.argv[1:], ""]
program.sendall("\\r\\n".join(said).encode())
left = array.array("i", [1])
while left[0]:  # until the other kernel has it all
    fcntl.ioctl(program, termios.TIOCOUTQ, left)
os._exit(0)
"""


@pytest.mark.parametrize(("last", "missed"), [(["PUB other 1", "?"], 1), ([], 0)])
def test_a_frame_behind_answers_that_nobody_reads(last: list[str], missed: int, tmp_path: Path) -> None:
    """The program leaves, and its connection is reset while much of what it sent is not read yet."""
    capture = write(tmp_path / "x.ncap", [*hello(1, "a"), (1, ">", b"PUB x 1\r\n1\r\n")])
    program = [sys.executable, "-S", "-c", HURRIES, *last]
    done = CliRunner().invoke(main, ["cassette", "run", str(capture), "--", *program])
    assert done.exit_code == missed, done.output
    assert receipt_of(capture)["missed"] == missed


def test_a_process_that_is_left_behind(run: Run, capture: Path, shop: list[str], tmp_path: Path) -> None:
    """What it says later nobody judges; that is told."""
    out = tmp_path / "out"
    script = f'"$@" stays > {out} & echo $! > {tmp_path}/pid; until grep -q done {out}; do sleep 0.1; done'
    done = run(command=["sh", "-c", script, "sh", *shop])
    os.kill(int((tmp_path / "pid").read_text()), 9)
    assert done.exit_code == 0, done.output
    assert "Warning: 1 clients were still connected when the program had ended" in done.output
    assert use_of(capture)["left_behind"] == 1


@pytest.mark.parametrize(("act", "code"), [("wrong", 1), ("crashes", 1), ("", 0)])
def test_the_exit_code_of_a_wrapper(
    act: str, code: int, run: Run, capture: Path, shop: list[str], tmp_path: Path
) -> None:
    """`tee` succeeds, whatever the program does."""
    done = run(command=["sh", "-c", f'"$@" 2>&1 | tee {tmp_path}/log', "sh", *shop, *filter(None, [act])])
    assert done.exit_code == code, done.output
    receipt = receipt_of(capture)
    assert (receipt["program_exit_code"], receipt["exit_code"]) == (0, code)
    assert receipt["failed_by"] == ("natsproxy" if code else None)


def test_a_cassette_that_is_recorded_while_it_plays(
    run: Run, capture: Path, shop: list[str], recorded: Path, tmp_path: Path
) -> None:
    """Another recording in its place fails the run; the same bytes do not."""
    other = write(tmp_path / "other.ncap", hello(1, "shop"))
    before = recorded.read_bytes()
    done = run(command=["sh", "-c", f'"$@" && mv {other} {capture}', "sh", *shop])
    assert done.exit_code == 1
    assert cause(done) == f"{capture} changed while it was played"
    changed = use_of(capture)
    assert changed["changed"] is True
    capture.write_bytes(before)
    assert run(command=["sh", "-c", f'"$@" && cp {recorded} {capture}', "sh", *shop]).exit_code == 0
    assert use_of(capture)["changed"] is False
    assert use_of(capture)["sha256"] == changed["sha256"]


# -- the file


def test_the_file_may_be_elsewhere_or_nowhere(run: Run, capture: Path, tmp_path: Path) -> None:
    place = tmp_path / "there.json"
    assert run(flags=("--receipt", str(place))).exit_code == 0
    assert json.loads(place.read_text())["isolated"] is True
    done = run(flags=("--no-receipt",))
    assert "exchanges served, isolated\n" in done.output
    assert not Path(f"{capture}.receipt.json").exists()
    assert run(flags=("--receipt", str(capture))).exit_code == 2
    assert run(flags=("--receipt", str(place), "--no-receipt")).exit_code == 2
    assert run().exit_code == 0  # the capture was left alone


def test_a_file_that_cannot_be_written_fails_a_run_that_asked_for_it(run: Run, capture: Path) -> None:
    Path(f"{capture}.receipt.json").mkdir()
    done = run()
    assert done.exit_code == 0
    assert f"Warning: cannot write the receipt {capture}.receipt.json: " in done.output
    done = run(flags=("--receipt", f"{capture}.receipt.json/no/x"))
    assert done.exit_code == 2
    assert "Error: cannot write the receipt" in done.output
    assert [path.name for path in capture.parent.iterdir()] == [capture.name, f"{capture.name}.receipt.json"]


def test_no_secret_is_in_it(run: Run, capture: Path) -> None:
    words = ["--password", "hunter2", "TOKEN=hunter2", "nats://ann:hunter2@host", "-H", "Bearer hunter2"]
    assert run(command=["sh", "-c", "exit 4 # --auth-token hunter2", *words]).exit_code == 4
    text = Path(f"{capture}.receipt.json").read_text()
    assert "hunter2" not in text
    assert receipt_of(capture)["program"] == [
        *("sh", "-c", "exit 4 # --auth-token ***"),
        *("--password", "***", "TOKEN=***", "nats://ann:***@host", "-H", "Bearer ***"),
    ]


def test_a_recording_that_a_signal_stops_is_told(tmp_path: Path) -> None:
    capture = tmp_path / "x.ncap"
    with NatsServer() as server:
        words = [NATSPROXY, "cassette", "run", "--mode", "once", "--upstream", server.url, str(capture), "--"]
        words += ["sh", "-c", "kill -INT $PPID; exec sleep 60"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == f"receipt: no cassettes recorded, not isolated ({capture}.receipt.json)\n"
    receipt = receipt_of(capture)
    assert (receipt["exit_code"], receipt["program_exit_code"]) == (130, None)
    assert receipt["failures"] == ["a signal stopped the run"]
    assert not capture.exists()


# -- replay


def test_a_played_server_leaves_one(capture: Path, shop: list[str]) -> None:
    words = [
        NATSPROXY,
        "replay",
        "to-client",
        str(capture),
        "--listen",
        "127.0.0.1:0",
        "--min-coverage",
        "100",
    ]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        subprocess.run(shop, env={**os.environ, "NATS_URL": url}, check=True, capture_output=True)
        said = process.stderr.read()
    assert process.returncode == 0, said
    receipt = receipt_of(capture)
    assert (receipt["ran"], receipt["program"], receipt["isolated"]) == ("replay to-client", None, True)
    assert (use_of(capture)["mode"], receipt["coverage"]) == ("error", 100.0)
    assert "recorded exchanges served, isolated (" in said


def test_a_played_server_without_clients_has_served_nothing(capture: Path) -> None:
    words = ["replay", "to-client", str(capture), "--listen", "127.0.0.1:0", "--timeout", "0.1"]
    assert CliRunner().invoke(main, words).exit_code == 2
    receipt = receipt_of(capture)
    assert (receipt["exit_code"], receipt["served"], receipt["isolated"]) == (2, 0, False)
    assert receipt["failures"][0].startswith("no client connected: ")


def test_played_clients_leave_one(capture: Path) -> None:
    """It reached a server, whose password is not in it."""
    with NatsServer(jetstream=True) as server:
        target = server.url.replace("nats://", "nats://ann:hunter2@")
        words = ["replay", "to-server", str(capture), "--to", target, "--speed", "max", "--user", "a:hunter2"]
        done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    receipt = receipt_of(capture)
    assert (receipt["ran"], receipt["isolated"], receipt["failed_by"]) == ("replay to-server", False, None)
    assert receipt["replay"]["frames"] > 0
    assert receipt["server"] == server.url.replace("nats://", "nats://ann:***@")
    assert "hunter2" not in json.dumps(receipt)
