"""A cassette for each test of one program: `cassette run` with a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.cli import main
from natsproxy.testing import NatsServer
from tests.kit.node import node_path
from tests.replay.cassette.test_scopes import tape
from tests.test_readme_languages import prices, program

NATSPROXY = str(Path(sys.executable).parent / "natsproxy")
TALK = """
import http.client, json, os, socket
from urllib.parse import urlsplit

where = urlsplit(os.environ.get("NATS_CASSETTE_ADMIN", "http://none"))
url = urlsplit(os.environ["NATS_URL"])

def ask(method, path="/v1/scope", body=None, **headers):
    connection = http.client.HTTPConnection(where.hostname, where.port)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found

def talk(*words, name="c1"):
    with socket.create_connection((url.hostname, url.port)) as program:
        program.sendall(b'CONNECT {"verbose":false,"name":"%b"}\\r\\nSUB w 1\\r\\n' % name.encode())
        for word in words:
            program.sendall(b"PUB w %d\\r\\n%b\\r\\n" % (len(word), word))
        program.sendall(b"PING\\r\\n")
        received = b""
        while b"PONG" not in received and (more := program.recv(4096)):
            received += more
        return received
"""


def run(tmp_path: Path, code: str, *options: str, **environment: str) -> tuple[int, str]:
    """Run a program with `ask` and `talk` against the folder of cassettes; return exit code and stderr."""
    done = subprocess.run(
        [NATSPROXY, "cassette", "run", *options, tmp_path / "tapes", "--", sys.executable, "-c", TALK + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.fixture
def tapes(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        tape(tmp_path / "tapes" / f"{name}.ncap", name.encode())
    return tmp_path


CHOOSES = """
assert ask("GET") == (200, {"scope": None, "cassette": None, "clients": 0, "mismatches": 0})
status, found = ask("PUT", body="one")
assert (status, found["scope"], found["ended"]) == (200, "one", None), found
assert b"MSG w 1 3\\r\\none" in talk(b"one")
status, found = ask("PUT", body=json.dumps({"scope": "two"}))
assert (status, found["ended"]["ok"], found["ended"]["clients"]) == (200, True, 1), found
assert b"MSG w 1 3\\r\\ntwo" in talk(b"two")
assert ask("GET")[1]["scope"] == "two"
assert ask("DELETE")[1]["ended"]["ok"]
assert ask("DELETE")[1] == {"ended": None}
"""


@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [
        (CHOOSES, 0, ["scope one: as recorded", "scope two: as recorded", "2 scopes"]),
        (
            CHOOSES + 'ask("PUT", body="two"); talk(b"other")\n',
            1,
            ["scope two: client 'c1' sent a frame that was never", "3 scopes, 1 of them not as recorded"],
        ),
        *(
            pytest.param(*row, marks=pytest.mark.long)
            for row in (
                (CHOOSES + 'ask("PUT", body="two"); talk()\n', 1, ["scope two: no client sent PUB w 'two'"]),
                (CHOOSES + "talk()\n", 1, ["1 clients connected outside of a scope, and were refused"]),
                ("", 1, ["tapes was used", "0 scopes"]),
                (CHOOSES + "raise SystemExit(7)\n", 7, []),
            )
        ),
    ],
)
def test_a_program_chooses_cassettes(code: str, expected: int, said: list[str], tapes: Path) -> None:
    found, stderr = run(tapes, code, "--admin", "127.0.0.1:0")
    assert found == expected, stderr
    for one in said:
        assert one in stderr
    receipt = json.loads((tapes / "tapes.receipt.json").read_text())
    assert (receipt["exit_code"], bool(receipt["failures"])) == (expected, expected == 1)
    if code:
        rows = {use["test"]: use for use in receipt["cassettes"]}
        assert [rows[name]["path"] for name in ("one", "two")] == [
            str(tapes / "tapes" / f"{name}.ncap") for name in ("one", "two")
        ]
        assert rows["one"]["passed"]
        assert receipt["isolated"]


@pytest.mark.long
def test_a_scope_that_no_client_joins_fails(tapes: Path) -> None:
    """Unless that is allowed."""
    code = 'ask("PUT", body="one"); ask("DELETE")\n'
    found, stderr = run(tapes, code, "--admin", "127.0.0.1:0")
    assert found == 1
    assert "scope one: no client" in stderr
    assert run(tapes, code, "--admin", "127.0.0.1:0", "--no-strict")[0] == 0
    found, stderr = run(tapes, code, "--admin", "127.0.0.1:0", "--no-strict", "--min-served", "1")
    assert (found, "--min-served requires 1" in stderr) == (1, True)


HOSTILE = """
ask("PUT", body="one")
for name in ("../one", "/etc/passwd", "", ".one", "a//b", "x" * 600):
    status, found = ask("PUT", body=name)
    assert status == 404 and "is not the name of a scope" in found["error"], (name, found)
