"""The proof of blocks on a real server: each verdict, and the opposite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from natsproxy.capture.format.records import Item
from natsproxy.permissions.needs import ClientNeeds, needs_of
from natsproxy.permissions.proof import PermissionProof, violation
from natsproxy.permissions.proving import Prover
from natsproxy.permissions.uses import By
from natsproxy.protocol.errors import publish_denied
from natsproxy.units import SECOND
from tests.permissions.kit import NUID, Sent, connect, items, msg, pub, segments, sub

pytestmark = pytest.mark.server
REPLY = b"_INBOX.%b.1" % NUID
ASKED: list[tuple[int, Sent]] = [
    (1, connect("server")),
    (1, sub(b"ask.>")),
    (2, connect("client")),
    (2, sub(b"_INBOX.%b.*" % NUID)),
    (2, pub(b"ask.it", REPLY)),
    (1, msg(b"ask.it", REPLY)),
    (1, pub(REPLY)),
    (2, msg(REPLY)),
]


def _recorded(folder: Path, found: list[Item]) -> tuple[list[Path], list[ClientNeeds]]:
    paths = segments(folder, found, 999)
    return paths, needs_of(paths, By.NAME)


async def _proof(paths: list[Path], needs: list[ClientNeeds]) -> PermissionProof:
    return await Prover(paths, needs, By.NAME, patience=SECOND).prove()


def _verdicts(proof: PermissionProof) -> list[str]:
    return [f"{one.verdict} {one.label} {str(one.line) or 'responses'}" for one in proof.lines]


async def test_each_line_is_needed(tmp_path: Path) -> None:
    proof = await _proof(*_recorded(tmp_path, items(ASKED)))
    assert proof.violations == []
    assert _verdicts(proof) == [
        "needed client ask.it",
        "needed client _INBOX.>",
        "needed server ask.>",
        "needed server responses",
    ]
    assert proof.server.startswith("2.")
    assert next(proof.texts()).startswith("proof: no permissions violation in 4 frames of 2 connections")


async def test_a_block_without_a_line_fails(tmp_path: Path) -> None:
    paths, needs = _recorded(tmp_path, items(ASKED))
    gone = next(iter(needs[0].lines))
    proof = await _proof(paths, [replace(needs[0], lines=dict(list(needs[0].lines.items())[1:])), needs[1]])
    assert [(one.label, one.place) for one in proof.violations] == [("client", gone)]
    assert proof.lines == []
    assert "proof: failed" in next(proof.texts())
    assert proof.facts()["passed"] is False


async def test_a_line_that_nobody_misses_is_unneeded(tmp_path: Path) -> None:
    paths, needs = _recorded(tmp_path, items(ASKED))
    ((place, evidence),) = [row for row in needs[0].lines.items() if row[0].subject == b"ask.it"]
    more = {place._replace(subject=b"never"): evidence, place._replace(subject=b"ask.*"): evidence}
    proof = await _proof(paths, [replace(needs[0], lines={**needs[0].lines, **more}), needs[1]])
    reasons = {str(one.line): one.reason for one in proof.lines if one.verdict == "unneeded"}
    assert reasons == {
        "never": "the replay without it met no violation",
        "ask.it": "ask.* allows it",
        "ask.*": "the replay without it met no violation",
    }


async def test_an_answer_to_a_client_that_is_not_recorded_is_not_proved(tmp_path: Path) -> None:
    proof = await _proof(*_recorded(tmp_path, items([row for row in ASKED if row[0] == 1])))
    assert proof.violations == []
    assert _verdicts(proof) == ["needed server ask.>", "not proved server responses"]


@pytest.mark.parametrize("by", [By.ACCOUNT, By.NAME])
async def test_clients_of_accounts_stay_in_their_accounts(by: By, tmp_path: Path) -> None:
    """Both subscribe to one subject; in one account each would get the other's messages."""
    found: list[tuple[int, Sent]] = []
    for conn, account in ((1, b"A"), (2, b"B")):
        found += [
            (conn, connect(f"of {account.decode()}")),
            (conn, ("<", b'INFO {"remote_account":"%b"}\r\n' % account)),
            (conn, sub(b"x")),
            (conn, pub(b"x")),
            (conn, msg(b"x")),
        ]
    paths = segments(tmp_path, items(found), 999)
    needs = needs_of(paths, by)
    assert [need.label for need in needs] == (["A", "B"] if by == By.ACCOUNT else ["of A", "of B"])
    proof = await Prover(paths, needs, by, patience=SECOND).prove()
    assert proof.violations == []
    assert {one.verdict for one in proof.lines} == {"needed"}
    assert len(proof.lines) == 4


def test_a_publish_among_the_choices_fails_no_block(tmp_path: Path) -> None:
    create = pub(b"$JS.API.CONSUMER.CREATE.S", b"", b'{"config":{"flow_control":true}}')
    _, (need,) = _recorded(tmp_path, items([(1, connect("it")), (1, create)]))
    proof = PermissionProof()
    for subject in ("$JS.FC.S.C.aB3dE5gH", "$JS.FC.T.C.aB3dE5gH"):
        found = violation("it", publish_denied(subject.encode()))
        assert found is not None
        proof.saw(found, need)
    assert [str(one.place) for one in proof.violations] == ["$JS.FC.T.C.aB3dE5gH"]
    assert 'choice: it needed "$JS.FC.S.*.*" in the replay' in "\n".join(proof.texts())


def test_other_errors_are_no_violations() -> None:
    assert violation("it", "Stale Connection") is None
