"""`--watch-files`: rules and certificates are loaded again when their files change, in the same segment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from natsproxy.addresses import Address
from natsproxy.capture.format.records import Note
from natsproxy.capture.read.reader import open_capture
from natsproxy.cli import file_watch
from natsproxy.cli.service import Service
from natsproxy.config.endpoints import Listener, Server
from natsproxy.config.recording import RecordSettings
from natsproxy.config.settings import ProxySettings
from natsproxy.config.tls import TlsSettings
from natsproxy.errors import ConfigError
from natsproxy.log import LogFile
from natsproxy.net.proxy import Proxy
from natsproxy.protocol.credentials import KeyPair
from natsproxy.rules.engine.chain import RuleChain
from tests.kit.accounts import seed

TLS = Path(__file__).parent.parent / "kit" / "tls"
RULE = '[[rules]]\nname = "{name}"\nkind = "deny"\nsubject = "secret"\n'


class Log:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **facts: self.lines.append((event, str(facts)))

    async def until(self, event: str, count: int = 1) -> str:
        """Wait for a line, and return its facts."""
        with trio.fail_after(20):
            while len(found := [facts for line, facts in self.lines if line == event]) < count:  # noqa: ASYNC110 - a log has no event
                await trio.sleep(0.005)
        return found[count - 1]


async def no_signals() -> AsyncIterator[int]:
    """Yield nothing, without end."""
    await trio.sleep_forever()
    yield 0


@asynccontextmanager
async def watching(
    rules: Path | None, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[tuple[Proxy, Log]]:
    """Run a service that looks at its rules often."""
    monkeypatch.setattr(file_watch, "LOOK", 0.01)
    proxy = Proxy(
        ProxySettings(
            **{
                "listen": (Listener(Address()),),
                "upstream": (Server(Address("127.0.0.1", 4223)),),
                **settings,
            }
        )
    )
    log = Log()
    with LogFile() as file:
        service = Service(proxy, file, None, rules, watched=True)
        service.load_rules()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run, log, no_signals())
            await log.until("listening")
            yield proxy, log
            nursery.cancel_scope.cancel()


def names(proxy: Proxy) -> list[str]:
    """Return the names of the rules in force."""
    assert isinstance(proxy.chain, RuleChain)
    return [rule.name for rule in proxy.chain.rules]


def config_map(folder: Path, version: str, text: str) -> None:
    """Put a version of a ConfigMap in force as the kubelet does: by one rename of a link."""
    (folder / version).mkdir()
    (folder / version / "rules.toml").write_text(text)
    (folder / "..data_tmp").symlink_to(version)
    (folder / "..data_tmp").replace(folder / "..data")
    if not (folder / "rules.toml").is_symlink():
        (folder / "rules.toml").symlink_to("..data/rules.toml")


async def test_a_config_map_is_loaded_when_it_is_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad version changes nothing and is said once; the capture has a record of each change."""
    folder, record = tmp_path / "settings", tmp_path / "captures"
    folder.mkdir()
    config_map(folder, "..1", RULE.format(name="one"))
    async with watching(folder / "rules.toml", monkeypatch, record=RecordSettings(record)) as (proxy, log):
        assert names(proxy) == ["one"]
        config_map(folder, "..2", RULE.format(name="two"))
        assert "['one']" in await log.until("reloaded")
        assert names(proxy) == ["two"]
        config_map(folder, "..3", "[[rules]]\nname = ")
        assert "not valid TOML" in await log.until("rules not reloaded")
        assert names(proxy) == ["two"]
        (folder / "..data").unlink()
        assert "No such file" in await log.until("rules not reloaded", 2)
        config_map(folder, "..4", RULE.format(name="four"))
        await log.until("reloaded", 2)
        assert names(proxy) == ["four"]
    assert len(log.lines) == 5
    (capture,) = record.iterdir()
    notes = [item.info["rules"] for _, item in open_capture(capture).items() if isinstance(item, Note)]
    assert [name in note for note, name in zip(notes, ('"two"', '"four"'), strict=True)] == [True, True]


async def test_certificates_are_loaded_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad one changes nothing, and the rules are not loaded with them."""
    cert, key = (tmp_path / name for name in ("cert.pem", "key.pem"))
    for file in (cert, key):
        file.write_bytes((TLS / file.name).read_bytes())
    settings = TlsSettings(cert, key)
    async with watching(None, monkeypatch, listen=(Listener(Address(), "tls"),), tls=settings) as (_, log):
        cert.write_bytes(cert.read_bytes() + b"\n")
        await log.until("certificates reloaded")
        key.write_text("no key")
        assert await log.until("certificates not reloaded")
    assert [event for event, _ in log.lines] == [
        "listening",
        "certificates reloaded",
        "certificates not reloaded",
    ]


async def test_a_key_that_a_rule_names_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that a later version of the rules names."""
    rules, keys = tmp_path / "rules.toml", [tmp_path / "one.nk", tmp_path / "two.nk"]
    for key in keys:
        key.write_text(seed())

    def signing_with(key: Path) -> str:
        return f'[[rules]]\nname = "signed"\nkind = "stamp"\nkey = "{key}"\n'

    def signer(proxy: Proxy) -> str:
        assert isinstance(proxy.chain, RuleChain)
        return proxy.chain.rules[0].action.fingerprint

    rules.write_text(signing_with(keys[0]))
    async with watching(rules, monkeypatch) as (proxy, log):
        keys[0].write_text(first := seed())
        await log.until("reloaded")
        assert signer(proxy) == KeyPair(first).public
        rules.write_text(signing_with(keys[1]))
        await log.until("reloaded", 2)
        keys[1].write_text(second := seed())
        await log.until("reloaded", 3)
        assert signer(proxy) == KeyPair(second).public
        keys[1].unlink()
        await log.until("rules not reloaded")
        assert signer(proxy) == KeyPair(second).public


async def test_a_file_is_not_read_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change must last for another look."""
    rules = tmp_path / "rules.toml"
    rules.write_text("old")
    watch = file_watch.FileWatch(rules)
    watch.reading()
    looks = 0

    async def look_and_write(_: float) -> None:
        nonlocal looks
        looks += 1
        assert looks < 20
        if looks < 10:
            with rules.open("a") as file:
                file.write("more")
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(trio, "sleep", look_and_write)
    await watch.changed()
    assert looks == 10


def test_something_must_be_there_to_watch() -> None:
    with (
        LogFile() as file,
        pytest.raises(ConfigError, match="watch-files has nothing to watch"),
    ):
        Service(Proxy(ProxySettings()), file, None, None, watched=True)
