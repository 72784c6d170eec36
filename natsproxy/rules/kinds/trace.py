"""trace: publishes without a `traceparent` get one, so that their deliveries belong to the same trace.

A program that traces sets the header itself, and keeps it.  Messages to inboxes are left alone, since an
answer belongs to the trace of its request, and so is what the server reads itself ($JS and $SYS).
The span that the header names is the publish itself, as `natsproxy capture export --otlp` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from natsproxy.protocol import traceparent
from natsproxy.protocol.headers import set_header
from natsproxy.protocol.identifiers import find_inbox
from natsproxy.rules.model.roles import PUBS
from natsproxy.rules.model.rule import Action, Hit, Kind
from natsproxy.rules.model.selector import Selector
from natsproxy.rules.model.verdicts import Replace, Verdict
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Need
from natsproxy.wire.ops import C2S

_BITS: Final = 48  # of one draw, which has 53
_DRAWS: Final = (traceparent.TRACE_BYTES + traceparent.SPAN_BYTES) * 8 // _BITS


class Tracing(Action):
    """Begins a trace with each message that belongs to none."""

    label = "trace"
    need = Need.PAYLOAD
    on_frame = "change"
    draws_random = True

    def act(self, frame: Frame, hit: Hit) -> Verdict | None:
        """Add the header."""
        view, subject, block = hit.view, frame.subject, frame.headers
        if not (view.connect.headers and view.info.headers):
            return None
        if subject.startswith((b"$JS.", b"$SYS.")) or find_inbox(subject) is not None:
            return None
        if traceparent.find(block) is not None:
            return None
        ids = b"".join(int(hit.draw(k) * 2**_BITS).to_bytes(_BITS // 8, "big") for k in range(_DRAWS))
        trace, span = ids[: traceparent.TRACE_BYTES], ids[traceparent.TRACE_BYTES :]
        headers = set_header(block, traceparent.NAME, traceparent.SpanContext(trace, span).value)
        if 0 < view.info.max_payload < len(headers) + len(frame.body):
            return None  # the server would close the connection
        return Replace(encode.with_payload(frame, headers=headers))


def make(settings: Mapping[str, Any], selector: Selector) -> Action:
    """Return the action."""
    return Tracing()


KIND = Kind(
    "trace",
    "publishes that belong to no trace begin one: they get a traceparent",
    make,
    """
[[rules]]
name = "begin traces"
kind = "trace"
subject = "orders.>"
""",
    ops=PUBS,
    takes=PUBS,
    direction=C2S,
)
