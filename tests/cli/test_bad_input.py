"""Bad input to any command gives one clear sentence and an exit code, never a traceback."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
from click.testing import CliRunner, Result

from natsproxy.capture.format.blocks import MAGIC, SYNC, BlockKind, header
from natsproxy.cli import main
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import Scribe, write


def whole(path: Path) -> None:
    scribe = Scribe()
    scribe.frame(0, 1, S2C, b'INFO {"server_id":"S","version":"2.15.1","headers":true,"max_payload":99} \r\n')
    scribe.frame(1, 1, C2S, b'CONNECT {"verbose":false,"headers":true}\r\n')
    scribe.frame(2, 1, C2S, b"PUB orders.new 1\r\nx\r\n")
    write(path, scribe.items)


def cut(path: Path) -> None:
    whole(path)
    os.truncate(path, 40)


def newer(path: Path) -> None:
    body = msgpack.packb({"version": [9, 0], "recorder": bytes(16), "boot": bytes(16), "n": 0})
    path.write_bytes(MAGIC + header(BlockKind.SEGMENT, 0, b"", [body], len(body)) + body)


def flipped(path: Path) -> None:
    whole(path)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)


BAD: dict[str, Callable[[Path], object]] = {
    "no such file": lambda path: None,
    "empty folder": Path.mkdir,
    "empty": Path.touch,
    "text": lambda path: path.write_text("this is a letter to my aunt\n" * 20),
    "random bytes": lambda path: path.write_bytes(random.Random(7).randbytes(5_000)),
    "magic and random bytes": lambda path: path.write_bytes(MAGIC + random.Random(8).randbytes(5_000)),
    "cut": cut,
    "newer": newer,
    "flipped": flipped,
}
COMMANDS = [
    ["capture", "info", "CAPTURE"],
    ["capture", "cat", "CAPTURE"],
    ["capture", "verify", "CAPTURE"],
    ["capture", "recover", "CAPTURE", "TARGET"],
    ["capture", "diff", "CAPTURE", "WHOLE"],
    ["capture", "diff", "WHOLE", "CAPTURE"],
    ["rules", "from-capture", "CAPTURE"],
    ["replay", "to-server", "CAPTURE", "--to", "nats://127.0.0.1:PORT", "--dry-run"],
    ["replay", "to-client", "CAPTURE", "--listen", "127.0.0.1:PORT"],
    ["cassette", "run", "--mode", "none", "CAPTURE", "--", "true"],
    ["analyze", "CAPTURE", "--out", "TARGET"],
]
CASES = [(command, bad) for command in COMMANDS for bad in BAD if (command[0], bad) != ("analyze", "flipped")]
"""A damaged block is not an error to `analyze`: it is a row of the table `gaps`."""


def run(*words: str) -> Result:
    done = CliRunner().invoke(main, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    assert "Traceback" not in done.output
    return done


@pytest.mark.parametrize(("command", "bad"), CASES, ids=[f"{' '.join(c)}-{bad}" for c, bad in CASES])
def test_a_capture_that_is_none(command: list[str], bad: str, tmp_path: Path) -> None:
    capture = tmp_path / "bad.ncap"
    BAD[bad](capture)
    whole(tmp_path / "whole.ncap")
    with socket.create_server(("127.0.0.1", 0)) as taken:  # nothing may get so far as to listen here
        port = str(taken.getsockname()[1])
        places = {
            "CAPTURE": str(capture),
            "WHOLE": str(tmp_path / "whole.ncap"),
            "TARGET": str(tmp_path / "target"),
        }
        done = run(*(places.get(word, word.replace("PORT", port)) for word in command))
    lines = [line for line in done.output.splitlines() if line.strip()]
    assert done.exit_code != 0
    assert any("bad.ncap" in line for line in lines), lines


def test_a_target_that_cannot_be_written(tmp_path: Path) -> None:
    whole(tmp_path / "x.ncap")
    done = run("capture", "recover", str(tmp_path / "x.ncap"), str(tmp_path / "nowhere" / "y.ncap"))
    assert done.exit_code == 2
    assert "y.ncap: cannot write it" in done.output


URLS = [
    "",
    "nats://",
    "nats://h:port",
    "http://127.0.0.1",
    "nats://u:p@h:1",
    "nats://h:99999",
]


@pytest.mark.parametrize("url", URLS)
def test_a_url_that_is_none(url: str, tmp_path: Path) -> None:
    whole(tmp_path / "x.ncap")
    for words in (
        ["run", "--upstream", url],
        ["replay", "to-server", str(tmp_path / "x.ncap"), "--to", url],
    ):
        if words[0] == "replay" and url.startswith("nats://u:p@"):
            continue  # a replay has the user's own credentials
        done = run(*words)
        assert done.exit_code == 2, done.output
        assert "u:p" not in done.output


def test_a_proxy_needs_a_server_that_is_not_itself() -> None:
    for words, expected in (
        (["run"], "--upstream"),
        (["run", "--listen", ":14222", "--upstream", "nats://localhost:14222"], "natsproxy's own address"),
        (
            ["run", "-l", ":14222", "-u", "nats://x:1", "-u", "nats://localhost:14222"],
            "upstream localhost:14222 is natsproxy's own address",
        ),
        (["run", "--upstream", "nats://x", "--upstream", "x:4222"], "upstream nats://x:4222 is given twice"),
        (["run", "--upstream", "mqtt://x"], "mqtt:// is not supported"),
        (
            ["run", "-l", "0.0.0.0:14222", "-l", "ws://[::]:14222", "-u", "nats://x"],
            "listen nats://0.0.0.0:14222 and ws://[::]:14222 are the same address",
        ),
        (
            ["run", "--listen", "127.0.0.1:14222", "--upstream", "nats://127.0.0.1:14222"],
            "natsproxy's own address",
        ),
    ):
        done = run(*words)
        assert done.exit_code == 2
        assert expected in done.output


def test_a_subject_that_nobody_can_subscribe_to(tmp_path: Path) -> None:
    whole(tmp_path / "x.ncap")
    done = run("capture", "cat", str(tmp_path / "x.ncap"), "--subject", "orders.>.x")
    assert done.exit_code == 2
    assert "'orders.>.x'" in done.output


def test_a_cassette_cannot_be_recorded_from_nobody(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["cassette", "run", "--mode", "once", "--upstream", f"nats://{place}", str(tmp_path / "x.ncap")]
    done = run(*words, "--", "true")
    assert done.exit_code == 2
    assert f"{place}, which cannot be reached" in done.output


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    whole(tmp_path / "x.ncap")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        for words in (
            ["run", "--listen", place, "--upstream", "nats://127.0.0.1:1"],
            ["replay", "to-client", str(tmp_path / "x.ncap"), "--listen", place],
        ):
            done = run(*words)
            assert done.exit_code == 2
            assert place in done.output, done.output


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    whole(tmp_path / "x.ncap")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    done = run("replay", "to-server", str(tmp_path / "x.ncap"), "--to", f"nats://{place}")
    assert done.exit_code == 2
    assert place in done.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_capture_that_may_not_be_read(tmp_path: Path) -> None:
    capture = tmp_path / "bad.ncap"
    whole(capture)
    capture.chmod(0)
    for command in COMMANDS[:3]:
        done = run(*(str(capture) if word == "CAPTURE" else word for word in command))
        assert done.exit_code == 2
        assert "bad.ncap" in done.output


def test_verify_tells_damaged_from_not_closed(tmp_path: Path) -> None:
    """A capture that is still written is no reason to mend anything."""
    whole(tmp_path / "whole.ncap")
    raw = (tmp_path / "whole.ncap").read_bytes()
    index = raw.rindex(SYNC)
    (tmp_path / "open.ncap").write_bytes(raw[:index])
    flipped(tmp_path / "flipped.ncap")
    for name, state, expected in (
        ("whole", "whole", ""),
        ("open", "not closed", "still being written, or its writer was killed"),
        ("flipped", "damaged", "natsproxy capture recover"),
    ):
        path = str(tmp_path / f"{name}.ncap")
        done = run("capture", "verify", path)
        assert (done.exit_code, f"{path}: {state}; " in done.stdout) == (0 if state == "whole" else 1, True)
        assert expected in done.stderr
        facts = json.loads(run("capture", "verify", path, "--json").stdout)
        (segment,) = facts["segments"]
        assert (facts["whole"], segment["state"]) == (state == "whole", state)
        assert (segment["lost_bytes"] > 0) is (state == "damaged")


def test_recover_reports_its_result_as_json(tmp_path: Path) -> None:
    whole(tmp_path / "x.ncap")
    done = run("capture", "recover", str(tmp_path / "x.ncap"), str(tmp_path / "y.ncap"), "--json")
    facts = json.loads(done.stdout)
    assert (facts["frames"], facts["lost_bytes"]) == (3, 0)
