"""Causes: what counts as one, and its stable name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from natsproxy.sweep.causes import FailureCause, cause_of
from natsproxy.sweep.stack_place import stack_place
from natsproxy.sweep.values import Judgement, Verdict
from tests.sweep.conversations import run, trial

TASKS = """python worker.py

Task Task-1 (most recent call last):
  File "/home/a/worker.py", line 30, in main
  File "/usr/lib/python3.11/site-packages/nats/js/client.py", line 180, in publish_async_completed
  File "/usr/lib/python3.11/asyncio/locks.py", line 214, in wait

Task nats-reader (most recent call last):
  File "/usr/lib/python3.11/site-packages/nats/aio/client.py", line 2100, in _read_loop
  File "/usr/lib/python3.11/asyncio/streams.py", line 694, in read

Fatal Python error: Aborted

Current thread 0x00007f00 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 468 in select
  File "/usr/lib/python3.11/asyncio/runners.py", line 190 in run
  File "/home/a/worker.py", line 40 in <module>
"""
THREADS = """python worker.py
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/home/a/worker.py", line 5 in waits_too

Current thread 0x00007f00 (most recent call first):
  File "/home/a/worker.py", line 7 in waits_forever
  File "/home/a/worker.py", line 9 in <module>
"""
NODE = """node worker.js
Error: JavaScript Callstack
    at processTicksAndRejections (node:internal/process/task_queues:95:5)
    at async Worker.take (file:///home/a/worker.js:12:9)
    at Object.<anonymous> (/home/a/worker.js:40:1)
waits for: tcp
"""
GO = """worker
goroutine 1 [select]:
runtime.gopark(0x0, 0x0)
\t/usr/local/go/src/runtime/proc.go:398 +0xce
github.com/nats-io/nats.go/jetstream.(*pullSubscription).Next(0xc000)
\t/home/a/go/pkg/mod/github.com/nats-io/nats.go@v1.48.0/jetstream/pull.go:500 +0x25
main.main()
\t/home/a/worker.go:31 +0x1d
"""
JAVA = """java Worker
"main" #1 prio=5 os_prio=0 runnable
   java.lang.Thread.State: WAITING
\tat java.lang.Object.wait(java.base@21/Native Method)
\tat io.nats.client.impl.NatsSubscription.nextMessage(NatsSubscription.java:120)
\tat Worker.main(Worker.java:14)
"""


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        (TASKS, "publish_async_completed (client.py)"),
        (THREADS, "waits_forever (worker.py)"),
        (NODE, "async Worker.take (worker.js)"),
        (GO, "github.com/nats-io/nats.go/jetstream.(*pullSubscription).Next (pull.go)"),
        (JAVA, "io.nats.client.impl.NatsSubscription.nextMessage (NatsSubscription.java)"),
        ("node worker.js\nwaits for: tcp\n", ""),
        ("", ""),
    ],
)
def test_the_innermost_call_that_is_not_the_runtimes(stack: str, place: str) -> None:
    assert stack_place(stack) == place


def test_line_numbers_are_left_out() -> None:
    moved = re.sub(r"line \d+", "line 1", TASKS)
    assert stack_place(moved) == stack_place(TASKS)


def cause(
    tmp_path: Path, *, stack: str = "", state: str = "", of: str = "", fault: str = "drop"
) -> FailureCause:
    one = run(tmp_path / "run.nats.txt", "w opened", code=None, at=1, stack=stack)
    made = trial(fault, what="publish-ack", subject="orders.*", state=state, of=of)
    return cause_of(made, Judgement(Verdict.HUNG), one)


def test_variants_of_a_fault_are_one_cause_and_other_faults_are_not(tmp_path: Path) -> None:
    assert cause(tmp_path, fault="late-500ms") == cause(tmp_path, fault="late-5000ms")
    assert cause(tmp_path, fault="late-500ms") != cause(tmp_path, fault="drop")


def test_where_the_program_is_counts_and_the_state_only_where_that_is_not_known(tmp_path: Path) -> None:
    assert cause(tmp_path, stack=TASKS, state="a") == cause(tmp_path, stack=TASKS, state="b")
    assert cause(tmp_path, stack=TASKS) != cause(tmp_path, stack=THREADS)
    assert cause(tmp_path, state="first, login") != cause(tmp_path, state="first, 2 requests")
    assert cause(tmp_path, state="first, login") == cause(tmp_path, state="last, login")


def test_names_are_stable_and_unique(tmp_path: Path) -> None:
    assert cause(tmp_path, of="orders").name == "hung-drop-publish-ack-of-orders"
    assert (
        cause(tmp_path, of="orders", stack=TASKS).name
        == "hung-drop-publish-ack-of-orders-in-publish_async_completed"
    )
    assert cause(tmp_path, state="a").name != cause(tmp_path, state="b").name


@pytest.mark.parametrize("of", ["../../etc", "ö\u202e", "a\nb", "x" * 500, "-rf", "<script>"])
def test_hostile_subjects_make_harmless_names(of: str, tmp_path: Path) -> None:
    names = {cause(tmp_path, of=of).name, cause(tmp_path, of=of + "!").name}
    assert len(names) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) for name in names)
