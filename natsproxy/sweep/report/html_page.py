"""The result as a page: one HTML file without a script, which loads no other file.

Findings come first, then a map of the conversation: a row for each place of the baseline, as a sequence
diagram of client, proxy and server, with a cell for each fault.  A full cell was tried; a pale one has the
verdict of a place like it.  Subjects, client names and program output are untrusted: `_e` escapes each text,
and a content security policy allows nothing but this page's own style.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Final

from natsproxy.errors import CaptureError
from natsproxy.printable import printable
from natsproxy.sweep.causes import Judged
from natsproxy.sweep.conversation import conversation
from natsproxy.sweep.findings import Finding, is_among
from natsproxy.sweep.report.result import PlaceClass, SweepResult, class_of
from natsproxy.sweep.values import Place, Position, Verdict
from natsproxy.units import SECOND, in_seconds

_STYLES: Final = (("spark", "report", "style.css"), ("sweep", "report", "sweep.css"))
_ROWS: Final = 1_500
_REFRESH: Final = 3  # seconds after which the page of a running sweep is loaded again
_CELLS: Final = {
    Verdict.HUNG: ("hung", "H"),
    Verdict.DEAF: ("deaf", "D"),
    Verdict.WRONG: ("wrong", "W"),
    Verdict.FLAKY: ("flaky", "?"),
    Verdict.FAILED_LOUDLY: ("loud", ""),
    Verdict.PASSED: ("passed", ""),
    Verdict.NOT_REACHED: ("unreached", ""),
}
"""The class and letter of a verdict's cell, the worst first."""
_WORST: Final = {verdict: n for n, verdict in enumerate(_CELLS)}


def page(result: SweepResult, findings: Sequence[Finding]) -> str:
    """Return the page."""
    style = "\n".join(files("natsproxy").joinpath(*path).read_text(encoding="utf-8") for path in _STYLES)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="generator" content="natsproxy">',
            *([f'<meta http-equiv="refresh" content="{_REFRESH}">'] if result.running else []),
            f"<title>{_e(result.program)} · natsproxy sweep</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            '<header class="bar"><a class="brand" href="#top">natsproxy<span> sweep</span></a>'
            '<nav aria-label="Sections"><a href="#findings">findings</a><a href="#map">conversation</a>'
            '<a href="#runs">runs</a></nav></header>',
            '<main id="top">',
            *_head(result, findings),
            *_findings(result, findings),
            *_remarks(result),
            *_map(result),
            *_runs(result),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _e(text: object) -> str:
    """Return a text that is safe in HTML and in its attributes, on one line."""
    return html.escape(printable(str(text)))


def _block(text: str) -> str:
    return f"<pre>{html.escape(printable(text, keep=chr(10)))}</pre>"


# -- the head


def _head(result: SweepResult, findings: Sequence[Finding]) -> Iterator[str]:
    new = sum(not is_among(one.name, result.accepted) for one in findings)
    known = len(findings) - new
    said = f"{new or 'No'} finding{'' if new == 1 else 's'}" + (f", {known} accepted" if known else "")
    said += " so far" if result.running else ""
    yield f"<h1>{said}</h1>"
    yield f'<p class="sub"><code>{_e(result.program)}</code> · {_e(result.world)}</p>'
    all_trials = max(len(result.trials), len(result.judged))
    if result.running:
        left = "" if result.seconds_left is None else f", {result.seconds_left:.0f} s left"
        yield f'<p class="running">running: {len(result.judged):,} of {all_trials:,} tried{left}</p>'
    if result.stopped:
        left = f"{result.not_tried:,} of {all_trials:,} not tried"
        yield f'<div class="alarm"><b>Not finished:</b> {_e(result.stopped)}, {left}</div>'
    tiles = [(len(result.judged), "tried", ""), (result.not_tried, "not tried", "")]
    tiles += [
        (count, verdict, "bad" if Verdict(verdict).found and count else "")
        for verdict, count in result.by_verdict().items()
    ]
    tiles += [(round(result.seconds), "seconds", "")]
    shown = (f'<div class="tile {tone}"><b>{n:,}</b><span>{_e(text)}</span></div>' for n, text, tone in tiles)
    yield f'<div class="tiles">{"".join(shown)}</div>'


# -- findings


def _findings(result: SweepResult, findings: Sequence[Finding]) -> Iterator[str]:
    yield '<section id="findings"><header><h2>Findings</h2></header>'
    if not findings:
        none = f"None of {len(result.judged):,} trials broke the program."
        yield f'<p class="empty">{"None is confirmed yet." if result.running else none}</p>'
    for finding in findings:
        same, runs = finding.rate
        known = '<span class="tag">accepted</span>' if is_among(finding.name, result.accepted) else ""
        yield f'<article class="finding" id="f{finding.number}"><h3>{_e(finding.title)}</h3>'
        yield f"<p>{_e(finding.sentence)}</p>"
        places = len(finding.members)
        yield (
            f'<div class="chips"><span class="tag bad">{_e(finding.cause.verdict.value)}</span>'
            f'<span class="tag">{same} of {runs} runs</span>'
            f'<span class="tag">{places} trial{"" if places == 1 else "s"}</span>{known}</div>'
        )
        if finding.cause.place:
            yield f'<p class="note">The program is in <code>{_e(finding.cause.place)}</code>.</p>'
        if not result.running:  # its folder comes at the end
            yield _block(result.again_for(finding.number))
        run = finding.least.run
        for title, text in (("The end of the conversation", _conversation(finding)), ("Stack", run.stack)):
            if text:
                yield f"<details><summary>{title}</summary>{_block(text)}</details>"
        yield "</article>"
    yield "</section>"


def _conversation(finding: Finding) -> str:
    run = finding.least.run
    try:
        return conversation(run.capture, run.firings)
    except CaptureError as error:
        return str(error)


