"""Spans as OTLP: JSON lines, as the file exporter of OpenTelemetry's Collector writes them, and HTTP.

The packages of OpenTelemetry encode and send.  They obey the variables that all its exporters know, such as
`OTEL_EXPORTER_OTLP_HEADERS`, `_CERTIFICATE`, `_COMPRESSION` and `_TIMEOUT`, and `OTEL_RESOURCE_ATTRIBUTES`.

The service of a span is the client's name, as its CONNECT has it, so that a backend draws who talks to whom;
the run of the recorder is the instance.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import IO, Any, Final
from urllib.parse import urlsplit

from natsproxy.addresses import mask_url
from natsproxy.errors import ConfigError, NatsproxyError
from natsproxy.protocol.traceparent import SpanContext
from natsproxy.traces.spans import CLIENT, CONSUMER, PRODUCER, Span

try:
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext as OtelContext
    from opentelemetry.trace import SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode
except ImportError as error:
    raise ConfigError(f"--otlp needs {error.name}: pip install 'natsproxy[otlp]'") from None

BATCH: Final = 512
"""Spans of one request, or line, as OpenTelemetry's own batches have."""
_KINDS: Final = {CLIENT: SpanKind.CLIENT, PRODUCER: SpanKind.PRODUCER, CONSUMER: SpanKind.CONSUMER}
_UNNAMED: Final = "nats client"
_SERVICE: Final = ("service.name", "service.instance.id")
_SCOPE: Final = InstrumentationScope("natsproxy")
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_IDS: Final = ("traceId", "spanId", "parentSpanId")
_LOGGER: Final = logging.getLogger("opentelemetry.exporter.otlp.proto.http")


class CollectorFailed(NatsproxyError):
    """A collector did not take some spans."""

    def __init__(self, url: str, count: int, why: str) -> None:
        super().__init__(f"{mask_url(url)} did not take {count} spans: {why or 'it gives no reason'}")


class Collector:
    """A collector that spans are sent to by HTTP.  url: without a path, `/v1/traces` is used.

    A request is repeated, with growing pauses, while the collector is busy or cannot be reached, up to
    `OTEL_EXPORTER_OTLP_TIMEOUT` seconds (default: 10).
    """

    def __init__(self, url: str) -> None:
        self._url = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1/traces"
        self._exporter = OTLPSpanExporter(self._url)
        self._said = _LastMessage()
        _LOGGER.addHandler(self._said)
        _LOGGER.propagate = False  # what it says is in the error

    def send(self, spans: Iterable[Span], lost: Callable[[CollectorFailed], None] | None = None) -> int:
        """Send spans in batches; return the number of those that were taken.

        lost: called for a batch that was not; without it, CollectorFailed is raised.
        """
        count = 0
        for batch in _batches(spans):
            self._said.text = ""
            if self._exporter.export(_readable(batch)) is SpanExportResult.SUCCESS:
                count += len(batch)
                continue
            failed = CollectorFailed(self._url, len(batch), self._said.text)
            if lost is None:
                raise failed
            lost(failed)
        return count


def write(spans: Iterable[Span], out: IO[bytes]) -> int:
    """Write spans as JSON lines, a batch in each; return their number."""
    count = 0
    for batch in _batches(spans):
        message = encode_spans(_readable(batch))
        text = json.dumps(_hexed(MessageToDict(message, use_integers_for_enums=True)), separators=(",", ":"))
        out.write(text.encode() + b"\n")
        count += len(batch)
    return count


class _LastMessage(logging.Handler):
    """Keeps what the exporter said last."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a message."""
        self.text = record.getMessage()


def _batches(spans: Iterable[Span]) -> Iterator[list[Span]]:
    left = iter(spans)
    while batch := list(islice(left, BATCH)):
        yield batch


def _readable(batch: Iterable[Span]) -> list[ReadableSpan]:
    """Return spans as the SDK has them."""
    resources: dict[tuple[str, str], Resource] = {}
    readable = []
    for span in batch:
        service = span.conn.connect.name or _UNNAMED, span.conn.id.recorder.hex()
        if service not in resources:
            # Without an instance the SDK makes one up, another one for each batch.
            resources[service] = Resource.create(dict(zip(_SERVICE, service, strict=True)))
        status, attributes = Status(StatusCode.UNSET), dict(span.attributes)
        if span.error is not None:
            attributes["error.type"], text = span.error
            status = Status(StatusCode.ERROR, text)
        one = ReadableSpan(
            span.name,
            context=_context(span.context, remote=False),
            parent=None if span.parent is None else _context(span.parent, remote=True),
            resource=resources[service],
            attributes=attributes,
            kind=_KINDS[span.kind],
            status=status,
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=_SCOPE,
        )
        readable.append(one)
    return readable


def _context(context: SpanContext, *, remote: bool) -> OtelContext:
    return OtelContext(
        int.from_bytes(context.trace, "big"), int.from_bytes(context.span, "big"), remote, _SAMPLED
    )


def _hexed(message: Any) -> Any:
    """Return a message with its ids in hex digits: OTLP's JSON differs from that of protobuf there."""
    if isinstance(message, list):
        return [_hexed(one) for one in message]
    if not isinstance(message, dict):
        return message
    return {
        key: base64.b64decode(value).hex() if key in _IDS else _hexed(value) for key, value in message.items()
    }
