"""The receipt of a played cassette, and the message about a cassette that served nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from natsproxy.protocol.template import template
from natsproxy.replay.cassette.fingerprint import Fingerprint
from natsproxy.replay.conversation.exchanges import RecordedExchange
from natsproxy.replay.receipt import SUBJECTS, CassetteUsed, SubjectCount
from natsproxy.replay.server_playback.counts import Counts, TemplateCount
from natsproxy.replay.server_playback.server import CassetteServer


def played(server: CassetteServer, before: Fingerprint, *, whole: bool = True, **more: Any) -> CassetteUsed:
    """Return the use of a cassette that a server has played.

    whole: also count what was not read yet; the server can play nothing after that.  more: other members.
    """
    progress = server.machine.progress
    counts = server.machine.count(whole=whole)
    total = counts.total
    return CassetteUsed(
        path=str(server.path),
        options=server.options.stored(),
        sha256=before.sha256,
        recorded_by=before.recorders,
        connections=len(server.machine.recording.connections),
        recorded=total.recorded,
        whole=server.machine.recording.whole,
        exempt=total.exempt,
        clients=server.accepted,
        undelivered=progress.undelivered,
        learned=len(server.machine.identifiers.learned),
        reached_server=server.dialled,
        served=total.served,
        missed=total.missed,
        unused=total.unused,
        repeated=total.repeated,
        subjects=tuple(_subjects(counts)),
        **more,
    )


def untouched(server: CassetteServer, url: str) -> str:
    """Return a sentence about a run that used nothing of its cassette, `""` for any other.

    url: what the program had to connect to.
    """
    frames, connections = server.machine.progress.counts.total, server.machine.recording.connections
    if not connections:
        return f"{server.path} is empty: no client had connected while it was recorded; record it anew"
    if not server.accepted:
        return f"no client connected to {url}, where {server.path} was played"
    left = server.machine.count(whole=False).total
    if frames.recorded and not (left.served or left.repeated or left.missed):
        return f"clients connected to {url}, but none sent any of the {frames.recorded} recorded frames"
    return ""


def differences(server: CassetteServer, missed: list[RecordedExchange]) -> list[str]:
    """Return sentences about frames that were never recorded, and about recorded ones that were not sent.

    They hold no value of a frame, so that a receipt may keep them.
    """
    found = []
    if server.mismatches:
        count = max(len(server.mismatches), server.machine.progress.counts.total.missed)
        found.append(f"{count} client frames were never recorded, the first was {server.mismatches[0].kind}")
    if missed:
        frame = missed[0].frame
        name = f"{frame.op.label} {template(frame.subject).decode(errors='replace')}"
        found.append(f"{len(missed)} recorded frames were sent by no client, the first is {name}")
    return found


def _subjects(counts: Counts) -> Iterator[SubjectCount]:
    """Yield the counts by subject: those with a difference first, then those with most frames."""

    def order(found: tuple[bytes, TemplateCount]) -> tuple[bool, int, bytes]:
        subject, count = found
        return not (count.missed or count.unused), -count.recorded, subject

    ranked = sorted(counts.by_template.items(), key=order)
    others = counts.others
    for _, count in ranked[SUBJECTS:]:
        others.add(count)
    for subject, count in ranked[:SUBJECTS]:
        yield _row(subject.decode(errors="replace"), count)
    if others != TemplateCount():
        yield _row("", others)


def _row(subject: str, count: TemplateCount) -> SubjectCount:
    return SubjectCount(subject, count.served, count.missed, count.unused, count.repeated)
