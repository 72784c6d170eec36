"""Rules tried on captures in their text form."""

from __future__ import annotations

from pathlib import Path

from natsproxy.rules.file.parser import load, load_expectations
from natsproxy.rules.kinds import KINDS
from natsproxy.trial.rehearsal import JudgedFrame, Rehearsal
from natsproxy.trial.report import Report

HEAD = "natsproxy text 1\nrecording\n  started: 2026-11-22T09:38:51Z\n"


def opened(label: str, name: str, **options: str) -> str:
    """Return the beginning of a connection."""
    more = "".join(f',"{key}":"{value}"' for key, value in options.items())
    return f'{label} opened\n{label} > CONNECT {{"verbose":false,"headers":true,"name":"{name}"{more}}}\n'


def judged(tmp_path: Path, rules: str, text: str, seed: int = 0) -> list[JudgedFrame]:
    """Return the frames of a conversation with their verdicts; `a` is a client named "app"."""
    path = tmp_path / "x.nats.txt"
    path.write_text(HEAD + opened("a", "app") + text)
    return list(Rehearsal(load(rules, KINDS), load_expectations(rules), seed).run(path))


def verdicts(tmp_path: Path, rules: str, text: str, seed: int = 0) -> list[str]:
    """Return `CONNECTION OP SUBJECT: VERDICT` for each frame but INFO and CONNECT, and each connection."""
    return [
        f"{one.connection} {'' if one.op is None else one.op.label} {one.subject.decode()}: "
        + (", ".join(ruling.verdict for ruling in one.rulings) or "pass")
        for one in judged(tmp_path, rules, text, seed)
        if one.op is None or one.op.label not in ("INFO", "CONNECT")
    ]


def report(tmp_path: Path, rules: str, text: str) -> Report:
    """Return the report on a conversation."""
    made = Report(load(rules, KINDS), load_expectations(rules))
    for one in judged(tmp_path, rules, text):
        made.add(one)
    return made
