"""The settings of a proxy's identity: files and variables with secrets, and what is refused at the start."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from natsproxy.addresses import Address, split_host_port
from natsproxy.cli import main
from natsproxy.config.login import client_users
from natsproxy.config.settings import OPTIONS, proxy_settings
from natsproxy.errors import ConfigError
from tests.kit.accounts import seed
from tests.kit.servers import NatsServer

HASH = "$2b$04$Ohl5uOMog9q9uD3CNDowLus7DldEewU4ok39eOvB9Ct8P3C8FOMde"  # of "pw"; names of tests have it
USERS = f'[[users]]\nuser = "ann"\npassword = "{HASH}"\n'
OWN = 'user = "svc"\npassword = "hunter2"\n'
SEED = seed()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the files that the options below name, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"own": OWN, "users": USERS, "seed": SEED, "bad": "hunter2", "latin": ""}.items():
        Path(name).write_text(text)
    Path("latin").write_bytes(b"\xff")
    return tmp_path


def values(**given: object) -> dict[str, Any]:
    """Return option values as `natsproxy run` has them."""
    found: dict[str, Any] = {}
    for option in OPTIONS:
        value = given.get(option.key, option.default)
        if option.many:
            items = value if isinstance(value, list) else [value]
            found[option.key] = tuple(option.read(item) for item in items if item is not None)
        else:
            found[option.key] = None if value is None else option.read(value)
    return found


def settings(**given: object) -> Any:
    return proxy_settings(values(upstream="nats://127.0.0.1:4223", **given))


def test_without_options_there_is_no_identity(files: Path) -> None:
    assert settings().identity is None


def test_credentials_and_users_make_one(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From files, and from variables."""
    found = settings(upstream_credentials="own", client_users="users", proxy_key="seed")
    assert found.identity.credentials.connect_fields("") == {"user": "svc", "pass": "hunter2"}
    assert (found.identity.clients, found.client_users) == ("users", {"ann": HASH.encode()})
    assert found.identity.key is not None
    assert "hunter2" not in repr(found)
    assert HASH not in repr(found)
    monkeypatch.setenv("OWN", SEED)
    found = settings(upstream_credentials="env:OWN", client_auth="none")
    assert found.identity.credentials.key is not None
    assert settings(proxy_key="env:OWN").identity.credentials is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"upstream_credentials": "own"}, 'client_users, or write client_auth = "none"'),
        ({"upstream_credentials": "own", "client_auth": "users"}, 'client_auth = "users" needs client_users'),
        (
            {"upstream_credentials": "own", "client_auth": "none", "client_users": "users"},
            'client_users has no effect with client_auth = "none"',
        ),
        ({"upstream_credentials": "own", "client_auth": "certificate"}, "needs tls_ca, and tls:// or wss://"),
        ({"client_users": "users"}, "client_users needs upstream_credentials"),
        ({"client_auth": "none"}, "client_auth needs upstream_credentials"),
        (
            {"upstream_credentials": "own", "client_auth": "none", "unparsed": "pass"},
            'unparsed = "pass" bypasses upstream_credentials',
        ),
        (
            {"upstream_credentials": "nowhere"},
            "cannot read the file that upstream_credentials names: No such file",
        ),
        ({"upstream_credentials": "bad"}, "upstream_credentials bad is not a .creds file"),
        ({"upstream_credentials": "latin"}, "upstream_credentials latin is not text"),
        ({"upstream_credentials": "env:NOT_SET"}, "the variable that upstream_credentials names is not set"),
        ({"proxy_key": "bad"}, "proxy_key bad holds no nkey seed"),
    ],
)
def test_other_combinations_are_refused(files: Path, given: dict[str, object], sentence: str) -> None:
    """In one sentence, which holds no secret."""
    with pytest.raises(ConfigError) as caught:
        settings(**given)
    assert sentence in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "must have [[users]] tables"),
        ("users = []", "must have [[users]] tables"),
        ("[users]\nann = 1", "must have [[users]] tables"),
        (USERS + "[more]\n", "must have [[users]] tables"),
        ('[[users]]\nuser = "ann"\n', "user 1 must have user and password, and nothing else"),
        (USERS + "admin = true\n", "user 1 must have user and password, and nothing else"),
        (USERS + USERS, "user 2 has no name of its own"),
        (USERS.replace("ann", ""), "user 1 has no name of its own"),
        (USERS.replace(HASH, "hunter2"), "the password of 'ann' must be a bcrypt hash"),
        (USERS.replace(HASH, HASH[:-1]), "the password of 'ann' must be a bcrypt hash"),
        (USERS.replace(HASH, HASH.replace("$04$", "$32$")), "the password of 'ann' must be a bcrypt hash"),
        (USERS.replace(HASH, HASH[:28] + "a" + HASH[29:]), "the password of 'ann' must be a bcrypt hash"),
        ('user = "', "not valid TOML"),
    ],
)
def test_mistakes_in_a_table_of_users(tmp_path: Path, text: str, sentence: str) -> None:
    """They name the file and the user, and quote no password."""
    path = tmp_path / "users.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        client_users(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"listen": "127.0.0.1:0"}, "allow-non-tls needs a tls:// listener, and there is none"),
        ({"listen": "wss://127.0.0.1:0", "tls_cert": "x"}, "allow-non-tls needs a tls:// listener"),
        (
            {"listen": "tls://127.0.0.1:0", "tls_cert": "x", "tls_handshake_first": "on"},
            "allow-non-tls needs INFO first",
        ),
    ],
)
def test_tls_that_clients_may_do_without(files: Path, given: dict[str, object], sentence: str) -> None:
    """It is refused where it would change nothing, or leave plain clients without INFO."""
    with pytest.raises(ConfigError, match=sentence):
        settings(allow_non_tls=True, **given)
    found = settings(allow_non_tls=True, listen="tls://127.0.0.1:0", tls_cert="x", tls_handshake_first="auto")
    assert found.tls.allow_non_tls


