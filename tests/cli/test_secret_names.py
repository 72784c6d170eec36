"""Secrets that are given where the name of their file belongs: nobody repeats them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.cli import main
from natsproxy.config.settings import OPTIONS
from tests.kit.accounts import seed
from tests.kit.authority import Authority
from tests.kit.process import ProxyProcess

CANARY = "c4n4ry"
MISTAKES = {
    "a token": f"{CANARY}-0123456789abcdef",
    "a home": f"~{CANARY}-0123456789/x",
    "a variable": f"env:{CANARY}",
    "a long text": CANARY * 1_000,
    "a key": f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n",
}
SECRET = [option.name for option in OPTIONS if option.type.secret]
TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def needed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Give the flags that each of these options needs beside it."""
    folder = tmp_path_factory.mktemp("files")
    certificate = str(Authority(folder).server())
    own = folder / "own.toml"
    own.write_text('token = "x"\n')
    tls, admin = ["--listen", "tls://127.0.0.1:0"], ["--admin", "127.0.0.1:0"]
    return {
        "upstream-credentials": ["--client-auth", "none"],
        "client-users": ["--upstream-credentials", str(own)],
        "proxy-key": [],
        "tls-cert": tls,
        "tls-key": [*tls, "--tls-cert", certificate],
        "upstream-tls-cert": [],
        "upstream-tls-key": ["--upstream-tls-cert", certificate],
        "admin-token-file": admin,
        "admin-tokens": admin,
        "admin-tls-cert": admin,
        "admin-tls-key": [*admin, "--admin-tls-cert", certificate],
    }


def said(*args: str, code: int | None = 2, env: dict[str, str] | None = None) -> str:
    """Return all that a command prints."""
    done = CliRunner().invoke(main, list(args), env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert code is None or done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize("name", SECRET)
@pytest.mark.parametrize("value", MISTAKES.values(), ids=MISTAKES)
def test_nobody_repeats_it(name: str, value: str, needed: dict[str, list[str]], tmp_path: Path) -> None:
    """Neither `run`, in the sentence that names the option, nor `config`, in any of its forms."""
    file = tmp_path / "proxy.toml"
    file.write_text(f"{name} = {json.dumps(value)}\n")
    rest = ["--upstream", "127.0.0.1:1", *needed[name]]
    layers: tuple[tuple[list[str], dict[str, str]], ...] = (
        ([f"--{name}", value], {}),
        ([], {f"NATSPROXY_{name.upper().replace('-', '_')}": value}),
        (["--config", str(file)], {}),
    )
    for given, env in layers:
        output = said("run", *rest, *given, env=env)
        assert CANARY not in output
        assert name in output.replace("_", "-")
        for form in ([], ["--json"], ["--toml"]):
            output = said("config", *form, *rest, *given, code=None, env=env)
            assert CANARY not in output
            assert name in output


@pytest.mark.parametrize("name", SECRET)
def test_nor_a_number(name: str, needed: dict[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / "proxy.toml").write_text(f"{name} = 3133731337\n")
    for command in ("run", "config"):
        output = said(command, *needed[name], "--config", str(tmp_path / "proxy.toml"))
        assert f":1: {name} must be" in output
        assert "3133731337" not in output


def test_what_can_be_opened_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name: files, and variables that are set."""
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setenv("SEED_OF_OURS", seed())
    given = (
        "--admin-token-file",
        str(tmp_path / "token"),
        "--proxy-key",
        "env:SEED_OF_OURS",
        "--tls-key",
        "gone",
    )
    rows = json.loads(said("config", "--json", *given, code=0))
    assert rows["admin-token-file"] == {"value": str(tmp_path / "token"), "source": "flag"}
    assert rows["proxy-key"] == {"value": "env:SEED_OF_OURS", "source": "flag"}
    assert rows["tls-key"] == {"value": None, "source": "flag", "note": "cannot be opened, and is not shown"}
    assert "# tls-key cannot be opened, and is not shown" in said("config", "--toml", *given, code=0)
    assert "flag: cannot be opened, and is not shown" in said("config", *given, code=0)


@pytest.mark.parametrize("command", [["ctl", "rules"], ["tap"], ["top", "--once"]])
def test_nor_do_those_who_ask(command: list[str]) -> None:
    for value in MISTAKES.values():
        output = said(*command, "--admin", "127.0.0.1:1", "--token-file", value)
        assert "token-file" in output
        assert CANARY not in output
    output = said(*command, "--admin", "127.0.0.1:1", env={"NATSPROXY_ADMIN_TOKEN": CANARY})
    assert "NATSPROXY_ADMIN_TOKEN must hold one word of at least 16" in output
    assert CANARY not in output


def test_nor_a_replay(tmp_path: Path) -> None:
    recording = next((Path(__file__).parents[2] / "recordings").glob("**/*.ncap"))
    for value in MISTAKES.values():
        output = said("replay", "to-server", str(recording), "--to", "127.0.0.1:1", "--creds", value)
        assert "creds" in output
        assert CANARY not in output


def test_the_variables_mean_the_same_to_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is the token, the other one names its file, and wins."""
    (tmp_path / "token").write_text(TOKEN)
    admin = ("--admin", f"unix:{tmp_path}/admin")
    for variable, value in (("_FILE", str(tmp_path / "token")), ("", TOKEN)):
        with monkeypatch.context() as patch:
            patch.setenv(f"NATSPROXY_ADMIN_TOKEN{variable}", value)
            with ProxyProcess("127.0.0.1:1", *admin) as proxy:
                said("ctl", "rules", *admin, code=0)
                patch.setenv("NATSPROXY_ADMIN_TOKEN", "another-token-of-some-length")
                assert (
                    "the token is missing or wrong" in said("ctl", "rules", *admin, code=None)
                ) is not bool(variable)
                assert TOKEN not in proxy.log.read_text()


def test_a_token_for_others_is_no_setting_of_a_proxy_without_the_api() -> None:
    output = said(
        "run", "--upstream", "127.0.0.1:1", "--proxy-key", "gone", env={"NATSPROXY_ADMIN_TOKEN": TOKEN}
    )
    assert output == "Error: cannot read the file that proxy_key names: No such file or directory\n"
