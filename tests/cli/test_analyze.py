"""`natsproxy analyze`: a mistake is reported in one sentence, before Spark starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from click.testing import CliRunner

from natsproxy.capture.write.writer import CaptureWriter, SegmentInfo
from natsproxy.cli import analyze_progress, main
from natsproxy.cli.analyze import _StopRequest, _watch, analyze
from natsproxy.errors import ConfigError, NatsproxyError
from tests.kit.captures import write

if TYPE_CHECKING:
    from natsproxy.spark.session import Spark

pytest.importorskip("pyspark", reason="the tables need pyspark: pip install 'natsproxy[spark]'")


def _newer(path: Path) -> Path:
    writer = CaptureWriter(path, SegmentInfo(bytes(16), bytes(16), 0, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("natsproxy.capture.write.writer.VERSION", (9, 0))
        writer.open_segment()
    writer.close()
    return path


def _nothing(path: Path) -> Path:
    path.mkdir()
    return path


def _other(path: Path) -> Path:
    path.write_bytes(b"something else entirely")
    return path


def _cut(path: Path) -> Path:
    path.write_bytes(write(path, []).read_bytes()[:20])
    return path


def _mixed(path: Path) -> Path:
    path.mkdir()
    write(path / "a-0.ncap", [])
    return _newer(path / "a-1.ncap")


def _forbidden(path: Path) -> Path:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    write(path, []).chmod(0)
    return path


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no such file": (lambda path: path, "no such file or folder"),
    "an empty folder": (_nothing, "there is no capture (*.ncap) in this folder"),
    "not a capture": (_other, "this is not a natsproxy capture"),
    "cut in its header": (_cut, "there is no segment header"),
    "a newer version": (_newer, "format 9"),
    "mixed versions": (_mixed, "format 9"),
    "no permission": (_forbidden, "cannot read it: Permission denied"),
}
"""Faulty captures: the function that makes one (it returns the file to be named) and the message."""


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the file; the exit code is 2; no Spark is started, nothing is written."""
    monkeypatch.setattr(
        "natsproxy.spark.session.open_session", lambda *_, **__: pytest.fail("Spark was started")
    )
    make, expected = BAD[case]
    named = make(tmp_path / "bad.ncap")
    good = write(tmp_path / "good.ncap", [])
    done = CliRunner().invoke(
        main, ["analyze", str(good), str(tmp_path / "bad.ncap"), "--out", str(tmp_path / "out"), "--quiet"]
    )
    assert done.exit_code == 2
    assert str(named) in done.output
    assert expected in done.output
    assert len(done.output.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tables", "frames,nope"], "there is no table 'nope': there are frames, requests,"),
        (["--conf", "memory"], "--conf memory: must be NAME=VALUE"),
        (["--master", "local[1]", "--remote", "sc://there"], "either a master or a Connect server, not both"),
        (
            ["--conf", "spark.master=local[1]", "--conf", "spark.remote=sc://there"],
            "either a master or a Connect server, not both",
        ),
        (
            ["--engine", "sail", "--conf", "spark.master=local[1]"],
            "the engine sail runs on this machine, without a master",
        ),
        (
            ["--engine", "sail", "--out", "file:///tmp/out"],
            "file:///tmp/out: the engine sail writes into a folder of this machine: give its path",
        ),
        (["--engine", "sail", "--out", "s3a://there/out"], "s3a://there/out: the engine sail writes into"),
    ],
)
def test_options_that_make_no_sense(
    options: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, before a session starts."""
    started = lambda *_: pytest.fail("a session was started")  # noqa: E731
    monkeypatch.setattr("natsproxy.spark.session.sail_session", started)
    monkeypatch.setattr("natsproxy.spark.session.find_java", started)
    good = write(tmp_path / "good.ncap", [])
    done = CliRunner().invoke(
        main, ["analyze", str(good), "--out", str(tmp_path / "out"), "--quiet", *options]
    )
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1)
    assert expected in done.output


@pytest.mark.parametrize(
    "option",
    [
        "--master=spark://127.0.0.1:{},127.0.0.1:{}",
        "--conf=spark.master=spark://127.0.0.1:{}",
        "--remote=sc://127.0.0.1:{}",
        "--conf=spark.remote=sc://127.0.0.1:{}",
    ],
)
def test_a_master_that_cannot_be_reached_is_said_at_once(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would try for minutes."""
    monkeypatch.setattr("natsproxy.spark.session.find_spec", lambda name: object())
    monkeypatch.setattr("natsproxy.spark.session.find_java", lambda: None)
    good = write(tmp_path / "good.ncap", [])
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        place = option.replace("{}", str(port))
        command = ["analyze", str(good), "--out", str(tmp_path / "out"), "--quiet", place]
        done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert f"://127.0.0.1:{port} cannot be reached: Connection refused" in done.output
    assert len(done.output.splitlines()) == 1


@pytest.mark.parametrize("way", ["--remote", "--conf", "SPARK_REMOTE"])
def test_captures_of_a_server_are_not_looked_for_here(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are others than ours, whatever names the server; Sail's are ours."""
    monkeypatch.setattr("natsproxy.spark.session.find_spec", lambda name: object())
    server = "sc://127.0.0.1"

    def reached(url: str) -> None:
        raise NatsproxyError(f"asked for {url}")

    monkeypatch.setattr("natsproxy.spark.session.check_reachable", reached)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    given = {"--remote": ["--remote", server], "--conf": ["--conf", f"spark.remote={server}"]}.get(way, [])
    if way == "SPARK_REMOTE":
        monkeypatch.setenv(way, server)
    command = ["analyze", "/only/there", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, [*command, *given])
    assert done.output == f"Error: asked for {server}\n"
    if way == "SPARK_REMOTE":
        done = CliRunner().invoke(main, [*command, "--engine", "sail", "--quiet"])
        assert done.output == "Error: /only/there: no such file or folder\n"


def test_without_the_extra_it_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence."""
    monkeypatch.setattr("natsproxy.spark.session.find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["analyze", "x", "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert done.output == "Error: this needs Spark: pip install 'natsproxy[spark]'\n"


@pytest.fixture
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(number: signal.Signals) -> None:
    """The first one asks for an end in good order."""
    stop = _StopRequest()
    assert not stop()
    signal.raise_signal(number)
    assert stop()
    assert stop()
    signal.raise_signal(number)
    with pytest.raises(NatsproxyError, match="run the same command again to continue"):
        stop()


DOCUMENT = (Path(__file__).parents[2] / "deploy" / "spark.md").read_text().replace("\\\n", "")
COMMANDS = re.findall(r"^.*?\banalyze (.*--out.*)$", DOCUMENT, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_in_the_document_parse(command: str) -> None:
    """Ours, and those behind `spark-submit`."""
    context = analyze.make_context("analyze", shlex.split(command))
    assert context.params["captures"]


def test_copies_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the work begins."""
    golden = Path(__file__).parents[2] / "recordings" / "core-v1.ncap"
    for name in "abc":
        shutil.copy(golden, tmp_path / f"{name}.ncap")

    def no_session(*_: object, **__: object) -> None:
        raise ConfigError("no Spark here")

    monkeypatch.setattr("natsproxy.spark.session.open_session", no_session)
    done = CliRunner().invoke(main, ["analyze", str(tmp_path), "--out", str(tmp_path / "out")])
    text = f"Note: {tmp_path}/b.ncap holds the same segment as {tmp_path}/a.ncap: each block counts once"
    assert f"{text} (2 such files)\n" in done.stderr


def test_help_has_examples() -> None:
    """One for each way to run it."""
    done = CliRunner().invoke(main, ["analyze", "--help"])
    for part in ("--tables frames,requests", "--report report.html", "--watch", "--master spark://host:7077"):
        assert part in done.output


def test_an_error_of_the_report_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is said, and the next refresh writes the report again."""
    errors: list[Exception | None] = [KeyError("at_ns"), NatsproxyError("no space"), None]
    written: list[object] = []

    def write(*given: object) -> None:
        if (error := errors.pop(0)) is not None:
            raise error
        written.append(given[2])

    def watch(*given: object, refreshed: Callable[[], None], **more: object) -> None:
        while errors:
            refreshed()

    monkeypatch.setattr("natsproxy.cli.analyze._StopRequest", lambda: None)
    monkeypatch.setattr("natsproxy.spark.report.write", write)
    monkeypatch.setattr("natsproxy.spark.watch.job.watch", watch)
    _watch(cast("Spark", None), ["traffic"], str(tmp_path), [], 1, 1, "report.html", quiet=True)

    assert written == ["report.html"]
    assert capsys.readouterr().err.splitlines() == [
        "Warning: the report was not written: KeyError: 'at_ns'",
        "Warning: the report was not written: no space",
    ]


@pytest.mark.parametrize(
    ("quiet", "apart", "expected"),
    [
        pytest.param(
            False,
            0.0,
            [
                "reading traffic/",
                "reading traffic/ (n s)",
                "reading: 3 of 20 parts (n s)",
                "frames: 7 rows",
                "making tables (n s)",
            ],
            id="slow",
        ),
        pytest.param(False, 3_600.0, ["reading traffic/", "frames: 7 rows"], id="fast"),
        pytest.param(True, 0.0, [], id="quiet"),
    ],
)
def test_without_a_terminal_lines_say_how_far_it_is(
    quiet: bool, apart: float, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then, with the time; of what is not counted the time alone."""
    said: list[str] = []
    monkeypatch.setattr(analyze_progress, "_EACH", 0.001)
    monkeypatch.setattr(analyze_progress, "_LINES", apart)
    monkeypatch.setattr(
        "click.echo", lambda text, err: said.append(re.sub(r"\d+ s\)", "n s)", text)) if err else None
    )

    def wait(line: str) -> None:
        until = time.monotonic() + (10 if line in expected else 0.02)
        while line not in said and time.monotonic() < until:
            time.sleep(0.001)

    with analyze_progress.RunProgress(quiet) as progress:
        progress.say("reading traffic/")
        wait("reading traffic/ (n s)")
        progress.reading(3, 20)
        wait("reading: 3 of 20 parts (n s)")
        progress.table("frames", 7)
        wait("making tables (n s)")
    assert list(dict.fromkeys(said)) == expected
