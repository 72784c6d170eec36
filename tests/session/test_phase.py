"""Phases: complete tables, last phases that nothing leaves, and the phases of a usual connection."""

from __future__ import annotations

import pytest

from natsproxy.session.phase import (
    FIRST_STOPPED,
    PIPE_TRANSITIONS,
    TRANSITIONS,
    Lifecycle,
    Phase,
    PhaseEvent,
    PipeEvent,
    PipePhase,
)
from natsproxy.session.session import Session
from natsproxy.wire.ops import C2S
from tests.session.playbook import CONNECT, INFO, Playbook


def test_every_phase_has_a_row() -> None:
    assert set(TRANSITIONS) == set(Phase)
    assert set(PIPE_TRANSITIONS) == set(PipePhase)


def test_every_phase_can_end_and_nothing_leaves_the_last() -> None:
    for phase, row in TRANSITIONS.items():
        assert row == {} if phase is Phase.OVER else row[PhaseEvent.END] is Phase.OVER
    for pipe_phase, pipe_row in PIPE_TRANSITIONS.items():
        if pipe_phase >= PipePhase.ENDED:
            assert pipe_row == {}
        else:
            assert pipe_row[PipeEvent.END] >= PipePhase.ENDED > FIRST_STOPPED


def lifecycle_of(session: Session) -> Lifecycle:
    return session.lifecycle


@pytest.mark.parametrize(
    ("first", "second", "between"),
    [("server", "client", Phase.GREETED), ("client", "server", Phase.EARLY)],
)
def test_a_connection_is_ready_at_its_first_pong(first: str, second: str, between: Phase) -> None:
    """INFO and CONNECT may come in either order; a PONG before both means nothing."""
    play = Playbook()
    state = lifecycle_of(play.session)
    phases = [state.phase]
    for side in (first, second):
        play.server(INFO) if side == "server" else play.client(CONNECT)
        phases.append(state.phase)
    play.client(b"PING\r\n").server(b"PONG\r\n")
    phases.append(state.phase)
    assert phases == [Phase.OPENED, between, Phase.CONNECTED, Phase.READY]
    play.session.stop()
    assert play.session.over


def test_a_port_that_is_not_for_clients_is_refused() -> None:
    play = Playbook().server(b'INFO {"leafnode_urls":["127.0.0.1:7422"]} \r\n')
    assert lifecycle_of(play.session).phase is Phase.REFUSED


def test_a_stream_that_is_not_nats_is_not_framed_any_more() -> None:
    play = Playbook(unparsed="pass").greeted()
    play.client(b"BOGUS\r\n")
    assert play.session.pipes[C2S].phase is PipePhase.UNFRAMED
    play.eof(C2S)
    assert play.session.pipes[C2S].phase is PipePhase.UNFRAMED_ENDED
