"""The proof on a real server: the recorded clients are replayed with their blocks, and without each line.

Each replay has a server of its own, with nothing stored.  Each client connects as the user of its label; a
recorded account is one of the server's.  Replays without a line end at the first violation that the line
would have prevented.
"""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from natsproxy.addresses import Address
from natsproxy.capture.format.connection import ConnectionId
from natsproxy.permissions.formats import GLOBAL_ACCOUNT, permission_lines
from natsproxy.permissions.needs import ClientNeeds
from natsproxy.permissions.proof import (
    RESPONSES,
    LineProof,
    LineVerdict,
    PermissionProof,
    Violation,
    prevents,
    unneeded,
    violation,
)
from natsproxy.permissions.templates import MappedPermission
from natsproxy.permissions.uses import By, ClientDetails, clients, opened, uses
from natsproxy.processes.nats_server import NatsServer
from natsproxy.protocol.credentials import Credentials
from natsproxy.replay.client_playback.credentials import ReplayCredentials
from natsproxy.replay.client_playback.replay_job import ReplayJob, ReplayOptions
from natsproxy.units import SECOND

PATIENCE: Final = SECOND
"""The time (ns) that a frame waits for its requirements: a client that is not recorded will never answer."""
_HASTE: Final = (10, 1)
"""Divisors of that time where a line is missing: a denied frame is denied whether its requirements are met or
not, so most violations come at once; a line is unneeded only if none comes with patience."""
_UNASKED: Final = (
    "its requests did not come: another member of their queue got them, or whoever asked is not recorded"
)
_VERSION: Final = re.compile(r"Version:\s+(\S+)")


@dataclass(frozen=True, slots=True)
class _User:
    """A user of the server: the clients of a label in an account."""

    label: str
    account: str
    credentials: Credentials


class Prover:
    """Proves the blocks of captures.  patience: see `PATIENCE`."""

    def __init__(
        self,
        captures: Iterable[Path],
        needs: Iterable[ClientNeeds],
        by: By,
        *,
        patience: int = PATIENCE,
        executable: Path | None = None,
    ) -> None:
        self._needs = {need.label: need for need in needs}
        self._options = ReplayOptions(speed=None, patience=patience)
        self._executable = executable
        self._captures: dict[Path, dict[ConnectionId, _User]] = {}
        self._users: dict[tuple[str, str], _User] = {}
        self._responses: set[tuple[str, bytes]] = set()
        for path in captures:
            known = clients(opened([path]))
            self._captures[path] = {conn: self._user(client, by) for conn, client in known.items()}
            self._responses |= {
                (use.client.label(by), use.subject) for use in uses(opened([path]), known) if use.response
            }

    def _user(self, client: ClientDetails, by: By) -> _User:
        key = client.label(by), client.account or GLOBAL_ACCOUNT
        if key not in self._users:
            login = Credentials(user=f"user-{len(self._users)}", password=secrets.token_hex(16))
            self._users[key] = _User(*key, login)
        return self._users[key]

    async def prove(self) -> PermissionProof:
        """Return the proof.

        Raises NatsproxyError where a server does not start or a capture cannot be played.
        """
        proof = PermissionProof(self._responses)
        for path in self._captures:
            for found in await self._replay(path, proof=proof):
                proof.saw(found, self._needs[found.label])
        if not proof.violations:
            for need in self._needs.values():
                for line in [*need.lines, *([RESPONSES] if need.responses is not None else [])]:
                    proof.lines.append(await self._without(need, line, proof))
        return proof

    async def _without(self, need: ClientNeeds, line: MappedPermission, proof: PermissionProof) -> LineProof:
        for path, haste in product(self._captures, _HASTE):
            for found in await self._replay(path, need, line, proof=proof, haste=haste):
                if self._prevents(need, line, found):
                    return LineProof(need.label, line, LineVerdict.NEEDED, found.text)
        if line == RESPONSES and any(label == need.label for label, _ in proof.unasked):
            return LineProof(need.label, line, LineVerdict.UNPROVED, _UNASKED)
        return unneeded(need, line)

    def _prevents(self, need: ClientNeeds, line: MappedPermission, found: Violation) -> bool:
        if line == RESPONSES:
            return found.label == need.label and (found.label, found.place.subject) in self._responses
        return prevents(need, line, found)

    async def _replay(
        self,
        path: Path,
        need: ClientNeeds | None = None,
        line: MappedPermission | None = None,
        *,
        proof: PermissionProof,
        haste: int = 1,
    ) -> list[Violation]:
        """Replay a capture without a line, or with all of them; return the violations."""
        users = self._captures[path]
        found: list[Violation] = []

        def refused(conn: ConnectionId, text: str) -> bool:
            one = violation(users[conn].label, text)
            if one is None or (one.label, one.place.subject) in proof.unasked:
                return False
            found.append(one)
            return need is not None and line is not None and self._prevents(need, line, one)

        login = ReplayCredentials(connections={conn: user.credentials for conn, user in users.items()})
        patience = self._options.patience // haste
        options = replace(self._options, credentials=login, refused=refused, patience=patience)
        job = ReplayJob(path, options)
        config = "\n".join(self._config(need, line))
        with NatsServer(config, jetstream=True, executable=self._executable) as server:
            await job.run(Address("127.0.0.1", server.port))
            if need is None:
                facts = job.facts()
                version = _VERSION.search(server.log())
                proof.server = version[1] if version else ""
                proof.frames += facts["frames"]
                proof.connections += facts["connections"]
        return found

    def _config(self, need: ClientNeeds | None, line: MappedPermission | None) -> Iterator[str]:
        accounts: defaultdict[str, list[_User]] = defaultdict(list)
        for user in self._users.values():
            accounts[user.account].append(user)
        yield "authorization: { users: ["
        for user in accounts.pop(GLOBAL_ACCOUNT, []):
            yield from self._user_lines(user, need, line)
        yield "] }"
        if accounts:
            yield "accounts: {"
            for name, users in accounts.items():
                yield f'"{name}": {{ jetstream: enabled, users: ['
                for user in users:
                    yield from self._user_lines(user, need, line)
                yield "] }"
            yield "}"

    def _user_lines(
        self, user: _User, need: ClientNeeds | None, line: MappedPermission | None
    ) -> Iterator[str]:
        own = self._needs[user.label]
        permissions: dict[str, Any] = own.permissions(
            without=line if own is need else None, responses=own is not need or line != RESPONSES
        )
        login = user.credentials
        yield f'{{ user: "{login.user}", password: "{login.password}", permissions: {{'
        yield from permission_lines(permissions, lambda verb, entry: "")
        yield "} }"
