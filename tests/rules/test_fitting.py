"""Latency fitted from a capture: measured requests, bounds, and errors."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from click.testing import CliRunner

from natsproxy.cli.rules import rules as rules_command
from natsproxy.cli.service import Service
from natsproxy.config.files import inline_rules, rules_file
from natsproxy.config.fitting import latencies, quantiles, thinned
from natsproxy.config.settings import ProxySettings
from natsproxy.errors import ConfigError
from natsproxy.log import LogFile
from natsproxy.net.proxy import Proxy
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.kinds import KINDS
from natsproxy.rules.kinds.latency import Latency
from natsproxy.wire.ops import C2S, S2C
from tests.kit.captures import Scribe, write

MS = 1_000_000
RULE = """
[[rules]]
name = "like tuesday"
kind = "latency"
subject = "orders.>"
delay = { distribution = "empirical", capture = "tuesday.ncap"%s }
"""


def record(path: Path, waits: list[int], subject: bytes = b"orders.1") -> None:
    """Write a capture of requests that were answered after so many ms."""
    scribe = Scribe()
    for number, wait in enumerate(waits):
        start, reply = number * 1000 * MS, b"_INBOX.x.%d" % number
        scribe.frame(start, 1, C2S, b"PUB %s %s 0\r\n\r\n" % (subject, reply))
        scribe.frame(start + wait * MS, 1, S2C, b"MSG %s 1 0\r\n\r\n" % reply)
        scribe.frame(start + 900 * MS, 1, S2C, b"MSG %s 1 0\r\n\r\n" % reply)  # a second answer
    write(path, scribe.items)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    record(tmp_path / "tuesday.ncap", [10, 20, 30])
    path = tmp_path / "rules.toml"
    path.write_text(RULE % "")
    return path


def samples(file: Path) -> list[int]:
    (rule,) = rules_file(file)
    assert isinstance(rule.action, Latency)
    return [round(rule.action.delay.sample(u)) for u in (1e-9, 0.25, 0.5, 1 - 1e-9)]


def test_delays_are_those_of_the_capture(file: Path) -> None:
    assert samples(file) == [10 * MS, 15 * MS, 20 * MS, 30 * MS]


def test_a_configuration_may_hold_such_rules(file: Path) -> None:
    (rule,) = inline_rules(file) or ()
    assert rule.action.describe() == "hold for 20 ms (empirical)"


def test_recorded_rules_need_no_second_file(file: Path) -> None:
    chain = RuleChain(rules_file(file))
    assert "tuesday" not in chain.text.replace("like tuesday", "")
    (again,) = load(chain.text, KINDS)
    assert again.content == chain.rules[0].content


def test_only_the_first_answer_of_an_undisturbed_request_counts(tmp_path: Path) -> None:
    scribe = Scribe()
    scribe.frame(0, 1, C2S, b"PUB a.1 r.1 0\r\n\r\n", cause="lossy")
    scribe.frame(0, 1, C2S, b"PUB b.1 r.2 0\r\n\r\n")
    scribe.frame(0, 1, C2S, b"HPUB a.1 r.3 12 12\r\nNATS/1.0\r\n\r\n\r\n")
    scribe.frame(0, 1, C2S, b"PUB a.1 0\r\n\r\n")
    for number in (1, 2, 3):
        scribe.frame(2, 2, S2C, b"MSG r.%d 1 0\r\n\r\n" % number)  # another connection
    scribe.frame(3, 1, S2C, b"MSG r.3 1 0\r\n\r\n", cause="lossy")
    for number in (1, 2, 3, 3):
        scribe.frame(4 + number, 1, S2C, b"MSG r.%d 1 0\r\n\r\n" % number)
    path = write(tmp_path / "c.ncap", scribe.items)
    assert list(latencies(path, (b"a.*",))) == [7]
    assert list(latencies(path, (b">",))) == [6, 7]


def test_many_measurements_are_thinned_and_summed_up() -> None:
    kept = thinned(iter(range(10_000)), 100)
    assert 50 <= len(kept) <= 100
    assert {b - a for a, b in itertools.pairwise(kept)} == {128}
    assert quantiles(list(range(1001)), 4) == [0, 250, 500, 750, 1000]
    assert quantiles([3, 1, 2]) == [1, 2, 3]


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        (
            ', subject = "pay.>"',
            "delay cannot be fitted: {folder}/tuesday.ncap has no answered request on pay.>",
        ),
        (", sigma = 2", "delay with a capture takes distribution = \"empirical\" and perhaps 'subject'"),
        (
            ', subject = "a..b"',
            "delay of the empirical distribution: a parameter must be a valid subject, which 'a..b' is not",
        ),
    ],
)
def test_a_wrong_fit_is_one_sentence(file: Path, more: str, wrong: str) -> None:
    file.write_text(RULE % more)
    with pytest.raises(ConfigError) as caught:
        rules_file(file)
    message = f"{file}:6: rule 'like tuesday': {wrong.format(folder=file.parent)}"
    assert str(caught.value) == message
    result = CliRunner().invoke(rules_command, ["check", str(file)])
    assert (result.exit_code, result.output) == (1, f"Error: {message}\n")


@pytest.mark.parametrize("content", [None, b"", b"not a capture at all"])
def test_a_capture_that_cannot_be_read_is_one_sentence(file: Path, content: bytes | None) -> None:
    capture = file.parent / "tuesday.ncap"
    capture.unlink()
    if content is not None:
        capture.write_bytes(content)
    with pytest.raises(ConfigError, match=r"rules.toml:6: rule 'like tuesday': delay .*tuesday\.ncap"):
        rules_file(file)


def test_rules_made_elsewhere_cannot_name_a_capture() -> None:
    with pytest.raises(ConfigError, match="delay can refer to a capture only in a rules file"):
        load(RULE % "", KINDS)


def test_check_and_explain_know_it(file: Path) -> None:
    result = CliRunner().invoke(rules_command, ["explain", str(file), "--subject", "orders.1"])
    assert "* like tuesday (latency): hold for 20 ms (empirical)" in result.output
    assert CliRunner().invoke(rules_command, ["check", str(file)]).exit_code == 0


def test_a_reload_measures_anew_and_a_bad_capture_changes_nothing(file: Path) -> None:
    proxy = Proxy(ProxySettings())
    with LogFile() as log:
        service = Service(proxy, log, None, file)
    service.load_rules()
    first = proxy.chain
    (file.parent / "tuesday.ncap").unlink()
    record(file.parent / "tuesday.ncap", [70])
    service.load_rules()
    assert isinstance(proxy.chain, RuleChain)
    assert proxy.chain.rules[0].action.describe() == "hold for 70 ms (empirical)"
    assert proxy.chain is not first
    second = proxy.chain
    (file.parent / "tuesday.ncap").unlink()
    with pytest.raises(ConfigError):
        service.load_rules()
    assert proxy.chain is second
