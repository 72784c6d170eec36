"""The cost of rules, in sessions in memory (scanner and rules; no sockets): frames per second and memory.

Figures are of one core and of processor time; ratios hold better than figures.  `rules_live` asks the same
through sockets.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from natsproxy.rules.engine.chain import RuleChain
from natsproxy.rules.file.parser import load
from natsproxy.rules.interface import Chain, EmptyChain
from natsproxy.rules.kinds import KINDS
from natsproxy.session.session import Session
from natsproxy.session.values import Send, SessionSettings
from natsproxy.wire.ops import C2S, S2C, Direction
from natsproxy.wire.scanner import COMPILED
from tests.benchmarks import rules_live

FRAMES = 400_000
CHUNK = 65536
GREETING = b'INFO {"server_id":"S","version":"2.15.1","headers":true,"max_payload":1048576} \r\n'
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"name":"bench"}\r\nPING\r\n'


def session(chain: Chain) -> Session:
    """Return a session past its greeting."""
    made = Session(SessionSettings(), chain, conn=1, ordinal=1, address="127.0.0.1:1", record=False, now=0)
    made.receive(S2C, GREETING, 0)
    made.receive(C2S, CONNECT, 0)
    made.receive(S2C, b"PONG\r\n", 0)
    return made


def chunks(subjects: Iterable[bytes], form: bytes) -> Iterator[bytes]:
    """Yield chunks of frames as a socket would."""
    data = bytearray()
    for subject in subjects:
        data += form % subject
        if len(data) >= CHUNK:
            yield bytes(data)
            data.clear()
    yield bytes(data)


PUB = b"PUB %s 16\r\n0123456789abcdef\r\n"
HPUB = b"HPUB %s 18 34\r\nNATS/1.0\r\nA: b\r\n\r\n0123456789abcdef\r\n"
ASK = b"MSG svc 1 %s 16\r\n0123456789abcdef\r\n"
MSG = b"MSG %s 1 16\r\n0123456789abcdef\r\n"


def rate(chain: Chain, subjects: list[bytes], direction: Direction = C2S, form: bytes = PUB) -> float:
    """Return frames per second of one direction."""
    data = list(chunks(subjects, form))
    made = session(chain)
    began = time.process_time()
    for chunk in data:
        made.receive(direction, chunk, 0)
    return len(subjects) / (time.process_time() - began)


def answers(chain: Chain, count: int = 100_000) -> float:
    """Return requests per second of a service: each comes as a MSG and is answered by a PUB."""
    made = session(chain)
    made.receive(C2S, b"SUB svc 1\r\n", 0)
    inboxes = [b"_INBOX.abcdefghijklmnopqrstuv.%d" % n for n in range(count)]
    data = [
        tuple(b"".join(form % inbox for inbox in inboxes[at : at + 500]) for form in (ASK, PUB))
        for at in range(0, count, 500)
    ]
    began = time.process_time()
    for asked, answered in data:
        made.receive(S2C, asked, 0)
        made.receive(C2S, answered, 0)
    return count / (time.process_time() - began)


def rules(text: str) -> RuleChain:
    """Return a chain."""
    return RuleChain(load(text, KINDS), seed=1)


def rule(kind: str, *lines: str, name: str = "r") -> str:
    """Return the text of a rule."""
    return "\n".join(["[[rules]]", f'name = "{name}"', f'kind = "{kind}"', *lines, ""])


def memory() -> int:
    """Return the peak resident memory in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def report(name: str, value: float, base: float) -> None:
    """Print one row."""
    print(f"{name:<58} {value / 1e6:8.2f} M/s {value / base:7.2f} of none  {memory():6d} MiB")


def latency(base: float) -> None:
    """Delay everything by 100 ms at 200,000 messages a second of simulated time."""
    made = session(rules(rule("latency", 'delay = "100ms"')))
    per_second, step = 200_000, 1_000_000
    chunk = PUB % b"a.b.c" * (per_second // 1000)
    sent, released, delays = 0, 0, []
    began, now = time.process_time(), 0
    pending: list[int] = []
    while now < 2_000_000_000:
        now += step
        actions = made.receive(C2S, chunk, now)
        pending += [now] * (per_second // 1000)
        sent += per_second // 1000
        actions += made.tick(now)
        for action in actions:
            if isinstance(action, Send) and action.direction == C2S:
                count = bytes(action.data).count(b"PUB ")
                delays += [now - at for at in pending[released : released + count]]
                released += count
    took = time.process_time() - began
    delays.sort()
    middle = delays[len(delays) // 2] / 1e6
    report(f"latency 100 ms on all: p50 {middle:.1f} ms, {sent - released} held", sent / took, base)


def main() -> None:
    """Print the table."""
    print(f"scanner: {'compiled' if COMPILED else 'pure Python'}; {FRAMES} frames of 16 bytes")
    same = [b"orders.eu.new.1"] * FRAMES
    many = [b"orders.eu.%d.x" % n for n in range(1_000_000)]
    base = rate(EmptyChain(), same)
    report("no rules, one subject", base, base)
    base_many = rate(EmptyChain(), many)
    report("no rules, 1 M subjects", base_many, base_many)
    thousand = "".join(rule("drop", f'subject = "orders.eu.no{n}.*"', name=f"r{n}") for n in range(1000))
    report("1,000 rules that match nothing, 1 M subjects", rate(rules(thousand), many), base_many)
    one = [b"orders.eu.hit" if n % 100 == 0 else b"orders.eu.miss" for n in range(FRAMES)]
    hit = 'subject = "orders.eu.hit"'
    report("a drop that fires on 1 % of frames", rate(rules(rule("drop", hit)), one), base)
    report("a header set on 1 % of frames", rate(rules(rule("headers", hit, 'set = { A = "b" }')), one), base)
    prefix = rule("rewrite", 'prefix = "tenant-a"')
    report("every PUB rewritten, one subject", rate(rules(prefix), same), base)
    report("every PUB rewritten, 1 M subjects", rate(rules(prefix), many), base_many)
    thousand_subjects = [b"orders.eu.%d.x" % (n % 1000) for n in range(FRAMES)]
    report("every PUB rewritten, 1,000 subjects", rate(rules(prefix), thousand_subjects), base)
    back = [b"tenant-a.orders.eu.new.1"] * FRAMES
    report("every MSG rewritten back, one subject", rate(rules(prefix), back, S2C, MSG), base)
    report(
        "every PUB dropped with probability 0.01",
        rate(rules(rule("drop", 'op = "PUB"', "probability = 0.01")), same),
        base,
    )
    report(
        "every MSG dropped with probability 0.01",
        rate(rules(rule("drop", 'op = "MSG"', "probability = 0.01")), same, S2C, MSG),
        base,
    )
    allow = rule("permissions", 'publish = "orders.>"')
    report("permissions that allow everything, HPUB", rate(rules(allow), same, C2S, HPUB), base)
    report("permissions that allow everything", rate(rules(allow), many), base_many)
    report("permissions that deny everything", rate(rules(rule("deny", 'subject = "orders.>"')), same), base)
    report(
        "a limit that nothing exceeds", rate(rules(rule("limit", 'messages = "1000000000/s"')), same), base
    )
    report(
        "a limit that drops nearly all",
        rate(rules(rule("limit", 'messages = 1\naction = "drop"')), same),
        base,
    )
    report("a service that answers requests, no rules", answers(EmptyChain()), base)
    responses = rule("permissions", 'publish = "x"', "allow_responses = true")
    report("a service that answers requests, allow_responses", answers(rules(responses)), base)
    latency(base)
    rules_live.main()


if __name__ == "__main__":
    main()
