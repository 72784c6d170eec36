"""Spans of captures in their text form."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from natsproxy.capture.read.frames import Query
from natsproxy.capture.read.reader import open_capture
from natsproxy.traces.spans import Span, Tracer


def spans(path: Path, query: Query | None = None) -> list[Span]:
    """Return the spans of a capture."""
    tracer = Tracer(str(path), query or Query())
    return list(chain(tracer.read(open_capture(path).items()), tracer.at_end()))


def shown(found: list[Span]) -> list[str]:
    """Return a line for each span: client, name, ms, its parent's place in the list, its error."""
    places = {span.context: place for place, span in enumerate(found)}
    lines = []
    for span in found:
        took = round((span.end - span.start) / 1e6)
        below = "" if span.parent is None else f" below {places.get(span.parent, 'another')}"
        error = "" if span.error is None else f" !{span.error[0]}"
        lines.append(f"{span.conn.connect.name} {span.kind} {span.name} {took}ms{below}{error}")
    return lines
