"""The toxics of one proxy: those of its own types in the chains of its connections, the others as rules.

A change acts on open connections at once.  Whether a toxic acts on a connection is drawn once, and again when
the toxic is changed; the draw is seeded by the proxy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import trio

from natsproxy.admin.toxiproxy import nats_toxics
from natsproxy.admin.toxiproxy.go_json import (
    Read,
    ToxiproxyError,
    bad_body,
    fields,
    first_value,
    number,
    table,
    text,
    whole,
)
from natsproxy.admin.toxiproxy.stages import STAGES, ToxicChain, ToxicStage
from natsproxy.admin.toxiproxy.toxic_leg import Flow, ToxicLeg, ToxicTraffic
from natsproxy.errors import ConfigError
from natsproxy.net.clock import now_ns
from natsproxy.net.leg import AnyLeg
from natsproxy.net.rule_book import RuleBook
from natsproxy.protocol.gojson import fold
from natsproxy.rules.model.rule import Rule

STREAMS: Final = ("upstream", "downstream")
_NEW: Final[Mapping[str, Read]] = {
    "name": text,
    "type": text,
    "stream": text,
    "toxicity": number,
    "attributes": table,
}
_CHANGED: Final[Mapping[str, Read]] = {"toxicity": number, "attributes": table}


@dataclass(frozen=True)
class Toxic:
    """A toxic as a client created it."""

    name: str
    type: str
    stream: str
    toxicity: float
    attributes: Mapping[str, Any]

    @property
    def upstream(self) -> bool:
        """True if it acts on what clients send."""
        return self.stream.lower() == "upstream"

    @property
    def on_bytes(self) -> bool:
        """True if it is a stage of chains; else it is a rule."""
        return self.type in STAGES

    def as_json(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        toxicity = int(self.toxicity) if self.toxicity == int(self.toxicity) else self.toxicity
        return {
            "attributes": dict(self.attributes),
            "name": self.name,
            "type": self.type,
            "stream": self.stream,
            "toxicity": toxicity,
        }

    def rule(self) -> Rule | None:
        """Return it as a rule; None for one that acts on bytes.  Raises ToxiproxyError."""
        if self.on_bytes:
            return None
        try:
            stream = self.stream.lower()
            return nats_toxics.rule_of(self.name, self.type, stream, self.toxicity, self.attributes)
        except ConfigError as error:
            raise bad_body(str(error)) from None


class Toxics:
    """The toxics of one proxy, in order of creation.

    traffic: of both directions, upstream first.  seed: of all random choices.  end: ends a connection, by
    its number, for a toxic.  book: returns the rules of the proxy while it runs.
    """

    def __init__(
        self,
        seed: int,
        end: Callable[[int, str, bool], None],
        book: Callable[[], RuleBook | None],
    ) -> None:
        self.traffic = (ToxicTraffic(), ToxicTraffic())
        self._seed = seed
        self._end = end
        self._book = book
        self._toxics: dict[str, Toxic] = {}
        self._flows: dict[tuple[int, bool], Flow] = {}  # by connection, and whether they go upstream

    # -- requests of clients

    def all(self) -> list[Toxic]:
        """Return the toxics: those upstream first."""
        return sorted(self._toxics.values(), key=lambda toxic: not toxic.upstream)

    def get(self, name: str) -> Toxic:
        """Return a toxic.  Raises ToxiproxyError."""
        try:
            return self._toxics[name]
        except KeyError:
            raise ToxiproxyError(404, "toxic not found") from None

    def add(self, body: bytes) -> Toxic:
        """Add the toxic of a request.  Raises ToxiproxyError."""
        given = fields(first_value(body), _NEW)
        kind, stream = given.get("type", ""), given.get("stream", "downstream")
        if stream.lower() not in STREAMS:
            raise ToxiproxyError(400, "stream was invalid, can be either upstream or downstream")
        toxicity, attributes = given.get("toxicity", 1), given.get("attributes", {})
        if kind not in STAGES:
            if nats_toxics.kind_of(kind) is None:
                raise ToxiproxyError(400, "invalid toxic type")
            if "stream" not in given:
                stream = nats_toxics.stream_of(kind, toxicity, _attributes(kind, attributes))
        name = given.get("name") or f"{kind}_{stream}"
        if name in self._toxics:
            raise ToxiproxyError(409, "toxic already exists")
        toxic = Toxic(name, kind, stream, toxicity, _attributes(kind, attributes))
        self._put(toxic)
        for conn, flow in self._flows_of(toxic):
            flow.chain.add(name, self._stage(toxic, conn))
            flow.step()
        return toxic

    def change(self, name: str, body: bytes) -> Toxic:
        """Change attributes and toxicity as a request says.  Raises ToxiproxyError."""
        old = self.get(name)
        given = fields(first_value(body), _CHANGED)
        attributes = _attributes(old.type, given.get("attributes", {}), old.attributes)
        toxic = replace(old, toxicity=given.get("toxicity", old.toxicity), attributes=attributes)
        self._put(toxic)
        for conn, flow in self._flows_of(toxic):
            acts = self._random(toxic, conn).random() < toxic.toxicity
            flow.chain.get(name).change(attributes, acts, now_ns())
            flow.step()
        return toxic

    def remove(self, name: str) -> None:
        """Remove a toxic; bytes that it holds are sent.  Raises ToxiproxyError."""
        toxic, book = self.get(name), self._book()
        del self._toxics[name]
        if not toxic.on_bytes and book is not None and name in book.entries:  # else already removed
            book.remove(name)
        for _, flow in self._flows_of(toxic):
            flow.remove(name)

    def reset(self) -> None:
        """Remove all toxics."""
        for name in list(self._toxics):
            self.remove(name)

    def rules(self) -> list[Rule]:
        """Return the toxics that are rules."""
        return [rule for toxic in self._toxics.values() if (rule := toxic.rule()) is not None]

    def _put(self, toxic: Toxic) -> None:
        """Put a toxic in force, replacing one of its name.  Raises ToxiproxyError."""
        rule, book = toxic.rule(), self._book()
        if rule is not None and book is not None:
            if rule.name in book.entries and rule.name not in self._toxics:
                raise ToxiproxyError(409, "toxic already exists")
            try:
                book.put(rule)
            except ConfigError as error:
                raise bad_body(str(error)) from None
        self._toxics[toxic.name] = toxic

    # -- connections

    @asynccontextmanager
    async def layers(self, conn: int, client: AnyLeg, server: AnyLeg) -> AsyncIterator[tuple[AnyLeg, AnyLeg]]:
        """Put the toxics over the legs of a connection for the duration of the block."""

        def closed(chain: ToxicChain) -> None:
            for flow in flows:  # bytes still in a chain are dropped
                flow.released.set()
            self._end(conn, f"toxic {chain.closed_by}", chain.resets)

        flows = upward, downward = (
            Flow(server, self.traffic[0], closed),
            Flow(client, self.traffic[1], closed),
        )
        for toxic in self._toxics.values():
            if toxic.on_bytes:
                stage = self._stage(toxic, conn, fresh=True)
                (upward if toxic.upstream else downward).chain.add(toxic.name, stage)
        self._flows |= {(conn, True): upward, (conn, False): downward}
        try:
            async with trio.open_nursery() as nursery:
                for flow in flows:
                    nursery.start_soon(flow.run)
                yield ToxicLeg(client, upward, downward), ToxicLeg(server, downward, upward)
                nursery.cancel_scope.cancel()
        finally:
            del self._flows[conn, True], self._flows[conn, False]

    def _flows_of(self, toxic: Toxic) -> list[tuple[int, Flow]]:
        """Return the flows of open connections in which a toxic is a stage, and their connections."""
        flows = self._flows.items() if toxic.on_bytes else ()
        return [(conn, flow) for (conn, upstream), flow in flows if upstream == toxic.upstream]

    def _stage(self, toxic: Toxic, conn: int, *, fresh: bool = False) -> ToxicStage:
        random = self._random(toxic, conn)
        stage: ToxicStage = STAGES[toxic.type](toxic.attributes, random, now_ns())
        stage.active, stage.fresh = random.random() < toxic.toxicity, fresh
        return stage

    def _random(self, toxic: Toxic, conn: int) -> Random:
        return Random(f"{self._seed} {toxic} {conn}")  # noqa: S311 (a fault is no secret)


def _attributes(
    kind: str, given: Mapping[str, Any], before: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Return the attributes of a toxic, merged over those before.  Raises ToxiproxyError."""
    if kind in STAGES:
        names = STAGES[kind].ATTRIBUTES
        return {**(before or dict.fromkeys(names, 0)), **fields(given, dict.fromkeys(names, whole))}
    merged = dict(before or ({"loss_rate": 0.1, "correlation": 0} if kind == nats_toxics.PACKET_LOSS else {}))
    for key, value in given.items():
        if value is None:
            merged.pop(fold(key), None)
        else:
            merged[fold(key)] = value
    return merged
