"""Each verdict, and beside it the run in which it must not be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from natsproxy.sweep.traffic import traffic
from natsproxy.sweep.values import Judgement, ProgramRun, Verdict
from natsproxy.sweep.verdicts import Baseline, judge
from tests.sweep.conversations import capture, deaf, firing, run, trial

CLEAN = """
w opened
w > PUB orders.new
  | one
w > PUB orders.new
  | two
w > PUB orders.new
  | three
w closed client-closed
"""


def judged(tmp_path: Path, clean: str, text: str, **facts: Any) -> Judgement:
    """Return the verdict on a run beside three clean ones."""
    runs = [run(tmp_path / f"clean-{n}.nats.txt", clean) for n in range(3)]
    return judge(Baseline.of(runs), run(tmp_path / "run.nats.txt", text, **{"at": 1, **facts}), trial())


# -- the run itself


def test_a_run_without_a_firing_has_not_reached_its_place(tmp_path: Path) -> None:
    assert judged(tmp_path, CLEAN, CLEAN, at=None).verdict is Verdict.NOT_REACHED
    assert judged(tmp_path, CLEAN, CLEAN).verdict is Verdict.PASSED


def test_a_program_that_differs_without_a_fault_is_flaky(tmp_path: Path) -> None:
    found = judged(tmp_path, CLEAN, CLEAN, at=None, code=3, output="asking\nnats: timeout\n")
    assert found.verdict is Verdict.FLAKY
    assert found.reasons == (
        "no fault took place, and all the same the program failed",
        "it ended with exit code 3; it printed: nats: timeout",
    )


def test_a_fault_that_another_rule_than_the_first_put_there_is_not_the_trials(tmp_path: Path) -> None:
    other = judged(tmp_path, CLEAN, CLEAN, firings=[firing(1, "other")])
    assert other.verdict is Verdict.NOT_REACHED


def test_a_run_with_a_problem_says_nothing_of_the_program(tmp_path: Path) -> None:
    found = judged(tmp_path, CLEAN, CLEAN, code=3, problem="the server did not start")
    assert found == Judgement(Verdict.NOT_REACHED, ("the server did not start",))


def test_another_exit_code_fails_loudly(tmp_path: Path) -> None:
    assert judged(tmp_path, CLEAN, "w opened", code=1).verdict is Verdict.FAILED_LOUDLY
    assert judged(tmp_path, CLEAN, "w opened", code=139).reasons == ("signal 11 ended it",)


@pytest.mark.parametrize(
    ("code", "output", "verdict", "reasons"),
    [
        (0, "all\n3 orders\n", Verdict.PASSED, ()),
        (
            0,
            "all\n2 orders\n",
            Verdict.WRONG,
            ('the check says "2 orders", and after clean runs "3 orders"',),
        ),
        (0, "all\n", Verdict.WRONG, ('the check says nothing, and after clean runs "3 orders"',)),
        (1, "all\n3 orders\n", Verdict.WRONG, ("the check ended with 1, after clean runs with 0",)),
    ],
)
def test_a_check_that_says_something_else_is_wrong(
    tmp_path: Path, code: int, output: str, verdict: Verdict, reasons: tuple[str, ...]
) -> None:
    clean: dict[str, Any] = {"check_code": 0, "check_output": "all\n3 orders\n"}
    runs = [run(tmp_path / f"{n}.nats.txt", CLEAN, **clean) for n in range(2)]
    one = run(tmp_path / "run.nats.txt", CLEAN, at=1, check_code=code, check_output=output)
    assert judge(Baseline.of(runs), one, trial()) == Judgement(verdict, reasons)


# -- hung and deaf

CONSUMER = """
w opened
w > SUB _INBOX.a 1
w < MSG orders.new 1 $JS.ACK.ORDERS.worker.1.1.1.1700000000000000000.1
  | one
w > PUB $JS.ACK.ORDERS.worker.1.1.1.1700000000000000000.1
  | +ACK