status, found = ask("PUT", body="none")
assert status == 404 and "there is no such cassette" in found["error"], found
for body in (b"\\xff", b'{"scope": 7}', b'{"scope"', b'{"scope": "one", "more": 1}', b"{}"):
    assert ask("PUT", body=body)[0] == 400, body
assert ask("POST", body="one")[0] == 405
assert ask("DELETE", "/v1/scope?keep=maybe")[0] == 400
assert ask("GET", "/")[0] == 404
assert ask("GET", Host="evil.example")[0] == 421
assert ask("PUT", body="one", Origin="http://evil.example")[0] == 403
assert ask("PUT", body="one", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
assert ask("GET")[1]["scope"] is None
"""


def test_what_is_no_choice_is_refused(tapes: Path) -> None:
    """The scope before has ended; it is the only one, and was not played."""
    code, stderr = run(tapes, HOSTILE, "--admin", "127.0.0.1:0", "--no-strict")
    assert code == 0, stderr
    assert "1 scopes" in stderr


def test_a_token_may_be_wanted(tapes: Path) -> None:
    code = 'assert ask("GET")[0] == 401\nassert ask("GET", Authorization="Bearer " + "t" * 16)[0] == 200\n'
    code += 'ask("PUT", body="one", Authorization="Bearer " + "t" * 16); talk(b"one")\n'
    found, stderr = run(tapes, code, "--admin", "127.0.0.1:0", NATSPROXY_ADMIN_TOKEN="t" * 16)
    assert found == 0, stderr


def test_the_environment_and_names_of_clients_choose(tapes: Path) -> None:
    assert run(tapes, 'talk(b"two")', NATS_CASSETTE_SCOPE="two")[0] == 0
    assert run(tapes, 'talk(b"one")', NATS_CASSETTE_SCOPE="two")[0] == 1
    both = 'talk(b"two", name="t/two"); talk(b"one", name="t/one"); talk(b"two", name="t/two")'
    code, stderr = run(tapes, both, "--scope-by-name", "t/*")
    assert (code, "3 scopes" in stderr) == (0, True), stderr
    code, stderr = run(tapes, 'talk(b"one", name="t/two")', "--scope-by-name", "t/*")
    assert (code, "scope two: client 't/two' sent" in stderr) == (1, True), stderr


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--scope", "one", "{x}"], "--scope (or NATS_CASSETTE_SCOPE) chooses a cassette of a folder"),
        (["--admin", "127.0.0.1:0", "{x}"], "--admin chooses a cassette of a folder"),
        (["--scope-by-name", "a", "{folder}"], "must contain one *"),
        (["--scope", "../x", "{folder}"], "is not the name of a scope"),
        (["--scope", "none", "{folder}"], "there is no such cassette"),
        (["--scope", "one", "--mode", "all", "{folder}"], "name an upstream server to record from"),
    ],
)
def test_scopes_that_cannot_be(flags: list[str], expected: str, tapes: Path) -> None:
    words = {"x": str(tapes / "tapes" / "one.ncap"), "folder": str(tapes / "tapes")}
    arguments = [flag.format(**words) for flag in flags]
    done = CliRunner().invoke(main, ["cassette", "run", *arguments, "--", "true"])
    assert done.exit_code == 2
    assert expected in done.output
    assert "Traceback" not in done.output


@pytest.mark.long
@pytest.mark.server
def test_the_tests_of_the_guide(tmp_path: Path) -> None:
    """Recorded and played, each with its own cassette; only the test that was changed fails."""
    path = program("js", "orders.test.js", tmp_path)
    env = {**os.environ, "NODE_PATH": node_path()}

    def tests(*options: str) -> tuple[int, str]:
        command = [NATSPROXY, "cassette", "run", "--admin", "127.0.0.1:0", *options, "tapes", "--", "node"]
        done = subprocess.run(
            [*command, "--test", "--test-reporter=tap"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    with NatsServer() as server, prices(server):
        code, said = tests("--mode", "once", "--upstream", server.url)
        assert code == 0, said
    made = sorted(one.name.rsplit("-", 1)[0] for one in (tmp_path / "tapes").iterdir())
    assert made == ["none-costs-nothing", "two-cost-twice-as-much"]
    code, said = tests()
    assert code == 0, said
    path.write_text(path.read_text().replace("qty: 0", "qty: 1"))
    code, said = tests()
    assert code == 1
    assert "/qty: 0 recorded, 1 sent" in said
    assert "\nok 1 - two cost" in said or "    ok 1 - two cost" in said
    assert json.dumps("none costs nothing")[1:-1] in said
