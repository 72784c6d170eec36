"""The page and its findings, without Spark: hostile texts, and the files that it may load."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from natsproxy.spark.report.findings import MOST, duration, findings, many
from natsproxy.spark.report.page import _part, embedded, render

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>&lt;\u2028\u2029\\u003c",
    "${data} $title $$",
    '"><svg onload=alert(1)>',
)
SECTIONS = (
    "traffic",
    "templates",
    "senders",
    "fanout",
    "latency",
    "slowest",
    "deliveries",
    "publishes",
    "js_api",
    "checks",
    "errors",
    "faults",
    "connections",
    "subscriptions",
    "hops",
    "permissions",
    "gaps",
)


def bare(**more: Any) -> dict[str, Any]:
    """Return the data of a page on which every section is empty."""
    return {
        "captures": ["a.ncap"],
        "notes": [],
        "recorders": [],
        "recorder_choices": [],
        "top": 25,
        "axis": {"t0": 1.7e12, "step": 1.0, "count": 1, "length": 1.0},
        "totals": {
            "frames": 0,
            "messages": 0,
            "published": 0,
            "delivered": 0,
            "bytes": 0,
            "connections": 0,
            "corrupt": 0,
        },
        "empty": dict.fromkeys(SECTIONS, "Nothing."),
        "findings": [],
        **dict.fromkeys(SECTIONS),
        **more,
    }


class Page(HTMLParser):
    """A page as a browser reads it: its elements and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, str] = {}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, dict(attrs)))
        self._open = f"{tag}#{dict(attrs).get('id', '')}"

    def handle_endtag(self, tag: str) -> None:
        """Leave a script."""
        self._open = ""

    def handle_data(self, data: str) -> None:
        """Keep text."""
        self.raw[self._open] = self.raw.get(self._open, "") + data


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_stay_data(text: str) -> None:
    """Neither an element nor an attribute more than for a friendly text; data come out as they went in."""
    data = bare(captures=[text], findings=[{"level": "bad", "text": text, "section": text}])
    page, friendly = Page(render(data)), Page(render(bare()))

    assert [tag for tag, _ in page.elements] == [tag for tag, _ in friendly.elements]
    assert [sorted(found) for _, found in page.elements] == [sorted(found) for _, found in friendly.elements]
    assert json.loads(page.raw["script#data"]) == data
    assert page.raw["title#"] == f"{text} · natsproxy report"


@pytest.mark.parametrize("text", HOSTILE)
def test_embedded_json_has_nothing_that_markup_begins_with(text: str) -> None:
    """And is still the same JSON."""
    assert not re.search("[<>&\u2028\u2029]", embedded([text]))
    assert json.loads(embedded([text])) == [text]


def test_values_unknown_to_json_are_refused() -> None:
    """NaN would end the script that reads it."""
    with pytest.raises(ValueError, match="JSON compliant"):
        embedded({"p99": float("nan")})


def test_the_page_allows_its_own_style_and_script_only() -> None:
    """By their hashes; no address, no event attribute, no inline style that the policy would refuse."""
    text = render(bare())
    page = Page(text)
    policies = [found["content"] or "" for tag, found in page.elements if "http-equiv" in found]

    assert len(policies) == 1
    allowed = dict(part.strip().split(" ", 1) for part in policies[0].split(";"))
    assert allowed.pop("default-src") == allowed.pop("base-uri") == allowed.pop("form-action") == "'none'"
    for name, raw in (("script-src", page.raw["script#"]), ("style-src", page.raw["style#"])):
        digest = base64.b64encode(hashlib.sha256(raw.encode()).digest()).decode()
        assert allowed.pop(name) == f"'sha256-{digest}'"
    assert not allowed
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    for _, found in page.elements:
        assert not {"src", "style"} & set(found)
        assert not any(name.startswith("on") for name in found)
        assert (found.get("href") or "#").startswith("#")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page.raw["script#"]
    )
    assert not re.search(r"url\(|@import", page.raw["style#"])