def test_users_that_are_known_by_their_certificates(files: Path) -> None:
    """They have no passwords; without a table any certificate will do."""
    tls = {"listen": "tls://127.0.0.1:0", "tls_cert": "x", "tls_ca": "x", "client_auth": "certificate"}
    assert settings(upstream_credentials="own", **tls).identity.users is None
    Path("names").write_text('[[users]]\nuser = "CN=ann"\n[[users]]\nuser = "bob@example.com"\n')
    found = settings(upstream_credentials="own", client_users="names", **tls)
    assert found.identity.users == {"CN=ann", "bob@example.com"}
    assert not found.client_users
    with pytest.raises(ConfigError, match="user 1 must have user, and nothing else"):
        settings(upstream_credentials="own", client_users="users", **tls)


def test_a_secret_on_the_command_line_is_refused(files: Path) -> None:
    """And not repeated."""
    done = CliRunner().invoke(main, ["run", "--upstream", "127.0.0.1:1", "--proxy-key", SEED])
    assert done.exit_code == 2
    assert "must be a file or env:NAME" in " ".join(done.output.split())
    assert SEED not in done.output


def test_the_settings_show_names_only(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files and variables."""
    monkeypatch.setenv("X", SEED)
    done = CliRunner().invoke(
        main, ["config", "--upstream-credentials", "own", "--proxy-key", "env:X", "--json"]
    )
    rows = json.loads(done.output)
    assert rows["upstream-credentials"]["value"] == "own"
    assert rows["proxy-key"]["value"] == "env:X"


def login(address: Address, user: str) -> bytes:
    """Return the answer of a proxy to a login with the password "pw"."""
    with (
        socket.create_connection((address.host, address.port), 30) as client,
        client.makefile("rwb") as stream,
    ):
        assert stream.readline().startswith(b"INFO")
        stream.write(b'CONNECT {"verbose":false,"user":"%s","pass":"pw"}\r\nPING\r\n' % user.encode())
        stream.flush()
        return stream.readline()


@pytest.mark.server
@pytest.mark.parametrize("watched", [False, True])
def test_a_reload_reads_credentials_and_users_anew(files: Path, watched: bool) -> None:
    """For later logins, by SIGHUP or when a file changes; one that is wrong changes nothing."""
    with NatsServer(
        'authorization { users: [{user: "svc", password: "hunter2"}, {user: b, password: b}] }'
    ) as server:
        command = ["run", "-l", "127.0.0.1:0", "-u", server.url, "--log-format", "json"]
        command += ["--upstream-credentials", "own", "--client-users", "users"]
        command += ["--watch-files"] if watched else []
        process = subprocess.Popen(
            [sys.executable, "-m", "natsproxy", *command], stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None

        def logged(event: str) -> dict[str, Any]:
            """Return the next line about an event."""
            assert process.stderr is not None
            lines = (json.loads(line) for line in process.stderr)
            return next(line for line in lines if line["event"] == event)

        try:
            (listening,) = logged("listening")["listen"]
            address = Address(*split_host_port(listening.rpartition("/")[2]))
            assert (login(address, "ann"), login(address, "bob")[:4]) == (b"PONG\r\n", b"-ERR")
            Path("users").write_text(USERS.replace("ann", "bob"))
            Path("own").write_text('user = "b"\npassword = "b"\n')
            if not watched:
                process.send_signal(signal.SIGHUP)
            logged("credentials and users reloaded")
            assert (login(address, "bob"), login(address, "ann")[:4]) == (b"PONG\r\n", b"-ERR")
            Path("users").write_text("broken")
            if not watched:
                process.send_signal(signal.SIGHUP)
            assert "not valid TOML" in logged("credentials and users not reloaded")["reason"]
            assert login(address, "bob") == b"PONG\r\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.communicate()
