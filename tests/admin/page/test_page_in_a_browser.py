"""The page in a real browser, clicked through as a person would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.admin.page.site import ROWS, Client, Site, site
from tests.kit.browser import Browser

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

LIVE = "import('/page/frames_view.js').then(({framesView}) => framesView.store)"
"""The frames that the page keeps."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests; skips where there is none."""
    with Browser(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


@pytest.fixture(scope="module")
def running(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(browser, tmp_path_factory.mktemp("page")) as found:
        yield found


@pytest.fixture
def page(running: Site) -> Iterator[Site]:
    """The page, without rules before and after; errors, refusals of the policy and dialogs fail the test."""
    running.visit()
    yield running
    running.api("POST", "reset")
    # An answer that says no to a form is one, too.
    assert [one for one in running.browser.complaints(running.url) if _source(one) != "network"] == []


def _source(complaint: dict[str, Any]) -> str:
    return str(complaint["params"].get("entry", {}).get("source", ""))


@pytest.mark.long
def test_a_request_is_one_conversation(page: Site) -> None:
    with Client(page.proxy.port, "asker") as asker, Client(page.proxy.port, "oracle") as oracle:
        oracle.send(b"SUB talk.ask 1\r\n")
        oracle.ping()
        asker.send(b"SUB talk.in.* 1\r\n")
        asker.publish("talk.ask", b'{"id": 12345678901234567890, "id": 1}', "talk.in.1")
        oracle.until(b"talk.in.1")
        oracle.publish("talk.in.1", b"because")
        asker.until(b"because")
        page.wait_for(2, "talk.in.1")
    page.click_row("talk.ask", "PUB")
    page.until("document.querySelectorAll('.step').length === 4")
    steps = page.run(
        "[...document.querySelectorAll('.step')].map((one) => one.querySelector('.words').innerText)"
    )
    assert steps == ["PUB talk.ask", "MSG talk.ask", "PUB talk.in.1", "MSG talk.in.1"]
    assert [name.split()[-1] for name in page.text(".lanes").split("\n")] == ["asker", "server", "oracle"]
    assert "answered after" in page.text(".conversation .note")
    # All digits of a number are shown, and a member that is there twice.
    assert page.text(".payload") == '{\n  "id": 12345678901234567890,\n  "id": 1\n}'
    page.run("[...document.querySelectorAll('[role=tab]')].find((tab) => tab.textContent === 'Hex').click()")
    assert page.text(".payload").startswith("000000  7b 22 69 64")
    page.browser.press("ArrowDown")
    assert page.text(".detail h2") == "talk.ask"
    assert page.text(".detail .op") == "MSG"
    page.browser.press("Escape")
    assert page.run("document.querySelector('.side').hidden")


@pytest.mark.long
def test_a_filter_keeps_what_is_half_typed(page: Site) -> None:
    with Client(page.proxy.port, "one") as client:
        page.browser.press("/", "/")
        page.browser.type("half.")
        page.until("document.querySelector('.filter [aria-invalid=true]')")
        client.publish("half.a", b"1")
        client.publish("other", b"2")
        page.wait_for(1, "other")  # what is not a pattern yet filters nothing
        assert page.run("document.activeElement.value") == "half."
        page.browser.type(">")
        page.until("!document.querySelector('.filter [aria-invalid=true]')")
        page.until("document.querySelectorAll('.row.frame').length === 1")
        client.publish("other", b"3")
        client.publish("half.b", b"4")
        page.wait_for(1, "half.b")
        assert page.subjects() == ["half.a", "half.b"]
        assert page.run("document.activeElement.value") == "half.>"
        page.run("document.querySelector('.filter [type=reset]').click()")
        page.wait_for(1, "other")


@pytest.mark.long
def test_frames_are_chosen_by_client_role_direction_and_text(page: Site) -> None:
    with Client(page.proxy.port, "worker-1") as worker, Client(page.proxy.port, "shop") as shop:
        shop.publish("choice.a", b"red")
        shop.publish("$JS.ACK.S.C.1.7.7.1700000000000000000.0", b"-NAK")
        worker.publish("choice.b", b"blue")
        page.wait_for(1, "choice.b")
        page.filter(client="work*", text="blu")
        page.until("document.querySelectorAll('.row.frame').length === 1")
        assert page.subjects() == ["choice.b"]
        page.run("document.querySelector('.filter [type=reset]').click()")
        page.run(
            "const role = document.querySelector('.filter').elements[4]; role.value = 'nak';"
            "role.dispatchEvent(new Event('change'))"
        )
        page.until("document.querySelectorAll('.row.frame').length === 1")
        assert "nak S/C #7" in page.text(".row.frame")


@pytest.mark.long
def test_the_list_never_moves_under_its_reader(page: Site) -> None:
    with Client(page.proxy.port, "one") as client:
        client.send(b"".join(b"PUB still.%d 1\r\nx\r\n" % n for n in range(80)))
        page.wait_for(1, "still.79")
        assert page.run("document.querySelector('.newer').hidden")  # it follows
        page.run("document.querySelector('.list').scrollTop -= 333")
        page.until("!document.querySelector('.newer').hidden")
        before = page.top()
        client.send(b"".join(b"PUB moved.%d 1\r\nx\r\n" % n for n in range(60)))
        page.until("document.querySelector('.newer').textContent.startsWith('60 new')")
        assert page.top() == before
        page.filter(text="still")
        page.run("document.querySelector('.list').scrollTop")
        page.filter(text="")
        page.browser.click(".newer")
        page.wait_for(1, "moved.59")
        assert page.run("document.querySelector('.newer').hidden")
        page.browser.press(" ", " ")
        client.publish("paused", b"x")
        page.until("document.querySelector('.share').textContent.startsWith('paused, 1 ')")
        assert "paused" not in page.subjects()


def test_a_fault_bends_a_live_request(page: Site) -> None:
    """From a frame to its fault, and back out, without a word of a manual."""
    with Client(page.proxy.port, "asker") as asker, Client(page.proxy.port, "oracle") as oracle:
        oracle.send(b"SUB bend.me 1\r\n")
        oracle.ping()
        asker.publish("bend.me", b"straight")
        oracle.until(b"straight")
        page.click_row("bend.me", "PUB")
        page.browser.click(".detail .primary")
        page.until("document.querySelector('dialog.fault[open]')")
        assert "would have matched 1 of the last" in page.text("dialog.fault .note")
        page.browser.click("dialog.fault footer .primary")
        page.until("!document.querySelector('dialog.fault')")
        asker.publish("bend.me", b"bent")
        oracle.until(b"bent")
        page.run("document.querySelector('.newer').click()")
        page.until("document.querySelector('.row.frame.bent')")
        assert "latency-1: held 5" in page.text(".row.frame.bent")
        page.browser.press("3", "3")
        assert "fired 1" in page.until("document.querySelector('.rule .fired')?.innerText")
        page.until("document.querySelector('.row.firing')?.innerText.includes('bend.me')")
        page.browser.click(".rule .switch input")
        page.until("document.querySelector('.rule.off')")
        assert page.api("GET", "rules/latency-1")["enabled"] is False
        page.run("[...document.querySelectorAll('.rule button')].at(-1).click()")
        page.until("!document.querySelector('article.rule')")


def test_a_rule_in_shadow_is_said_to_be_one(page: Site) -> None:
    shadow = {"name": "few", "kind": "limit", "messages": "1/h", "subject": "shy", "mode": "shadow"}
    page.api("PUT", "rules/few", {"rule": shadow})
    with Client(page.proxy.port, "shy") as client:
        for _ in range(3):
            client.publish("shy", b"")
        client.ping()
    page.browser.press("3", "3")
    page.until("document.querySelector('.rule .fired')?.innerText.startsWith('would have fired 2')")
    page.until(
        "[...document.querySelectorAll('.row.firing')].some((row) => row.innerText.includes('would limit'))"
    )
    page.api("DELETE", "rules/few")


@pytest.mark.long
def test_a_fault_that_cannot_be_made_keeps_the_form(page: Site) -> None:
    page.browser.press("f", "f")
    page.until("document.querySelector('dialog.fault[open]')")
    page.run(
        "const delay = document.querySelector('[data-key=delay]'); delay.value = 'soon';"
        "delay.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    page.browser.click("dialog.fault footer .primary")
    assert "delay" in page.until("document.querySelector('dialog.fault [role=alert]').innerText")
    assert page.run("document.querySelector('[data-key=delay]').value") == "soon"
    # Each kind has a form that makes the example of its kind, or says what it lacks.
    kinds = page.run("[...document.querySelector('dialog.fault select').options].map((one) => one.value)")
    assert len(kinds) > 20
    for kind in kinds:
        page.run(
            f"{{const kind = document.querySelector('dialog.fault select'); kind.value = {json.dumps(kind)};"
            "kind.dispatchEvent(new Event('change', {bubbles: true}))}"
        )
        assert f'kind = "{kind}"' in page.run("document.querySelector('dialog.fault pre').textContent")
    page.browser.press("Escape")
    page.until("!document.querySelector('dialog.fault')")


@pytest.mark.long
def test_connections_are_looked_at_suspended_and_closed(page: Site) -> None:
    with Client(page.proxy.port, "first") as first, Client(page.proxy.port, "second") as second:
        first.send(b"SUB conn.* group 7\r\n")
        first.ping()
        page.browser.press("2", "2")
        page.until("document.querySelectorAll('.row.peer:not(.columns)').length === 2")
        page.browser.click(".columns .subs")
        page.until("document.querySelector('.row.peer:not(.columns)').innerText.includes('first')")
        page.browser.click(".row.peer:not(.columns)")
        assert "conn.*" in page.until("document.querySelector('.detail table')?.innerText")
        page.press("Suspend")
        page.until("document.querySelector('.detail .changed')?.innerText.startsWith('Suspended')")
        second.publish("conn.lost", b"lost")
        second.ping()
        page.press("Resume")
        page.until("!document.querySelector('.detail .changed')")
        second.publish("conn.kept", b"kept")
        assert b"lost" not in first.until(b"kept")
        page.press("Its frames")
        page.until("document.querySelector('[data-stream=open]')")
        second.publish("conn.other", b"x")
        second.publish("conn.mine", b"x")
        page.wait_for(1, "conn.mine")
        assert set(page.run(f"{ROWS}.map((one) => one.row.client)")) == {"first"}
        page.browser.press("2", "2")
        page.until("document.querySelector('.row.peer:not(.columns)')")
        page.press("Close")
        assert first.ended()
        page.until("document.querySelectorAll('.row.peer:not(.columns)').length === 1")


@pytest.mark.long
def test_a_capture_is_made_marked_and_fetched(page: Site) -> None:
    page.browser.press("4", "4")
    page.until("document.querySelector('.recording').innerText.startsWith('Nothing')")
    page.run("document.querySelector('.captures input').value = 'by-hand'")
    page.browser.click(".captures form:not([hidden]) .primary")
    page.until("document.querySelector('.recording').innerText.startsWith('Recording to')")
    with Client(page.proxy.port, "one") as client:
        client.publish("kept", b"x")
        client.ping()
    page.run("document.querySelectorAll('.captures form')[1].elements[0].value = 'here it happens'")
    page.run("document.querySelectorAll('.captures form')[1].requestSubmit()")
    page.until("document.querySelector('#said').innerText === 'Marked.'")
    page.press("Stop")
    page.until("document.querySelector('.recording').innerText.startsWith('Nothing')")
    page.until("document.querySelector('.captures a') && !document.querySelector('.captures .cause')")
    size = page.run(
        "fetch(document.querySelector('.captures a').href).then((a) => a.arrayBuffer())"
        ".then((b) => b.byteLength)"
    )
    assert size > 100


HOSTILE = "<img/src=x/onerror=alert(1)>"
TURNED = "a\u202eb\u2066c\u200b\u0007"


def test_hostile_texts_are_shown_and_never_executed(page: Site) -> None:
    payloads = {
        "markup": b"<script>alert(1)</script><svg onload=alert(2)>",
        "turned": f"left {TURNED} right".encode(),
        "broken": b"\xff\xfe\x00\x80<b>",
        "large": b"<b>" * 300_000,
    }
    with Client(page.proxy.port, f"{HOSTILE}{TURNED}") as client:
        head = f"NATS/1.0\r\n{HOSTILE}: <iframe srcdoc='x'>{TURNED}\r\n\r\n".encode()
        subject = f"hostile.headers.{HOSTILE}\u202e"
        client.send(f"HPUB {subject} {len(head)} {len(head)}\r\n".encode() + head + b"\r\n")
        client.send(f"SUB hostile.{HOSTILE} <b>q</b> <s>1</s>\r\n".encode())
        for name, payload in payloads.items():  # the large one last: no more is kept of that look
            client.publish(f"hostile.{name}.{HOSTILE}", payload, "javascript:alert(3)")
        client.ping()
        page.until("document.querySelectorAll('.row.frame').length >= 6")
        seen = ""
        for name in (*payloads, "headers"):
            page.click_row(f"hostile.{name}")
            page.until(f"document.querySelector('.detail h2').innerText.includes('hostile.{name}')")
            seen += page.text(".side")
        assert "<script>alert(1)</script>" in seen
        assert "left a\\u202eb\\u2066c\\u200b\\x07 right" in seen
        assert "ff fe 00 80" in seen
        assert "<iframe srcdoc='x'>" in seen
        assert not set("\u202e\u2066\u200b\u0007") & set(seen + page.text("main"))
        page.api("POST", "rules", {"rule": {"name": HOSTILE, "kind": "drop", "subject": f"{HOSTILE}"}})
        for view in ("connections", "rules", "captures"):
            page.run(f"location.hash = '#{view}'")
            page.until("document.querySelector('.proxy .dot.good')")
        page.run("location.hash = '#connections'")
        page.until("document.querySelector('.row.peer:not(.columns)')")
        page.browser.click(".row.peer:not(.columns)")
        assert f"hostile.{HOSTILE}" in page.until("document.querySelector('.detail table')?.innerText")
    made = "img[src=x], iframe, svg, script:not([src='/page/main.js']), main b b, s, [onerror], [onload]"
    assert page.run(f"document.querySelectorAll({json.dumps(made)}).length") == 0


@pytest.mark.long
def test_of_many_headers_the_first_are_shown(page: Site) -> None:
    head = b"NATS/1.0\r\n%b\r\n" % b"".join(b"K%d: v\r\n" % n for n in range(9000))
    with Client(page.proxy.port, "talkative") as client:
        client.send(b"HPUB many.headers %d %d\r\n%b\r\n" % (len(head), len(head), head))
        client.ping()
        page.wait_for(1, "many.headers")
    page.click_row("many.headers")
    page.until(
        "document.querySelector('.detail section .note')?.innerText.startsWith('The first of its headers')"
    )


@pytest.mark.long
def test_a_login_is_asked_for_and_a_token_opens(browser: Browser, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length")
    with site(browser, tmp_path, "--admin-token-file", str(token)) as page:
        browser.visit(page.url + "/", 1280)
        page.until("document.querySelector('dialog.login[open]')")
        browser.press("Escape")
        page.until("document.querySelector('dialog.login').open")  # it comes back
        browser.click("dialog.login input")
        browser.type("a-wrong-token-of-some-length")
        browser.press("Enter", "\r")
        page.until("document.querySelector('dialog.login [role=alert]').innerText === 'Wrong token.'")
        page.run("document.querySelector('dialog.login input').select()")
        browser.type("a-token-of-some-length")
        browser.press("Enter", "\r")
        page.until("document.querySelector('[data-stream=open]')")
        assert page.run("document.cookie") == ""  # scripts do not see it
        assert page.run("[location.pathname, location.search]") == ["/", ""]


@pytest.mark.long
@pytest.mark.parametrize("role", ["operator", "reader"])
def test_a_reader_has_no_controls_that_change_something(browser: Browser, tmp_path: Path, role: str) -> None:
    """An operator has them at the same places."""
    token, table = "a-token-of-some-length", tmp_path / "tokens.toml"
    digest = sha256(token.encode()).hexdigest()
    table.write_text(f'[[tokens]]\nname = "alice"\nrole = "{role}"\nsha256 = "{digest}"\n')
    shown = "[...document.querySelectorAll('[data-changes]')].some((one) => one.offsetParent)"
    with site(browser, tmp_path, "--admin-tokens", str(table)) as page:
        browser.visit(page.url + "/#rules", 1280)
        page.until("document.querySelector('dialog.login[open]')")
        browser.click("dialog.login input")
        browser.type(token)
        browser.press("Enter", "\r")
        page.until(
            "document.querySelector('[data-changes]') && !document.querySelector('dialog.login[open]')"
        )
        page.until(shown if role == "operator" else f"document.body.matches('.reader') && !{shown}")


@pytest.mark.long
@pytest.mark.parametrize("width", [390, 1280, 2560])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_page(page: Site, width: int, scheme: str) -> None:
    with Client(page.proxy.port, "a-name-of-many-letters-" * 4) as client:
        for n in range(60):
            client.publish("wide." + "x" * 300, b"y" * 3000, f"reply.{n}")
        page.browser.visit(page.url, width, 800, scheme=scheme)
        page.until("document.querySelector('[data-stream=open]')")
        for n in range(60):
            client.publish("wide." + "x" * 300, b"y" * 3000, f"reply.{n}")
        page.click_row("wide.")
        for view in ("frames", "connections", "rules", "captures"):
            page.run(f"location.hash = '#{view}'")
            page.until(f"document.querySelector('#tabs a[aria-current=page]').hash === '#{view}'")
            assert page.run("document.documentElement.scrollWidth") <= width
    dark = page.run("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(15, 19, 24)") == (scheme == "dark")


@pytest.mark.long
def test_memory_is_bounded_while_traffic_flows(page: Site) -> None:
    """In frames, in bytes, and in nodes of the document; while the list follows, and while it is read."""
    page.run("document.querySelector('.tools select').value = '16384'")
    page.run("document.querySelector('.tools select').dispatchEvent(new Event('change'))")
    with Client(page.proxy.port, "busy") as client:
        for held in (False, True):
            if held:
                page.run("document.querySelector('.list').scrollTop -= 500")
                page.until("!document.querySelector('.newer').hidden")
            most = page.run(f"{LIVE}.then((store) => store.next)") + (6_000 if held else 5_500)
            while page.run(f"{LIVE}.then((store) => store.next)") < most:
                client.send(b"PUB busy.a 8000\r\n%b\r\n" % (b"x" * 8000) * 100)
                client.ping()
            count, size = page.run(f"{LIVE}.then((store) => [store.frames.length, store.size])")
            nodes = page.run("document.querySelectorAll('*').length")
            assert 1000 < count <= (10_000 if held else 5_000)
            assert size <= (2 if held else 1) * (32 << 20) + (4 << 20)
            assert nodes < 2_000
        page.browser.click(".newer")
        page.until(f"{LIVE}.then((store) => store.frames.length <= 5000)")


def test_the_list_of_keys_names_every_view(page: Site) -> None:
    page.run("document.getElementById('help').click()")
    keys = page.text("dialog.keys").replace("\n", " ")
    assert "1 2 3 4" in keys
    tabs = page.run("[...document.querySelectorAll('#tabs a')].map((one) => one.firstChild.textContent)")
    assert ", ".join(tabs) in keys
