"""The report in a real browser: its charts, their colours, and the actions of a person."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from natsproxy.spark.report import needs
from natsproxy.spark.report.page import _part, render
from tests.kit.browser import Browser, Colour
from tests.spark.known_conversation import write_known_conversation
from tests.spark.report import known_capture as known
from tests.spark.report import two_proxies as row
from tests.spark.report.test_needs import AXIS, ROWS_OF_ANN, used
from tests.spark.report.test_page import bare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
RECORDINGS = Path(__file__).parents[3] / "recordings"
CELLS = """
[...document.querySelectorAll("#%s table")].map((table) => [...table.rows].map((row) =>
  [...row.cells].map((cell) => cell.textContent)))
"""
TILES = """
[...document.querySelectorAll(".tile")].map((tile) =>
  [tile.lastChild.textContent, tile.firstChild.textContent])
"""
EMPTY = """
[...document.querySelectorAll("section:has(.empty)")].map((node) => node.id)
"""
OVERLAPS = """
[...document.querySelectorAll(".plot svg")].flatMap((chart) => {
  const labels = [...chart.querySelectorAll("text:not(.name)")];
  const boxes = labels.map((node) => [node.textContent, node.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], at) => boxes.slice(at + 1)
    .filter(([, b]) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
    .map(([other]) => `${chart.getAttribute("aria-label")}: ${one} ${other}`));
})
"""
CUT = """
[...document.querySelectorAll("%s")]
  .filter((node) => node.checkVisibility() && node.scrollWidth > node.clientWidth + 1)
  .map((node) => node.textContent.slice(0, 80))