def _remarks(result: SweepResult) -> Iterator[str]:
    found = result.remarks()
    if not found:
        return
    yield '<section id="remarks"><header><h2>Remarks on trials that passed</h2></header><ul>'
    yield from (f"<li>{_e(one.sentence)}</li>" for one in found)
    yield "</ul></section>"


# -- the map


def _map(result: SweepResult) -> Iterator[str]:
    faults = list(dict.fromkeys(one.trial.fault for one in result.judged if one.trial.depth == 1))
    tried: dict[tuple[Position, str], Judged] = {}
    alike: dict[tuple[PlaceClass, str], Judged] = {}
    for one in sorted(result.judged, key=lambda one: -_WORST[one.judgement.verdict]):
        if one.trial.depth == 1:
            tried[one.trial.place.position, one.trial.fault] = one
            alike[class_of(one.trial.place), one.trial.fault] = one
    yield '<section id="map"><header><h2>The conversation, and each fault in it</h2></header>'
    yield f'<div class="keys">{"".join(_keys())}</div>'
    yield '<div class="scroll"><table class="map"><thead><tr><th class="num">ms</th>'
    yield '<th>connection</th><th>frame</th><th class="lanes">client · proxy · server</th>'
    yield '<th class="state">state</th>'
    yield "".join(f'<th class="f" scope="col">{_e(fault)}</th>' for fault in faults) + "</tr></thead><tbody>"
    rows = _rows(result.places, {position for position, _ in tried})
    for number, (place, count) in enumerate(rows):
        if number >= _ROWS:
            yield f'<tr><td colspan="{5 + len(faults)}">and further places, in report.json</td></tr>'
            break
        cells = "".join(
            _cell(fault, tried.get((place.position, fault)), alike.get((class_of(place), fault)))
            for fault in faults
        )
        yield f"<tr>{_row(place, count)}{cells}</tr>"
    yield "</tbody></table></div></section>"


def _rows(places: Sequence[Place], tried: set[Position]) -> Iterator[tuple[Place, int]]:
    """Yield the places by time; neighbours of one class, none of which was tried, are one row."""

    def together(place: Place) -> tuple[object, ...]:
        position = place.position
        return (position,) if position in tried else (position.connection, class_of(place))

    for _, group in groupby(sorted(places, key=lambda place: place.t), key=together):
        members = list(group)
        yield members[0], len(members)


def _row(place: Place, count: int) -> str:
    position = place.position
    about = f" {place.of or position.subject}"
    more = f" &times; {count:,}" if count > 1 else f" #{position.n}"
    return (
        f'<td class="num">{place.t * 1000 / SECOND:,.1f}</td>'
        f'<td class="name">{_e(position.connection)}</td>'
        f'<td class="place">{_e(position.what + about)}{more}</td>'
        f'<td class="lanes">{_lanes(position.direction)}</td>'
        f'<td class="state">{_e(place.state)}</td>'
    )


def _lanes(direction: str) -> str:
    """Return the lifelines of client, proxy and server with the arrow of a frame."""
    begin, end, tip = (24, 196, 190) if direction == "c2s" else (196, 24, 30)
    kind = "c2s" if direction == "c2s" else "s2c"
    return (
        f'<svg viewBox="0 0 220 26" role="img" aria-label="{"to" if kind == "c2s" else "from"} the server">'
        '<path class="lane" d="M20 0V26M200 0V26"/><path class="lane own" d="M110 0V26"/>'
        f'<path class="arrow {kind}" d="M{begin} 13H{end}M{tip} 9L{end} 13L{tip} 17"/></svg>'
    )


def _cell(fault: str, tried: Judged | None, alike: Judged | None) -> str:
    one = tried or alike
    if one is None:
        return '<td class="v"></td>'
    name, letter = _CELLS[one.judgement.verdict]
    how = "" if tried else " like"
    text = f"{fault}: {one.judgement.verdict.value}" + ("" if tried else ", at a place like this")
    reasons = "; ".join(one.judgement.reasons)
    title = f"{text}: {reasons}" if reasons else text
    return f'<td class="v"><span class="cell {name}{how}" title="{_e(title)}">{letter}</span></td>'


def _keys() -> Iterator[str]:
    for verdict, (name, letter) in _CELLS.items():
        text = f"{verdict.value}: {verdict.meaning}"
        yield f'<span class="key"><span class="cell {name}">{letter}</span>{text}</span>'
    yield '<span class="key"><span class="cell passed like"></span>pale: of a place like it</span>'


# -- the runs


def _runs(result: SweepResult) -> Iterator[str]:
    yield '<section id="runs"><header><h2>Runs</h2></header>'
    times = ", ".join(f"{run.seconds:.2f} s" for run in result.baseline)
    yield f"<p>Clean runs: {times}. Each run with a fault had at least {in_seconds(result.patience)}.</p>"
    for text in result.differs:
        yield f'<p class="note">{_e(text)}</p>'
    by_fault: defaultdict[str, list[Judged]] = defaultdict(list)
    for one in result.judged:
        by_fault[one.trial.fault].append(one)
    verdicts = list(Verdict)
    heads = "".join(f'<th class="num">{verdict.value}</th>' for verdict in verdicts)
    yield f'<div class="scroll"><table><thead><tr><th>fault</th>{heads}</tr></thead><tbody>'
    for fault, judged in by_fault.items():
        counts = (sum(one.judgement.verdict is verdict for one in judged) for verdict in verdicts)
        cells = "".join(f'<td class="num{"" if n else " zero"}">{n:,}</td>' for n in counts)
        yield f'<tr><td class="name">{_e(fault)}</td>{cells}</tr>'
    yield "</tbody></table></div></section>"
