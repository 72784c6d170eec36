"""What is remarked on runs that passed, and beside it the run in which nothing must be."""

from __future__ import annotations

import json
from pathlib import Path

import nats
import pytest
from nats.errors import Error

from natsproxy.sweep.causes import Judged
from natsproxy.sweep.remarks import remarks
from natsproxy.sweep.values import Judgement, ProgramRun, Verdict
from natsproxy.sweep.verdicts import Baseline, judge
from natsproxy.testing import sweep
from tests.sweep.conversations import run, trial


def _stored(subject: str, reply: int, body: str, seq: int, *, lost: bool = False, more: str = "") -> str:
    taken = "  * not passed\n  * cause: fault\n" if lost else ""
    return (
        f"w > PUB {subject} _INBOX.a.{reply}\n  | {body}\n"
        f'w < MSG _INBOX.a.{reply} 1\n{taken}  | {{"stream":"ORDERS","seq":{seq}{more}}}\n'
    )


def _session(*parts: str) -> str:
    return "w opened\nw > SUB _INBOX.a.* 1\n" + "".join(parts) + "w closed client-closed\n"


ONE, TWO = _stored("orders.new", 1, "one", 1), _stored("orders.new", 2, "two", 2)
LOST = _stored("orders.new", 1, "one", 1, lost=True) + "@ +200ms\n"
CLEAN = _session(ONE, TWO)


def judged(tmp_path: Path, clean: str, text: str, at: int = 1) -> Judgement:
    """Return the verdict on a run beside two clean ones."""
    runs = [run(tmp_path / f"clean-{n}.nats.txt", clean) for n in range(2)]
    return judge(Baseline.of(runs), run(tmp_path / "run.nats.txt", text, at=at), trial())


def test_a_publish_that_was_stored_again_since_its_ack_was_lost_is_remarked(tmp_path: Path) -> None:
    again = _session(LOST, _stored("orders.new", 3, "one", 2), _stored("orders.new", 2, "two", 3))
    assert judged(tmp_path, CLEAN, again) == Judgement(
        Verdict.PASSED, ("stored twice: 1 message of orders.new: one",)
    )


def test_an_ack_that_came_too_late_was_lost_too(tmp_path: Path) -> None:
    first, ack = LOST.split("w < MSG")
    late = "w < MSG" + ack.replace("  * not passed\n  * cause: fault\n", "")
    again = _session(first, "@ +900ms\n", _stored("orders.new", 3, "one", 2), late, TWO.replace(":2}", ":3}"))
    assert judged(tmp_path, CLEAN, again).reasons == ("stored twice: 1 message of orders.new: one",)


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(_stored("orders.new", 3, "one", 1, more=',"duplicate":true'), id="dropped-by-its-id"),
        pytest.param("w > PUB orders.new _INBOX.a.3\n  | one\n", id="without-an-ack"),
        pytest.param(_stored("orders.new", 3, "one", 0, more=',"error":{"code":503}'), id="refused"),
    ],
)
def test_a_copy_that_the_stream_does_not_hold_is_not(tmp_path: Path, again: str) -> None:
    assert judged(tmp_path, CLEAN, _session(LOST, again, TWO)) == Judgement(Verdict.PASSED)


def test_a_first_publish_that_the_fault_took_is_stored_once(tmp_path: Path) -> None:
    taken = "w > PUB orders.new _INBOX.a.1\n  * not passed\n  * cause: fault\n  | one\n@ +200ms\n"
    again = _session(taken, _stored("orders.new", 3, "one", 1), TWO)
    assert judged(tmp_path, CLEAN, again) == Judgement(Verdict.PASSED)


def test_a_bucket_has_one_value_of_a_key(tmp_path: Path) -> None:
    clean, again = (
        text.replace("orders.new", "$KV.SETTINGS.limit")
        for text in (CLEAN, _session(LOST, _stored("orders.new", 3, "one", 2), TWO))
    )
    assert judged(tmp_path, clean, again) == Judgement(Verdict.PASSED)


