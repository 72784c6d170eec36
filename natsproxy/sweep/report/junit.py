"""The result as JUnit XML: a test case for each class of places and each fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree

from natsproxy.printable import printable
from natsproxy.sweep.causes import Judged
from natsproxy.sweep.findings import Finding, is_among
from natsproxy.sweep.report.result import PlaceClass, SweepResult, class_of
from natsproxy.sweep.values import Verdict

_SUITE: Final = "natsproxy sweep"
Case = tuple[PlaceClass, str]


def document(result: SweepResult, findings: Sequence[Finding]) -> str:
    """Return the XML.  Accepted findings, flaky trials and what was not tried are skipped cases."""
    cases: defaultdict[Case, list[Judged]] = defaultdict(list)
    for trial in result.trials:
        cases[class_of(trial.place), trial.fault]  # it may be that nothing of it was tried
    for one in result.judged:
        cases[class_of(one.trial.place), one.trial.fault].append(one)
    by_trial = {id(member): finding for finding in findings for member in finding.members}
    suite = ElementTree.Element("testsuite", name=_SUITE)
    failures = skipped = 0
    for (where, fault), judged in cases.items():
        seconds = sum(one.run.seconds for one in judged)
        case = ElementTree.SubElement(
            suite, "testcase", classname=printable(where.text), name=printable(fault), time=f"{seconds:.3f}"
        )
        found = {finding.name: finding for one in judged if (finding := by_trial.get(id(one))) is not None}
        new = [finding for name, finding in found.items() if not is_among(name, result.accepted)]
        if new:
            failures += 1
            _failure(case, new)
        elif reason := _why_skipped(judged, list(found)):
            skipped += 1
            ElementTree.SubElement(case, "skipped", message=printable(reason))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(failures))
    suite.set("errors", "0")
    suite.set("skipped", str(skipped))
    suite.set("time", f"{result.seconds:.3f}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def _failure(case: ElementTree.Element, findings: Sequence[Finding]) -> None:
    first = findings[0]
    failure = ElementTree.SubElement(
        case, "failure", type=first.cause.verdict.value, message=printable(first.sentence)
    )
    failure.text = "\n".join(printable(f"{one.title}: {one.sentence}") for one in findings)


def _why_skipped(judged: Sequence[Judged], accepted: Sequence[str]) -> str:
    if accepted:
        return f"accepted: {', '.join(accepted)}"
    if not judged:
        return "not tried"
    reasons = [
        f"{one.judgement.verdict.value}: {'; '.join(one.judgement.reasons)}"
        for one in judged
        if one.judgement.verdict in (Verdict.FLAKY, Verdict.NOT_REACHED)
    ]
    return reasons[0] if len(reasons) == len(judged) else ""
