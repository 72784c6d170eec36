"""The users of a proxy that logs in itself: passwords are checked against bcrypt hashes.

A check takes 50 to 100 ms of a processor, so it is done in a thread, and at most half of the processors do
checks: the others are for traffic.  bcrypt releases the interpreter lock meanwhile.  One check of a client
address waits or runs at a time, so a flood from one address keeps nobody else from logging in.

An unknown user is refused in the time that checking a known one takes, at each attempt: the password
is compared with the hash of another user.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from weakref import WeakValueDictionary

import trio

from natsproxy.errors import ConfigError
from natsproxy.protocol.redaction import without_seeds

_MOST = 72  # bytes of a password that bcrypt, and so nats-server, looks at

Check = Callable[[str, str, str], Awaitable[str | None]]
"""Maps a client's address, a user and a password to the reason for a refusal, None for none."""


class _Turn:
    """The turn of one client address."""

    def __init__(self) -> None:
        self.lock = trio.Lock()


class ClientUsers:
    """A table of users.

    hashes: by user name, at least one.  Raises ConfigError where the package bcrypt is missing.
    """

    def __init__(self, hashes: Mapping[str, bytes]) -> None:
        try:
            from bcrypt import checkpw  # needed by proxies with a table of users only
        except ImportError:
            text = "a table of users needs the package bcrypt: pip install 'natsproxy[identity]'"
            raise ConfigError(text) from None
        self._matches = checkpw
        self.load(hashes)
        self._salt = secrets.token_bytes(32)
        self._limiter = trio.CapacityLimiter(max(1, (os.cpu_count() or 1) // 2))
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()

    def load(self, hashes: Mapping[str, bytes]) -> None:
        """Put another table in the place of this one, for later logins."""
        self._hashes = dict(hashes)
        self._all = sorted(self._hashes.values())

    async def refusal(self, user: str, password: str, host: str) -> str | None:
        """Return why a client is not the user that it says it is, as a clause; None where it is.

        host: the address of the client.
        """
        known = self._hashes.get(user)
        expected = known or self._another(user)
        raw = password.encode("utf-8", "replace")[:_MOST]
        # A client that leaves does not wait for its check; the thread still counts until it is done.
        turn = self._turns.setdefault(host, _Turn())
        async with turn.lock:
            matches = await trio.to_thread.run_sync(
                self._matches, raw, expected, limiter=self._limiter, abandon_on_cancel=True
            )
        if known is None:
            return f"there is no user {without_seeds(user)!r}" if user else "the client named no user"
        return None if matches else f"a wrong password for the user {user!r}"

    def _another(self, user: str) -> bytes:
        number = int.from_bytes(blake2b(user.encode("utf-8", "replace"), key=self._salt).digest(), "big")
        return self._all[number % len(self._all)]
