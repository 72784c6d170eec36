"""Stamps before a real server: what three clients read, on each leg, and what streams keep."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import nats
import pytest
import trio
from click.testing import CliRunner
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.api import RePublish, StreamSource
from websockets.sync.client import ClientConnection, connect

from natsproxy.addresses import Address
from natsproxy.cli import main
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.config.tls import TlsSettings
from natsproxy.net.proxy import Proxy
from natsproxy.protocol import stamps
from natsproxy.protocol.credentials import KeyPair
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from tests.kit.accounts import seed
from tests.kit.authority import Authority
from tests.kit.clients import settle
from tests.kit.documents import blocks
from tests.kit.go import MISSING, built, has_go
from tests.kit.node import node_path
from tests.kit.process import ProxyProcess
from tests.kit.servers import NatsServer
from tests.rules.kinds.test_stamp import FORGED, REFUSED, hpub, rule

pytestmark = pytest.mark.server
PROGRAMS: Final = Path(__file__).parent / "programs"
LIMIT: Final = 30.0  # seconds
CONFIG: Final = """
accounts { SHOP { jetstream: enabled, users: [
  { user: "ann", password: "a-pw" }, { user: "guest", password: "g-pw" } ] } }
no_auth_user: guest
jetstream { store_dir: "STORE" }
"""
WHO: Final = {"ann": {"user": "ann", "pass": "a-pw"}, "nobody": {}}
"""A client that the server verifies, and one that it lets in."""
LEGS: Final = ("nats", "tls", "ws")
STAMP: Final = {
    stamps.USER: "ann",
    stamps.ACCOUNT: "SHOP",
    stamps.ADDRESS: "127.0.0.1",
    stamps.BY: "server",
}
Seen = dict[str, dict[str, Any]]
"""By subject: the headers of a message as name and value pairs, and all values of the user's, case aside."""


class RawClient:
    """A client that sends the bytes that it is told to, over a leg of one kind."""

    def __init__(self, leg: str, port: int, context: ssl.SSLContext, options: dict[str, Any]) -> None:
        self.got = b""
        self._web: ClientConnection | None = None
        if leg == "ws":
            self._context = connect(f"ws://127.0.0.1:{port}", compression=None)
            self._web = self._context.__enter__()
        else:
            self._sock: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        self.until(b"\r\n")
        if leg == "tls":
            self._sock = context.wrap_socket(self._sock, server_hostname="127.0.0.1")
        connect_options = {"verbose": False, "protocol": 1, "headers": True, **options}
        self.send(b"CONNECT %b\r\nPING\r\n" % json.dumps(connect_options).encode())
        self.until(b"remote_account")

    def send(self, raw: bytes) -> None:
        if self._web is not None:
            self._web.send(raw)
        else:
            self._sock.sendall(raw)

    def until(self, wanted: bytes, count: int = 1) -> bytes:
        while self.got.count(wanted) < count:
            if self._web is not None:
                message = self._web.recv(LIMIT)
                assert isinstance(message, bytes)
                self.got += message
            else:
                data = self._sock.recv(65536)
                assert data, self.got
                self.got += data
        return self.got

    def close(self) -> None:
        (self._web or self._sock).close()


class Place:
    """A server with a proxy before it, whose rule is `rules`.  ports: of its legs."""

    def __init__(self, server: NatsServer, ports: dict[str, int], context: ssl.SSLContext) -> None:
        self.server, self.ports, self.context = server, ports, context

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.ports['nats']}"

    def client(self, leg: str = "nats", who: str = "ann", **options: Any) -> RawClient:
        return RawClient(leg, self.ports[leg], self.context, {**WHO[who], **options})