"""
WIDTHS = (390, 1280, 2560)
Data = dict[str, Any]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests; skips where there is none."""
    with Browser(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


@pytest.fixture(scope="module")
def report(
    spark: SparkSession, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Data]:
    """Return the page of the known capture, all tables, and its data."""
    folder = tmp_path_factory.mktemp("report")
    path = written(spark, folder, [known.make(folder / "known.ncap")])
    data: Data = json.loads(path.read_text().split('type="application/json">')[1].split("</script>")[0])
    return path, data


def written(spark: SparkSession, folder: Path, captures: list[Path]) -> Path:
    """Return the page of captures, all tables."""
    from natsproxy.spark.jobs.analyze import analyze
    from natsproxy.spark.report import write
    from natsproxy.spark.tables import TABLES

    analyze(spark, captures, folder / "tables", TABLES)
    write(spark, folder / "tables", folder / "report.html", captures)
    return folder / "report.html"


@pytest.fixture(scope="module")
def two(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of two proxies in a row."""
    folder = tmp_path_factory.mktemp("two")
    return written(spark, folder, row.make(folder))


def colours(theme: str) -> dict[str, Colour]:
    """Return the named colours of the style sheet, as it has them for a theme."""
    pairs = re.findall(r"--(\w+): light-dark\(#(\w{6}), #(\w{6})\)", _part("style.css"))
    at = ("light", "dark").index(theme)
    return {
        name: (int(c[0:2], 16), int(c[2:4], 16), int(c[4:6], 16)) for name, *both in pairs for c in [both[at]]
    }


def tables(browser: Browser, section: str) -> list[list[dict[str, str]]]:
    """Return a section's tables as the document has them: rows by the labels of their columns."""
    found: list[list[list[str]]] = browser.run(CELLS % section)
    return [[dict(zip(table[0], row, strict=True)) for row in table[1:]] for table in found]


def test_the_numbers_in_the_document_are_those_of_the_tables(
    report: tuple[Path, Data], browser: Browser
) -> None:
    """Section by section, after the scripts ran; nobody complains, nothing is fetched."""
    path, data = report
    browser.open(path, "light", 1280)
    tiles = dict(browser.run(TILES))

    assert tiles["errors"] == str(known.DENIED)
    assert tiles["firings of rules"] == str(known.DENIED + known.DROPPED)
    assert tiles["gaps"] == "1"
    assert tiles["connections"] == "3"
    (subjects,) = tables(browser, "templates")
    assert [(row["subject template"], row["published"], row["delivered"]) for row in subjects] == [
        (row["template"], f"{row['published']:,}", f"{row['delivered']:,}") for row in data["templates"]
    ]
    assert subjects[0]["conns"] == f"\u2248 {data['templates'][0]['connections']}"
    assert subjects[0]["per second"] == "5.77"  # 404 messages in 70 s
    (senders,) = tables(browser, "senders")
    assert senders[0] == {
        "subject template": known.EVIL,
        "published by": f"{known.EVIL} {known.EVENTS + known.DENIED} ",
        "delivered to": f"client {known.EVENTS} ",
    }
    (latency,) = tables(browser, "latency")
    assert [(row["subject template"], row["requests"], row["no answer"]) for row in latency] == [
        (row["template"], str(row["requests"]), str(row["unanswered"])) for row in data["latency"]["listed"]
    ]
    slow = next(row for row in latency if row["subject template"] == "svc.b")
    assert (slow["p50"], slow["worst"], slow["service p99"]) == ("30 ms", "60 ms", "59 ms")
    (deliveries, calls, failed) = tables(browser, "jetstream")
    assert {deliveries[0][name] for name in ("ack", "nak", "redelivered")} == {"8", "2"}
    assert (calls[0]["call"], calls[0]["errors"], failed[0]["error"]) == ("STREAM.INFO", "1", known.API_ERROR)
    (kinds, denied) = tables(browser, "errors")
    assert (kinds[0]["times"], denied[0]["subject template"], denied[0]["denied"]) == (
        str(known.DENIED),
        known.EVIL,
        "publish",
    )
    (rules,) = tables(browser, "faults")
    assert {row["rule"]: row["firings"] for row in rules} == {known.EVIL: "4", "lossy": "5"}
    assert [row["ended"] for row in tables(browser, "connections")[0]] == [
        "client-closed",
        "client-closed",
        f"rule {known.EVIL}",
    ]
    assert tables(browser, "gaps")[0][0] == {
        "at": "00:01:05.000",
        "reason": known.EVIL,
        "connection": "all",
        "frames": "3",
        "bytes": "99 B",
    }
    assert "not complete" in browser.run("document.querySelector('[role=alert]').textContent")
    assert browser.complaints() == []


def test_hostile_names_stay_text(report: tuple[Path, Data], browser: Browser) -> None:
    """A subject that would be an element is in the document many times, and no element came of it."""
    browser.open(report[0], "light", 1280)
    assert browser.run("document.body.textContent").count(known.EVIL) > 10
    assert browser.run("document.querySelectorAll('img, iframe, object, script[src]').length") == 0
    assert "owned" not in browser.run("document.title")
    assert browser.complaints() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_charts_are_drawn_in_their_colours(report: tuple[Path, Data], browser: Browser, theme: str) -> None:
    """Each section draws its subject, in the colours of its theme and in none of the other's."""
    browser.open(report[0], theme, 1000)
    expected, other = colours(theme), colours("dark" if theme == "light" else "light")
    drawn = {
        "traffic": {"c2s": 2000, "s2c": 2000, "card": 50_000},
        "templates": {"c2s": 500, "s2c": 300},
        "senders": {"c2s": 100, "s2c": 100},
        "latency": {"h1": 50, "h6": 50, "bad": 50},
        "slowest": {"busy": 5000},
        "jetstream": {"good": 300, "fault": 100},
        "errors": {"fault": 1000},
        "faults": {"fault": 500, "bad": 200},
        "connections": {"s2c": 2000, "bad": 1000},
        "gaps": {"ink": 10},
    }
    for section, least in drawn.items():
        seen = browser.picture(f"#{section}")
        for name, count in least.items():
            assert seen[expected[name]] >= count, f"{section} shows too little of {name}"
            assert seen[other[name]] < count / 2, f"{name} is of the other theme"
    assert browser.picture()[expected["paper"]] > 50_000


def test_the_button_and_the_system_choose_the_theme(report: tuple[Path, Data], browser: Browser) -> None:
    """The system's scheme, until the button says otherwise."""
    shown = "getComputedStyle(document.body).backgroundColor"
    paper = {theme: "rgb({}, {}, {})".format(*colours(theme)["paper"]) for theme in ("light", "dark")}
    browser.open(report[0], "", 1000, scheme="dark")
    assert browser.run(shown) == paper["dark"]
    assert browser.run("document.getElementById('theme').textContent") == "Light"
    browser.run("document.getElementById('theme').click()")
    assert browser.run(shown) == paper["light"]


def test_charts_read_out_their_values(report: tuple[Path, Data], browser: Browser) -> None:
    """By pointer and by arrow keys, all charts at the same moment."""
    path, data = report
    browser.open(path, "light", 1000)
    browser.run("document.querySelector('#traffic svg[tabindex]').focus()")
    at = 20  # 10 s, when the events begin
    for _ in range(at + 1):
        for kind in ("rawKeyDown", "keyUp"):
            browser.tell("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight")
    up, down = (data["traffic"]["frames"][way][at] for way in ("c2s", "s2c"))
    shown = browser.run("[...document.querySelectorAll('output')].map((node) => node.textContent)")
    assert shown[0] == f"00:00:10.000 · {up} in 500 ms to the server · {down} in 500 ms to clients"
    assert up + down > 10
    assert all(text.startswith("00:00:10.000 · ") for text in shown)
    assert shown[2] == "00:00:10.000 · 1 answer, p50 10 ms, p99 10 ms, worst 10 ms"


def test_tables_sort_and_open(report: tuple[Path, Data], browser: Browser) -> None:
    """By a click on a heading, largest first; a slow request shows its frames."""
    browser.open(report[0], "light", 1000)
    requests = "[...document.querySelectorAll('#latency tbody tr')].map((row) => +row.cells[1].textContent)"
    click = "document.querySelectorAll('#latency th button')[1].click()"
    before = browser.run(requests)
    browser.run(click)
    assert browser.run(requests) == sorted(before, reverse=True)
    browser.run(click)
    assert browser.run(requests) == sorted(before)
    browser.run("document.querySelector('details').open = true")
    frames = tables(browser, "slowest")[0]
    assert [row["op"] for row in frames] == ["PUB", "MSG", "PUB", "MSG"]
    assert [row["after"] for row in frames] == ["0", "500 µs", "59.5 ms", "60 ms"]


def rows(browser: Browser, section: str) -> int:
    """Return the rows of a section's tables, or its slow requests, that are shown."""
    nodes = f"[...document.querySelectorAll('#{section} tbody tr, #{section} > details')]"
    found: int = browser.run(f"{nodes}.filter((node) => node.checkVisibility()).length")
    return found


def test_a_time_is_chosen_by_dragging(report: tuple[Path, Data], browser: Browser) -> None:
    """All charts show it alone, rows of other times go, counts are of it; the button brings all back."""
    path, data = report
    browser.open(path, "light", 1000)
    peak = "document.querySelector('#traffic output').textContent"
    before, slow = browser.run(peak), rows(browser, "slowest")
    box = browser.run("document.querySelector('#traffic svg[tabindex]').getBoundingClientRect().toJSON()")
    x = [box["x"] + 52 + (box["width"] - 60) * part for part in (0.5, 0.75)]
    for kind, at in (("mousePressed", x[0]), ("mouseMoved", x[1]), ("mouseReleased", x[1])):
        browser.tell("Input.dispatchMouseEvent", type=kind, x=at, y=box["y"] + 50, button="left", buttons=1)
    browser.tell("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)

    step = data["axis"]["step"]
    chosen = slice(int(data["axis"]["count"] * 0.5), int(data["axis"]["count"] * 0.75) + 1)
    up, down = (max(data["traffic"]["frames"][way][chosen]) for way in ("c2s", "s2c"))
    assert (
        browser.run(peak) == f"peak {up} in {step:.0f} ms to the server, {down} in {step:.0f} ms to clients"
    )
    assert browser.run(peak) != before
    assert rows(browser, "slowest") == sum(35 <= row["t1"] / 1000 <= 53 for row in data["slowest"]) < slow
    assert rows(browser, "gaps") == 0
    browser.run("document.querySelector('#tools .all').click()")
    assert (browser.run(peak), rows(browser, "slowest"), rows(browser, "gaps")) == (before, slow, 1)
    assert browser.complaints() == []


def test_a_time_is_chosen_by_keys(report: tuple[Path, Data], browser: Browser) -> None:
    """Enter at its two ends; Escape shows the whole again."""
    browser.open(report[0], "light", 1000)
    browser.run("document.querySelector('#traffic svg[tabindex]').focus()")
    for key in ("ArrowRight", "Enter", "PageDown", "Enter"):
        for kind in ("rawKeyDown", "keyUp"):
            browser.tell("Input.dispatchKeyEvent", type=kind, key=key, code=key)
    shown = "document.querySelector('#tools .all').textContent"
    assert browser.run(shown).startswith("00:00:00.000 \u2013 00:00:05.500")


@pytest.mark.parametrize(
    ("field", "text", "section", "fits"),
    [
        ("Subject", "svc.*", "latency", ["svc.a", "svc.b"]),
        ("Subject", "SVC.A", "latency", ["svc.a"]),
        ("Subject", "svc.z", "latency", []),
        ("Connection", "service", "connections", ["2"]),
        ("Connection", "#3", "connections", ["3"]),
    ],
)
def test_filters_choose_rows(
    report: tuple[Path, Data], browser: Browser, field: str, text: str, section: str, fits: list[str]
) -> None:
    """A pattern of NATS or a part of the text; a table without such a column says that it shows all."""
    browser.open(report[0], "light", 1000)
    browser.run(
        f"(() => {{ const field = document.querySelector('#tools input[placeholder^=\"{field}\"]');"
        f"field.value = {json.dumps(text)}; field.dispatchEvent(new Event('input')); }})()"
    )
    found = browser.run(
        f"[...document.querySelectorAll('#{section} table')][0].tBodies[0].innerText.split('\\n')"
        ".map((line) => line.split('\\t')[0]).filter(Boolean)"
    )
    assert found == fits
    notes = browser.run("[...document.querySelectorAll('#errors .note')].map((node) => node.textContent)")
    assert notes[0] == f"not told apart by {field.lower()}"
    assert browser.complaints() == []


def test_a_recorder_is_chosen(two: Path, browser: Browser) -> None:
    """Rows then have its counts alone, rows that it never saw go, and the page says what is still of all."""
    browser.open(two, "light", 1280)

    def chosen(recorder: str) -> dict[str, dict[str, str]]:
        browser.run(
            "(() => { const field = document.querySelector('#tools select');"
            f"field.value = {json.dumps(recorder)}; field.dispatchEvent(new Event('change')); }})()"
        )
        (latency,) = tables(browser, "latency")
        return {row["subject template"]: row for row in latency}

    near, far = browser.run(
        "[...document.querySelectorAll('#tools option')].map((node) => node.value).slice(1)"
    )
    said = "document.querySelector('.tiles + .note').textContent"
    both = len(row.QUICK)
    expected = {"": 2 * both + len(row.ONLY_NEAR), near: both + len(row.ONLY_NEAR), far: both}
    for recorder, requests in expected.items():
        latency = chosen(recorder)
        assert latency["svc.quick"]["requests"] == str(requests)
        assert ("svc.some" in latency) == (recorder != far)
        assert browser.run(said).startswith(f"Only recorder {recorder}: " if recorder else "")
        (errors,) = tables(browser, "errors")
        assert errors[0]["times"] == str(row.ERRORS * (1 if recorder else 2))
    assert chosen(far)["svc.quick"]["worst"] == "8 ms"
    assert browser.complaints() == []


def test_two_proxies_in_a_row_have_their_times(two: Path, browser: Browser) -> None:
    """From which to which, and a sentence at the top; estimates are marked, others are not."""
    browser.open(two, "light", 1280)
    hops = tables(browser, "connections")[-1]
    assert [(hop["frames"], hop["p50"], hop["worst"]) for hop in hops] == [
        (str(len(row.QUICK) + 2 + row.ERRORS), "2 ms", "2 ms"),
        (str(len(row.QUICK) + 2 + 1), "2 ms", "6 ms"),
    ]
    assert {hops[0]["from"], hops[0]["to"]} == {hops[1]["from"], hops[1]["to"]}
    first = browser.run("document.querySelector('.short li').textContent")
    assert "recorded the same traffic" in first
    (subjects,) = tables(browser, "templates")
    counted = {subject["subject template"]: subject for subject in subjects}
    assert (counted["many.*"]["subjects"], counted["slowly"]["subjects"]) == (f"\u2248 {row.NAMES}", "1")
    assert counted["many.*"]["conns"] == "\u2248 1"


@pytest.mark.parametrize("width", [360, 390, 820, 1280, 2560])
def test_no_page_is_wider_than_its_window(report: tuple[Path, Data], browser: Browser, width: int) -> None:
    """Wide tables scroll by themselves."""
    browser.open(report[0], "light", width)
    assert browser.run("document.documentElement.scrollWidth") == width


def test_an_empty_page_gives_the_reason(browser: Browser, tmp_path: Path) -> None:
    """One sentence for each section."""
    path = tmp_path / "empty.html"
    path.write_text(render(bare()), encoding="utf-8")
    browser.open(path, "light", 1000)
    sections = "[...document.querySelectorAll('.sections section')]"
    told = browser.run(f"{sections}.map((node) => node.querySelector('.empty')?.textContent)")
    assert set(told) == {"Nothing."}
    assert browser.complaints() == []


SPANS = [
    (0.0, 0.001, 1, "2023-11-14 22:13:20.000 \u2013 22:13:20.000 UTC · 0", "Frames per 1 µs"),
    (40e3, 200.0, 201, "2023-11-14 22:13:20.000 \u2013 22:14:00.000 UTC · 40 s", "Frames per 200 ms"),
    (3 * 3600e3, 60e3, 181, "2023-11-14 22:13:20 \u2013 2023-11-15 01:13:20 UTC · 3 h", "Frames per second"),
    (
        90 * 864e5,
        432e5,
        181,
        "2023-11-14 22:13:20 \u2013 2024-02-12 22:13:20 UTC · 90 d",
        "Frames per second",
    ),
]


@pytest.mark.parametrize(
    ("length", "step", "count", "heading", "chart"), SPANS, ids=[row[4] + row[3][-4:] for row in SPANS]
)
def test_any_span_of_time_has_its_words(
    browser: Browser, tmp_path: Path, length: float, step: float, count: int, heading: str, chart: str
) -> None:
    """From one frame to months: the heading, the unit of the chart, and labels that are not too many."""
    data = bare(axis={"t0": 1.7e12, "step": step, "count": count, "length": length}, captures=[*"abcde"])
    data["totals"]["frames"] = 1
    ways = {"c2s": [1] * count, "s2c": [0] * count}
    path = tmp_path / "span.html"
    path.write_text(render(data | {"traffic": {"frames": ways, "bytes": ways}}), encoding="utf-8")
    browser.open(path, "light", 1000)

    assert browser.run("document.querySelector('h1').textContent") == "a, b, c and 2 more"
    assert browser.run("document.querySelector('.sub').textContent") == heading
    assert browser.run("document.querySelector('figcaption b').textContent") == chart
    labels = browser.run(
        "[...document.querySelector('.plot').querySelectorAll('text')].map((t) => t.textContent)"
    )
    assert 1 <= sum(label[0] == "+" or ":" in label for label in labels) <= 12
    assert len(set(labels)) == len(labels)
    assert browser.complaints() == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("step", "count"), [(5.0, 200), (0.5, 220), (200.0, 201), (432e5, 181)], ids=["1s", "110ms", "40s", "90d"]
)
def test_labels_of_time_keep_apart(
    browser: Browser, tmp_path: Path, width: int, step: float, count: int
) -> None:
    """Also at the right edge, where the last one ends at its time."""
    length = step * (count - 1)
    data = bare(axis={"t0": 1767225915e3 + step / 3, "step": step, "count": count, "length": length})
    ways = {"c2s": [1] * count, "s2c": [0] * count}
    path = tmp_path / "labels.html"
    path.write_text(render(data | {"traffic": {"frames": ways, "bytes": ways}}), encoding="utf-8")
    browser.open(path, "light", width)
    assert browser.run(OVERLAPS) == []


def test_a_request_that_took_no_time_is_drawn(
    browser: Browser, report: tuple[Path, Data], tmp_path: Path
) -> None:
    """Scales of powers of ten have no place for zero."""
    data = json.loads(json.dumps(report[1]))
    for step in filter(None, data["latency"]["over"]):
        step[1] = 0
    path = tmp_path / "zero.html"
    path.write_text(render(data), encoding="utf-8")
    browser.open(path, "light", 1000)
    drawn = browser.run("[...document.querySelectorAll('path')].map((node) => node.getAttribute('d')).join()")
    assert not re.search("NaN|Infinity", drawn)
    assert browser.complaints() == []


def test_blocks_are_drawn(browser: Browser, tmp_path: Path) -> None:
    """As text, however they look; lines by client, verb and subject; the rest is said to be elsewhere."""
    rows = [*ROWS_OF_ANN, used("<b>bob</b>", "</pre><script>", "1", 50)]
    data = bare(permissions={"clients": 3, **needs.section(rows, AXIS)})
    data["permissions"]["blocks"][0]["text"] = None
    path = tmp_path / "blocks.html"
    path.write_text(render(data), encoding="utf-8")
    browser.open(path, "light", 1000)

    (lines,) = tables(browser, "permissions")
    assert [(row["client"], row["may"], row["subject template"], row["values"]) for row in lines] == [
        ("<b>bob</b>", "publish", "</pre><script>", "\u2013"),
        ("ann", "publish", "orders.*.created", "37"),
        ("ann", "subscribe", "work", "\u2013"),
        ("ann", "respond", "to the messages it got", "\u2013"),
    ]
    assert browser.run("document.querySelector('#permissions .note').textContent").startswith(
        "2 of 3 clients"
    )
    shown = browser.run(
        "[...document.querySelectorAll('#permissions details')].map((node) => node.textContent)"
    )
    assert "too long" in shown[0]
    assert shown[1].endswith(data["permissions"]["blocks"][1]["text"])
    assert browser.complaints() == []


def test_golden_captures_are_drawn(spark: SparkSession, browser: Browser, tmp_path: Path) -> None:
    """All of them in one report, with all kinds of answers: whole labels and cells at any width.

    On a telephone wide tables are scrolled.
    """
    story = write_known_conversation(tmp_path / "story.ncap")
    path = written(spark, tmp_path, [*sorted(RECORDINGS.glob("*-v1.ncap")), story])
    for width in WIDTHS:
        browser.open(path, "dark", width)
        assert browser.run(EMPTY) == []
        assert (width, browser.run(OVERLAPS), browser.run(CUT % "th, td")) == (width, [], [])
        assert width == 390 or browser.run(CUT % ".scroll") == []
        assert browser.complaints() == []
