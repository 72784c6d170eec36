"""A collector of OpenTelemetry on a free port of the loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """A collector of OpenTelemetry.  answers: the statuses of its next answers, then 200."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.paths: list[str] = []
        self.spans: list[Any] = []
        self.services: list[str] = []

    def take(self, path: str, body: bytes) -> int:
        self.paths.append(path)
        status = self.answers.pop(0) if self.answers else 200
        if status == 200:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                named = {one.key: one.value.string_value for one in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self.services += [named["service.name"]] * len(scope.spans)
                    self.spans += scope.spans
        return status

    def named(self, name: str) -> Any:
        """Return the one span of a name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found


@contextmanager
def served(collector: Collector) -> Iterator[str]:
    """Serve a collector on a free port; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