def luminance(colour: str) -> float:
    """Return the relative luminance of "#rrggbb", as WCAG 2 has it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["card", "paper", "faint"])
def test_texts_stand_out(theme: int, ground: str) -> None:
    """4.5 to 1 for text, 3 to 1 for charts, on every ground of either theme."""
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", _part("style.css"))
    colours = {name: pair[theme] for name, *pair in found}
    needs = dict.fromkeys(("ink", "soft", "zero", "bad", "fault"), 4.5) | dict.fromkeys(
        ("c2s", "s2c", "busy"), 3
    )
    for name, least in needs.items():
        dark, light = sorted(luminance(colours[one]) for one in (name, ground))
        assert (light + 0.05) / (dark + 0.05) >= least, f"{name} on {ground}"


# -- findings


def asked(**more: Any) -> dict[str, Any]:
    """Return a row of latencies."""
    row = {
        "template": "svc.*",
        "requests": 9,
        "replies": 9,
        "unanswered": 0,
        "no_responders": 0,
        "unknown": 0,
    }
    return row | {"latency": [1.0, 2.0, 8.0, 9.0]} | more


def latency(*listed: dict[str, Any]) -> dict[str, Any]:
    """Return the data of the section on latency."""
    whole = asked(
        unanswered=sum(row["unanswered"] for row in listed),
        no_responders=sum(row["no_responders"] for row in listed),
        unknown=sum(row["unknown"] for row in listed),
    )
    return {"whole": whole, "listed": list(listed)}


def fault(**more: Any) -> dict[str, Any]:
    """Return the data of the section on faults, with one rule."""
    row = {"rule": "slow", "action": "hold", "count": 1, "during": None}
    return {"count": 1, "listed": [row | more]}


DELIVERIES = {"deliveries": 1200, "redelivered": 1, "nak": 0, "none": 4}
ENDS = [{"cause": "client-closed", "count": 9, "clean": True}, {"cause": "rule", "count": 1, "clean": False}]

SAYS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"gaps": {"count": 1, "frames": 1200}},
        "bad",
        "The capture has 1 gap: at least 1,200 frames passed unrecorded, so every number here may be "
        "too low.",
    ),
    (
        {"totals": {"corrupt": 2}},
        "bad",
        "2 blocks of the capture could not be read: their frames are missing here.",
    ),
    (
        {
            "totals": {"corrupt": 1},
            "gaps": {"count": 1, "frames": 0, "listed": [{"reason": "not read: a.ncap: damaged"}]},
        },
        "bad",
        "1 block of the capture could not be read: their frames are missing here. `a.ncap: damaged`",
    ),
    ({"notes": ["a.ncap: not closed", "b.ncap: not closed"]}, "warn", "a.ncap: not closed (and 1 more)."),
    (
        {
            "hops": [
                {"sent_by": "b", "got_by": "a", "frames": 1},
                {"sent_by": "a", "got_by": "b", "frames": 2},
            ]
        },
        "bad",
        "`a` and `b` recorded the same traffic (3 frames): counts of all recorders have it twice, so choose "
        "one recorder.",
    ),
    (
        {"hops": [{"sent_by": "a", "got_by": name, "frames": 1} for name in "bcc"]},
        "bad",
        "`a` and `c` recorded the same traffic (2 frames), and so did 1 other pair of recorders: counts of "
        "all recorders have it twice, so choose one recorder.",
    ),
    (
        {"checks": {"found": 1200, "cannot_say": 0, "by": [{"check": "deaf_client", "found": 1200}]}},
        "bad",
        "1,200 things went wrong: `deaf_client` 1,200.",
    ),
    (
        {"checks": {"found": 0, "cannot_say": 1, "by": [{"check": "deaf_client", "found": 0}]}},
        "note",
        "In 1 case a check cannot say whether anything went wrong: the recording is too partial.",
    ),
    (
        {"errors": {"count": 2, "listed": [{"example": "Slow Consumer"}]}},
        "bad",
        "Clients got 2 errors, most often `Slow Consumer`.",
    ),
    (
        {"latency": latency(asked(unanswered=3), asked(template="b"))},
        "warn",
        "3 requests had no answer, all of them to `svc.*`.",
    ),
    (
        {"latency": latency(asked(unanswered=1), asked(template="b", unanswered=2))},
        "warn",
        "3 requests had no answer, 2 of them to `b`.",
    ),
    (
        {"latency": latency(asked(), asked(template="b", no_responders=1))},
        "warn",
        "1 request met no responders (503), most often at `b`.",
    ),
    (
        {"latency": latency(asked(unknown=2), asked(template="b"))},
        "note",
        "Of 2 requests it is unknown whether they were answered, and when: replies on their reply subjects "
        "cannot be told apart.",
    ),
    (
        {"latency": latency(asked(), asked(template="b", latency=[1.0, 2.0, 9e3, 9e3]))},
        "note",
        "`b` is the slowest to answer: p99 9 s, p50 1 ms.",
    ),
    ({"js_api": {"listed": [{"errors": 1}, {"errors": 0}]}}, "warn", "1 JetStream API call failed."),
    (
        {"deliveries": {"whole": DELIVERIES}},
        "warn",
        "JetStream made 1,200 deliveries: 1 of messages that came before, 4 never answered.",
    ),
    ({"connections": {"ends": ENDS}}, "warn", "1 connection did not end by the client's own wish (rule: 1)."),
    ({"faults": fault()}, "note", "Rule `slow` fired 1 time (hold)."),
    (
        {"faults": fault(during={"latency": [1.0, 2.0, 80.0, 90.0]}), "latency": latency(asked())},
        "note",
        "Rule `slow` fired 1 time (hold); while it did, request p99 was 80 ms (overall 8 ms).",
    ),
]


@pytest.mark.parametrize(("more", "level", "text"), SAYS, ids=[text[:30] for _, _, text in SAYS])
def test_each_finding_has_its_sentence(more: dict[str, Any], level: str, text: str) -> None:
    """Once, with its weight, and only of data that the page shows."""
    listed = findings(bare(**more))
    assert [found["level"] for found in listed if found["text"] == text] == [level]


def test_a_quiet_capture_has_no_findings() -> None:
    """No finding of empty sections, nor of good news."""
    calm = {"whole": {"deliveries": 5, "redelivered": 0, "none": 0, "nak": 0}}
    assert findings(bare()) == []
    assert findings(bare(deliveries=calm, connections={"ends": ENDS[:1]}, js_api={"listed": []})) == []


def test_findings_are_few_and_the_worst_come_first() -> None:
    """A page of sentences is no summary."""
    rows = [asked(template=f"t{n}", unanswered=1, no_responders=1) for n in range(3)]
    faults = {"listed": [fault()["listed"][0] | {"rule": f"r{n}"} for n in range(20)], "count": 20}
    listed = findings(
        bare(
            latency=latency(*rows),
            faults=faults,
            gaps={"count": 1, "frames": 1},
            errors={"count": 1, "listed": [{"example": "x"}]},
            connections={"ends": ENDS},
        )
    )
    levels = [found["level"] for found in listed]
    assert levels == sorted(levels, key=("bad", "warn", "note").index)
    assert levels.count("bad") == 2
    assert len(listed) <= MOST


def test_numbers_read_well() -> None:
    """Singular, plural, thousands; a duration in its unit."""
    assert [many(1, "frame"), many(1200, "frame"), many(2, "delivery", "deliveries")] == [
        "1 frame",
        "1,200 frames",
        "2 deliveries",
    ]
    assert [duration(ms) for ms in (0.25, 12.345, 2500, 150e3, 8e6)] == [
        "250 µs",
        "12.3 ms",
        "2.5 s",
        "2.5 min",
        "2.22 h",
    ]