def test_equal_messages_that_clean_runs_store_as_often_are_no_copies(tmp_path: Path) -> None:
    clean = _session(ONE, _stored("orders.new", 2, "one", 2))
    assert judged(tmp_path, clean, clean) == Judgement(Verdict.PASSED)
    again = _session(LOST, _stored("orders.new", 3, "one", 2), _stored("orders.new", 4, "one", 3))
    assert judged(tmp_path, clean, again).reasons == ("stored twice: 1 message of orders.new: one",)


def test_what_a_clock_publishes_may_come_more_often(tmp_path: Path) -> None:
    def ticks(count: int) -> str:
        ticked = (_stored("up", n, "yes", n) + "@ +20ms\n" for n in range(1, count + 1))
        return _session(*ticked)

    assert judged(tmp_path, ticks(4), ticks(7)) == Judgement(Verdict.PASSED)


def test_a_copy_before_the_fault_is_not_due_to_it(tmp_path: Path) -> None:
    again = _session(LOST, _stored("orders.new", 3, "one", 2), _stored("orders.new", 2, "two", 3))
    assert judged(tmp_path, CLEAN, again, at=1_000) == Judgement(Verdict.PASSED)


def test_what_is_sent_again_behind_later_messages_is_out_of_order(tmp_path: Path) -> None:
    taken = "w > PUB orders.new _INBOX.a.1\n  * not passed\n  * cause: fault\n  | one\n"
    late = _session(taken, "@ +200ms\n", TWO.replace(":2}", ":1}"), _stored("orders.new", 3, "one", 2))
    assert judged(tmp_path, CLEAN, late).reasons == ("stored out of order: 1 message of orders.new: one",)
    in_turn = _session(taken, "@ +200ms\n", _stored("orders.new", 3, "one", 1), TWO)
    assert judged(tmp_path, CLEAN, in_turn) == Judgement(Verdict.PASSED)


def test_the_simplest_trial_stands_for_those_alike() -> None:
    def passed(fault: str, *reasons: str) -> Judged:
        return Judged(
            trial(fault), Judgement(Verdict.PASSED, reasons), ProgramRun(0, 0.5, 30.0, Path("none"))
        )

    twice = "stored twice: 1 message of orders.new: one"
    found = remarks(
        [passed("cut", twice), passed("late-6s"), passed("drop", twice, "missing, which is x: y")]
    )
    assert [(one.what, len(one.trials), one.trials[0].trial.fault) for one in found] == [
        ("stored twice", 2, "drop")
    ]
    assert found[0].sentence == (
        "stored twice, after the 1st PUB of orders.* from client worker is lost: 1 message of orders.new: "
        "one (and in 1 other trial). It was sent again without a Nats-Msg-Id, or with another one."
    )
    wrong = Judged(trial(), Judgement(Verdict.WRONG, (twice,)), ProgramRun(0, 0.5, 30.0, Path("none")))
    assert remarks([wrong, passed("drop")]) == []


async def shop(url: str, *, by_id: bool) -> None:
    """Store two orders, each until its ack comes."""
    client = await nats.connect(url, name="shop")
    js = client.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.new"])
    for number in range(2):
        headers = {"Nats-Msg-Id": f"order-{number}"} if by_id else None
        for _ in range(9):
            try:
                await js.publish("orders.new", f"order {number}".encode(), timeout=0.3, headers=headers)
                break
            except Error:
                pass
    await client.close()


@pytest.mark.server
@pytest.mark.parametrize("by_id", [False, True])
def test_a_shop_without_ids_stores_an_order_twice_and_one_with_ids_does_not(
    by_id: bool, tmp_path: Path
) -> None:
    async def program(url: str) -> None:
        await shop(url, by_id=by_id)

    faults, subjects = ("drop", "cut-payload"), ("orders.>",)
    outcome = sweep(program, faults=faults, subjects=subjects, baseline=2, out=tmp_path / "out")
    assert outcome.findings == []
    facts = json.loads((tmp_path / "out/report.json").read_text())["remarks"]
    assert [one["what"] for one in facts] == ([] if by_id else ["stored twice"])
    page = outcome.page.read_text()
    assert ("1 message of orders.new: order 0" in page) is not by_id
    if not by_id:
        assert facts[0]["trial"]["fault"] == "drop"
        assert facts[0]["trial"]["place"]["position"]["what"] == "publish-ack"
