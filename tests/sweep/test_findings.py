"""Findings: trials in groups, the least of each, and the file of those that are accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from natsproxy.errors import ConfigError
from natsproxy.sweep.causes import Judged
from natsproxy.sweep.findings import accept, group, read_accepted
from natsproxy.sweep.values import Judgement, ProgramRun, Trial, Verdict
from tests.sweep.conversations import deaf, run, trial

ORDERED = """
w opened
w > CONNECT {"name":"worker"}
w > SUB _INBOX.o 1
w < HMSG _INBOX.o 1
  NATS/1.0 100 Idle Heartbeat
w < HMSG _INBOX.o 1
  NATS/1.0 100 Idle Heartbeat
"""


def judged(made: Trial, one: ProgramRun, verdict: Verdict = Verdict.HUNG, **facts: Any) -> Judged:
    return Judged(made, Judgement(verdict, ("lost: 1 message of done: two",)), one, **facts)


def at(t: int, **facts: Any) -> Trial:
    made = trial(**facts)
    return made._replace(place=made.place._replace(t=t))


def test_trials_of_one_cause_are_one_finding_with_the_earliest_as_the_least(tmp_path: Path) -> None:
    one = run(tmp_path / "run.nats.txt", ORDERED, code=None, at=3)
    later, earlier = judged(at(9, n=3), one), judged(at(4, n=2), one)
    other = judged(at(1, what="pull"), one)
    passed = judged(at(0), one, Verdict.PASSED)
    found = group([later, passed, earlier, other])
    assert [(len(finding.members), finding.least) for finding in found] == [(1, other), (2, earlier)]
    assert [finding.title[:3] for finding in found] == ["01-", "02-"]


def test_the_least_trial_is_one_that_failed_every_time(tmp_path: Path) -> None:
    one = run(tmp_path / "run.nats.txt", ORDERED, code=None, at=3)
    sure = judged(at(9), one, runs=5, same=5, confirmed=True)
    (found,) = group([judged(at(1), one), sure])
    assert (found.least, found.rate) == (sure, (5, 5))


def test_the_sentence_of_a_deaf_consumer(tmp_path: Path) -> None:
    one = run(tmp_path / "run.nats.txt", ORDERED, code=None, at=3, open=deaf(alive=False, unread=70))
    made = trial("cut", what="delivery", direction="s2c", of="ORDERS/worker")
    (found,) = group([judged(made, one, Verdict.DEAF)])
    assert found.sentence == (
        "After the connection is cut at the 1st delivery of ORDERS/worker to client worker, the program "
        "stays connected, gets heartbeats and never a message and sends nothing, answers no PING, "
        "leaves 70 bytes unread, and does not end in 30 s."
    )


def test_the_sentence_of_a_wrong_result(tmp_path: Path) -> None:
    made = trial("late-500ms", what="publish-ack", direction="s2c", of="orders.*", key="#2")
    (found,) = group([judged(made, run(tmp_path / "run.nats.txt", ORDERED, at=3), Verdict.WRONG)])
    assert found.sentence == (
        "After the 1st publish ack of orders.* to connection #2 comes 500ms late, the program ends as if all "
        "were well (exit code 0), but not as in clean runs: lost: 1 message of done: two."
    )


def test_facts_are_json(tmp_path: Path) -> None:
    (found,) = group([judged(trial(), run(tmp_path / "run.nats.txt", ORDERED, code=None, at=3))])
    facts = json.loads(json.dumps(found.facts()))
    assert facts["trial"]["place"]["position"] == {
        "connection": "worker/1",
        "direction": "c2s",
        "what": "PUB",
        "subject": "orders.*",
        "n": 1,
    }
    assert facts["rate"] == {"failed": 1, "runs": 1}


def test_accepted_findings(tmp_path: Path) -> None:
    one = run(tmp_path / "run.nats.txt", ORDERED, code=None, at=3)
    found = group([judged(trial(what="pull"), one), judged(trial(), one)])
    path = tmp_path / "accepted"
    path.write_text(f"# {found[0].sentence}\n{found[0].name}\ngone # of last year\n\n")
    names = read_accepted(path)
    assert accept(found, names) == (found[1:], ["gone"])
    assert accept(found, []) == (found, [])


@pytest.mark.parametrize("verdicts", [(Verdict.HUNG, Verdict.DEAF), (Verdict.DEAF, Verdict.HUNG)])
def test_a_program_that_never_ends_is_known_as_hung_and_as_deaf(
    verdicts: tuple[Verdict, Verdict], tmp_path: Path
) -> None:
    """Its state is a part of the name, which is cut short; a wrong result is another finding."""
    one = run(tmp_path / "run.nats.txt", ORDERED, code=None, at=3)
    made = trial(of="orders." + 20 * "long.", state="first, 1 subscribed")
    first, second = (group([judged(made, one, verdict)]) for verdict in verdicts)
    assert first[0].name != second[0].name
    assert accept(second, [first[0].name]) == ([], [])
    wrong = group([judged(made, one, Verdict.WRONG)])
    assert accept(wrong, [first[0].name]) == (wrong, [first[0].name])


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the accepted findings in .*/none cannot be read"):
        read_accepted(tmp_path / "none")
