"""Subjects inside the JetStream API: in JSON bodies and in the tail of some API subjects.

nats-server (`server/jetstream_api.go`): stream and consumer configurations name subjects under the keys
below, in requests and answers alike; `state.subjects` of a stream's INFO has them as keys; the
filter of CONSUMER.CREATE and the subject of DIRECT.GET are the last tokens of the API subject.  Names of
streams and consumers and data are never changed; a body that is not a JSON object stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from natsproxy.protocol.jetstream import api_verb_at

Translate = Callable[[bytes], bytes]
KEYS: Final = frozenset(
    {
        "subject",
        "subjects",
        "filter",
        "filter_subject",
        "filter_subjects",
        "subjects_filter",
        "deliver_subject",
        "last_by_subj",
        "next_by_subj",
        "multi_last",
        "src",
        "dest",
    }
)
_TAILED: Final = {(b"CONSUMER", b"CREATE"): 4, (b"DIRECT", b"GET"): 3}
"""API verb to the place, counted behind `API`, where an embedded subject begins."""


def translate_api_subject(subject: bytes, translate: Translate) -> bytes:
    """Return an API subject with the subject in its tail translated, if it has one."""
    tokens = subject.split(b".")
    start = api_verb_at(tokens)
    if start is None:
        return subject
    offset = _TAILED.get(tuple(tokens[start : start + 2]))  # type: ignore[arg-type]
    if offset is None or len(tokens) <= start + offset:
        return subject
    tail = start + offset
    return b".".join([*tokens[:tail], translate(b".".join(tokens[tail:]))])


def translate_body(body: bytes, translate: Translate) -> bytes:
    """Return a JSON body with its subjects translated; the same bytes where nothing changes."""
    if not body.lstrip().startswith(b"{"):
        return body
    try:
        document = json.loads(body)
        changed = _walk(document, translate)
    except (ValueError, RecursionError):  # not JSON, or deeper than any body of the API
        return body
    # Unchanged bodies keep their bytes, so that odd spacing and key order reach the other side.
    return json.dumps(changed, separators=(",", ":")).encode() if changed != document else body


def _walk(value: Any, translate: Translate) -> Any:
    if isinstance(value, list):
        return [_walk(item, translate) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _member(key, item, translate) for key, item in value.items()}


def _member(key: str, value: Any, translate: Translate) -> Any:
    if key not in KEYS:
        return _walk(value, translate)
    if isinstance(value, str):
        return _text(value, translate)
    if isinstance(value, list):
        return [_text(item, translate) if isinstance(item, str) else _walk(item, translate) for item in value]
    if key == "subjects" and isinstance(value, dict):  # state.subjects: subject to number of messages
        return {_text(name, translate): count for name, count in value.items()}
    return _walk(value, translate)


def _text(subject: str, translate: Translate) -> str:
    return (
        translate(subject.encode("utf-8", "surrogatepass")).decode("utf-8", "replace") if subject else subject
    )