async def beside(
    folder: Path,
    rules: str,
    work: Callable[[Place], None],
    *,
    record: Path | None = None,
    config: str = CONFIG,
) -> None:
    """Run `work` in a thread, beside a proxy with these rules before a real server."""
    authority = Authority(folder)
    with NatsServer(config.replace("STORE", str(folder / "store"))) as server:
        settings = ProxySettings(
            listen=tuple(Listener(Address(), leg) for leg in LEGS),
            upstream=(Server(Address("127.0.0.1", server.port)),),
            tls=TlsSettings(cert=authority.server()),
            record=RecordSettings(record) if record is not None else None,
        )
        proxy = Proxy(settings, RuleChain(load(rules, KINDS)))
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.serve)
            ports = {leg: one.port for leg, one in zip(LEGS, proxy.listen, strict=True)}
            place = Place(server, ports, authority.client_context())
            with trio.fail_after(3 * LIMIT):
                await trio.to_thread.run_sync(work, place)
            await proxy.drain(5)


# -- what clients read


def read_in_python(url: str, number: int, publish: Callable[[], None]) -> Seen:
    """Read with nats-py."""
    found: Seen = {}

    async def program() -> None:
        client = await nats.connect(url)
        done = asyncio.Event()

        async def take(message: Msg) -> None:
            headers = dict(message.headers or {})
            user = [value for name, value in headers.items() if name.strip().lower() == stamps.USER.lower()]
            found[message.subject] = {
                "headers": [[name, [value]] for name, value in headers.items()],
                "any": user,
            }
            if len(found) == number:
                done.set()

        await client.subscribe("f.>", cb=take)
        await settle(client)
        await asyncio.to_thread(publish)
        await asyncio.wait_for(done.wait(), LIMIT)
        await client.close()

    asyncio.run(program())
    return found