w < MSG orders.new 1 $JS.ACK.ORDERS.worker.1.2.2.1700000000000000000.0
  | two
w > PUB $JS.ACK.ORDERS.worker.1.2.2.1700000000000000000.0
  | +ACK
w closed client-closed
"""
HALF = "".join(CONSUMER.splitlines(keepends=True)[:7])
UNACKED = "".join(CONSUMER.splitlines(keepends=True)[:9])


@pytest.mark.parametrize(
    ("text", "open_", "verdict"),
    [
        (HALF, [], Verdict.HUNG),
        (HALF, deaf(), Verdict.HUNG),
        (HALF, deaf(alive=False), Verdict.DEAF),
        (HALF, deaf(unread=70), Verdict.DEAF),
        (HALF, deaf(alive=False, subscriptions=0), Verdict.HUNG),
        (HALF, deaf(alive=None, unread=None), Verdict.HUNG),
        (UNACKED, deaf(), Verdict.DEAF),
        (UNACKED, [], Verdict.HUNG),
    ],
)
def test_hung_and_deaf(tmp_path: Path, text: str, open_: Any, verdict: Verdict) -> None:
    found = judged(tmp_path, CONSUMER, text, code=None, open=open_)
    assert found.verdict is verdict
    assert found.reasons[-1] == "it did not end in 30 s, and its clean runs took 0.5 s"


def test_messages_that_the_baseline_does_not_ack_are_no_sign_of_a_deaf_client(tmp_path: Path) -> None:
    without = "\n".join(line for line in CONSUMER.splitlines() if "+ACK" not in line and "> PUB" not in line)
    found = judged(tmp_path, without, UNACKED.replace("> PUB $JS.ACK", "> PUB x.ACK"), code=None, open=deaf())
    assert found.verdict is Verdict.HUNG


# -- lost


def test_a_message_that_the_program_did_not_send_is_lost(tmp_path: Path) -> None:
    found = judged(tmp_path, CLEAN, CLEAN.replace("w > PUB orders.new\n  | two\n", ""))
    assert found.verdict is Verdict.WRONG
    assert found.reasons == ("lost: 1 message of orders.new: two",)


def test_a_publish_that_the_fault_took_counts_as_sent(tmp_path: Path) -> None:
    taken = CLEAN.replace("  | two", "  * not passed\n  * cause: fault\n  | two")
    assert judged(tmp_path, CLEAN, taken).verdict is Verdict.PASSED


def test_core_publishes_may_be_lost_with_a_connection_but_not_without(tmp_path: Path) -> None:
    short = CLEAN.replace("w > PUB orders.new\n  | two\n", "w closed server-lost\nv opened\n")
    short = short.replace("w > PUB orders.new\n  | three", "v > PUB orders.new\n  | three")
    found = judged(tmp_path, CLEAN, short.replace("w closed client-closed", "v closed client-closed"))
    assert found.verdict is Verdict.PASSED
    assert found.reasons == ("missing, which is not promised: 1 message of orders.new: two",)


STORED = """
w opened
w > SUB _INBOX.a.* 1
w > PUB orders.new _INBOX.a.1
  | one
w < MSG _INBOX.a.1 1
  | {"stream":"ORDERS","seq":1}
w > PUB orders.new _INBOX.a.2
  | two
w < MSG _INBOX.a.2 1
  | {"stream":"ORDERS","seq":2}
w closed client-closed
"""
TAKEN = """
w opened
w > SUB _INBOX.a.* 1
w > PUB orders.new _INBOX.a.1
  * not passed
  * cause: fault
  | one
@ +200ms
w > PUB orders.new _INBOX.a.2
  | {again}
w < MSG _INBOX.a.2 1
  | {"stream":"ORDERS","seq":1}
w > PUB orders.new _INBOX.a.3
  | two
w < MSG _INBOX.a.3 1
  | {"stream":"ORDERS","seq":2}
