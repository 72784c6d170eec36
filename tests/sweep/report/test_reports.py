"""The page and the XML of a sweep: their content, and that hostile names do no harm there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from natsproxy.sweep.causes import Judged
from natsproxy.sweep.findings import group
from natsproxy.sweep.report import html_page, junit
from natsproxy.sweep.report.result import SweepResult
from natsproxy.sweep.values import Judgement, Trial, Verdict
from tests.kit.browser import Browser
from tests.sweep.conversations import run, trial

TEXT = """
w opened
w > PUB orders.new
  * not passed
  * cause: fault
  | two
"""
HOSTILE = "<script>alert(1)</script>\"'&\x1b]0;\u202e\0\n<img src=x onerror=alert(2)>"
_VOID = {"meta", "link", "img", "br", "path"}


class Reader(HTMLParser):
    """Reads a page: its elements with their attributes, their order, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]


def judged(tmp_path: Path, made: Trial, verdict: Verdict, **facts: Any) -> Judged:
    one = run(tmp_path / f"{made.fault}-{made.place.position.n}.nats.txt", TEXT, code=None, at=2, **facts)
    return Judged(made, Judgement(verdict, (f"because of {made.place.of}",)), one, 5, 5, True)


def result(tmp_path: Path, found: Sequence[Judged], **facts: Any) -> SweepResult:
    places = list(dict.fromkeys(one.trial.place for one in found))
    given = {"places": places, "trials": [one.trial for one in found], "differs": (), **facts}
    program = given.pop("program", "python worker.py")
    clean = [run(tmp_path / "clean.nats.txt", TEXT)]
    return SweepResult(program, "a server of its own", clean, judged=found, seconds=9, patience=30, **given)


def placed(n: int, fault: str, *, state: str = "", t: int = 0, of: str = "") -> Trial:
    made = trial(fault, n=n, state=state, of=of)
    return made._replace(place=made.place._replace(t=t))


def cells(page: str) -> list[list[str]]:
    """Return the classes of the cells of the map, row by row."""
    rows = page.split("<tbody>")[1].split("</tbody>")[0].split("<tr>")[1:]
    return [re.findall(r'class="cell ([^"]+)"', row) for row in rows]


def test_the_map_has_a_row_for_each_place_and_a_cell_for_each_fault(tmp_path: Path) -> None:
    found = [
        judged(tmp_path, placed(1, "drop", t=1), Verdict.PASSED),
        judged(tmp_path, placed(1, "cut", t=1), Verdict.HUNG),
        judged(tmp_path, placed(2, "drop", t=2, state="login"), Verdict.FAILED_LOUDLY),
    ]
    page = html_page.page(result(tmp_path, found), group(found))
    assert cells(page) == [["passed", "hung"], ["loud"]]
    read = Reader(page)
    titles = [one.get("title") for one in read.all("span")]
    assert "cut: hung: because of " in titles
    assert read.open == []
    assert "1 finding" in read.text


def test_places_like_one_that_was_tried_are_pale_and_share_a_row(tmp_path: Path) -> None:
    tried = judged(tmp_path, placed(1, "drop", t=1), Verdict.WRONG)
    places = [placed(n, "drop", t=n).place for n in range(1, 6)]
    page = html_page.page(result(tmp_path, [tried], places=places), [])
    assert cells(page) == [["wrong"], ["wrong like"]]
    assert "&times; 4" in page


def test_the_page_loads_nothing_and_has_no_script(tmp_path: Path) -> None:
    found = [judged(tmp_path, placed(1, "drop"), Verdict.HUNG, stack="at main (worker.js:1:1)")]
    page = html_page.page(result(tmp_path, found), group(found))
    read = Reader(page)
    assert read.all("script") == []
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)
    policy = next(one["content"] for one in read.all("meta") if one.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "light dark" in page


@pytest.mark.parametrize("where", ["of", "state", "fault", "stack", "program", "reason"])
def test_hostile_names_stay_text(tmp_path: Path, where: str) -> None:
    made = placed(1, HOSTILE if where == "fault" else "drop")
    place = made.place
    place = place._replace(of=HOSTILE) if where == "of" else place
    place = place._replace(state=HOSTILE) if where == "state" else place
    made = made._replace(place=place)
    one = Judged(
        made,
        Judgement(Verdict.HUNG, (HOSTILE if where == "reason" else "it did not end",)),
        run(tmp_path / "one.nats.txt", TEXT, code=None, at=2, stack=HOSTILE if where == "stack" else ""),
    )
    facts = {"program": HOSTILE} if where == "program" else {}
    done = result(tmp_path, [one], **facts)
    page = html_page.page(done, group([one]))
    read = Reader(page)
    assert not read.all("script")
    assert not read.all("img")
    assert not any(name.startswith("on") for _, attrs in read.found for name in attrs)
    assert not set(page) & {"\x1b", "\u202e", "\0"}
    assert "<script>alert(1)</script>" in "".join(read.text) + "".join(
        one["title"] or "" for one in read.all("span") if "title" in one
    )
    ElementTree.fromstring(junit.document(done, group([one])))


def test_junit_has_a_case_for_each_class_and_fault(tmp_path: Path) -> None:
    found = [
        judged(tmp_path, placed(1, "drop", state="login"), Verdict.HUNG),
        judged(tmp_path, placed(2, "drop", state="login"), Verdict.PASSED),
        judged(tmp_path, placed(3, "drop"), Verdict.PASSED),
        judged(tmp_path, placed(4, "cut"), Verdict.FLAKY),
    ]
    trials = [*(one.trial for one in found), placed(5, "late-600ms")]
    done = result(tmp_path, found, trials=trials)
    (suite,) = ElementTree.fromstring(junit.document(done, group(found)))
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped", "errors")} == {
        "tests": "4",
        "failures": "1",
        "skipped": "2",
        "errors": "0",
    }
    said = [
        (case.get("classname"), case.get("name"), [(part.tag, part.get("message")) for part in case])
        for case in suite
    ]
    where = "worker · c2s PUB of orders.*"
    assert said[1:] == [
        (where, "drop", []),
        (where, "cut", [("skipped", "flaky: because of ")]),
        (where, "late-600ms", [("skipped", "not tried")]),
    ]
    assert said[0][:2] == (f"{where}, login", "drop")
    assert said[0][2][0][0] == "failure"


def test_accepted_findings_are_no_failure(tmp_path: Path) -> None:
    found = [judged(tmp_path, placed(1, "drop"), Verdict.HUNG)]
    done = result(tmp_path, found, accepted=["hung-drop-PUB-of-orders.any"])
    (suite,) = ElementTree.fromstring(junit.document(done, group(found)))
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    assert "No findings, 1 accepted" in html_page.page(done, group(found))


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(tmp_path: Path, scheme: str) -> None:
    found = [judged(tmp_path, placed(n, "drop", t=n, of=HOSTILE), Verdict.HUNG) for n in (1, 2)]
    path = tmp_path / "report.html"
    path.write_text(html_page.page(result(tmp_path, found), group(found)))
    with Browser(tmp_path / "profile") as browser:
        browser.open(path, scheme, 1280, scheme=scheme)
        assert not browser.complaints()
        assert browser.run("document.querySelectorAll('.map tbody tr').length") == 2
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
