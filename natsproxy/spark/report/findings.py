"""Findings: the few sentences about a capture that a person should read first.

Each finding is (level, text, section): level "bad", "warn" or "note"; section is where the page shows more.
They use only the data of the page, so that they never say anything that the page does not show.  Names are in
`backticks`, which the page shows as code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from natsproxy.spark.source.walk import NOT_READ

Finding = tuple[str, str, str]
MOST: Final = 10
"""The number of findings on the page."""


def findings(data: dict[str, Any]) -> list[dict[str, str]]:
    """Return the findings for the data of the page, worst first."""
    found = [finding for check in _CHECKS for finding in check(data)]
    found.sort(key=lambda finding: ("bad", "warn", "note").index(finding[0]))
    return [{"level": level, "text": text, "section": section} for level, text, section in found[:MOST]]


def many(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: "1 frame", "1,200 frames"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(ms: float) -> str:
    """Return a duration in the unit that a person would use."""
    for limit, unit, size in ((1, "µs", 1e-3), (1e3, "ms", 1.0), (120e3, "s", 1e3), (7.2e6, "min", 60e3)):
        if ms < limit:
            return f"{ms / size:.3g} {unit}"
    return f"{ms / 3.6e6:.3g} h"


def _lost(data: dict[str, Any]) -> Iterator[Finding]:
    gaps, corrupt = data["gaps"], data["totals"]["corrupt"]
    if gaps:
        text = (
            f"The capture has {many(gaps['count'], 'gap')}: at least {many(gaps['frames'], 'frame')} passed "
        )
        yield "bad", text + "unrecorded, so every number here may be too low.", "gaps"
    if corrupt:
        text = f"{many(corrupt, 'block')} of the capture could not be read: their frames are missing here."
        told = [row["reason"] for row in gaps["listed"] if row["reason"].startswith(NOT_READ)] if gaps else []
        yield "bad", text + (f" `{told[0].removeprefix(NOT_READ)}`" if told else ""), "gaps"
    if data["notes"]:
        more = f" (and {len(data['notes']) - 1:,} more)" if len(data["notes"]) > 1 else ""
        yield "warn", f"{data['notes'][0]}{more}.", "gaps"


def _twice(data: dict[str, Any]) -> Iterator[Finding]:
    pairs: Counter[tuple[str, ...]] = Counter()
    for row in data["hops"] or ():
        pairs[tuple(sorted((row["sent_by"], row["got_by"])))] += row["frames"]
    if pairs:
        (one, other), frames = pairs.most_common(1)[0]
        text = f"`{one}` and `{other}` recorded the same traffic ({many(frames, 'frame')})"
        if len(pairs) > 1:
            text += f", and so did {many(len(pairs) - 1, 'other pair')} of recorders"
        yield "bad", f"{text}: counts of all recorders have it twice, so choose one recorder.", "hops"


def _latency(data: dict[str, Any]) -> Iterator[Finding]:
    if not data["latency"]:
        return
    whole = data["latency"]["whole"]
    if whole["unanswered"]:
        worst = max(data["latency"]["listed"], key=lambda row: row["unanswered"])
        part = "all" if worst["unanswered"] == whole["unanswered"] else f"{worst['unanswered']:,}"
        where = f", {part} of them to `{worst['template']}`" if worst["unanswered"] else ""
        yield "warn", f"{many(whole['unanswered'], 'request')} had no answer{where}.", "latency"
    if whole["no_responders"]:
        worst = max(data["latency"]["listed"], key=lambda row: row["no_responders"])
        where = f", most often at `{worst['template']}`" if worst["no_responders"] else ""
        yield "warn", f"{many(whole['no_responders'], 'request')} met no responders (503){where}.", "latency"
    if whole["unknown"]:
        text = f"Of {many(whole['unknown'], 'request')} it is unknown whether they were answered, and when: "
        yield "note", f"{text}replies on their reply subjects cannot be told apart.", "latency"
    slow = [row for row in data["latency"]["listed"] if row["latency"]]
    if slow:
        worst = max(slow, key=lambda row: row["latency"][2])
        p50, _, p99, _ = (duration(value) for value in worst["latency"])
        yield "note", f"`{worst['template']}` is the slowest to answer: p99 {p99}, p50 {p50}.", "latency"


def _jetstream(data: dict[str, Any]) -> Iterator[Finding]:
    failed = sum(row["errors"] for row in (data["js_api"] or {"listed": []})["listed"])
    if failed:
        yield "warn", f"{many(failed, 'JetStream API call')} failed.", "jetstream"
    whole = data["deliveries"] and data["deliveries"]["whole"]
    if whole and (whole["redelivered"] or whole["none"]):
        kinds = (
            ("redelivered", "of messages that came before"),
            ("nak", "refused"),
            ("none", "never answered"),
        )
        counts = ", ".join(f"{whole[name]:,} {text}" for name, text in kinds if whole[name])
        text = f"JetStream made {many(whole['deliveries'], 'delivery', 'deliveries')}: {counts}."
        yield "warn", text, "deliveries"


def _wrong(data: dict[str, Any]) -> Iterator[Finding]:
    stated = data["checks"]
    if stated and stated["found"]:
        things = many(stated["found"], "thing")
        kinds = ", ".join(f"`{row['check']}` {row['found']:,}" for row in stated["by"] if row["found"])
        yield "bad", f"{things} went wrong: {kinds}.", "checks"
    if stated and stated["cannot_say"]:
        text = f"In {many(stated['cannot_say'], 'case')} a check cannot say whether anything went wrong: "
        yield "note", f"{text}the recording is too partial.", "checks"


def _errors(data: dict[str, Any]) -> Iterator[Finding]:
    if not data["errors"]:
        return
    top = data["errors"]["listed"][0]
    example = f"most often `{top['example']}`"
    yield "bad", f"Clients got {many(data['errors']['count'], 'error')}, {example}.", "errors"


def _faults(data: dict[str, Any]) -> Iterator[Finding]:
    if not data["faults"]:
        return
    base = data["latency"] and data["latency"]["whole"]["latency"]
    for row in data["faults"]["listed"][:3]:
        text = f"Rule `{row['rule']}` fired {many(row['count'], 'time')} ({row['action']})"
        during = (row["during"] or {}).get("latency")
        if during and base and during[2] > 1.5 * base[2]:
            text += f"; while it did, request p99 was {duration(during[2])} (overall {duration(base[2])})"
        yield "note", text + ".", "faults"


def _connections(data: dict[str, Any]) -> Iterator[Finding]:
    ends = (data["connections"] or {"ends": []})["ends"]
    unclean = [end for end in ends if not end["clean"]]
    if unclean:
        causes = ", ".join(f"{end['cause']}: {end['count']:,}" for end in unclean[:4])
        total = many(sum(end["count"] for end in unclean), "connection")
        yield "warn", f"{total} did not end by the client's own wish ({causes}).", "connections"


_CHECKS: Final[tuple[Callable[[dict[str, Any]], Iterator[Finding]], ...]] = (
    _lost,
    _twice,
    _wrong,
    _errors,
    _latency,
    _jetstream,
    _connections,
    _faults,
)