def read_by(command: list[str], publish: Callable[[], None]) -> Seen:
    """Read with a program that says when it is ready, and prints what it has read."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        assert one.stderr is not None
        assert one.stdout is not None
        said = one.stderr.readline()
        assert said == "ready\n", said + one.stderr.read()
        publish()
        try:
            out, _ = one.communicate(timeout=LIMIT)
        finally:
            one.kill()
        found: Seen = json.loads(out)
    return found


def reader(language: str) -> Callable[[str, int, Callable[[], None]], Seen]:
    """Return the function that reads a number of messages at a URL while a function publishes them."""
    if language == "nats-py":
        return read_in_python
    if language == "nats.js":
        program = ["env", f"NODE_PATH={node_path()}", "node", str(PROGRAMS / "stamps.js")]
    elif has_go():
        program = [str(built(PROGRAMS / "stamps.go"))]
    else:
        pytest.skip(MISSING)
    return lambda url, number, publish: read_by([*program, url, str(number)], publish)


@pytest.mark.parametrize("language", ["nats-py", "nats.js", "nats.go"])
async def test_no_client_reads_a_stamp_that_the_proxy_did_not_write(tmp_path: Path, language: str) -> None:
    """On every leg, from a verified client and another one; without the proxy the forged one is read."""
    read = reader(language)
    forged = [
        hpub(b"NATS/1.0\r\n" + lines + b"Z: z\r\n\r\n", subject=b"SUBJECT") for lines in FORGED.values()
    ]

    def work(place: Place) -> None:
        def publish() -> None:
            for leg in LEGS:
                for who in WHO:
                    with closing(place.client(leg, who)) as client:
                        for number, raw in enumerate(forged):
                            subject = f"f.{leg}.{who}.{number}".encode()
                            client.send(raw.replace(b"SUBJECT", subject))
                        for lines in REFUSED.values():
                            client.send(hpub(b"NATS/1.0\r\n" + lines + b"\r\n", subject=b"f.refused"))
                        client.send(b"PING\r\n")
                        said = client.until(b"PONG\r\n", 2)
                        assert said.count(b'Permissions Violation for Publish to "f.refused"') == len(REFUSED)
            with closing(RawClient("nats", place.server.port, place.context, {})) as client:
                client.send(forged[0].replace(b"SUBJECT", b"f.direct"))
                client.send(b"PING\r\n")
                client.until(b"PONG\r\n", 2)

        number = len(LEGS) * len(WHO) * len(forged) + 1
        found = read(f"nats://guest:g-pw@127.0.0.1:{place.server.port}", number, publish)
        assert found.pop("f.direct")["any"] == ["root"]
        for subject, seen in found.items():
            own = {
                name.strip(): values
                for name, values in seen["headers"]
                if name.strip().lower().replace("_", "-").startswith(stamps.PREFIX.lower())
            }
            if ".ann." in subject and seen["headers"]:
                assert own == {name: [value] for name, value in STAMP.items()}, subject
                assert seen["any"] == ["ann"]
            else:
                assert (own, seen["any"]) == ({}, []), subject
        assert found["f.ws.ann.0"]["any"] == ["ann"]

    await beside(tmp_path, rule(), work)


# -- refusals


async def test_what_cannot_have_a_stamp_gets_the_answer_of_the_server(tmp_path: Path) -> None:
    """A client without headers, and a message that becomes too large; one byte less passes."""
    heard: list[bytes] = []

    def work(place: Place) -> None:
        with closing(place.client(headers=False)) as client:
            client.send(b"PUB f.a 1\r\nx\r\nPING\r\n")
            assert b"-ERR 'Permissions Violation for Publish to \"f.a\"'\r\n" in client.until(b"PONG\r\n", 2)
        with closing(place.client()) as client:
            client.send(b"SUB f.b 1\r\nPUB f.b 1\r\nx\r\n")
            line = client.until(b"HMSG f.b 1 ").partition(b"HMSG f.b 1 ")[2].split()
            most = 1_048_576 - int(line[0])
            client.send(b"PUB f.c %d\r\n%b\r\nPING\r\n" % (most, bytes(most)))
            client.until(b"PONG\r\n", 2)
            client.send(b"PUB f.c %d\r\n%b\r\n" % (most + 1, bytes(most + 1)))
            heard.append(client.until(b"-ERR"))
            with pytest.raises((AssertionError, ConnectionError)):
                client.until(b"no more", 1)
            heard.append(client.got)

    await beside(tmp_path, rule(), work)
    assert b"-ERR" not in heard[0].partition(b"-ERR")[0]
    assert heard[1].endswith(b"-ERR 'Maximum Payload Violation'\r\n")


async def test_what_is_pipelined_behind_connect_has_no_stamp(tmp_path: Path) -> None:
    """The server has not yet said whether it accepts the login; after another CONNECT it does not say."""

    def work(place: Place) -> None:
        with closing(RawClient("nats", place.server.port, place.context, {})) as reader:
            reader.send(b"SUB f.> 1\r\nPING\r\n")
            reader.until(b"PONG\r\n", 2)
            login = b'CONNECT {"verbose":false,"protocol":1,"headers":true,"user":"ann","pass":"a-pw"}\r\n'
            with socket.create_connection(("127.0.0.1", place.ports["nats"]), timeout=LIMIT) as early:
                early.sendall(login + b"PUB f.early 0\r\n\r\nPING\r\n")
                reader.until(b"MSG f.early")
            with closing(place.client()) as client:
                client.send(b"PUB f.known 0\r\n\r\n")
                reader.until(b"HMSG f.known")
                client.send(login + b"PING\r\nPUB f.again 0\r\n\r\n")
                said = reader.until(b"MSG f.again")
        assert b"HMSG f.early" not in said
        assert b"HMSG f.again" not in said
        assert said.count(b"Nats-Sender-User: ann\r\n") == 1

    await beside(tmp_path, rule(), work)


# -- JetStream, requests, signatures


async def test_streams_keep_signed_stamps(tmp_path: Path) -> None:
    """So do sources; a republished message is one that was moved.  Requests and acks work as before."""
    secret = seed("account")
    public = KeyPair(secret).public
    (tmp_path / "stamp.nk").write_text(secret)
    rules = rule(f'key = "{tmp_path / "stamp.nk"}"', 'sign_headers = "Nats-Msg-Id"')
    stored = tmp_path / "stored.json"
    capture = tmp_path / "traffic.ncap"

    async def program(url: str, server: str) -> None:
        client = await nats.connect(url, user="ann", password="a-pw")
        direct = await nats.connect(server, user="guest", password="g-pw")
        js = client.jetstream()
        again: asyncio.Queue[Msg] = asyncio.Queue()
        await direct.subscribe("again.>", cb=again.put)
        await settle(direct)
        await js.add_stream(name="F", subjects=["f.>"], republish=RePublish(src="f.>", dest="again.>"))
        await js.add_stream(name="G", sources=[StreamSource(name="F")])
        forged = {stamps.USER: "root", "Nats-Msg-Id": "7"}
        assert (await js.publish("f.a", b"one", headers=forged)).seq == 1
        assert (await js.publish("f.a", b"one", headers=forged)).duplicate
        taken = await js.subscribe("f.>", durable="d")
        message = await taken.next_msg(LIMIT)
        assert message.headers is not None
        assert message.headers[stamps.USER] == "ann"
        await message.ack_sync()
        moved = await asyncio.wait_for(again.get(), LIMIT)
        assert moved.headers is not None
        assert moved.headers[stamps.SUBJECT] == "f.a"
        for stream in "FG":
            answer = b""
            while b'"hdrs"' not in answer:  # the source follows in its own time
                answer = (await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", b'{"seq":1}')).data
            stored.with_suffix(f".{stream}").write_bytes(answer)

        async def answer_well(asked: Msg) -> None:
            await asked.respond(b"well")

        await client.subscribe("ask", cb=answer_well)
        answered = await client.request("ask", b"?")
        assert answered.headers is not None
        assert (answered.data, answered.headers[stamps.USER]) == (b"well", "ann")
        with pytest.raises(NoRespondersError):
            await client.request("nobody", b"?")
        await client.close()
        await direct.close()

    def work(place: Place) -> None:
        asyncio.run(program(place.url, f"nats://127.0.0.1:{place.server.port}"))

    await beside(tmp_path, rules, work, record=capture)
    for stream in "FG":
        done = CliRunner().invoke(
            main, ["verify", "--message", str(stored.with_suffix(f".{stream}")), "--key", public]
        )
        assert done.exit_code == 0, done.output
        assert "valid  f.a  user=ann account=SHOP address=127.0.0.1 by=server" in done.output
    of_stream = json.loads(stored.with_suffix(".F").read_text())
    of_stream["message"]["subject"] = "f.b"
    stored.write_text(json.dumps(of_stream))
    for options, code in (((), 1), (("--moved",), 0)):
        done = CliRunner().invoke(main, ["verify", "--message", str(stored), "--key", public, *options])
        assert done.exit_code == code, done.output
    done = CliRunner().invoke(main, ["verify", str(capture), "--key", public])
    assert done.exit_code == 0, done.output
    assert "0 invalid" not in done.output
    done = CliRunner().invoke(main, ["verify", str(capture), "--key", KeyPair(seed()).public])
    assert (done.exit_code, "its key is none of those given" in done.output) == (1, True)


def test_a_reload_takes_the_new_key_and_shows_neither(tmp_path: Path) -> None:
    """A key that cannot be read leaves the old one in force."""
    secrets = [seed("account"), seed("account")]
    file, rules = tmp_path / "stamp.nk", tmp_path / "rules.toml"
    file.write_text(secrets[0])
    rules.write_text(rule(f'key = "{file}"'))
    options = ["--rules", str(rules), "--admin", "127.0.0.1:0", "--record", str(tmp_path / "x.ncap")]
    with (
        NatsServer(CONFIG.replace("STORE", str(tmp_path / "store"))) as server,
        ProxyProcess(server.url, *options) as proxy,
    ):
        with closing(RawClient("nats", proxy.port, ssl.create_default_context(), WHO["ann"])) as client:
            client.send(b"SUB f.> 1\r\n")

            def key_of(subject: bytes) -> str:
                client.send(b"PUB %b 0\r\n\r\n" % subject)
                said = client.until(b"HMSG " + subject) and client.until(b"Nats-Sender-Signature", count())
                return said.rpartition(b"Nats-Sender-Key: ")[2].partition(b"\r\n")[0].decode()

            def count() -> int:
                return client.got.count(b"HMSG ")

            found = [key_of(b"f.a")]
            file.write_text(secrets[1])
            proxy.process.send_signal(signal.SIGHUP)
            proxy.wait_for(lambda line: line["event"] == "reloaded")
            found.append(key_of(b"f.b"))
            file.write_text("nothing")
            proxy.process.send_signal(signal.SIGHUP)
            proxy.wait_for(lambda line: line["event"] == "rules not reloaded")
            found.append(key_of(b"f.c"))

        url = proxy.wait_for(lambda line: line["event"] == "admin listens")["url"] + "/v1/proxies/main/rules"
        shown = urllib.request.urlopen(url, timeout=LIMIT).read().decode()
        assert proxy.drain() == 0
        log = proxy.log.read_text()
    assert found == [KeyPair(secrets[0]).public, *[KeyPair(secrets[1]).public] * 2]
    rows = CliRunner().invoke(main, ["capture", "cat", str(tmp_path / "x.ncap"), "--json"])
    assert found[0] in rows.output
    assert str(file) in shown
    for text in (log, shown, rows.output):
        assert not any(one[2:] in text for one in secrets)


# -- the functions that the guide prints


def program_of_guide(language: str, name: str) -> str:
    """Return a program of the guide."""
    (text,) = (block for block in blocks(language) if block.partition("\n")[0][2:].strip() == name)
    return text


@pytest.mark.parametrize("language", ["python", "js"])
async def test_the_guide_checks_signatures(tmp_path: Path, language: str) -> None:
    """A message as it was published counts; a changed one, one of another key and one without do not."""
    secret = seed("account")
    public = KeyPair(secret).public
    (tmp_path / "stamp.nk").write_text(secret)
    (tmp_path / "sender.js").write_text(program_of_guide("js", "sender.js"))
    headers = {"Nats-Msg-Id": "\u00e9 7", "A": "b"}
    found: dict[str, Any] = {}

    async def publish(place: Place) -> None:
        client = await nats.connect(place.url, user="ann", password="a-pw")
        direct = await nats.connect(f"nats://127.0.0.1:{place.server.port}")
        seen = await client.subscribe("s.>")
        await client.publish("s.good", b"one", headers=headers)
        good = await seen.next_msg(LIMIT)
        await client.publish("s.plain", b"one")
        await direct.publish("s.none", b"one", headers={"Nats-Sender-User": "ann"})
        assert good.headers is not None
        for name, body, more in (
            ("body", b"two", {}),
            ("user", b"one", {stamps.USER: "root"}),
            ("named", b"one", {"Nats-Msg-Id": "8"}),
            ("more", b"one", {"nats-sender-client": "root"}),
            ("key", b"one", {stamps.KEY: KeyPair(seed()).public}),
            ("moved", b"one", {}),
        ):
            await direct.publish(f"s.{name}", body, headers={**good.headers, **more})
        await client.flush()
        await client.close()
        await direct.close()

    async def read(place: Place) -> None:
        names: dict[str, Any] = {}
        exec(program_of_guide("python", "sender.py"), names)
        reader = await nats.connect(f"nats://127.0.0.1:{place.server.port}")
        taken = await reader.subscribe("s.>")
        await settle(reader)
        await publish(place)
        for _ in range(9):
            message = await taken.next_msg(LIMIT)
            try:
                found[message.subject] = names["sender"](message, {public})
            except ValueError as error:
                found[message.subject] = str(error)
        await reader.close()

    def work(place: Place) -> None:
        if language == "python":
            asyncio.run(read(place))
            return
        url = f"nats://127.0.0.1:{place.server.port}"
        program = ["env", f"NODE_PATH={node_path()}", "node", str(PROGRAMS / "check_sender.js")]
        found.update(
            read_by([*program, url, "9", str(tmp_path), public], lambda: asyncio.run(publish(place)))
        )

    rules = rule(f'key = "{tmp_path / "stamp.nk"}"', 'sign_headers = ["Nats-Msg-Id", "B"]')
    await beside(tmp_path, rules, work)
    for name in ("s.good", "s.plain"):
        said = found.pop(name)
        assert (said["nats-sender-user"], said["nats-sender-subject"]) == ("ann", name)
    changed, unknown = "it is not the message that was signed", "no signer that we know says who published it"
    assert found == {
        "s.none": unknown,
        "s.key": unknown,
        **dict.fromkeys(("s.body", "s.user", "s.named", "s.more"), changed),
        "s.moved": "it was published to another subject",
    }
