"""Traces of real programs, as a collector gets them, and as files."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import nats
import pytest
from click.testing import CliRunner, Result
from nats.aio.client import Client
from nats.aio.msg import Msg

from natsproxy.cli import main
from natsproxy.testing import TestProxy
from tests.kit.collector import Collector, served
from tests.kit.process import ProxyProcess, wait_until
from tests.kit.servers import NatsServer

RECORDED = Path(__file__).parents[2] / "recordings"
PRODUCER, CONSUMER, CLIENT = 4, 5, 3
TRACE = {"name": "traces", "kind": "trace"}


def export(*arguments: object, **environ: str) -> Result:
    return CliRunner().invoke(main, ["capture", "export", *map(str, arguments)], env=environ)


async def shop(worker: Client, asker: Client) -> None:
    """Ask, publish and store, each message once."""

    async def answer(msg: Msg) -> None:
        await msg.respond(b"42")

    await worker.subscribe("quotes", cb=answer)
    plain = await worker.subscribe("plain")
    js = worker.jetstream()
    await js.add_stream(name="S", subjects=["stored"])
    pull = await js.pull_subscribe("stored", durable="c")
    await worker.flush()
    await asker.request("quotes", b"acme", timeout=5)
    await asker.publish("plain", b"hello")
    await plain.next_msg(timeout=5)
    await asker.jetstream().publish("stored", b"one")
    (msg,) = await pull.fetch(1, timeout=5)
    await msg.ack_sync()


async def traffic(url: str) -> None:
    worker, asker = [await nats.connect(url, name=name) for name in ("worker", "asker")]
    try:
        await shop(worker, asker)
    finally:
        await asker.close()
        await worker.close()


@pytest.mark.server
@pytest.mark.parametrize("traced", [False, True])
def test_a_trace_for_each_message(traced: bool, nats_server: NatsServer, tmp_path: Path) -> None:
    """A plain message and its delivery belong together only by a header, which a rule adds."""
    path = tmp_path / "x.ncap"
    with TestProxy(nats_server.url, record=path, rules=[TRACE] if traced else []) as proxy:
        asyncio.run(traffic(proxy.url))
    collector = Collector()
    with served(collector) as url:
        done = export(path, "--otlp", url)
    assert (done.exit_code, collector.paths) == (0, ["/v1/traces"]), done.output
    assert f"{url}: {len(collector.spans)} spans" in done.stderr
    assert set(collector.services) == {"worker", "asker"}
    pairs = [
        ("request quotes", CLIENT, "process quotes", True),
        ("publish stored", PRODUCER, "process stored", True),
        ("publish plain", PRODUCER, "receive plain", traced),
    ]
    for sent, kind, got, joined in pairs:
        above, below = collector.named(sent), collector.named(got)
        assert (above.kind, below.kind, above.parent_span_id) == (kind, CONSUMER, b"")
        assert (below.parent_span_id == above.span_id, below.trace_id == above.trace_id) == (joined, joined)
        assert above.start_time_unix_nano <= below.start_time_unix_nano <= below.end_time_unix_nano
    assert len({span.trace_id for span in map(collector.named, ["request quotes", "publish stored"])}) == 2


@pytest.mark.server
def test_following_a_proxy(nats_server: NatsServer, tmp_path: Path) -> None:
    """What happens from now on is sent while it happens, and a signal ends it well."""
    folder, collector = tmp_path / "traffic", Collector()
    with served(collector) as url, ProxyProcess(nats_server.url, "--record", f"{folder}/") as proxy:
        command = [sys.executable, "-m", "natsproxy", "capture", "export", str(folder), "--otlp", url, "-f"]
        asyncio.run(asks(proxy.port, "before"))
        wait_until(lambda: b"before" in b"".join(one.read_bytes() for one in folder.glob("*.ncap")))
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as follower:

            def has_begun() -> bool:
                asyncio.run(asks(proxy.port, "meanwhile"))
                return any(span.name == "request meanwhile" for span in collector.spans)

            wait_until(has_begun)
            follower.send_signal(signal.SIGTERM)
            _, said = follower.communicate(timeout=60)
    assert (follower.returncode, said) == (0, "")
    assert not any("before" in span.name for span in collector.spans)


async def asks(port: int, subject: str) -> None:
    """Ask where nobody answers, which ends with a 503."""
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request(subject, b"")
    await client.close()


def test_a_collector_that_is_busy_first() -> None:
    collector = Collector(503)
    with served(collector) as url:
        done = export(RECORDED / "requests-v1.1.ncap", "--otlp", f"{url}/own/path")
    assert done.exit_code == 0, done.output
    assert (collector.paths, len(collector.spans)) == (["/own/path"] * 2, 5)


def test_a_collector_that_refuses() -> None:
    collector = Collector(400)
    with served(collector) as url:
        done = export(RECORDED / "requests-v1.1.ncap", "--otlp", url)
    assert done.exit_code == 2
    assert f"Error: {url}/v1/traces did not take 5 spans: " in done.stderr


def test_no_collector_and_no_password_in_what_is_said() -> None:
    with served(Collector()) as url:
        pass
    where = url.replace("//", "//me:secret@")
    done = export(RECORDED / "requests-v1.1.ncap", "--otlp", where, OTEL_EXPORTER_OTLP_TIMEOUT="0.1")
    assert done.exit_code == 2
    assert "did not take 5 spans" in done.stderr
    assert "secret" not in done.output


def test_a_file(tmp_path: Path) -> None:
    """As the Collector's file exporter writes it: ids are hex digits, 64-bit numbers are texts."""
    out = tmp_path / "traces.jsonl"
    done = export(RECORDED / "requests-v1.1.ncap", "--otlp", out, OTEL_RESOURCE_ATTRIBUTES="site=here")
    assert (done.exit_code, done.stderr) == (0, f"{out}: 5 spans\n")
    (line,) = map(json.loads, out.read_text().splitlines())
    resources = {
        attribute["key"]: attribute["value"]["stringValue"]
        for resource in line["resourceSpans"]
        for attribute in resource["resource"]["attributes"]
    }
    assert resources["site"] == "here"
    spans = [span for one in line["resourceSpans"] for scope in one["scopeSpans"] for span in scope["spans"]]
    assert all((len(span["traceId"]), len(span["spanId"])) == (32, 16) for span in spans)
    assert all(span["startTimeUnixNano"].isdecimal() for span in spans)
    assert {span["kind"] for span in spans} == {CLIENT, CONSUMER}
    below = [span["parentSpanId"] for span in spans if "parentSpanId" in span]
    assert len(below) == 2
    assert set(below) < {span["spanId"] for span in spans}