w closed client-closed
"""


def test_a_publish_to_a_stream_that_was_taken_and_not_sent_again_is_lost(tmp_path: Path) -> None:
    gave_up = TAKEN.replace("w > PUB orders.new _INBOX.a.2\n  | {again}\nw < MSG _INBOX.a.2 1\n", "#")
    gave_up = gave_up.replace('#  | {"stream":"ORDERS","seq":1}\n', "")
    assert judged(tmp_path, STORED, gave_up).reasons == ("lost: 1 message of orders.new: one",)
    assert judged(tmp_path, STORED, TAKEN.replace("{again}", "one")).verdict is Verdict.PASSED


WORKER = """
w opened
w > SUB work 1
w < MSG work 1
  | one
w > PUB done
  | one
w < MSG work 1
  | two
w > PUB done
  | two
w closed client-closed
"""


def test_what_is_made_of_a_core_message_may_go_with_it(tmp_path: Path) -> None:
    taken = WORKER.replace("  | two\nw > PUB done\n  | two\n", "  * not passed\n  * cause: fault\n  | two\n")
    assert judged(tmp_path, WORKER, taken).verdict is Verdict.PASSED
    got = taken.replace("  * not passed\n  * cause: fault\n", "")
    assert judged(tmp_path, WORKER, got).reasons == ("lost: 1 message of done: two",)


ACK_1, ACK_2 = (f"$JS.ACK.ORDERS.worker.1.{n}.{n}.1700000000000000000.{2 - n}" for n in (1, 2))
OF_STREAM = (
    WORKER.replace("MSG work 1\n", f"MSG work 1 {ACK_1}\n", 1)
    .replace("MSG work 1\n", f"MSG work 1 {ACK_2}\n")
    .replace("w closed", f"w > PUB {ACK_1}\n  | +ACK\nw > PUB {ACK_2}\n  | +ACK\nw closed")
)


def test_what_is_made_of_an_acked_message_of_a_stream_may_not(tmp_path: Path) -> None:
    taken = OF_STREAM.replace("w > PUB done\n  | two\n", "")
    assert judged(tmp_path, OF_STREAM, taken).reasons == ("lost: 1 message of done: two",)


def test_what_is_made_of_a_message_without_an_ack_comes_later(tmp_path: Path) -> None:
    taken = OF_STREAM.replace(
        "  | two\nw > PUB done\n  | two\n", "  * not passed\n  * cause: fault\n  | two\n"
    )
    taken = taken.replace(f"w > PUB {ACK_2}\n  | +ACK\n", "")
    assert judged(tmp_path, OF_STREAM, taken).verdict is Verdict.PASSED


def test_what_is_made_of_a_message_that_needs_no_ack_is_lost_with_it(tmp_path: Path) -> None:
    clean = OF_STREAM.replace("  | +ACK", "  | +WPI")
    taken = clean.replace("  | two\nw > PUB done\n  | two\n", "  * not passed\n  * cause: fault\n  | two\n")
    assert judged(tmp_path, clean, taken).reasons == ("lost: 1 message of done: two",)


def test_what_is_made_of_a_message_of_a_stream_goes_with_a_core_publish_to_it(tmp_path: Path) -> None:
    begin = "w opened\nw > PUB orders\n  * not passed\n  * cause: fault\n  | x\n"
    clean = OF_STREAM.replace("  | +ACK", "  | +WPI").replace(
        "w opened\n", "w opened\nw > PUB orders\n  | x\n"
    )
    less = clean.replace("w opened\nw > PUB orders\n  | x\n", begin)
    less = less.replace(f"w < MSG work 1 {ACK_2}\n  | two\nw > PUB done\n  | two\n", "")
    assert judged(tmp_path, clean, less).verdict is Verdict.PASSED


# -- twice


def test_a_message_that_is_sent_again_without_a_reason_is_wrong(tmp_path: Path) -> None:
    again = CLEAN.replace("  | two\n", "  | two\nw > PUB orders.new\n  | two\n")
    assert judged(tmp_path, CLEAN, again).reasons == ("twice: 1 message of orders.new: two",)


def test_a_copy_after_a_while_may_be_a_retry_by_a_timer(tmp_path: Path) -> None:
    again = CLEAN.replace("  | two\n", "  | two\n@ +100ms\nw > PUB orders.new\n  | two\n")
    assert judged(tmp_path, CLEAN, again).verdict is Verdict.PASSED


def test_a_message_that_is_sent_again_since_a_connection_was_lost_is_not(tmp_path: Path) -> None:
    again = CLEAN.replace(
        "  | two\n", "  | two\nw closed server-lost\nv opened\nv > PUB orders.new\n  | two\n"
    )
    again = again.replace("w > PUB orders.new\n  | three", "v > PUB orders.new\n  | three")
    assert (
        judged(tmp_path, CLEAN, again.replace("w closed client", "v closed client")).verdict is Verdict.PASSED
    )


def test_a_request_may_be_repeated_after_a_while_without_an_answer(tmp_path: Path) -> None:
    lost = TAKEN.replace("{again}", "one").replace("  * not passed\n  * cause: fault\n", "")
    assert judged(tmp_path, STORED, lost).verdict is Verdict.PASSED
    at_once = lost.replace("@ +200ms\n", "")
    assert judged(tmp_path, STORED, at_once).reasons == ("twice: 1 message of orders.new: one",)


def test_a_request_that_a_clean_run_has_repeated_need_not_be(tmp_path: Path) -> None:
    """Each clean run asks for the first price twice, as nobody answers at first."""
    first, second = "w > PUB prices.get _INBOX.a.1\n  | 1\n", "w > PUB prices.get _INBOX.a.2\n  | 2\n"
    clean = f"w opened\n{first}{first}{second}w closed client-closed\n"
    once = f"w opened\n{first}{second}w closed client-closed\n"
    never = f"w opened\n{second}w closed client-closed\n"
    assert judged(tmp_path, clean, once).verdict is Verdict.PASSED
    assert judged(tmp_path, clean, never).verdict is Verdict.WRONG


def test_a_copy_that_jetstream_drops_is_not_twice(tmp_path: Path) -> None:
    clean = CLEAN.replace("w > PUB orders.new\n  | two", "w > HPUB orders.new\n  Nats-Msg-Id: 2\n  | two")
    copy = "w > HPUB orders.new\n  Nats-Msg-Id: 2\n  | two\n"
    assert judged(tmp_path, clean, clean.replace(copy, copy + copy)).verdict is Verdict.PASSED


@pytest.mark.parametrize("how", ["", "  * made here\n  * cause: fault\n"])
def test_a_message_that_came_again_explains_one_copy(tmp_path: Path, how: str) -> None:
    again = WORKER.replace("w closed", f"w < MSG work 1\n{how}  | two\nw > PUB done\n  | two\nw closed")
    assert judged(tmp_path, WORKER, again).verdict is Verdict.PASSED
    three = again.replace("w closed", "w > PUB done\n  | two\nw closed")
    assert judged(tmp_path, WORKER, three).reasons == ("twice: 1 message of done: two",)


# -- others, and their order


def test_another_message_in_the_place_of_one_is_wrong(tmp_path: Path) -> None:
    other = judged(tmp_path, CLEAN, CLEAN.replace("| two", "| two-and-INFO"))
    assert other.reasons == (
        "lost: 1 message of orders.new: two",
        "in no clean run: 1 message of orders.new: two-and-INFO",
    )


def test_a_payload_with_bytes_of_the_protocol_in_it_is_wrong(tmp_path: Path) -> None:
    torn = CLEAN.replace("| two", '| twINFO {"server_id":"NB"}')
    lost = torn.replace("w opened", "w closed server-lost\nv opened").replace("w >", "v >")
    lost = "w opened\n" + lost.replace("w closed client", "v closed client")
    for text in (torn, lost, lost.replace("v > PUB orders.new\n  | three", "v > PUB orders.new\n  | two")):
        (reason,) = (one for one in judged(tmp_path, CLEAN, text).reasons if one.startswith("with"))
        assert reason.startswith("with the server's INFO in it: 1 message of orders.new: twINFO")
    assert judged(tmp_path, torn, torn).verdict is Verdict.PASSED


def test_a_word_about_the_failure_is_not(tmp_path: Path) -> None:
    said = CLEAN.replace("w closed", "w > PUB problems\n  | a connection was lost\nw closed")
    assert judged(tmp_path, CLEAN, said).verdict is Verdict.PASSED


def test_a_clock_may_send_more_of_the_same(tmp_path: Path) -> None:
    tick = "@ +20ms\nw > PUB tick\n  | .\n"
    clean = "w opened\n" + 3 * tick + "w closed client-closed\n"
    assert judged(tmp_path, clean, "w opened\n" + 9 * tick).verdict is Verdict.PASSED
    assert judged(tmp_path, clean, "w opened\n" + 2 * tick).verdict is Verdict.WRONG


def test_messages_in_another_order_are_wrong(tmp_path: Path) -> None:
    turned = CLEAN.replace("| one", "| x").replace("| two", "| one").replace("| x", "| two")
    assert judged(tmp_path, CLEAN, turned).reasons == ("out of order: 1 message of orders.new: one",)


def test_an_order_that_the_clean_runs_do_not_keep_does_not_count(tmp_path: Path) -> None:
    turned = CLEAN.replace("| one", "| x").replace("| two", "| one").replace("| x", "| two")
    runs = [run(tmp_path / f"{n}.nats.txt", text) for n, text in enumerate((CLEAN, turned))]
    last = CLEAN.replace("| three", "| x").replace("| two", "| three").replace("| x", "| two")
    one = run(tmp_path / "run.nats.txt", last, at=1)
    assert judge(Baseline.of(runs), one, trial()).verdict is Verdict.PASSED


def test_messages_whose_causes_came_in_another_order_are_not_out_of_order(tmp_path: Path) -> None:
    turned = WORKER.replace("| one", "| x").replace("| two", "| one").replace("| x", "| two")
    assert judged(tmp_path, WORKER, turned).verdict is Verdict.PASSED


# -- baselines that differ


def baselines(tmp_path: Path, *texts: str) -> Baseline:
    return Baseline.of(
        [ProgramRun(0, 0.5, 30.0, capture(tmp_path / f"{n}.nats.txt", text)) for n, text in enumerate(texts)]
    )


def test_values_that_the_program_makes_up_are_no_difference(tmp_path: Path) -> None:
    texts = [
        CLEAN.replace("| two", f'json {{"id": "{one}"}}')
        for one in ("9f2b7c1e-53c1-4a7b-8f57-0f3c9a7d2e11", "07d5f0aa-92ab-41c3-b2d6-6f2f6f1f7c55")
    ]
    assert baselines(tmp_path, *texts).differs == []


def test_a_member_that_differs_between_clean_runs_is_left_out(tmp_path: Path) -> None:
    texts = [CLEAN.replace("| two", f'json {{"load": {load}, "n": 2}}') for load in (3, 4)]
    found = baselines(tmp_path, *texts)
    assert found.differs == ["/load of orders.new is not compared: it differs between two clean runs"]
    same = run(tmp_path / "run.nats.txt", texts[0].replace('"load": 3', '"load": 7'), at=1)
    assert judge(found, same, trial()).verdict is Verdict.PASSED
    other = run(tmp_path / "run.nats.txt", texts[0].replace('"n": 2', '"n": 9'), at=1)
    assert judge(found, other, trial()).verdict is Verdict.WRONG


def test_of_texts_that_differ_the_number_is_compared(tmp_path: Path) -> None:
    found = baselines(tmp_path, CLEAN, CLEAN.replace("| two", "| zwei"))
    assert found.differs == [
        "of orders.new only the number is compared: two clean runs published other payloads"
    ]
    same = run(tmp_path / "run.nats.txt", CLEAN.replace("| two", "| dos"), at=1)
    assert judge(found, same, trial()).verdict is Verdict.PASSED
    fewer = run(tmp_path / "run.nats.txt", CLEAN.replace("w > PUB orders.new\n  | two\n", ""), at=1)
    assert judge(found, fewer, trial()).verdict is Verdict.WRONG


def test_subjects_with_another_number_of_messages_are_left_out(tmp_path: Path) -> None:
    more = CLEAN.replace("w closed", "w > PUB status\n  | up\nw closed")
    found = baselines(tmp_path, CLEAN, more)
    assert found.differs == ["status is not compared: two clean runs published 0 and 1 messages"]
    assert judge(found, run(tmp_path / "run.nats.txt", more, at=1), trial()).verdict is Verdict.PASSED


def test_exit_codes_that_differ_are_said(tmp_path: Path) -> None:
    runs = [run(tmp_path / f"{n}.nats.txt", CLEAN, code=n) for n in range(2)]
    found = Baseline.of(runs)
    assert found.differs == ["the exit code differs between clean runs: 0, 1"]
    assert (
        judge(found, run(tmp_path / "run.nats.txt", CLEAN, at=1, code=1), trial()).verdict is Verdict.PASSED
    )


def test_a_publish_that_the_proxy_doubled_or_changed_went_on(tmp_path: Path) -> None:
    came = "w > PUB orders.new _INBOX.a.1\n"
    left = f'{came}  * made here\n  * cause: fault\n  * extra: {{"of": 2}}\n  | one\n'
    doubled = STORED.replace(
        f"{came}  | one\n", f"{came}  * not passed\n  * in: 2\n  * cause: fault\n  | one\n{left}{left}"
    )
    assert doubled.count("made here") == 2
    assert judged(tmp_path, STORED, doubled).verdict is Verdict.PASSED


def test_the_second_of_two_doubled_messages_is_a_copy(tmp_path: Path) -> None:
    came = "w < MSG work 1\n"
    left = f'{came}  * made here\n  * cause: fault\n  * extra: {{"of": 1}}\n  | two\n'
    doubled = WORKER.replace(
        f"{came}  | two\n", f"{came}  * not passed\n  * in: 1\n  * cause: fault\n  | two\n{left}{left}"
    )
    found = traffic(capture(tmp_path / "doubled.nats.txt", doubled))
    assert [one.made for one in found.got] == [False, False, True]
    assert found.touched == []
    again = doubled.replace("w closed", "w > PUB done\n  | two\nw closed")
    assert judged(tmp_path, WORKER, again).verdict is Verdict.PASSED


def test_what_happens_before_the_fault_is_not_due_to_it(tmp_path: Path) -> None:
    again = CLEAN.replace("  | two\n", "  | two\nw > PUB orders.new\n  | two\n")
    turned = CLEAN.replace("| one", "| x").replace("| two", "| one").replace("| x", "| two")
    for text in (again, turned):
        assert judged(tmp_path, CLEAN, text, at=6).verdict is Verdict.PASSED
        assert judged(tmp_path, CLEAN, text, at=2).verdict is Verdict.WRONG
        assert judged(tmp_path, CLEAN, text, at=None).verdict is Verdict.FLAKY


def test_what_a_program_makes_of_fewer_core_messages_may_differ(tmp_path: Path) -> None:
    clean = WORKER.replace("w closed", "w > PUB count\n  | 2\nw closed")
    less = clean.replace("  | two\nw > PUB done\n  | two\n", "  * not passed\n  * cause: fault\n  | two\n")
    assert judged(tmp_path, clean, less.replace("| 2", "| 1")).verdict is Verdict.PASSED
    wrong = judged(tmp_path, clean, clean.replace("| 2", "| 1"))
    assert wrong.reasons == ("lost: 1 message of count: 2", "in no clean run: 1 message of count: 1")
