"""The parts of a session that decide together about a frame."""

from __future__ import annotations

from typing import NamedTuple

from natsproxy.session.connection import ConnectionState
from natsproxy.session.deliveries import Deliveries
from natsproxy.session.fences import PongQueue
from natsproxy.session.rule_runner import RuleRunner


class Parts(NamedTuple):
    """The state of one connection, and those who change it."""

    state: ConnectionState
    pongs: PongQueue
    deliveries: Deliveries
    runner: RuleRunner