def test_another_export_is_the_same() -> None:
    """By another process, too."""
    path = str(RECORDED / "jetstream-v1.1.ncap")
    command = [sys.executable, "-m", "natsproxy", "capture", "export", path, "--otlp", "-"]
    first, second = (subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2))
    assert first == second != b""


def test_a_choice_of_spans(tmp_path: Path) -> None:
    out = tmp_path / "traces.jsonl"
    done = export(
        RECORDED / "requests-v1.1.ncap", "--otlp", out, "--subject", "quotes.acme", "--direction", "s2c"
    )
    assert (done.exit_code, done.stderr) == (0, f"{out}: 1 spans\n")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--jsonl", "a", "--follow"], "--follow is for --otlp and the URL of a collector"),
        (["--otlp", "a", "--follow"], "--follow is for --otlp and the URL of a collector"),
        (["--otlp", "a", "--jsonl", "b"], "name one output"),
    ],
)
def test_options_that_do_not_fit(options: list[str], text: str) -> None:
    done = export(RECORDED / "requests-v1.1.ncap", *options)
    assert done.exit_code == 2
    assert text in done.stderr


def test_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "natsproxy.traces.otlp", raising=False)
    done = export(RECORDED / "requests-v1.1.ncap", "--otlp", "-")
    assert done.exit_code == 2
    assert "pip install 'natsproxy[otlp]'" in done.stderr
