"""The values of a connection that its two directions share."""

from __future__ import annotations

from dataclasses import dataclass

from natsproxy.capture.filter.redact import Secrets
from natsproxy.session.actions import Action, SessionSettings
from natsproxy.session.budget import Budget


@dataclass(frozen=True, slots=True)
class PipeContext:
    """The values that both pipes of a connection get.

    conn: its number, in events and records.  record: whether records are made from the start.  budget: of all
    connections.  secrets: of both directions, because an answer is secret where its request was.  actions:
    the list that all parts of the session append to.
    """

    settings: SessionSettings
    conn: int
    record: bool
    budget: Budget
    secrets: Secrets
    actions: list[Action]
