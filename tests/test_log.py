"""The log never holds anybody up, and says what it lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from natsproxy.events import Closed, Greeted, Notice, Opened, Who
from natsproxy.log import EventLog, LogFile, logger
from tests.kit.servers import NatsServer


@pytest.mark.parametrize("form", ["json", "console"])
def test_passwords_in_urls_are_hidden(form: str, tmp_path: Path) -> None:
    """Wherever a line has them from: a client may name itself so."""
    with LogFile(tmp_path / "log") as file:
        logger(file, form).info("to nats://u:PASSWORD@h:1", name="tls://PASSWORD@h", number=1)
    said = (tmp_path / "log").read_text()
    assert "PASSWORD" not in said
    assert "nats://u:***@h:1" in said


def test_a_storm_of_events_fills_no_disk(tmp_path: Path) -> None:
    with LogFile(tmp_path / "log") as file:
        events = EventLog(logger(file, "json"), 10)
        for number in range(100):
            events(Notice(1_000_000_000 + number, None, "info", f"first {number}"))
        events(Notice(2_000_000_000, None, "info", "second"))
        events.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["event"] for line in lines] == [
        *[f"first {number}" for number in range(10)],
        "events left out of the log",
        "second",
    ]
    assert lines[10]["count"] == 90


def test_lines_that_nobody_takes_are_counted(tmp_path: Path) -> None:
    """A pipe that is full holds nobody up; once somebody reads, what came and what was lost make all."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    heard = bytearray()

    def read_all() -> None:
        while more := os.read(reader, 1 << 16):
            heard.extend(more)

    with LogFile(pipe, queue=100_000) as file:
        log = logger(file, "json")
        for number in range(10_000):
            log.info("line", number=number)
        os.set_blocking(reader, True)
        reading = threading.Thread(target=read_all)
        reading.start()
    reading.join()
    os.close(reader)
    lines = [json.loads(line) for line in heard.splitlines()]
    numbers = [line["number"] for line in lines if line["event"] == "line"]
    lost = sum(line["lines"] for line in lines if line["event"] != "line")
    assert numbers == sorted(numbers)
    assert lost > 0
    assert len(numbers) + lost == 10_000


def test_a_reader_that_is_gone_is_no_error(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with LogFile(pipe) as file:
        os.close(reader)
        logger(file, "console").error("nobody hears this")


def test_probes_are_one_counter(tmp_path: Path) -> None:
    """Silent clients are counted; the lines of another client begin with its opening."""
    minute = 60_000_000_000
    with LogFile(tmp_path / "log") as file:
        say = EventLog(logger(file, "json"))
        for conn in range(100):
            say(Opened(conn * minute, conn, "10.0.0.1:5", "up:1"))
            say(Closed(conn * minute, conn, "client-closed", s2c_bytes=300, s2c_frames=1))
            say(Closed(conn * minute, 1000 + conn, "client-closed"))  # before it was opened
        say(Closed(0, 199, "client-closed", "the client left before there was a server"))
        say(Opened(0, 200, "10.0.0.2:5", "up:1"))
        say(Greeted(0, 200, "app/1", "app"))
        say(Closed(0, 200, "client-closed", c2s_bytes=20, who=Who(name="app")))
        say(Opened(0, 201, "10.0.0.3:5", "up:1"))
        say(Closed(0, 201, "server-closed"))
        say.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    probes = [line["count"] for line in lines if "sent nothing" in line["event"]]
    assert sum(probes) == 200
    assert len(probes) == 11
    told = [(line["conn"], line["event"], line["level"]) for line in lines if "conn" in line]
    assert told == [
        (199, "closed", "info"),
        (200, "opened", "info"),
        (200, "closed", "info"),
        (201, "opened", "info"),
        (201, "closed", "info"),
    ]


@pytest.mark.server
def test_traffic_goes_on_though_nobody_reads_the_log(nats_server: NatsServer) -> None:
    """The log is a pipe of 4 KiB; 100 connections say about 32 KB."""
    command = [
        sys.executable,
        "-m",
        "natsproxy",
        "run",
        "--listen",
        "127.0.0.1:0",
        "--upstream",
        nats_server.url,
    ]
    command += ["--log-format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, pipesize=4096) as process:
        assert process.stderr is not None
        port = int(json.loads(process.stderr.readline())["listen"][0].rpartition(":")[2])
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
                sock.sendall(b"CONNECT {}\r\nPING\r\n")
                heard = b""
                while b"PONG" not in heard:
                    heard += sock.recv(4096)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_the_log_imports_no_rich() -> None:
    """It takes a tenth of the time to start; commands that print tables import it themselves."""
    code = "import sys, natsproxy.cli.run; assert 'rich' not in sys.modules; import rich.console"
    subprocess.run([sys.executable, "-c", code], check=True)
